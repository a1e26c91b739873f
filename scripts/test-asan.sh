#!/usr/bin/env bash
#
# Runs tests whose programs `make test-asan` has built in build-asan.
#
#   scripts/test-asan.sh unit|e2e
#
# For e2e it builds nginx, too: Debian's source package, our module inside,
# every pool allocation a malloc.  A report of any process fails the run, even
# if no test noticed.
set -euo pipefail
export B=build-asan
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

reports=$BUILD/reports
rm -rf "$reports"
mkdir -p "$reports"
chmod 1777 "$reports"

options=detect_leaks=1:detect_stack_use_after_return=1
options+=:strict_string_checks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export LSAN_OPTIONS=print_suppressions=0

case "${1:-}" in
    unit)
        ASAN_OPTIONS=$options UNIT_TIMEOUT=${UNIT_TIMEOUT:-900} \
            "$ROOT"/scripts/test.sh unit
        exit
        ;;
    e2e) ;;
    *) fail "usage: $0 unit|e2e" ;;
esac

source=$("$ROOT"/scripts/fetch-nginx.sh "${NGINX_RELEASE:-bookworm}")
"$ROOT"/scripts/build-nginx.sh "$source" "$BUILD/nginx" static sanitize
rm -f "$BUILD"/nginx/reports/*

status=0
ASAN_OPTIONS=$options:log_path=$reports/asan \
    UBSAN_OPTIONS=$UBSAN_OPTIONS:log_path=$reports/ubsan \
    TR_NGINX=$BUILD/nginx/nginx TR_MODULE=static \
    TR_PATIENCE=${TR_PATIENCE:-5} "$ROOT"/scripts/test.sh e2e || status=1

count=0
for report in "$reports"/* "$BUILD"/nginx/reports/*; do
    [ -s "$report" ] || continue
    count=$((count + 1))
    [ $count -gt 5 ] || { echo "--- $report" && head -n 60 "$report"; } >&2
done
if [ $count -gt 0 ]; then
    fail "$count sanitizer reports in $reports and $BUILD/nginx/reports"
fi
echo "no sanitizer report"
exit $status
