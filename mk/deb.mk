# Debian packages.  Included by the Makefile.
#
#   make deb         build/deb/*.deb, by debian/; tokenring-engine-cuda is among
#                    them where nvcc is found (DEB_CUDA= for none), with code
#                    for all architectures of mk/cuda.mk
#   make test-deb    install, upgrade, remove and purge them in a clean Debian
#                    that runs NGINX with a site of its own; as root, minutes

DEB_CUDA ?= $(NVCC_NEW)

.PHONY: deb test-deb
deb:
	@scripts/deps.sh deb
	@NVCC="$(if $(filter yes,$(DEB_CUDA)),$(NVCC))" scripts/deb.sh "$B/deb"
	@ls $B/deb/*.deb

test-deb: deb all
	@scripts/deps.sh test-deb
	@tests/packages/check "$B/deb"
