#!/usr/bin/env bash
#
# Style and static analysis; prints what is wrong and fails when something is.
#
#   scripts/lint.sh          checks
#   scripts/lint.sh --staged checks what differs from HEAD in the index
#                            (scripts/pre-commit.sh)
#   scripts/lint.sh --fix    lets clang-format repair the C style
#
# The module speaks nginx's dialect, which clang-format cannot be taught, so it
# is held to what can be said mechanically: width, tabs, trailing blanks.
set -uo pipefail
shopt -s lastpipe # complain remembers what it was told
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
cd "$ROOT" || exit 1

# Tracked files; with --staged only those that the next commit changes.
files() { # pattern...
    if [ -n "$staged" ]; then
        git diff --cached --name-only --diff-filter=ACMR -- "$@"
    else
        git ls-files "$@"
    fi
}

bad=0
staged=
[ "${1:-}" != --staged ] || staged=1
mapfile -t c11 < <(files 'engine/*.[ch]' 'kernels/*.[ch]' 'cli/*.[ch]' \
    'tests/*.[ch]' 'include/*.h' '*.cu' '*.cuh')
mapfile -t product < <(files 'engine/*.c' 'kernels/*.c' 'cli/*.c')
mapfile -t nginx_c < <(files 'ngx_module/*.[ch]')
mapfile -t shell < <(files '*.sh' .ci/run 'debian/*.postinst' \
    'debian/*.prerm' 'debian/*.postrm')
mapfile -t js < <(files '*.js' '*.mjs')
mapfile -t docs < <(files '*.md')
mapfile -t text < <(files | grep -vE \
    '^(models/|LICENSE$|tests/fuzz/corpus/|dashboard/vendor/uPlot|.*(package-lock\.json|\.png)$|tests/.*\.(json|txt)$)')

if [ "${1:-}" = --fix ]; then
    clang-format -i "${c11[@]}"
    exit
fi

complain() { # title; what is wrong comes on stdin
    local found
    found=$(cat)
    [ -n "$found" ] || return 0
    step "$1"
    head -n 40 <<<"$found"
    bad=1
}

# A tool that is called with no file would read its input, or complain.
[ ${#c11[@]} -eq 0 ] \
    || clang-format --dry-run --ferror-limit=40 "${c11[@]}" 2>&1 \
    | grep -E 'warning|error' | complain "C style (make format repairs it)"

[ ${#product[@]} -eq 0 ] \
    || cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr \
    --suppress=missingInclude --suppress=unknownMacro \
    --suppress=invalidPointerCast --suppress=invalidPrintfArgType_uint \
    --error-exitcode=0 --template='{file}:{line}: {severity}: {message} [{id}]' \
    -j "$(nproc)" -Iinclude -I. -D_GNU_SOURCE \
    "${product[@]}" 2>&1 | complain "cppcheck"

[ ${#shell[@]} -eq 0 ] || shellcheck -x "${shell[@]}" | complain "shellcheck"
# Sourced by nginx's configure, whose variables it uses.
shellcheck -s sh -e SC2034,SC2154,SC1091 config | complain "shellcheck config"

for file in "${js[@]}"; do
    node --check "$file" 2>&1
done | complain "JavaScript syntax"

awk 'length($0) > 80 { print FILENAME ":" FNR ": " length($0) " columns" }' \
    "${nginx_c[@]}" /dev/null | complain "nginx style: 80 columns"

grep -InP '\t' "${c11[@]}" "${nginx_c[@]}" /dev/null | complain "tabs in C"
grep -InP '[ \t]+$' "${text[@]}" /dev/null | complain "trailing blanks"

[ ${#docs[@]} -eq 0 ] || node scripts/check-links.js "${docs[@]}" 2>&1 \
    | complain "links in the documentation"
scripts/check-version.sh 2>&1 | complain "versions that differ"
node scripts/check-includes.js 2>&1 \
    | complain "includes that run up (floors: scripts/check-includes.js)"

# Nothing of the machine that a change was made on; alice is everybody.
grep -InP '(?<![\w.$}@])/(home(?!/alice\b)|root|work|Users)/\w' "${text[@]}" /dev/null \
    | grep -v '^scripts/lint.sh:' | complain "paths of one machine"
grep -InE '"resolved":' tests/*/package-lock.json 2>/dev/null \
    | complain "download addresses in a lock file"

[ $bad -eq 0 ] && echo "lint: clean"
exit $bad
