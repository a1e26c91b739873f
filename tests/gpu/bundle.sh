#!/bin/sh
# Collects what the whole engine needs on a GPU machine that has nothing of it:
# programs, the CUDA library, and the libraries they are linked with.
#
#   tests/gpu/bundle.sh [DIR]    (build/bundle; B=DIR is where things were built)
#
# After `make all unit cuda bench-gpu`.  There, in the repository's root:
# tar -xJf build/bundle.tar.xz -C build && tests/gpu/engine.sh build/bundle
set -eu
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/bundle_lib.sh"
B=${B:-build}
out=${1:-$B/bundle}
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/tests"
cp "$B/bin/tokenring-engine" "$B/bin/tokenring" "$B/bench/bench_gpu" "$out/bin"
cp "$B/tests/test_model_cuda" "$B/tests/test_model_cuda_goldens" \
    "$B/tests/test_executor_cuda" "$B/tests/test_executor_pooled" \
    "$B/tests/test_cuda_requests" "$B/tests/test_loop_kept_cuda" \
    "$B/tests/test_loop_files_cuda" "$out/tests"
cp "$B/lib/libtokenring_cuda.so" "$out/lib"
git rev-parse --short=12 HEAD >"$out/commit"
strip "$out"/bin/* "$out"/tests/*
libraries "$out" "$out"/bin/* "$out"/tests/*
# cases of known answers, so that Python is not needed there: 1,000 a family; the
# first 75 of each difficulty are the 300 cases a task of docs/benchmarks.md
tests/eval/cases.sh test "${CASES:-250}" 2 "$out/cases.jsonl" >/dev/null
pack "$out.tar.xz" "$out"
