#!/bin/sh
# The whole engine on a GPU: tests, accuracy, benchmarks; one summary.
#
#   tests/gpu/engine.sh DIR [PART..]     DIR: what tests/gpu/bundle.sh made
#
#   tests     the engine's unit tests of the device         1 minute
#   requests  1,000 random requests, against each alone     2 minutes
#   eval      accuracy by policy                            10 minutes
#   decode    a step against its roofline                   1 minute
#   power     many steps, at the power limit                1 minute
#   fit       as many sequences as fit at 4,096 tokens      2 minutes
#   prefill   a prompt of 8,192 tokens                      1 minute
#   mix       prompts beside answers in a full pool         3 minutes
#   beside    Hugging Face transformers on the same model   3 minutes
#   closed    over the ring, a full pool of 24 GiB          4 minutes
#   sweep     over the ring, Poisson arrivals               5 minutes
#
# All of them by default.  Each has its time limit; what fails is said and the
# rest goes on.  Figures land in RESULTS (default DIR/results): a line a run in
# bench.txt, a file for each load, and gpu.md, gpu.json, gpu.svg made of all
# that is there (results.py), also of earlier runs with the same RESULTS.
# LOADS, RING_LOAD (prompt:answer), RING_POOL and SWEEP_POOL (kv_memory), RATES
# (requests a second), SWEEP_PROMPT and SWEEP_ANSWER (tokens), SECONDS_EACH,
# POLICIES, SHAPES, BATCHES, STEPS, MIX_STEPS, SIDE change what is asked; with
# TABLES empty, tables are left for another time.
set -u
dir=${1:?the bundle}
shift
parts=${*:-tests requests eval decode power fit prefill mix beside closed sweep}
out=${RESULTS:-$dir/results}
here=$(dirname "$0")
shapes=${SHAPES:-$here/../bench/shapes}
policies=${POLICIES:-full static}
mkdir -p "$out"
LD_LIBRARY_PATH=$(cd "$dir/lib" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
TR_CUDA_LIBRARY=${TR_CUDA_LIBRARY:-$(cd "$dir/lib" && pwd)/libtokenring_cuda.so}
export LD_LIBRARY_PATH TR_CUDA_LIBRARY
failed=0
begun=$(date +%s)
engine=
socket=${TMPDIR:-/tmp}/tokenring-$$.sock # the name of a socket is short
COMMIT=${COMMIT:-$(cat "$dir/commit" 2>/dev/null)}
export COMMIT

wanted() {
    case " $parts " in *" $1 "*) return 0 ;; esac
    return 1
}

say() { # a line with the time since the start
    printf '%4d s  %s\n' $(($(date +%s) - begun)) "$*"
}

fail() { # NAME LOG
    say "FAILED  $1: $(tail -n 1 "$2" | cut -c 1-300)"
    failed=1
}

# keys LINE: those of a run that say most
keys() {
    tr ' ' '\n' | grep -E '^(batch|step_ms|first_ms|tokens_s|watts|host_gap|over_roofline|limit|ttft_ms|share)=' |
        tr '\n' ' '
}

# bench NAME ARGUMENTS..: one line of figures
bench() {
    name=$1
    shift
    if timeout "${BENCH_LIMIT:-150}" "$dir/bin/bench_gpu" "$@" \
        --set "cuda_library=$TR_CUDA_LIBRARY" \
        >"$out/line" 2>"$out/$name.log"; then
        cat "$out/line" >>"$out/bench.txt"
        say "$name $(keys <"$out/line")"
    else
        fail "$name" "$out/$name.log"
    fi
    rm -f "$out/line"
}

if wanted tests; then
    for test in model_cuda model_cuda_goldens executor_cuda executor_pooled; do
        if timeout 240 "$dir/tests/test_$test" >"$out/test_$test.log" 2>&1; then
            say "ok      $test"
        else
            grep -E 'FAILED|Error' "$out/test_$test.log" | head -n 20
            fail "$test" "$out/test_$test.log"
        fi
    done
fi

if wanted requests; then
    if TR_TEST_REQUESTS=${REQUESTS:-1000} timeout "${REQUESTS_LIMIT:-300}" \
        "$dir/tests/test_cuda_requests" >"$out/requests.txt" 2>&1; then
        say "ok      requests"
    else
        fail requests "$out/requests.txt"
    fi
    grep -A9 ' requests in ' "$out/requests.txt"
fi

