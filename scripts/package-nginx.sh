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
# own dynamic loader (patchelf): its C library is newer, too.  The system's apt
# configuration is neither used nor changed (fetch-nginx.sh says how).  A second
# call is quiet and offline.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

release=${1:?"usage: $0 RELEASE"}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
here=$BUILD/nginx-package/$release
packages="nginx nginx-dev libc6 libcrypt1 libpcre2-8-0 libssl3t64 zlib1g libzstd1"

case "$release" in
    *[!a-z0-9-]*) fail "\"$release\" is no Debian release name" ;;
esac
if [ -e "$here/version" ]; then
    echo "$here"
    exit
fi

"$ROOT"/scripts/deps.sh package >&2
[ -r "$keyring" ] || fail "no $keyring: is this a Debian system?"
step "Fetching nginx's packages from Debian $release" >&2
rm -rf "$here"
mkdir -p "$here"/tree "$here"/apt/{lists,cache/archives}/partial
state=$here/apt
echo "deb [signed-by=$keyring] $mirror $release main" >"$state/sources.list"
apt() {
    apt-get -qq -o Dir::Etc::SourceList="$state/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::lists="$state/lists" \
        -o Dir::State::status=/dev/null \
        -o Dir::Cache="$state/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@" >&2
}
apt update
# shellcheck disable=SC2086 # a list of names
(cd "$state" && apt download $packages)
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
