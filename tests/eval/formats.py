#!/usr/bin/env python3
"""What do formats of weights cost in answers?  models/pocket in every format.

    tests/eval/formats.py OUT [--cases N] [--set KEY=VALUE ..] [--formats A,B ..]
                          [--parallel N] [--seconds S] [--batch N]
                          [--kv-memory SIZE]                  needs numpy

Writes the model in each format of models/pocket/quantise.py to OUT/models, and has
`tokenring eval` answer the same cases under `full`

    base       in the 16 bits of models/pocket
    packed     in the format, as an engine loads it (weights_format auto)
    expanded   in the format, made 16 bits at load (weights_format expand)

and prints, as rows of a table, the paired difference of packed to expanded (do
kernels compute what the file says?) and to base (what did rounding cost?).
Where nothing stays packed (the log says so) `expanded` would be the same run.
MXFP4 is a format of experts, so there the model has its MLPs cut into four.

--cases N is N cases of each family and difficulty, 4 N a family (default 8).  What
is in OUT already is not run again.  --parallel N runs N at once (a GPU has room),
--seconds S stops beginning new ones after S and prints what there is.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
QUANTISE = os.path.join(ROOT, "models", "pocket", "quantise.py")
BASE = os.path.join(ROOT, "models", "pocket")
sys.path.insert(0, HERE)
import pair  # noqa: E402

# As published: groups of 128 columns; what is not in here has the script's own.
GROUPS = {"awq": 128, "gptq": 128, "int4": 128, "int4-zero": 128,
          "int8-packed": 128, "gptq-v2": 128}


def formats():
    out = subprocess.run([sys.executable, QUANTISE, "--list"], check=True,
                         capture_output=True, text=True)
    return out.stdout.split()


def make_model(out, form):
    folder = os.path.join(out, "models", form)
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        more = ["--group", str(GROUPS[form])] if form in GROUPS else []
        more += ["--experts", "4"] if form == "mxfp4" else []
        subprocess.run([sys.executable, QUANTISE, form, "--out", folder, *more],
                       check=True)
    return folder


class Runs:
    def __init__(self, args):
        self.args, self.began = args, time.monotonic()
        self.cases = os.path.join(args.out, f"cases-{args.cases}.jsonl")
        if not os.path.exists(self.cases):
            subprocess.run([os.path.join(HERE, "cases.sh"), "test",
                            str(args.cases), "2", self.cases], check=True,
                           stdout=subprocess.DEVNULL)

    def path(self, name, end="jsonl"):
        return os.path.join(self.args.out, f"{name}-{self.args.cases}.{end}")

    def run(self, name, folder, weights):
        """Answers all cases; False where there was no time."""
        left = self.args.seconds - (time.monotonic() - self.began)
        if left <= 1:
            return False
        settings = [w for s in [f"weights_format={weights}", *self.args.set]
                    for w in ("--set", s)]
        with open(self.path(name, "log"), "a") as log:
            try:
                subprocess.run(
                    [self.args.tokenring, "eval", "-v", "-m", folder, "-c",
                     self.cases, "-p", "full", "--kv-memory",
                     self.args.kv_memory, "--batch", self.args.batch,
                     "--resume", self.path(name), *settings], check=True, stdout=log,
                    stderr=log, timeout=left)
            except subprocess.TimeoutExpired:
                return False
            except subprocess.CalledProcessError:
                sys.exit(f"{name} failed: see {self.path(name, 'log')}")
        return True

    def packed_bits(self, name):
        """What the log says: bits a weight in the file, and parts kept packed."""
        with open(self.path(name, "log"), errors="replace") as f:
            log = f.read()
        bits = re.findall(r"weights method=.* bits_per_weight=([0-9.]+)", log)
        kept = re.findall(r"weights kept .*packed_mib=([0-9.]+)", log)
        return (bits[-1] if bits else "?"), bool(kept) and float(kept[-1]) > 0

    def format(self, form):
        folder = make_model(self.args.out, form)
        if self.run(form, folder, "auto") and self.packed_bits(form)[1]:
            self.run(form + "-expanded", folder, "expand")
        return form


def said(runs, one, other):
    """Of two runs: right answers of the second, difference, alike."""
    if not all(os.path.exists(runs.path(x)) for x in (one, other)):
        return None
    found = pair.groups(pair.read(runs.path(one)), pair.read(runs.path(other)))
    pairs = next((p for (_, family), p in found.items() if family == "all"), None)
    if not pairs:
        return None
    diff = "{:+.2f} [{:+.2f}, {:+.2f}]".format(
        *(100 * x for x in pair.difference(pairs)))
    share = 100 * sum(bool(b["right"]) for _, b in pairs) / len(pairs)
    alike = "{:.1f}; {:.1f}".format(*(100 * x for x in pair.alike(pairs)))
    return len(pairs), share, diff, alike


def report(runs, names):
    print("| format | group | bits | stays packed | answers | right | difference "
          "to 16 bits of the same file, 95% | alike: answers; tokens | difference "
          "to 16 bits, 95% |\n|" + "---|" * 9)
    for form in names:
        against = said(runs, "base", form)
        if against is None:
            continue
        n, share, cost, _ = against
        bits, packed = runs.packed_bits(form)
        same = said(runs, form + "-expanded", form) if packed else None
        diff, alike = same[2:] if same else ("", "")
        print(f"| {form} | {GROUPS.get(form, '')} | {bits} | "
              f"{'yes' if packed else 'no'} | {n} | {share:.2f} | {diff} | {alike} "
              f"| {cost} |")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--cases", type=int, default=8)
    p.add_argument("--formats", type=lambda s: s.split(","), default=formats())
    p.add_argument("--set", action="append", default=[])
    p.add_argument("--kv-memory", default="1g")
    p.add_argument("--batch", default="64")
    p.add_argument("--parallel", type=int, default=1)
    p.add_argument("--seconds", type=float, default=86400)
    p.add_argument("--tokenring",
                   default=os.path.join(ROOT, "build", "bin", "tokenring"))
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)
    runs = Runs(args)
    with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        work = [pool.submit(runs.run, "base", BASE, "auto")]
        work += [pool.submit(runs.format, f) for f in args.formats]
        for w in work:
            w.result()
    report(runs, args.formats)


if __name__ == "__main__":
    main()
