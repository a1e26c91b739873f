#!/bin/sh
# The whole engine on a GPU: tests, accuracy, benchmarks; one summary.
#
#   tests/gpu/engine.sh DIR [PART..]     DIR: what tests/gpu/bundle.sh made
#
# Parts: tests eval decode fit prefill ring; all of them by default.
# Figures land in RESULTS (default DIR/results), a line or a file each.  LOADS
# (prompt:answer:streams ..), RATES (requests a second ..), SECONDS_EACH, SHAPES
# change what is asked.
set -u
dir=${1:?the bundle}
shift
parts=${*:-tests eval decode fit prefill ring}
out=${RESULTS:-$dir/results}
shapes=${SHAPES:-$(dirname "$0")/../bench/shapes}
mkdir -p "$out"
LD_LIBRARY_PATH=$(cd "$dir/lib" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
TR_CUDA_LIBRARY=$(cd "$dir/lib" && pwd)/libtokenring_cuda.so
export LD_LIBRARY_PATH TR_CUDA_LIBRARY
failed=0

wanted() {
    case " $parts " in *" $1 "*) return 0 ;; esac
    return 1
}

# bench NAME ARGUMENTS..: one line of figures
bench() {
    name=$1
    shift
    if "$dir/bin/bench_gpu" "$@" --set "cuda_library=$TR_CUDA_LIBRARY" \
        >"$out/line" 2>"$out/$name.log"; then
        tee -a "$out/bench.txt" <"$out/line"
    else
        echo "FAILED  $name: $(tail -n 1 "$out/$name.log")"
        failed=1
    fi
    rm -f "$out/line"
}

if wanted tests; then
    for test in model_cuda executor_cuda; do
        if "$dir/tests/test_$test" >"$out/test_$test.log" 2>&1; then
            echo "ok      $test"
        else
            echo "FAILED  $test"
            tail -n 30 "$out/test_$test.log"
            failed=1
        fi
    done
fi

if wanted eval; then
    "$dir/bin/tokenring" eval -m models/pocket -c "$dir/cases.jsonl" \
        --set backend=cuda --set "cuda_library=$TR_CUDA_LIBRARY" \
        --set dtype=f16 --kv-memory "${EVAL_KV:-8g}" --batch 256 -p full -p diffkv \
        -p int4 -p kivi -p quest -p snapkv -p h2o -p streamingllm \
        --resume "$out/eval.jsonl" --json "$out/eval.json" \
        >"$out/eval.txt" 2>"$out/eval.log" || failed=1
    tail -n 40 "$out/eval.txt"
fi

if wanted decode; then
    for policy in full static; do
        bench "decode-$policy" decode --policy $policy --batch 64 \
            --model "$shapes/llama-3-8b"
        bench "decode-$policy-1" decode --policy $policy --batch 1 \
            --model "$shapes/llama-3-8b"
        bench "decode-7b-$policy" decode --policy $policy --batch 64 \
            --model "$shapes/qwen2.5-7b"
    done
fi

if wanted fit; then
    for model in llama-3-8b qwen2.5-32b; do
        for policy in full static; do
            bench "fit-$model-$policy" fit --policy $policy \
                --model "$shapes/$model"
        done
    done
fi

if wanted prefill; then
    for policy in full static; do # static has scores
        bench "prefill-$policy" prefill --policy $policy --context 8192 \
            --set max_batch_tokens=8192 --model "$shapes/llama-3-8b"
    done
fi

# Over the ring: an engine, and requests as a client sends them.
ring_engine() { # POLICY
    model=$out/llama-3-8b
    mkdir -p "$model"
    cp "$shapes/llama-3-8b/config.json" "$model"
    # text does not matter, but ids must become some: pocket's tokenizer
    cp models/pocket/tokenizer.json models/pocket/tokenizer_config.json "$model"
    "$dir/bin/tokenring-engine" --model "$model" --load_format dummy \
        --backend cuda --cuda_library "$TR_CUDA_LIBRARY" \
        --socket "$out/engine.sock" --kv_policy "$1" --max_model_len 4352 \
        --max_num_seqs 1024 --max_batch_tokens 4096 --max_queue 4096 \
        --swap_memory 1g 2>"$out/engine-$1.log" &
    engine=$!
    i=0
    while [ ! -S "$out/engine.sock" ] && [ $i -lt 120 ]; do
        sleep 1
        i=$((i + 1))
    done
}

if wanted ring; then
    for policy in full static; do
        ring_engine $policy
        for load in ${LOADS:-2048:2048:512 3584:512:512}; do # in:out:streams
            in=${load%%:*} n=${load##*:}
            answer=${load#*:}
            answer=${answer%:*}
            timeout 300 "$dir/bin/tokenring" bench -e "$out/engine.sock" \
                -c "$n" -N "$n" -P "$in" -O "$answer" \
                --json "$out/closed-$policy-$in-$answer.json" || failed=1
        done
        for rate in ${RATES:-2 5 10 15 20}; do
            timeout 120 "$dir/bin/tokenring" bench -e "$out/engine.sock" \
                --rate "$rate" -d "${SECONDS_EACH:-20}" -P 256:1024 -O 64:256 \
                --json "$out/poisson-$policy-$rate.json" || failed=1
        done
        kill "$engine"
        wait "$engine"
    done
fi
exit $failed
