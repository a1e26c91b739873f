#!/usr/bin/env bash
#
# The findings of DiffKV on the model that ships, one step after another:
#
#   tests/eval/run.sh STEP OUT [N]
#
#   keys       are keys worth more bits than values? (section 3, figure 8)
#   likely     the same by how likely 8/4 and 4/8 find a text
#   dynamic    budgets by head against the same budget for all (figure 9)
#   curve      accuracy over memory, diffkv and every baseline
#   calibrate  diffkv's thresholds and every baseline's budget, on dev alone
#   final      what calibrate chose, on the test split, each turn prefilled
#              afresh and with --keep-turns
#   all        calibrate, then the others
#
# Results, tables and plots land in OUT; what is there already is not run again.
# N: cases of each family and difficulty (default 25 on dev, 96 for calibrate,
# which needs 381 a family for a tolerance of 1 point; 75 on test).  Seeds are fixed below.  MODEL=DIR for another model, B=DIR for
# another build, EVAL="--batch 64" for further options.
set -euo pipefail
cd "$(dirname "$0")/../.."

step=${1:-} out=${2:-} n=${3:-}
if [ -z "$out" ]; then
    sed -n '3,/^set /{/^set /d;s/^# \{0,1\}//p}' tests/eval/run.sh >&2
    exit 2
fi
model=${MODEL:-models/pocket}
tokenring=${B:-build}/bin/tokenring
read -ra more <<<"${EVAL:-}"
dev_seed=1 test_seed=2
mkdir -p "$out"

cases() { # split, default n
    local file=$out/$1-${n:-$2}.jsonl seed=$dev_seed

    [ "$1" = dev ] || seed=$test_seed
    [ -s "$file" ] || tests/eval/cases.sh "$1" "${n:-$2}" $seed "$file" >&2
    echo "$file"
}

# name, title, case file, further arguments
evaluate() {
    local name=$1 title=$2 file=$3
    shift 3
    "$tokenring" eval -m "$model" -c "$file" --resume "$out/results.jsonl" \
        --json "$out/$name.json" --svg "$out/$name.svg" --title "$title" \
        "$@" "${more[@]}" | tee "$out/$name.txt"
}

keys() {
    evaluate keys "Bits for keys, bits for values" "$(cases dev 25)" \
        -p full -p uniform:levels=8/8 -p uniform:levels=8/4 \
        -p uniform:levels=4/8 -p uniform:levels=8/2 -p uniform:levels=2/8 \
        -p uniform:levels=4/4 -p uniform:levels=4/2 -p uniform:levels=2/4
}

# Answers do not tell 8/4 from 4/8: both are right.  40 windows of a text made of
# other cases.
likely() {
    local text=$out/dev-text.txt

    if [ ! -s "$text" ]; then
        tests/eval/cases.sh dev 4 7 "$out/dev-text.jsonl" >&2
        python3 tests/eval/text.py "$out/dev-text.jsonl" >"$text"
    fi
    "$tokenring" eval -m "$model" --perplexity "$text" --windows 40 \
        --resume "$out/results.jsonl" --json "$out/likely.json" \
        -p uniform:levels=8/4 -p uniform:levels=4/8 -p full "${more[@]}" \
        | tee "$out/likely.txt"
}

dynamic() {
    evaluate dynamic "Budgets by head (diffkv) or the same for all (static)" \
        "$(cases dev 25)" -p full \
        -p diffkv:alpha_high=3,alpha_low=0 \
        -p diffkv:alpha_high=12,alpha_low=0 \
        -p diffkv:alpha_high=30,alpha_low=0 \
        -p diffkv:alpha_high=12,alpha_low=0.001 \
        -p diffkv:alpha_high=12,alpha_low=0.02 \
        -p diffkv:alpha_high=12,alpha_low=0.1 \
        -p static:high=0.5,low=0.5 -p static:high=0.25,low=0.75 \
        -p static:high=0.1,low=0.9 \
        -p static:high=0.1,low=0.8 -p static:high=0.1,low=0.65 \
        -p static:high=0.1,low=0.5
}

curve() {
    evaluate curve "Right answers over KV memory" "$(cases dev 25)" -p full \
        -p diffkv:alpha_high=1,alpha_low=0 \
        -p diffkv:alpha_high=3,alpha_low=0 \
        -p diffkv:alpha_high=8,alpha_low=0 \
        -p diffkv:alpha_high=12,alpha_low=0 \
        -p diffkv:alpha_high=30,alpha_low=0 \
        -p diffkv:alpha_high=12,alpha_low=0.001 \
        -p diffkv:alpha_high=12,alpha_low=0.02 \
        -p int4 -p kivi:bits=2 -p kivi:bits=4,window=32 \
        -p kivi:bits=4,window=96 -p kivi:bits=4,window=256 \
        -p snapkv:budget=0.7 -p snapkv:budget=0.5 -p snapkv:budget=0.3 \
        -p snapkv:budget=0.1 \
        -p h2o:budget=0.7 -p h2o:budget=0.5 -p h2o:budget=0.3 \
        -p h2o:budget=0.1 \
        -p streamingllm:recent=0.7 -p streamingllm:recent=0.5 \
        -p streamingllm:recent=0.3 -p streamingllm:recent=0.1 \
        -p quest:budget=0.7 -p quest:budget=0.5 -p quest:budget=0.3
}

# name, policy, searches ..
search() {
    local name=$1 policy=$2 args=()
    shift 2
    for one in "$@"; do args+=(-s "$one"); done
    [ -s "$out/$name.conf" ] && return
    "$tokenring" calibrate -m "$model" -c "$(cases dev 96)" \
        --resume "$out/results.jsonl" --out "$out/$name.conf" -p "$policy" \
        "${args[@]}" "${more[@]}" | tee "$out/calibrate-$name.txt"
}

# Seven values for each, from much memory to little.
calibrate() {
    search diffkv diffkv alpha_high=1,2,3,5,8,12,20 \
        alpha_low=0,0.0002,0.001,0.005,0.02,0.05,0.1
    search kivi kivi bits=4,2 window=256,192,128,96,64,32
    search snapkv snapkv budget=0.7,0.6,0.5,0.4,0.3,0.2,0.1
    search h2o h2o budget=0.7,0.6,0.5,0.4,0.3,0.2,0.1
    search streamingllm streamingllm recent=0.7,0.6,0.5,0.4,0.3,0.2,0.1
    search quest quest budget=0.7,0.6,0.5,0.4,0.3,0.2,0.1
}

final() {
    local args=(-p full) name file
    for name in diffkv kivi snapkv h2o streamingllm quest; do
        [ -s "$out/$name.conf" ] \
            || { echo "run the step calibrate first" >&2; exit 1; }
        args+=(-p "$(sed -n 's/^kv_policy //p' "$out/$name.conf")")
    done
    args+=(-p int4)
    file=$(cases test 75)
    evaluate final "Test split, calibrated on dev" "$file" "${args[@]}"
    evaluate final-keep-turns "Test split, one cache through all turns" \
        "$file" --keep-turns "${args[@]}"
}

case $step in
keys | likely | dynamic | curve | calibrate | final) $step ;;
all)
    calibrate
    keys
    likely
    dynamic
    curve
    final
    ;;
*)
    echo "run.sh: no step \"$step\"" >&2
    exit 2
    ;;
esac
