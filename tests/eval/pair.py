#!/usr/bin/env python3
"""Pairs the answers of two evaluations: files of `tokenring eval --resume`.

    tests/eval/pair.py CPU.jsonl GPU.jsonl

An answer is found by its key (model, policy, case, turn), so that the files may
hold the results of many runs.  For each policy and family: how many answers are
in both, how many are right, which of them in one file only, and McNemar's exact
probability that so uneven a split is chance.
"""
import collections
import gzip
import json
import math
import sys


def read(path):
    found = {}
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn by an interrupt
            found[record["key"]] = record
    return found


def chance(a, b):
    """Two-sided, of a split of a + b coins that is at least as uneven."""
    n, k = a + b, min(a, b)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    one, other = read(sys.argv[1]), read(sys.argv[2])
    groups = collections.defaultdict(list)
    for key in one.keys() & other.keys():
        a, b = one[key], other[key]
        for family in (a["family"], "all"):
            groups[a["policy"].split(",window_level")[0], family].append((a, b))
    print(f"{'policy':44} {'family':7} {'n':>6} {'right':>6} {'right':>6} "
          f"{'only 1':>6} {'only 2':>6} {'chance':>7}  kv_ratio")
    for (policy, family), pairs in sorted(groups.items()):
        right = [sum(bool(p[i]["right"]) for p in pairs) for i in (0, 1)]
        only = [sum(p[i]["right"] and not p[1 - i]["right"] for p in pairs)
                for i in (0, 1)]
        ratio = [sum(p[i]["kv_ratio"] for p in pairs) / len(pairs)
                 for i in (0, 1)]
        print(f"{policy:44} {family:7} {len(pairs):6} {right[0]:6} {right[1]:6} "
              f"{only[0]:6} {only[1]:6} {chance(*only):7.3f}  "
              f"{ratio[0]:.4f} {ratio[1]:.4f}")


if __name__ == "__main__":
    main()
