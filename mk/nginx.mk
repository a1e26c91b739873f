# make test-nginx NGINX_SRC=DIR [DYNAMIC=0|1]
#                    build that nginx (1.22 or newer) with our module, static
#                    and dynamic (or only one), and run the end-to-end tests
#
# NGINX_SRC may also be debian:RELEASE (debian:trixie), whose source package is
# then fetched, or package:RELEASE: the binary that this release installs, with a
# module built for it.  DYNAMIC=0 is the static module only, DYNAMIC=1 the dynamic one.

NGINX_SRC ?=
DYNAMIC   ?=
E2E       ?=

.PHONY: test-nginx
test-nginx: deps
	@[ -n "$(NGINX_SRC)" ] || { echo "usage: make test-nginx" \
	    "NGINX_SRC=DIR|debian:RELEASE|package:RELEASE" \
	    "[DYNAMIC=0|1]" >&2; exit 2; }
	@$(MAKE) -s --no-print-directory -j$(JOBS) engine cli
	@B="$B" CC="$(CC)" JOBS="$(JOBS)" E2E="$(E2E)" \
	    scripts/test-nginx.sh "$(NGINX_SRC)" "$(DYNAMIC)"
