#!/usr/bin/env bash
#
# Runs the tests and sums them up; the last line is "N passed, N failed".  Above
# it stand the tests that failed, with the beginning of what they said: whoever
# sees no more than the end of the output knows why.
#
#   scripts/test.sh all|unit|e2e
#
# T=NAME runs one unit test, E2E=PATTERN some files of tests/e2e.
#
# Unit tests are the programs build/tests/test_*, one process each, which
# report in TAP; those that only compute run two at a time.  Then the npm-based suites: the tokenizer's comparison with its
# reference implementation, and tests/e2e.  Logs stay in build/test-logs.  Every
# suite stops what it starts.
#
# TR_RETRY=1 is for continuous integration, on machines that do much else: what
# failed, three files at most, is run once more, alone.  When all of it passes
# then, so does the run, and a line "FLAKY ..." says which test to mend.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

what=${1:-all}
logs=$BUILD/test-logs
mkdir -p "$logs"
rm -f "$logs"/*.rc
cd "$ROOT" || exit 1
trap '[ ${#running[@]} -eq 0 ] || kill "${!running[@]}" 2>/dev/null' EXIT

passed=0 failed=0 skipped=0
table=()
declare -A running=() # unit tests: when each began, and its log
broken=() # what failed: suite, directory, file, failures
failures=$logs/failures
flaky=$logs/flaky
: >"$failures"
: >"$flaky"

row() { # name, passed, failed, skipped, seconds
    table+=("$(printf '%-32s %6d %6d %6d %6ds' "$1" "$2" "$3" "$4" "$5")")
}

account() { # name, passed, failed, skipped, seconds
    passed=$((passed + $2))
    failed=$((failed + $3))
    skipped=$((skipped + $4))
    row "$@"
}

# Starts one unit test, which says into the log; leaves its pid in $!.
unit_start() { # name, log
    CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 "${UNIT_TIMEOUT:-600}" \
        "$BUILD/tests/$1" >"$2" 2>&1 &
    running[$!]="$SECONDS $2"
}

# Waits for one that runs; its status and its seconds are beside its log.
unit_wait() {
    local pid rc start log

    wait -n -p pid
    rc=$?
    read -r start log <<<"${running[$pid]}"
    unset "running[$pid]"
    echo "$rc $((SECONDS - start))" >"$log.rc"
}

# What came of it; leaves rc, seconds, ok, bad and skip.
unit_read() { # log
    read -r rc seconds <"$1.rc"
    rm -f "$1.rc"
    # cmocka says `not ok 1 # SKIP name` of what was skipped.
    skip=$(grep -cE '^(not )?ok .*# SKIP' "$1")
    ok=$(grep -E '^ok ' "$1" | grep -vc '# SKIP')
    bad=$(grep -E '^not ok ' "$1" | grep -vc '# SKIP')
    # A crash, a leak report or a time-out is a failure of its own, and a
    # program that checked nothing has not passed.
    if [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    elif [ "$rc" -eq 0 ] && [ $((ok + bad + skip)) -eq 0 ]; then
        bad=1
        echo "no test was reported" >>"$1"
    fi
}

# Programs that compute and wait for nothing but their own threads: of these
# folders of tests/unit, and what plays a GPU.
unit_computes() { # name
    case "$1" in
        test_thread_pool | test_executor_cuda_faults | test_kv_prefix) return 1 ;;
        test_cuda_simt) return 0 ;;
    esac
    set -- "$ROOT"/tests/unit/{api,config,dialect,executor,grammar,kernels,kv}/"$1.c" \
        "$ROOT"/tests/unit/{model,module,prefix,sampling,template,tokenizer}/"$1.c"
    while [ $# -gt 0 ]; do
        [ ! -f "$1" ] || return 0
        shift
    done
    return 1
}

unit_account() { # name
    local log=$logs/$1.log rc seconds ok bad skip

    unit_read "$log"
    account "unit/${1#test_}" "$ok" "$bad" "$skip" "$seconds"
    if [ "$bad" -gt 0 ]; then
        echo "FAILED $1 (status $rc)"
        sed 's/^/    /' "$log" | grep -v '^    ok ' | tail -n 40
        {
            echo "FAILED unit/${1#test_} ($1: status $rc)"
            grep -vE '^(ok |1\.\.)' "$log" | tail -n 6 | sed 's/^/    /'
        } | cut -c -160 >>"$failures"
        broken+=("unit - $1 $bad")
    fi
}

unit() {
    local program name names=()

    step "Unit tests"
    for program in "$BUILD"/tests/test_${T:-*}; do
        case "$program" in *.d | *.o) continue ;; esac
        [ ! -x "$program" ] || names+=("$(basename "$program")")
    done
    for name in "${names[@]}"; do
        unit_computes "$name" || continue
        [ ${#running[@]} -lt 2 ] || unit_wait
        unit_start "$name" "$logs/$name.log"
    done
    while [ ${#running[@]} -gt 0 ]; do
        unit_wait
    done
    for name in "${names[@]}"; do
        if [ ! -f "$logs/$name.log.rc" ]; then
            unit_start "$name" "$logs/$name.log"
            unit_wait
        fi
        unit_account "$name"
    done
}

# What failed, of the TAP of node:test: name and place, a few lines of the
# message, and the line of the test.  A file that ended by itself has its last
# words in comments above.
node_failures() { # name, tap
    awk -v suite="$1" '
        function flush() {
            if (!bad || kind == "subtestsFailed") { bad = 0; return }
            printf "FAILED %s: %s (%s)\n", suite, substr(bad, 1, 100), place
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

# The files in which tests failed, and how many in each.
node_broken() { # tap
    awk '
        /^ *(not )?ok / { bad = /^ *not ok / && !/# TODO/ }
        bad && /^ *location: / {
            sub(/^.*\//, ""); sub(/:.*$/, ""); n[$0]++; bad = 0
        }
        END { for (file in n) print file, n[file] }' "$1"
}

# Files in a directory and its rooms, as node finds them there.
node_find() { # directory, pattern
    (cd "$1" && find . -name node_modules -prune -o -name "$2" -print) | sort
}

# Files of node:test in one directory; leaves rc, ok, bad and skip.
node_files() { # directory, tap, file...
    local dir=$1 tap=$2

    shift 2
    (cd "$dir" && node --test --test-concurrency=1 \
        --test-reporter=spec --test-reporter-destination=stdout \
        --test-reporter=tap --test-reporter-destination="$tap" "$@")
    rc=$?
    ok=$(sed -n 's/^# pass //p' "$tap" | tail -n 1)
    bad=$(sed -n 's/^# fail //p' "$tap" | tail -n 1)
    skip=$(sed -n 's/^# skipped //p' "$tap" | tail -n 1)
    ok=${ok:-0} bad=${bad:-0} skip=${skip:-0}
    if [ "$bad" -eq 0 ] && { [ $rc -ne 0 ] || [ "$ok" -eq 0 ]; }; then
        bad=1
    fi
}

# One directory of node:test files.
node_suite() { # name, directory, file...
    local name=$1 dir=$2 tap=$logs/$1.tap start=$SECONDS rc ok bad skip line

    shift 2
    step "$name tests"
    node_files "$dir" "$tap" "$@"
    node_failures "$name" "$tap"
    while read -r line; do
        broken+=("$name $dir $line")
    done < <(node_broken "$tap")
    account "$name" "$ok" "$bad" "$skip" $((SECONDS - start))
}

reference() {
    node_suite tokenizer-reference tests/unit/tokenizer/reference
}

templates() {
    node_suite templates tests/templates
}

e2e() {
    local files
    mapfile -t files < <(node_find tests/e2e "*${E2E:-}*.test.js")
    [ ${#files[@]} -gt 0 ] || fail "no file has E2E=$E2E in its name"
    node_suite e2e tests/e2e "${files[@]}"
}

# Makes one line in $flaky of each failure of a file that has passed now.
forgive() { # file
    awk -v place=" ($1:" -v flaky="$flaky" '
        function end() {
            if (what)
                printf "FLAKY %s: %s; passed when run again alone\n", what,
                    substr(message, 1, 400) >>flaky
            what = message = ""
        }
        /^FAILED / {
            end()
            if (index($0, place)) { what = substr($0, 8); next }
        }
        !what { print; next }
        { sub(/^ +/, ""); message = message (message ? " " : "") $0 }
        END { end() }' "$failures" >"$failures.left"
    mv "$failures.left" "$failures"
}

retry() {
    local item suite dir file n start rc seconds ok bad skip

    [ "${TR_RETRY:-0}" = 1 ] || return
    if [ ${#broken[@]} -gt 3 ]; then
        step "${#broken[@]} files failed: too many to run them again"
        return
    fi
    for item in "${broken[@]}"; do
        read -r suite dir file n <<<"$item"
        start=$SECONDS
        step "$suite: $file again, alone"
        case "$suite" in
            unit)
                unit_start "$file" "$logs/$file.again.log"
                unit_wait
                unit_read "$logs/$file.again.log"
                ;;
            *) node_files "$dir" "$logs/$file.again.tap" \
                "$(node_find "$dir" "$file")" ;;
        esac
        row "  again: $file" "$ok" "$bad" "$skip" $((SECONDS - start))
        if [ "$rc" -eq 0 ] && [ "$bad" -eq 0 ]; then
            passed=$((passed + n))
            failed=$((failed - n))
            forgive "$file"
        fi
    done
}

case "$what" in
    unit) unit ;;
    e2e) e2e ;;
    all) unit; reference; templates; e2e ;;
    *) echo "usage: $0 all|unit|e2e" >&2; exit 2 ;;
esac
retry

printf '\n%-32s %6s %6s %6s %7s\n' suite passed failed skipped time
printf '%s\n' "${table[@]}"
[ "$skipped" -eq 0 ] || echo "$skipped skipped: see above for why"
if [ "$(grep -c '^FAILED' "$failures")" -le 6 ]; then
    cat "$failures"
else
    grep -A 1 '^FAILED' "$failures" | grep -v '^--$'
fi
cat "$flaky"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