# evaluate NAME ARGUMENTS..: what was answered stays in RESULTS/eval.jsonl, and an
# evaluation that was cut short by EVAL_LIMIT seconds goes on from there
evaluate() {
    name=$1
    shift
    left=$((${EVAL_LIMIT:-580} - $(date +%s) + eval_begun))
    if [ "$left" -lt 5 ]; then
        say "left out $name"
        return
    fi
    timeout -s INT "$left" "$dir/bin/tokenring" eval -m models/pocket \
        -c "$dir/cases.jsonl" --set backend=cuda --set dtype=f16 \
        --set "cuda_library=$TR_CUDA_LIBRARY" --set max_batch_tokens=2048 \
        --kv-memory "${EVAL_KV:-16g}" --batch "${EVAL_BATCH:-512}" \
        --resume "$out/eval.jsonl" --json "$out/$name.json" \
        --svg "$out/$name.svg" --title "Test split, GPU" -p full "$@" \
        >"$out/$name.txt" 2>"$out/$name.log" || fail "$name" "$out/$name.log"
    say "$name $(grep ' answers, ' "$out/$name.log" | tail -n 1)"
    sed -n '/^all families/,/^$/p' "$out/$name.txt" | cut -c 1-100
}

# The policies of docs/benchmarks.md: a slow one holds up the batch that it is
# in, so they come one after another, and at the end all that is there.
if wanted eval; then
    eval_begun=$(date +%s)
    diffkv=diffkv:alpha_high=12,alpha_low=0
    evaluate eval-diffkv -p $diffkv
    evaluate eval-int4 -p int4
    evaluate eval-forget -p snapkv:budget=0.7 -p h2o:budget=0.7 \
        -p streamingllm:recent=0.7
    evaluate eval-kivi -p kivi:bits=4,window=32 -p kivi:bits=2
    evaluate eval-quest -p quest:budget=0.7
    evaluate eval-turns --family multi --keep-turns -p $diffkv -p int4
    evaluate eval-all -p $diffkv -p int4 -p kivi:bits=4,window=32 -p kivi:bits=2 \
        -p snapkv:budget=0.7 -p h2o:budget=0.7 -p streamingllm:recent=0.7 \
        -p quest:budget=0.7
fi

if wanted decode; then
    for policy in $policies; do
        for batch in ${BATCHES:-64 1}; do
            bench "decode-$policy-$batch" decode --policy "$policy" \
                --batch "$batch" --side "${SIDE:-8192}" \
                --model "$shapes/llama-3-8b"
        done
    done
fi

if wanted power; then # about 4,096 tokens in the mean
    for policy in $policies; do
        bench "power-$policy" decode --policy "$policy" --batch 64 \
            --context 3896 --steps 400 --side "${SIDE:-8192}" \
            --model "$shapes/llama-3-8b"
    done
fi

if wanted fit; then
    for model in llama-3-8b qwen2.5-32b; do
        case $model in *8b) most=1088 ;; *) most=512 ;; esac
        for policy in $policies; do # tables for more take memory from the pool
            bench "fit-$model-$policy" fit --policy "$policy" --batch $most \
                --side "${SIDE:-8192}" --steps "${STEPS:-64}" \
                --model "$shapes/$model"
        done
    done
fi

if wanted prefill; then
    for policy in $policies; do # static has scores
        bench "prefill-$policy" prefill --policy "$policy" --context "${PROMPT:-8192}" \
            --model "$shapes/llama-3-8b"
    done
fi

if wanted mix; then
    for io in ${LOADS:-2048:2048 3584:512}; do # in:out
        for policy in $policies; do
            bench "mix-${io%:*}-${io#*:}-$policy" mix --policy "$policy" \
                --batch 1408 \
                --context "${io%:*}" --answer "${io#*:}" \
                --steps "${MIX_STEPS:-300}" --model "$shapes/llama-3-8b"
        done
    done
fi

if wanted beside; then
    if timeout "${BESIDE_LIMIT:-300}" python3 "$here/bench/bench_transformers.py" \
        "$dir/bin/bench_gpu" "$TR_CUDA_LIBRARY" --limit "${EACH_LIMIT:-80}" \
        --model "$shapes/llama-3-8b" -o "$out/bench.txt" \
        >"$out/transformers.log" 2>&1; then
        grep beside_transformers "$out/transformers.log"
    else
        grep -vE '^bench=decode' "$out/transformers.log" | tail -n 40
        fail beside "$out/transformers.log"
    fi
fi

# ---- over the ring: an engine, and requests as a client sends them ----------

