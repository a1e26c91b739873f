#!/bin/sh
# The GPU's kernels on a device in software (simt.h), as a unit test (TAP): no
# GPU is needed.  Made $B/tests/test_cuda_simt by mk/simt.mk.
#
# Rounds are random; one that fails says its seed.  ROUNDS=N: so many per cent of
# what is usual.

bin=$(dirname "$0")/../simt
n=0
failed=0

try() { # PROGRAM ROUNDS [SEED]
    n=$((n + 1))
    rounds=$((($2 * ${ROUNDS:-100} + 99) / 100))
    if said=$("$bin/$1" "$rounds" ${3:+"$3"} 2>&1); then
        echo "ok $n - $1: ${said##*
}"
    else
        echo "not ok $n - $1 $rounds${3:+ $3}"
        echo "$said" | tail -n 40
        failed=1
    fi
}

try 90/test_decode 10
try 80/test_decode 12
try 90/test_small_gemm 5
try 90/test_fp8_gemm 4
try 90/test_prompt 1
try 90/test_prompt 3 "$(date +%s)"
try 80/test_prompt 2 "$(date +%s)"
try 90/test_store 12
try 90/test_generic 10
try 90/test_behind 3
try 80/test_behind 2
try 90/test_manager 10
try 90/test_model 40
try 90/test_experts 20
try 90/test_sample 15
echo "1..$n"
exit $failed
