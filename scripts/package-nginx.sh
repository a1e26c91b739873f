#!/usr/bin/env bash
#
# Fetches the nginx that a Debian release has as a package, and what it needs
# to run here, and prints its directory:
#
#   scripts/package-nginx.sh RELEASE        trixie, sid, ...
#
#   DIR/nginx         the binary, which finds that release's libraries
#   DIR/version
#   DIR/tree/usr/share/nginx/src            of nginx-dev, to build a module with
#
# So a module can be tried on a newer nginx than this system has, and on one
# whose sources the archive no longer has.  The binary is run by the release's
# own dynamic loader (patchelf): its C library is newer, too.  This system stays
# as it is, but for patchelf (debian.sh).  A second call is quiet and offline.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/debian.sh"

release=${1:?"usage: $0 RELEASE"}
here=$BUILD/nginx-package/$release
packages="nginx nginx-dev libc6 libcrypt1 libpcre2-8-0 libssl3t64 zlib1g libzstd1"

debian_check "$release"
if [ -e "$here/version" ]; then
    echo "$here"
    exit
fi

"$ROOT"/scripts/deps.sh package >&2
step "Fetching nginx's packages from Debian $release" >&2
rm -rf "$here"
mkdir -p "$here/tree"
state=$here/apt
debian_open deb "$release" "$state"
# shellcheck disable=SC2086 # a list of names
(cd "$state" && debian_apt "$state" download $packages)
for deb in "$state"/*.deb; do
    dpkg -x "$deb" "$here/tree"
done
rm -rf "$state"

libraries=$here/tree/usr/lib/$(gcc -print-multiarch 2>/dev/null)
loader=$(find "$libraries" -maxdepth 1 -name 'ld-linux*' | head -n 1)
[ -n "$loader" ] || fail "the packages have no dynamic loader in $libraries"
cp "$here/tree/usr/sbin/nginx" "$here/nginx"
patchelf --set-interpreter "$loader" \
    --set-rpath "$libraries:${libraries#"$here/tree"}" "$here/nginx"
"$here/nginx" -v 2>"$here/said" || fail "the package's nginx does not run: $(
    cat "$here/said"
)"
sed 's/.*nginx\///' "$here/said" >"$here/version"
rm "$here/said"
echo "$here"
