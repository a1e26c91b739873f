#!/usr/bin/env bash
# What reuse of prefixes saves on a GPU, over the ring: for kv_reuse yes and no
#
#   chat     eight turns of a conversation with models/pocket: tokens of prompts
#            that were computed over those that are new
#   again    a prompt of 3,000 tokens: the time to its first token when it comes
#            for the first time, again, and again with another end; models/pocket
#            and, with random weights, the shapes of Llama 3 8B
#   random   what it costs where nothing is shared: seconds for prompts of 1,000
#            tokens and answers of 40, 16 at once
#
#   tests/gpu/reuse.sh BUILD      BUILD: where bin/ and lib/ are
#
# BACKEND (cuda), LIBRARY (BUILD/lib/libtokenring_cuda.so), MODELS ("pocket
# llama-3-8b"), POLICY (full), TOKENS (3000), RANDOM_PROMPTS (96) change what is asked.
set -u
dir=$(cd "${1:?where bin/ is}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=${here%/tests/gpu}
library=${LIBRARY:-$dir/lib/libtokenring_cuda.so}
top=$(mktemp -d)
socket=$top/engine.sock
engine=
trap 'stop; rm -rf "$top"' EXIT

stop() {
    [ -z "$engine" ] || { kill "$engine" && wait "$engine"; } 2>/dev/null
    engine=
}

# start REUSE MODEL SETTINGS..
start() {
    local reuse=$1 model=$2 i
    shift 2
    rm -f "$socket"
    "$dir/bin/tokenring-engine" --model "$model" --backend "${BACKEND:-cuda}" \
        --cuda_library "$library" --socket "$socket" --kv_policy "${POLICY:-full}" \
        --kv_reuse "$reuse" "$@" 2>"$top/log" &
    engine=$!
    for ((i = 0; i < 900; i++)); do
        [ ! -S "$socket" ] || return 0
        kill -0 "$engine" 2>/dev/null || break
        sleep 0.1
    done
    echo "no engine: $(tail -n 1 "$top/log")"
    exit 1
}

# figure NAME: of a JSON object on standard input
figure() {
    sed -E "s/.*\"$1\":([0-9.]+).*/\1/"
}

tokenring() {
    "$dir/bin/tokenring" "$@" --engine "$socket"
}

computed() {
    tokenring stats --once --json | figure computed
}

# words N: a text of N random words
words() {
    awk -v n="$1" -v seed="$RANDOM$RANDOM" 'BEGIN { srand(seed)
        split("river stone lamp seven garden winter paper north basket clock" \
            " silver window road apple letter bridge", w, " ")
        for (i = 0; i < n; i++) printf "%s ", w[1 + int(rand() * 16)] }'
}

# first PROMPT: ms to the first token, and the prompt's tokens in $top/tokens
first() {
    tokenring generate --raw --json -t 0 -n 1 --ignore-eos -p "$1" >"$top/one"
    figure prompt_tokens <"$top/one" >"$top/tokens"
    figure first_token_ms <"$top/one"
}

median() { # of lines
    sort -g | awk '{ x[NR] = $1 } END { printf "%.1f", x[int((NR + 1) / 2)] }'
}

chat() {
    local before fresh i
    before=$(computed)
    for ((i = 0; i < 8; i++)); do
        words 40
        echo
    done | tokenring chat --json -t 0 -n 60 >"$top/chat"
    # new: a prompt less what was known, prompt and answer, before it
    fresh=$(sed -E \
        's/.*"prompt_tokens":([0-9]+),"completion_tokens":([0-9]+).*/\1 \2/' \
        "$top/chat" | awk '{ n += $1 - known; known = $1 + $2 }
                           END { print n }')
    awk -v a="$before" -v b="$(computed)" -v n="$fresh" \
        'BEGIN { printf "%d computed, %d new: %.3f", b - a, n, (b - a) / n }'
}

again() {
    local n=${TOKENS:-3000} i text a b c
    a=$top/a b=$top/b c=$top/c
    : >"$a"
    : >"$b"
    : >"$c"
    first "$(words 200)" >/dev/null # how many tokens words have
    n=$((n * 200 / $(cat "$top/tokens")))
    for ((i = 0; i < 7; i++)); do
        text=$(words "$n")
        first "$text" >>"$a"
        first "$text" >>"$b"
        first "${text:0:${#text}*29/30}$(words $((n / 30)))" >>"$c"
    done
    echo "$(cat "$top/tokens") tokens: first $(median <"$a") ms," \
        "the same $(median <"$b"), another end $(median <"$c")"
}

# Prompts and answers of their own, 16 at once.
random() {
    tokenring bench -c 16 -N "${RANDOM_PROMPTS:-96}" -w 16 -P 1000 -O 40 \
        -s "$RANDOM" \
        --json - 2>/dev/null | tr -d '\n ' \
        | figure seconds
}

for model in ${MODELS:-pocket llama-3-8b}; do
    settings=()
    where=$root/models/$model
    if [ "$model" != pocket ]; then
        where=$top/$model
        settings=(--load_format dummy --max_model_len 8192)
        python3 "$here/bench/dummy_model.py" "$root/tests/bench/shapes/$model" \
            "$root/models/pocket" "$where" || exit 1
    fi
    for reuse in yes no; do
        start "$reuse" "$where" "${settings[@]}"
        echo "$model, ${POLICY:-full}, kv_reuse $reuse"
        [ "$model" != pocket ] || echo "  chat    $(chat)"
        echo "  again   $(again)"
        echo "  random  $(random) s, $(random), $(random)"
        stop
    done
done
