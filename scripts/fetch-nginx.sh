#!/usr/bin/env bash
#
# Fetches nginx's source from Debian's archive and prints its directory.
#
#   scripts/fetch-nginx.sh [RELEASE]     bookworm (default), trixie, sid, ...
#
# The system's apt configuration is neither used nor changed (debian.sh).  A
# second call is quiet and offline.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/debian.sh"

release=${1:-bookworm}
home=$ROOT/build/nginx-src
here=$home/$release

debian_check "$release"

found() {
    find "$here" -maxdepth 1 -type d -name 'nginx-[0-9]*' 2>/dev/null | head -n 1
}

if [ -z "$(found)" ]; then
    command -v dpkg-source >/dev/null || fail "dpkg-source is missing:" \
        "scripts/deps.sh sanitize installs it"
    step "Fetching nginx's source from Debian $release" >&2
    mkdir -p "$here"
    state=$home/apt/$release
    debian_open deb-src "$release" "$state"
    (cd "$here" && debian_apt "$state" source --only-source nginx)
    rm -rf "$state"
fi
[ -n "$(found)" ] || fail "Debian $release gave no nginx source in $here"
found
