#!/usr/bin/env bash
#
# Writes evaluation cases with models/pocket/world.py (Python's standard library
# is all it needs).
#
#   tests/eval/cases.sh SPLIT N SEED OUT.jsonl [FAMILY ..]
#
# SPLIT is dev (to tune on) or test (to report on); they are disjoint.  N cases
# of each difficulty 1 to 4, so 4 * N a family.  Families: recall multi arith
# trace copy, unless named.
set -euo pipefail

if [ $# -lt 4 ]; then
    sed -n '3,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
split=$1 n=$2 seed=$3 out=$4
shift 4
[ $# -gt 0 ] || set -- recall multi arith trace copy
world=$(dirname "$0")/../../models/pocket/world.py

: >"$out"
for family in "$@"; do
    python3 "$world" --split "$split" --family "$family" --n "$n" \
        --seed "$seed" >>"$out"
done
echo "$out: $(wc -l <"$out") cases"
