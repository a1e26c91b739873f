#!/usr/bin/env python3
"""Pairs the answers of two evaluations: files of `tokenring eval --resume`.

    tests/eval/pair.py CPU.jsonl GPU.jsonl

An answer is found by its policy, family, difficulty, case and turn, so both runs
must have had the same cases in the same order; the models may differ.  For each
policy and family: how many answers are in both, how many are right, the difference
of the second to the first in points with its 95% interval, McNemar's exact
probability that so uneven a split is chance, the share of answers that are the same
text, and the share of the first's tokens that stand in such answers.

The interval is the one of cli/eval/eval_stats.h: Newcombe's for paired proportions,
with the number of pairs divided by the design effect of conversations.
"""
import collections
import gzip
import json
import math
import sys

Z = 1.959963984540054


def read(path):
    found = {}
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as lines:
        for line in lines:
            try:
                r = json.loads(line)
            except ValueError:
                continue  # torn by an interrupt
            if not r.get("skipped"):
                found[r["policy"], r["family"], r["difficulty"], r["case"],
                      r["turn"]] = r
    return found


def chance(a, b):
    """Two-sided, of a split of a + b coins that is at least as uneven."""
    n, k = a + b, min(a, b)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def wilson(right, n):
    p, zz = right / n, Z * Z
    middle, half = p + zz / (2 * n), Z * math.sqrt(
        p * (1 - p) / n + zz / (4 * n * n))
    return (max(0, (middle - half) / (1 + zz / n)),
            min(1, (middle + half) / (1 + zz / n)))


def design_effect(pairs, n, d):
    """How many times turns of conversations make the variance larger."""
    talks = collections.defaultdict(list)
    for a, b in pairs:
        talks[a["family"], a["case"]].append(bool(b["right"]) - bool(a["right"]))
    apart = sum((x - d) ** 2 for t in talks.values() for x in t)
    together = sum((sum(t) - d * len(t)) ** 2 for t in talks.values())
    k = len(talks)
    if apart <= 0 or k < 2:
        return 1
    return max(1, together / apart * k / (k - 1) * (n - 1) / n)


def difference(pairs):
    """Of the second's share to the first's, and its interval."""
    n = len(pairs)
    count = collections.Counter(
        (bool(a["right"]), bool(b["right"])) for a, b in pairs)
    a, b, c, d = (count[k] for k in ((True, True), (True, False),
                                     (False, True), (False, False)))
    diff = (c - b) / n
    shrink = 1 / design_effect(pairs, n, diff)
    a, b, c, d, n = (x * shrink for x in (a, b, c, d, n))
    p1, p2 = (a + b) / n, (a + c) / n
    (l1, u1), (l2, u2) = wilson(a + b, n), wilson(a + c, n)
    det, below = a * d - b * c, (a + b) * (c + d) * (a + c) * (b + d)
    det = max(det - n / 2, 0) if det > 0 else det
    f = det / math.sqrt(below) if below > 0 else 0
    low = (p2 - l2) ** 2 - 2 * f * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2
    high = (u2 - p2) ** 2 - 2 * f * (u2 - p2) * (p1 - l1) + (p1 - l1) ** 2
    return (diff, diff - math.sqrt(max(low, 0)), diff + math.sqrt(max(high, 0)))


def alike(pairs):
    """Shares of the answers, and of the first's tokens, with the same text."""
    same = [a for a, b in pairs if "text" in a and a["text"] == b.get("text")]
    tokens = sum(a["tokens"] for a, _ in pairs)
    return len(same) / len(pairs), sum(a["tokens"] for a in same) / tokens


def groups(one, other):
    """Pairs by policy and family, and of "all" families."""
    found = collections.defaultdict(list)
    for key in sorted(one.keys() & other.keys()):
        a, b = one[key], other[key]
        for family in (a["family"], "all"):
            found[a["policy"].split(",window_level")[0], family].append((a, b))
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found = groups(read(sys.argv[1]), read(sys.argv[2]))
    print(f"{'policy':28} {'family':7} {'n':>6} {'right':>6} {'right':>6} "
          f"{'difference [95%]':22} {'chance':>7} {'alike':>6} {'tokens':>6} "
          " kv_ratio")
    for (policy, family), pairs in sorted(found.items()):
        right = [sum(bool(p[i]["right"]) for p in pairs) for i in (0, 1)]
        only = [sum(p[i]["right"] and not p[1 - i]["right"] for p in pairs)
                for i in (0, 1)]
        ratio = [sum(p[i]["kv_ratio"] for p in pairs) / len(pairs)
                 for i in (0, 1)]
        diff = "{:+.2f} [{:+.2f}, {:+.2f}]".format(
            *(100 * x for x in difference(pairs)))
        same, tokens = alike(pairs)
        print(f"{policy:28} {family:7} {len(pairs):6} {right[0]:6} {right[1]:6} "
              f"{diff:22} {chance(*only):7.3f} {same:6.3f} {tokens:6.3f}  "
              f"{ratio[0]:.4f} {ratio[1]:.4f}")


if __name__ == "__main__":
    main()
