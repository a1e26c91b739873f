#!/usr/bin/env bash
#
# Compares with include/tokenring/version.h what cannot take the version from
# there; prints what differs.  A new version is changed there first, and then
# where this says.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

version=$(sed -n 's/^#define TR_VERSION "\(.*\)"$/\1/p' \
    include/tokenring/version.h)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] \
    || echo "include/tokenring/version.h: \"$version\" is no version"

# The newest section that is dated is of this version.
released=$(sed -nE 's/^## ([0-9][^ ]*) - [0-9]{4}-[0-9]{2}-[0-9]{2}$/\1/p' \
    CHANGELOG.md | head -n 1)
[ "$released" = "$version" ] \
    || echo "CHANGELOG.md: the newest release is \"$released\", not $version"

packaged=$(sed -nE '1s/^tokenring \((.*)\) .*/\1/p' debian/changelog)
[ "$packaged" = "$version" ] \
    || echo "debian/changelog: the newest version is \"$packaged\", not $version"

grep -nE 'image: tokenring' docker/compose.yaml | grep -v ":$version\$" \
    | sed "s|^|docker/compose.yaml:|; s|\$| is not $version|" || true

grep -q "latest ${version%.*}\.x" SECURITY.md \
    || echo "SECURITY.md: ${version%.*}.x is not what is supported"
