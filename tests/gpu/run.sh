#!/bin/sh
# Everything that needs a GPU: correctness, compute-sanitizer, benchmarks beside
# PyTorch, the whole engine, one summary at the end.
#
#   tests/gpu/run.sh             after `make cuda`; B=DIR as there
#   RESULTS=FILE tests/gpu/run.sh    also writes the summary there
#   BUNDLE=DIR tests/gpu/run.sh  and the whole engine out of what bundle.sh made
#                                (PARTS of engine.sh, default all)
#
# compute-sanitizer and PyTorch are used where they are found; what was left out
# is said.  Exits with 0 when all that was run held.

B=${B:-build}
here=$(dirname "$0")
bin=${BIN:-$B/cuda}
lib=${LIB:-$B/lib/libtokenring_cuda.so}
out=$(mktemp)
failed=0

say() {
    echo "$@" | tee -a "$out"
}

# check NAME COMMAND..: the last line of what it prints, and whether it held.
check() {
    name=$1
    shift
    log=$(mktemp)
    if timeout 300 "$@" >"$log" 2>&1; then
        say "ok      $name: $(grep -v '^=' "$log" | tail -n 1)"
    else
        say "FAILED  $name"
        head -n 40 "$log" | tee -a "$out"
        failed=1
    fi
    rm -f "$log"
}

say "## $(date -u +%Y-%m-%d), $(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo "commit ${COMMIT:-unknown}")"
check "runtime" "$bin/test_runtime" "$lib" "${RUNTIME_ROUNDS:-60}"
check "decode" "$bin/test_decode" "${ROUNDS:-200}"
check "store" "$bin/test_store" "${ROUNDS:-200}"
check "generic" "$bin/test_generic" "${ROUNDS:-200}"
check "model" "$bin/test_model" "${ROUNDS:-200}"
check "sample" "$bin/test_sample" "${ROUNDS:-200}"
check "manager" "$bin/test_manager" "${MANAGER_ROUNDS:-40}"
check "prompt" "$bin/test_prompt" "${PROMPT_ROUNDS:-60}"
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do
        for name in decode store generic model sample; do
            check "$name, $tool" compute-sanitizer --tool $tool \
                --error-exitcode 9 "$bin/test_$name" "${SANITIZER_ROUNDS:-12}"
        done
        [ $tool != memcheck ] || check "runtime, $tool" compute-sanitizer \
            --tool $tool --error-exitcode 9 "$bin/test_runtime" "$lib" 3
        check "manager, $tool" compute-sanitizer --tool $tool \
            --error-exitcode 9 "$bin/test_manager" 3
        if [ $tool = racecheck ]; then
            say "left out: prompt, racecheck (bench/results/cuda_prompt.md)"
            continue
        fi
        check "prompt, $tool" compute-sanitizer --tool $tool \
            --error-exitcode 9 "$bin/test_prompt" 2
    done
else
    say "left out: compute-sanitizer was not found"
fi
say ""
"$bin/bench_matmul" "$lib" 2>&1 | tee -a "$out"
"$bin/bench_decode" 2>&1 | tee -a "$out"
"$bin/bench_store" 2>&1 | tee -a "$out"
"$bin/bench_manager" 2>&1 | tee -a "$out"
"$bin/bench_model" 2>&1 | tee -a "$out"
"$bin/bench_prompt" 2>&1 | tee -a "$out"
if python3 -c 'import torch' 2>/dev/null; then
    python3 "$here/bench_sdpa.py" 2>&1 | tee -a "$out"
else
    say "left out: PyTorch was not found"
fi
if [ -n "$BUNDLE" ]; then
    say ""
    # its own RESULTS is a directory; the status of tee is not that of engine.sh
    # shellcheck disable=SC2086
    { RESULTS='' sh "$here/engine.sh" "$BUNDLE" $PARTS 2>&1 || echo "FAILED  engine"; } |
        tee -a "$out"
    ! grep -q '^FAILED  engine$' "$out" || failed=1
else
    say "left out: the whole engine; BUNDLE names what tests/gpu/bundle.sh made"
fi
stack=${STACK:-$B/stack}
if [ -d "$stack" ]; then
    log=$(mktemp)
    RESULTS='' "$here/stack.sh" "$stack" >"$log" 2>&1 || failed=1
    tee -a "$out" <"$log"
    rm -f "$log"
else
    say "left out: the stack (stack_bundle.sh makes it) was not found"
fi
[ -z "$RESULTS" ] || cp "$out" "$RESULTS"
rm -f "$out"
exit $failed
