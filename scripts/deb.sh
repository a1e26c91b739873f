#!/usr/bin/env bash
#
# Builds the Debian packages of debian/ in a copy of the tree, so that nothing
# is left in it:
#
#   scripts/deb.sh DIR               DIR/*.deb; what DIR had is removed
#   scripts/deb.sh DIR VERSION       as another version (tests of upgrades)
#
# NVCC, where the Makefile found it new enough, adds tokenring-engine-cuda.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

out=${1:?"usage: $0 DIR [VERSION]"}
version=${2:-}
profiles=()
[ -z "${NVCC:-}" ] || profiles=(-Ppkg.tokenring.cuda)

case "$out" in /*) ;; *) out=$ROOT/$out ;; esac
tree=$out/tokenring
cd "$ROOT"
rm -rf "$out"
mkdir -p "$tree"

# What git knows or would; in an unpacked archive, all but what was built.
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard
else
    find . \( -path './build*' -o -name node_modules \) -prune \
        -o \( -type f -o -type l \) -print0
fi | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --null -T - -cf - | tar -C "$tree" -xf -

cd "$tree"
if [ -n "$version" ]; then
    sed -i "1s/(.*)/($version)/" debian/changelog
fi

# What make was called with is no business of the packages' own make.
unset B DESTDIR PREFIX MAKEFLAGS MFLAGS MAKELEVEL
unset CUDA_ARCH CUDA_DIR CUDA_LIB KERNEL_CFLAGS
log=$out/build.log
dpkg-buildpackage -b -us -uc "${profiles[@]}" >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    fail "the packages were not built; all of it: $log"
}
rm -rf "$tree"
