#!/usr/bin/env bash
#
# Builds an nginx with our module and runs the end-to-end tests against it.
#
#   scripts/test-nginx.sh SOURCE [0|1]      0: static only, 1: dynamic only
#
# SOURCE is a directory, or debian:RELEASE.  The builds stay in
# build/nginx-VERSION-static and build/nginx-VERSION-dynamic.  With
# package:RELEASE it is the nginx that this release has as a package, with a
# module built for it (package-nginx.sh).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

source=${1:?"usage: $0 SOURCE [0|1]"}
case "${2:-}" in
    0) links=static ;;
    1) links=dynamic ;;
    '') links='static dynamic' ;;
    *) fail "DYNAMIC is \"$2\", it can be 0 or 1" ;;
esac
case "$source" in
    package:*)
        [ "$links" != static ] || fail "a package's nginx has no module" \
            "built in: DYNAMIC=0 does not go with $source"
        here=$("$ROOT"/scripts/package-nginx.sh "${source#package:}")
        make -s --no-print-directory -C "$ROOT" B="$BUILD" \
            NGINX_DEV="$here/tree/usr/share/nginx/src" \
            MODULE_DIR="$here/module" module
        step "nginx $(cat "$here/version"), the package's: end-to-end tests"
        TR_NGINX=$here/nginx B=$BUILD \
            TR_MODULE=$here/module/ngx_http_tokenring_module.so \
            exec "$ROOT"/scripts/test.sh e2e
        ;;
    debian:*) source=$("$ROOT"/scripts/fetch-nginx.sh "${source#debian:}") ;;
esac
version=$(sed -n 's/^#define NGINX_VERSION *"\(.*\)"/\1/p' \
    "$source/src/core/nginx.h" 2>/dev/null || true)
[ -n "$version" ] || fail "$source is no nginx source tree"

status=0
for link in $links; do
    out=$BUILD/nginx-$version-$link
    "$ROOT"/scripts/build-nginx.sh "$source" "$out" "$link"
    module=static
    [ "$link" = static ] || module=$out/ngx_http_tokenring_module.so
    step "nginx $version, module $link: end-to-end tests"
    TR_NGINX=$out/nginx TR_MODULE=$module B=$BUILD \
        "$ROOT"/scripts/test.sh e2e || status=1
done
exit $status
