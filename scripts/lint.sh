#!/usr/bin/env bash
#
# Style and static analysis; prints what is wrong and fails when something is.
#
#   scripts/lint.sh          checks
#   scripts/lint.sh --fix    lets clang-format repair the C style
#
# The module speaks nginx's dialect, which clang-format cannot be taught, so it
# is held to what can be said mechanically: width, tabs, trailing blanks.
set -uo pipefail
shopt -s lastpipe # complain remembers what it was told
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
cd "$ROOT" || exit 1

bad=0
mapfile -t c11 < <(git ls-files 'engine/*.[ch]' 'kernels/*.[ch]' 'cli/*.[ch]' \
    'tests/*.[ch]' 'include/*.h')
mapfile -t product < <(git ls-files 'engine/*.c' 'kernels/*.c' 'cli/*.c')
mapfile -t nginx_c < <(git ls-files 'ngx_module/*.[ch]')
mapfile -t shell < <(git ls-files '*.sh' .ci/run)
mapfile -t js < <(git ls-files '*.js' '*.mjs')
mapfile -t text < <(git ls-files | grep -vE \
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

clang-format --dry-run --ferror-limit=40 "${c11[@]}" 2>&1 \
    | grep -E 'warning|error' | complain "C style (make format repairs it)"

cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr \
    --suppress=missingInclude --suppress=unknownMacro \
    --suppress=invalidPointerCast --suppress=invalidPrintfArgType_uint \
    --error-exitcode=0 --template='{file}:{line}: {severity}: {message} [{id}]' \
    -j "$(nproc)" -Iinclude -I. -D_GNU_SOURCE \
    "${product[@]}" 2>&1 | complain "cppcheck"

shellcheck -x "${shell[@]}" | complain "shellcheck"
# Sourced by nginx's configure, whose variables it uses.
shellcheck -s sh -e SC2034,SC2154,SC1091 config | complain "shellcheck config"

for file in "${js[@]}"; do
    node --check "$file" 2>&1
done | complain "JavaScript syntax"

awk 'length($0) > 80 { print FILENAME ":" FNR ": " length($0) " columns" }' \
    "${nginx_c[@]}" /dev/null | complain "nginx style: 80 columns"

grep -InP '\t' "${c11[@]}" "${nginx_c[@]}" /dev/null | complain "tabs in C"
grep -InP '[ \t]+$' "${text[@]}" /dev/null | complain "trailing blanks"

node scripts/check-links.js 2>&1 | complain "links in the documentation"
node scripts/check-includes.js 2>&1 \
    | complain "includes that run up (floors: scripts/check-includes.js)"

# Nothing of the machine that a change was made on.
grep -InP '(?<![\w.$}@])/(home|root|work|Users)/\w' "${text[@]}" /dev/null \
    | grep -v '^scripts/lint.sh:' | complain "paths of one machine"
grep -InE '"resolved":' tests/*/package-lock.json 2>/dev/null \
    | complain "download addresses in a lock file"

[ $bad -eq 0 ] && echo "lint: clean"
exit $bad