# ring_engine NAME POLICY SETTINGS..
ring_engine() {
    name=$1 policy=$2
    shift 2
    model=$out/llama-3-8b
    [ -f "$model/tokenizer.json" ] || python3 "$here/bench/dummy_model.py" \
        "$shapes/llama-3-8b" models/pocket "$model" || return 1
    rm -f "$socket"
    "$dir/bin/tokenring-engine" --model "$model" --load_format dummy \
        --backend cuda --cuda_library "$TR_CUDA_LIBRARY" \
        --socket "$socket" --kv_policy "$policy" \
        --max_queue 8192 --swap_memory 1g "$@" 2>"$out/engine-$name.log" &
    engine=$!
    i=0
    while [ ! -S "$socket" ] && kill -0 $engine 2>/dev/null &&
        [ $i -lt 900 ]; do
        sleep 0.1
        i=$((i + 1))
    done
    [ -S "$socket" ] || {
        fail "engine $name" "$out/engine-$name.log"
        ring_end
        return 1
    }
    say "engine with $policy is up"
}

ring_end() {
    kill "$engine" 2>/dev/null
    i=0
    while kill -0 "$engine" 2>/dev/null && [ $i -lt 100 ]; do
        sleep 0.1
        i=$((i + 1))
    done
    kill -9 "$engine" 2>/dev/null
    wait "$engine" 2>/dev/null
    engine=
}
trap '[ -z "$engine" ] || kill -9 $engine' EXIT
trap 'exit 1' INT TERM

# load NAME LIMIT ARGUMENTS..
load() {
    name=$1 limit=$2
    shift 2
    timeout "$limit" "$dir/bin/tokenring" bench -e "$socket" \
        --json "$out/$name.json" "$@" >"$out/$name.txt" 2>&1 ||
        fail "$name" "$out/$name.txt"
    say "$name $(grep -E '^(throughput|steady)' "$out/$name.txt" | tr -s ' ' |
        tr '\n' ' ')"
}

# A pool that is full all the time: as many streams as it holds, the first of
# them somewhere in their answer, measured when all of these run.  A part of the
# memory, since filling all of it takes minutes; beside the same without a
# scheduler.
if wanted closed; then
    pool=${RING_POOL:-24g}
    io=${RING_LOAD:-2048:2048}
    in=${io%:*} answer=${io#*:}
    for policy in $policies; do
        bench "alone-$policy" mix --policy "$policy" --context "$in" \
            --answer "$answer" --steps "${MIX_STEPS:-300}" \
            --set "kv_memory=$pool" --model "$shapes/llama-3-8b"
        n=$(grep "^bench=mix.* policy=\"$policy.* kv_memory=" "$out/bench.txt" |
            tail -n 1 | tr ' ' '\n' | sed -n 's/^batch=//p')
        [ -n "$n" ] || continue
        ring_engine "closed-$policy" "$policy" --kv_memory "$pool" \
            --max_model_len $((in + answer + 64)) --max_num_seqs $((n + 8)) \
            --max_batch_tokens 4096 || continue
        load "closed-$policy-$in-$answer" 150 -c "$n" -P "$in" -O "$answer" \
            --stagger --steady "${STEADY_SECONDS:-25}" -d 140
        ring_end
    done
fi

# Short prompts and long answers in a small pool, so that it is memory that
# saturates first; by rate from light load to beyond that.
if wanted sweep; then
    echo "prompts of ${SWEEP_PROMPT:-128:384}, answers of ${SWEEP_ANSWER:-512:1024}" \
        "tokens, a pool of ${SWEEP_POOL:-8g}" | sed 's/:/ to /g' >"$out/sweep.txt"
    for policy in $policies; do
        case $policy in
        full) rates=${RATES:-8 14 20 26} ;;
        *) rates=${RATES:-8 14 20 26 32} ;;
        esac
        ring_engine "sweep-$policy" "$policy" --max_model_len 2048 \
            --kv_memory "${SWEEP_POOL:-8g}" --max_num_seqs 1024 \
            --max_batch_tokens 4096 || continue
        for rate in $rates; do
            load "poisson-$policy-$rate" 120 --rate "$rate" \
                -d "${SECONDS_EACH:-12}" -P "${SWEEP_PROMPT:-128:384}" \
                -O "${SWEEP_ANSWER:-512:1024}" -w 2
        done
        ring_end
    done
fi

[ -z "${TABLES-yes}" ] || python3 "$here/bench/results.py" "$out" || failed=1
say "done"
exit $failed
