#!/bin/sh
# Everything that needs a GPU: correctness, compute-sanitizer, benchmarks beside
# PyTorch, the whole engine, the whole stack, one summary at the end.
#
#   tests/gpu/run.sh [PART..]        after `make cuda`; B=DIR as there
#
#   check      every kernel against its reference           1 minute
#   sanitize   the same under compute-sanitizer's tools     4 minutes
#   bench      kernels, and PyTorch on the same shapes      5 minutes
#   engine     out of BUNDLE, what bundle.sh made; PARTS of engine.sh
#   stack      out of STACK, what stack_bundle.sh made
#
# All of them by default.  RESULTS=FILE also writes the summary there; JOBS tests
# (4) run at a time, benchmarks alone.  What is not found (compute-sanitizer,
# PyTorch, a bundle) is left out and said.  Exits with 0 when all that was run
# held.

parts=${*:-check sanitize bench engine stack}
B=${B:-build}
here=$(dirname "$0")
bin=${BIN:-$B/cuda}
lib=${LIB:-$B/lib/libtokenring_cuda.so}
out=$(mktemp)
logs=$(mktemp -d)
running=0
failed=0

wanted() {
    case " $parts " in *" $1 "*) return 0 ;; esac
    return 1
}

say() {
    echo "$@" | tee -a "$out"
}

# one NAME COMMAND..: the last line of what it prints, and whether it held.
one() {
    name=$1
    log=$(mktemp -p "$logs")
    shift
    if timeout "${LIMIT:-300}" "$@" >"$log" 2>&1; then
        say "ok      $name: $(grep -v '^=' "$log" | tail -n 1)"
    else
        say "FAILED  $name
$(head -n 40 "$log")"
        : >"$logs/failed"
    fi
}

# check NAME COMMAND..: beside others
check() {
    if [ "$running" -ge "${JOBS:-4}" ]; then
        wait
        running=0
    fi
    one "$@" &
    running=$((running + 1))
}

sanitize() { # TOOL NAME ARGUMENTS..
    tool=$1
    name=$2
    shift 2
    set -- "$bin/test_$name" "$@"
    # it counts barriers: 48 a block of decode, and two layers' blocks overlap
    [ "$tool" != synccheck ] || set -- --num-cuda-barriers 1024 "$@"
    check "$name, $tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$@"
}

say "## $(date -u +%Y-%m-%d), $(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo "commit ${COMMIT:-unknown}"): $parts"
if wanted check; then
    check "runtime" "$bin/test_runtime" "$lib" "${RUNTIME_ROUNDS:-60}"
    for name in decode store generic model experts sample small_gemm; do
        check "$name" "$bin/test_$name" "${ROUNDS:-200}"
    done
    check "fp8_gemm" "$bin/test_fp8_gemm" "${FP8_ROUNDS:-40}"
    check "manager" "$bin/test_manager" "${MANAGER_ROUNDS:-40}"
    check "prompt" "$bin/test_prompt" "${PROMPT_ROUNDS:-60}"
    check "behind" "$bin/test_behind" "${PROMPT_ROUNDS:-60}"
    wait
fi
if wanted sanitize && ! command -v compute-sanitizer >/dev/null; then
    say "left out: compute-sanitizer was not found"
elif wanted sanitize; then
    for tool in memcheck racecheck initcheck synccheck; do
        for name in decode store generic model experts sample; do
            sanitize "$tool" $name "${SANITIZER_ROUNDS:-12}"
        done
        [ "$tool" != memcheck ] || sanitize "$tool" runtime "$lib" 3 calm
        sanitize "$tool" manager 3
        if [ "$tool" = racecheck ]; then
            sanitize "$tool" small_gemm 2 "$(date +%s)" small
        else
            sanitize "$tool" small_gemm \
                "$([ "$tool" = memcheck ] && echo 6 || echo 1)"
        fi
        sanitize "$tool" prompt "$([ "$tool" = racecheck ] && echo 1 || echo 2)"
        sanitize "$tool" behind "$([ "$tool" = racecheck ] && echo 1 || echo 2)"
    done
    wait
fi
[ ! -e "$logs/failed" ] || failed=1
if wanted bench; then
    say ""
    "$bin/bench_matmul" "$lib" 2>&1 | tee -a "$out"
    # figures of each case, if there is a place for them
    "$bin/bench_decode" ${DECODE_JSON:+-o "$DECODE_JSON"} 2>&1 | tee -a "$out"
    if python3 -c 'import torch' 2>/dev/null; then
        python3 "$here/bench/bench_sdpa.py" 2>&1 | tee -a "$out"
    else
        say "left out: PyTorch was not found"
    fi
    "$bin/bench_store" 2>&1 | tee -a "$out"
    "$bin/bench_manager" 2>&1 | tee -a "$out"
    "$bin/bench_model" 2>&1 | tee -a "$out"
    "$bin/bench_prompt" 2>&1 | tee -a "$out"
fi
if wanted engine && [ -n "$BUNDLE" ]; then
    say ""
    # its own RESULTS is a directory; the status of tee is not that of engine.sh
    # shellcheck disable=SC2086,SC2153
    { RESULTS=${ENGINE_RESULTS:-} sh "$here/engine.sh" "$BUNDLE" $PARTS 2>&1 ||
        echo "FAILED  engine"; } | tee -a "$out"
    ! grep -q '^FAILED  engine$' "$out" || failed=1
elif wanted engine; then
    say "left out: the whole engine; BUNDLE names what tests/gpu/bundle.sh made"
fi
stack=${STACK:-$B/stack}
if wanted stack && [ -d "$stack" ]; then
    RESULTS=${STACK_RESULTS:-} "$here/stack.sh" "$stack" >"$logs/stack" 2>&1 ||
        failed=1
    tee -a "$out" <"$logs/stack"
elif wanted stack; then
    say "left out: the stack (stack_bundle.sh makes it) was not found"
fi
[ -z "$RESULTS" ] || cp "$out" "$RESULTS"
rm -rf "$out" "$logs"
exit $failed
