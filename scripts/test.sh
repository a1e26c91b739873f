#!/usr/bin/env bash
#
# Runs the tests and sums them up; the last line is "N passed, N failed".  Above
# it stand the tests that failed, with the beginning of what they said: whoever
# sees no more than the end of the output knows why.
#
#   scripts/test.sh all|unit|e2e
#
# Unit tests are the programs build/tests/test_*, one process each, which
# report in TAP.  Then the npm-based suites: the tokenizer's comparison with its
# reference implementation, and tests/e2e.  Logs stay in build/test-logs.  Every
# suite stops what it starts.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

what=${1:-all}
logs=$BUILD/test-logs
mkdir -p "$logs"
cd "$ROOT" || exit 1

passed=0 failed=0 skipped=0
table=()
failures=$logs/failures
: >"$failures"

account() { # name, passed, failed, skipped, seconds
    passed=$((passed + $2))
    failed=$((failed + $3))
    skipped=$((skipped + $4))
    table+=("$(printf '%-32s %6d %6d %6d %6ds' "$1" "$2" "$3" "$4" "$5")")
}

unit() {
    local program name log start rc ok bad skip

    step "Unit tests"
    for program in "$BUILD"/tests/test_*; do
        case "$program" in *.d | *.o) continue ;; esac
        [ -x "$program" ] || continue
        name=$(basename "$program")
        log=$logs/$name.log
        start=$SECONDS
        CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 "${UNIT_TIMEOUT:-300}" \
            "$program" >"$log" 2>&1
        rc=$?
        skip=$(grep -cE '^ok .*# SKIP' "$log")
        ok=$(($(grep -cE '^ok ' "$log") - skip))
        bad=$(grep -cE '^not ok ' "$log")
        # A crash, a leak report or a time-out is a failure of its own, and a
        # program that checked nothing has not passed.
        if [ $rc -ne 0 ] && [ "$bad" -eq 0 ]; then
            bad=1
        elif [ $rc -eq 0 ] && [ $((ok + bad + skip)) -eq 0 ]; then
            bad=1
            echo "no test was reported" >>"$log"
        fi
        account "unit/${name#test_}" "$ok" "$bad" "$skip" $((SECONDS - start))
        if [ "$bad" -gt 0 ]; then
            echo "FAILED $name (status $rc)"
            sed 's/^/    /' "$log" | grep -v '^    ok ' | tail -n 40
            {
                echo "FAILED unit/${name#test_} (status $rc)"
                grep -vE '^(ok |1\.\.)' "$log" | tail -n 6 | sed 's/^/    /'
            } | cut -c -160 >>"$failures"
        fi
    done
}

# What failed, of the TAP of node:test: name and place, a few lines of the
# message, and the line of the test.  A file that ended by itself has its last
# words in comments above.
node_failures() { # name, tap
    awk -v suite="$1" '
        function flush() {
            if (!bad || kind == "subtestsFailed") { bad = 0; return }
            printf "FAILED %s: %s (%s)\n", suite, bad, place
            if (message == "    test failed\n") message = words
            printf "%s%s", message, at
            bad = 0
        }
        function file(text) {
            sub(/^.*\//, "", text); sub(/:[0-9]+[^0-9]*$/, "", text)
            return text
        }
        /^# Subtest: / { next }
        /^# / { if (nwords++ < 6) words = words "    " substr($0, 3) "\n"; next }
        /^ *(not )?ok / {
            flush()
            if ($0 ~ /^ *not ok / && $0 !~ /# TODO/) {
                bad = $0; sub(/^ *not ok [0-9]+ - /, "", bad)
                kind = place = message = at = ""; lines = 0
            }
            next
        }
        !bad { next }
        /^ *location: / { place = file($0) }
        /^ *failureType: / { kind = $2; gsub(/\x27/, "", kind) }
        /^ *error: \|/ { inside = 1; match($0, /^ */); margin = RLENGTH; next }
        /^ *error: / {
            sub(/^ *error: \x27?/, ""); sub(/\x27$/, "")
            message = "    " $0 "\n"
        }
        inside {
            match($0, /^ */)
            if ($0 !~ /^ *$/ && RLENGTH <= margin) inside = 0
            else if ($0 !~ /^ *$/ && lines++ < 6)
                message = message "    " substr($0, margin + 3) "\n"
        }
        /\.test\.js:[0-9]+/ && !inside && !at && !/^ *location: / {
            at = "    at " file($0) "\n"
        }
        /^ *\.\.\.$/ { flush(); words = ""; nwords = 0 }
        END { flush() }' "$2" | cut -c -160 >>"$failures"
}

# One directory of node:test files.
node_suite() { # name, directory, file...
    local name=$1 dir=$2 tap start rc ok bad skip

    shift 2
    tap=$logs/$name.tap
    start=$SECONDS
    step "$name tests"
    (cd "$dir" && node --test --test-concurrency=1 \
        --test-reporter=spec --test-reporter-destination=stdout \
        --test-reporter=tap --test-reporter-destination="$tap" "$@")
    rc=$?
    ok=$(sed -n 's/^# pass //p' "$tap" | tail -n 1)
    bad=$(sed -n 's/^# fail //p' "$tap" | tail -n 1)
    skip=$(sed -n 's/^# skipped //p' "$tap" | tail -n 1)
    ok=${ok:-0} bad=${bad:-0} skip=${skip:-0}
    if [ $rc -ne 0 ] && [ "$bad" -eq 0 ] || [ "$ok" -eq 0 ]; then
        bad=$((bad + 1))
    fi
    node_failures "$name" "$tap"
    account "$name" "$ok" "$bad" "$skip" $((SECONDS - start))
}

reference() {
    node_suite tokenizer-reference tests/unit/tokenizer_reference
}

e2e() {
    local files
    mapfile -t files < <(cd tests/e2e && ls ./*"${E2E:-}"*.test.js)
    node_suite e2e tests/e2e "${files[@]}"
}

case "$what" in
    unit) unit ;;
    e2e) e2e ;;
    all) unit; reference; e2e ;;
    *) echo "usage: $0 all|unit|e2e" >&2; exit 2 ;;
esac

printf '\n%-32s %6s %6s %6s %7s\n' suite passed failed skipped time
printf '%s\n' "${table[@]}"
[ "$skipped" -eq 0 ] || echo "$skipped skipped: see above for why"
if [ "$(grep -c '^FAILED' "$failures")" -le 6 ]; then
    cat "$failures"
else
    grep -A 1 '^FAILED' "$failures" | grep -v '^--$'
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
