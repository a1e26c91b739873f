#!/usr/bin/env bash
#
# Fetches nginx's source from Debian's archive and prints its directory.
#
#   scripts/fetch-nginx.sh [RELEASE]     bookworm (default), trixie, sid, ...
#
# The system's apt configuration is neither used nor changed: a private list
# of sources and private caches live under build/nginx-src, and apt checks the
# archive's signature as it always does.  A second call is quiet and offline.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

release=${1:-bookworm}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
home=$ROOT/build/nginx-src
here=$home/$release

case "$release" in
    *[!a-z0-9-]*) fail "\"$release\" is no Debian release name" ;;
esac

found() {
    find "$here" -maxdepth 1 -type d -name 'nginx-[0-9]*' 2>/dev/null | head -n 1
}

if [ -z "$(found)" ]; then
    command -v dpkg-source >/dev/null || fail "dpkg-source is missing:" \
        "scripts/deps.sh sanitize installs it"
    [ -r "$keyring" ] || fail "no $keyring: is this a Debian system?"
    step "Fetching nginx's source from Debian $release" >&2
    mkdir -p "$here" "$home/apt/$release"/{lists,cache/archives}/partial
    state=$home/apt/$release
    echo "deb-src [signed-by=$keyring] $mirror $release main" \
        >"$state/sources.list"
    apt() {
        apt-get -qq -o Dir::Etc::SourceList="$state/sources.list" \
            -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::State::lists="$state/lists" \
            -o Dir::Cache="$state/cache" \
            -o APT::Sandbox::User="$(id -un)" \
            -o APT::Get::List-Cleanup=false "$@" >&2
    }
    apt update
    (cd "$here" && apt source --only-source nginx >/dev/null)
    rm -rf "$state"
fi
[ -n "$(found)" ] || fail "Debian $release gave no nginx source in $here"
found
