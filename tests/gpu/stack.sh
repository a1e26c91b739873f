#!/usr/bin/env bash
# The whole stack on a GPU: the end-to-end suite, and what HTTP costs.
#
#   tests/gpu/stack.sh DIR [PART..]     DIR: what tests/gpu/stack_bundle.sh made
#
# Parts: http e2e moves; the first two by default.  Results land in RESULTS (default
# DIR/results).  E2E="pattern .." runs some files of the suite, JOBS (8) at a
# time, for E2E_SECONDS at most; those that fail are run again, one at a time, for
# AGAIN_SECONDS at most, and both outcomes are told.  BACKEND (cuda) and
# LIBRARY=soft serve to try this script where there is no GPU; HTTP gives more
# arguments to bench_http.py, which begins nothing more after BUDGET seconds.
set -u
dir=$(cd "${1:?the bundle}" && pwd)
shift
parts=${*:-http e2e}
here=$(cd "$(dirname "$0")" && pwd)
root=${here%/tests/gpu}
out=${RESULTS:-$dir/results}
mkdir -p "$out"
out=$(cd "$out" && pwd)
LD_LIBRARY_PATH=$dir/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
TR_CUDA_LIBRARY=$dir/lib/libtokenring_cuda.so
[ "${LIBRARY:-}" != soft ] ||
    TR_CUDA_LIBRARY=$dir/tests/libtokenring_soft.so
TR_NGINX=$dir/sbin/nginx
export LD_LIBRARY_PATH TR_CUDA_LIBRARY TR_NGINX
# streams are descriptors: of NGINX, and of who sends the load
ulimit -n "$(ulimit -Hn)"
failed=0

# What the suite cannot do on such a machine, and why.
left_out() {
    case $1 in
    *dashboard*) echo "needs chromium" ;;
    *images*) echo "builds Debian roots" ;;
    *monitoring*) echo "needs Prometheus" ;;
    *scripts*) echo "needs an installed nginx" ;;
    *) return 1 ;;
    esac
}

asked_for() { # FILE
    [ -n "${E2E:-}" ] || return 0
    for pattern in $E2E; do
        case $1 in *"$pattern"*) return 0 ;; esac
    done
    return 1
}

# tests TAP JOBS FILE..: node's runner; what it prints is in TAP
tests() {
    tap=$1
    jobs=$2
    shift 2
    (cd "$root/tests/e2e" && PATH=$dir/tools:$PATH \
        OPENSSL_CONF=$dir/tools/openssl.cnf \
        timeout "${E2E_SECONDS:-900}" node --test \
        --test-concurrency="$jobs" --test-reporter=tap "$@") >"$tap" 2>&1
}

# sums TAP: "N passed, N failed, N skipped", also of one that broke off
sums() {
    awk '/^ok .*# SKIP/ { s++; next } /^ok / { p++ } /^not ok / { f++ }
        /^# duration_ms/ { whole = 1 }
        END { printf "%d passed, %d failed, %d skipped%s\n", p, f, s,
            whole ? "" : ", not all: time was up" }' "$1"
}

# ties TAP: how far apart tokens were where an answer parted from that of its
# request alone (tests/e2e/lib/same.js)
ties() {
    grep -o '"gap":[0-9.e-]*' "$1" | cut -d: -f2 | sort -g | awk '
        { n++; most = $1 }
        END { if (n) printf "near ties: %d answers parted from that of their " \
            "request alone, the tokens at most %.3f nats apart\n", n, most }'
}

# Names of the tests that failed, each with the beginning of what it said.
failures() {
    awk '/^ *not ok /{ name = $0; sub(/^ *not ok [0-9]+ - /, "", name); n = 0 }
        /^ *error: /{ want = 6; print "  " name }
        want > 0 && /[^ ]/ { sub(/^ */, "    "); print; want-- }' "$1" |
        grep -v 'subtests\{0,1\} failed' | cut -c -160
}

# Files of the tests that failed.
failed_files() {
    sed -n "s/^ *location: '.*\/\([a-z_]*\/[a-z_]*\.test\.js\):.*/\1/p" "$1" |
        sort -u
}

e2e() {
    export TR_BUILD="$dir" TR_BACKEND="${BACKEND-cuda}" \
        TR_PATIENCE="${TR_PATIENCE:-2}" TR_DTYPE="${TR_DTYPE-f16}"
    export TR_REDIS="$dir/bin/redis-server"
    # prebuilt: newer than its source, whatever the checkout's dates
    touch "$dir/tests/fake_engine"
    [ -e "$root/tests/e2e/node_modules" ] ||
        ln -s "$dir/node_modules" "$root/tests/e2e/node_modules"
    set --
    for file in "$root/tests/e2e/"*/*.test.js; do
        file=${file#"$root/tests/e2e/"}
        asked_for "$file" || continue
        if why=$(left_out "$file"); then
            echo "left out: $file $why"
        else
            set -- "$@" "$file"
        fi
    done
    start=$(date +%s)
    if tests "$out/e2e.tap" "${JOBS:-8}" "$@"; then
        echo "ok      e2e, $(sums "$out/e2e.tap"), $(($(date +%s) - start)) s"
        return
    fi
    echo "e2e, ${JOBS:-8} files at a time: $(sums "$out/e2e.tap")," \
        "$(($(date +%s) - start)) s"
    failures "$out/e2e.tap"
    again=$(failed_files "$out/e2e.tap")
    if [ -z "$again" ]; then
        echo "FAILED  e2e: what ran held, but not all ran"
        failed=1
        return
    fi
    # shellcheck disable=SC2086 # names without blanks
    if E2E_SECONDS=${AGAIN_SECONDS:-300} \
        tests "$out/e2e-again.tap" 1 $again; then
        echo "ok      e2e, once more, one at a time: $again:" \
            "$(sums "$out/e2e-again.tap")"
        return
    fi
    echo "FAILED  e2e, once more: $again: $(sums "$out/e2e-again.tap")"
    failures "$out/e2e-again.tap"
    failed=1
}

# Requests whose engines are killed, and how many answers are the same; MOVES
# gives more arguments to moves.js.
moves() {
    # shellcheck disable=SC2086 # arguments
    (cd "$root" && B=$dir TR_BUILD=$dir TR_BACKEND=${BACKEND-cuda} \
        TR_DTYPE=${TR_DTYPE-f16} PATH=$dir/tools:$PATH \
        timeout "${MOVES_SECONDS:-300}" node tests/bench/moves.js \
        --json "$out/moves.json" ${MOVES:-})
}

for part in $parts; do
    case $part in
    http)
        # shellcheck disable=SC2086 # arguments
        "$here/bench/bench_http.py" "$dir" "$out/http.json" \
            --backend "${BACKEND:-cuda}" --budget "${BUDGET:-270}" \
            ${HTTP:-} 2>"$out/http.log" || failed=1
        grep 'client' "$out/http.log" | tail -n 5
        ;;
    e2e)
        e2e
        ties "$out/e2e.tap"
        ;;
    moves)
        moves || failed=1
        ;;
    *)
        echo "$0: no part is called $part: http e2e moves" >&2
        exit 2
        ;;
    esac
done
exit $failed
