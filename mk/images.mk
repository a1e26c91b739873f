# make test-images   the steps of docker/Dockerfile in clean Debian roots, then
#                    the images themselves; as root, without a container engine
#
# Not part of `make test`: it takes minutes and installs Debian twice.

.PHONY: test-images
test-images: deps
	@scripts/deps.sh images
	@tests/docker/check
