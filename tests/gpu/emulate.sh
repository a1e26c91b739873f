#!/bin/sh
# The GPU's code on the host, as a unit test (TAP): no GPU is needed.  Made
# $B/tests/test_cuda_emulated by mk/cuda.mk; the programs are in $B/cuda.

bin=$(dirname "$0")/../cuda
n=0
failed=0

try() {
    n=$((n + 1))
    if said=$("$@"); then
        echo "ok $n - ${said##*
}"
    else
        echo "not ok $n - $*"
        echo "$said" | tail -n 40
        failed=1
    fi
}

try "$bin/test_store" emulate "${ROUNDS:-60}"
try "$bin/test_generic" emulate "${ROUNDS:-30}"
try "$bin/test_model" emulate "${ROUNDS:-200}"
try "$bin/test_sample" emulate "${ROUNDS:-100}"
echo "1..$n"
exit $failed
