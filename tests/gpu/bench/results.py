#!/usr/bin/env python3
"""Makes tables and a picture of what engine.sh has measured.

    results.py DIR [-o OUT]

Reads bench.txt (a line of key=value a run; the last of its kind counts),
closed-*.json and poisson-*.json (`tokenring bench`) of DIR, whatever is there of
these; writes gpu.md, gpu.json and, of the sweep, gpu.svg, with the goal beside
each figure. What was not measured is not there; notes.md of DIR can say why. A
line with commit=.. is of an earlier run. Standard library only.
"""
import argparse
import datetime
import glob
import json
import os
import platform
import re
import shlex
import subprocess
import sys

from plot_sweep import plot

HERE = os.path.dirname(os.path.abspath(__file__))


def number(text):
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def read_line(text):
    run = {k: number(v) for k, v in
           (p.split("=", 1) for p in shlex.split(text) if "=" in p)}
    if "policy" in run:
        run["spec"] = run["policy"]
        run["policy"] = run["policy"].split(":")[0]
    return run


def read_lines(path):
    """The last run of each kind, in the order in which kinds came first."""
    last = {}
    try:
        with open(path, encoding="utf-8") as f:
            for text in f:
                if text.startswith("bench="):
                    r = read_line(text)
                    key = tuple(r.get(k) for k in (
                        "bench", "model", "policy", "mode", "prompt", "answer",
                        "context", "kv_memory"))
                    if r["bench"] not in ("fit", "fit_best", "mix"):
                        key += (r.get("batch"),)
                    last[key] = r
    except FileNotFoundError:
        pass
    return list(last.values())


def read_loads(pattern, names):
    """JSON files whose name's parts are these."""
    loads = []
    for path in glob.glob(pattern):
        parts = re.split("-", os.path.basename(path)[:-len(".json")])
        with open(path, encoding="utf-8") as f:
            load = json.load(f)
        load.update(zip(names, map(number, parts[1:])))
        loads.append(load)
    return sorted(loads, key=lambda r: [str(r[n]).zfill(9) for n in names])


class Report:
    def __init__(self):
        self.text = []
        self.earlier = set()

    def policy(self, r):
        """Marked where the run was one of an earlier commit."""
        if "commit" not in r:
            return r["policy"]
        self.earlier.add(str(r["commit"]))
        return r["policy"] + " *"

    def say(self, *lines):
        self.text.extend(lines)

    def table(self, title, head, rows):
        if rows:
            self.say("", f"## {title}", "", "| " + " | ".join(head) + " |",
                     "|" + "---|" * len(head))
            self.say(*("| " + " | ".join(str(c) for c in r) + " |"
                       for r in rows))
        return bool(rows)


def held(good):
    return "held" if good else "**missed**"


def of(runs, bench):
    return [r for r in runs if r["bench"] == bench]


def times_full(runs, r, same):
    """How many times what `full` does, None where it was not measured."""
    for f in runs:
        if f["policy"] == "full" and all(f.get(k) == r.get(k) for k in same):
            return r["tokens_s"] / f["tokens_s"] if f["tokens_s"] else None
    return None


def ratio(x):
    return "-" if x is None else f"{x:.2f}"


def ms(x):
    return f"{x:.2f}"


LONG = 200 # steps of a run that is in energy_table alone


def first_steps(r):
    """Before the clock falls to what the power limit allows."""
    if "first_ms" not in r:
        return "-"
    return f"{ms(r['first_ms'])} ({r['first_ms'] / r['roofline_ms']:.3f})"


def decode_table(o, runs):
    rows = []
    for r in of(runs, "decode"):
        if r["steps"] >= LONG:
            continue
        big = r["batch"] == 64 and r["context"] == 4096
        rows.append((r["model"], f"{r['batch']} x {r['context']}", o.policy(r),
                     ms(r["step_ms"]), ms(r["roofline_ms"]),
                     f"{r['over_roofline']:.3f}",
                     f"<= 1.25: {held(r['over_roofline'] <= 1.25)}"
                     if big else "", first_steps(r), f"{r['host_gap']:.2%}",
                     f"< 3%: {held(r['host_gap'] < 0.03)}" if big else "",
                     r["tokens_s"], ms(r["products_ms"]),
                     f"{ms(r['attention_ms'])} ({ms(r['kv_ms'])})",
                     ms(r["rest_ms"]), r["limit"]))
    if o.table("A decode step",
               ("model", "sequences x tokens", "policy", "step ms",
                "roofline ms", "over it", "goal", "first 16 steps (over it)",
                "host gap", "goal", "tokens/s", "products ms", "attention ms (its bytes)",
                "rest ms", "limit"), rows):
        o.say("", "Roofline: weights and KV pages at the speed of a copy of "
              "the same run. `static` reads", "less, so what does not shrink "
              "with the bytes weighs more.")


def energy_table(o, runs):
    rows = []
    known = [r for r in runs if "watts" in r]
    seen = set()
    for r in known:
        key = tuple(r[k] for k in ("model", "policy", "batch", "context"))
        if key in seen: # the best of a fit can be all that fit
            continue
        seen.add(key)
        full = [f for f in known if f["policy"] == "full"
                and all(f[k] == r[k] for k in ("bench", "model", "context"))]
        rows.append((r["model"], f"{r['batch']} x {r['context']}",
                     o.policy(r), r["steps"], ms(r["step_ms"]),
                     ms(r["first_ms"]), f"{r['watts']:.0f}",
                     f"{r['token_mj']:.1f}",
                     f"{full[-1]['token_mj'] / r['token_mj']:.2f}"
                     if full else "-"))
    if o.table("Energy",
               ("model", "sequences x tokens", "policy", "steps", "step ms",
                "first 16 steps ms", "watts", "mJ a token",
                "tokens a joule, times full"), rows):
        o.say("", "Steps of a second and more, at what the whole device draws "
              "(NVML). Contexts grow by a token", "a step.")


FIT_GOALS = {"llama-3-8b": 2.6, "qwen2.5-32b": 3.0}
MIX_GOALS = {(2048, 2048): 1.7}


def goal(times, least):
    if times is None or least is None or times == 1:
        return ""
    return f">= {least}: {held(times >= least)}"


def fit_table(o, runs):
    fits = of(runs, "fit")
    rows = []
    for r in fits:
        times = times_full(fits, r, ("model", "context"))
        rows.append((r["model"], r["policy"], r["batch"],
                     f"{r['kv_gib']:.1f}", f"{r['kv_of_fp16']:.3f}",
                     ms(r["step_ms"]), r["tokens_s"], ratio(times),
                     goal(times, FIT_GOALS.get(r["model"])),
                     f"{ms(r['products_ms'])} (weights {ms(r['weights_ms'])}, "
                     f"flop {ms(r['flop_ms'])})",
                     f"{ms(r['attention_ms'])} ({ms(r['kv_ms'])})",
                     ms(r["rest_ms"]), r["limit"]))
    if not o.table("Decode only, constant 4,096 tokens, as many sequences as fit",
            ("model", "policy", "sequences", "KV GiB", "of FP16", "step ms",
             "tokens/s", "times full", "goal", "products ms",
             "attention ms (its bytes)", "rest ms", "limit"), rows):
        return
    best = of(runs, "fit_best")
    o.say("", "A step is computed for the next larger batch that has a graph. "
          "With the batch, not above", "the largest, that gives most tokens a "
          "second:", "")
    for r in best:
        times = times_full(best, r, ("model", "context"))
        o.say(f"- {r['model']} {r['policy']}: {r['batch']} sequences, "
              f"{r['tokens_s']} tokens/s, {ratio(times)} times full")


def mix_table(o, runs):
    mixes = [r for r in of(runs, "mix") if not r.get("kv_memory")]
    rows = []
    for r in mixes:
        times = times_full(mixes, r, ("model", "prompt", "answer"))
        rows.append((r["model"], f"{r['prompt']} / {r['answer']}", r["policy"],
                     r["batch"], f"{r['kv_gib']:.1f}", ms(r["step_ms"]),
                     r["tokens_s"], ratio(times),
                     goal(times, MIX_GOALS.get((r["prompt"], r["answer"]))),
                     ms(r["decode_ms"]), ms(r["prefill_ms"]),
                     ms(r["products_ms"]), ms(r["kv_ms"]), r["limit"]))
    if o.table("Prompts and answers, a full pool in its steady state",
               ("model", "in / out", "policy", "sequences", "KV GiB",
                "step ms", "tokens/s", "times full", "goal", "decode ms",
                "prefill ms", "products ms", "KV bytes ms", "limit"), rows):
        o.say("", "A mean step is one of decode and what prompts add to it. "
              "Driven without a scheduler", "(tests/bench/gpu/gpu_mix.c); below "
              "what the scheduler makes of the same.")


def prefill_table(o, runs):
    o.table("One prompt, whole forward pass",
            ("model", "tokens", "policy", "scores", "TTFT ms", "TFLOP/s",
             "peak TFLOP/s", "share", "goal", "then compressing ms"),
            [(r["model"], r["context"], r["policy"],
              "yes" if r["scored"] else "no", ms(r["ttft_ms"]), r["tflop_s"],
              r["peak_tflop_s"], f"{r['share']:.1%}",
              f">= 50%: {held(r['share'] >= 0.5)}"
              if r["context"] == 8192 else "", ms(r["compress_ms"]))
             for r in of(runs, "prefill")])


def beside_table(o, runs):
    theirs = of(runs, "transformers")
    rows = []
    for r in of(runs, "beside_transformers"):
        each = ", ".join(f"{t['mode']} {t['tokens_s']}" for t in theirs
                         if t["batch"] == r["batch"])
        rows.append((r["batch"], r["context"], o.policy(r), r["tokens_s"],
                     r["theirs_s"], r["theirs"], each, f"{r['ratio']:.2f}"))
    if o.table("Beside Hugging Face transformers, the same dummy Llama-3-8B",
               ("batch", "context", "our policy", "our tokens/s",
                "their best", "which", "all of theirs", "ratio"), rows):
        t = theirs[0]
        o.say("", f"transformers {t['version']}, PyTorch {t['torch']}, BF16, "
              "greedy; both decode alone, without the prompt.")


def closed_table(o, runs, closed):
    rows = []
    for c in closed:
        s = c.get("steady", {})
        if not s.get("reached"):
            continue
        alone = [r for r in of(runs, "mix") if r.get("kv_memory")
                 and (r["policy"], r["prompt"], r["answer"]) ==
                 (c["policy"], c["in"], c["out"])]
        mine = s["output_tokens_per_s"]
        rows.append((f"{c['in']} / {c['out']}", c["policy"], s["streams"],
                     f"{mine:.0f}", alone[-1]["tokens_s"] if alone else "-",
                     f"{mine / alone[-1]['tokens_s']:.1%}" if alone else "-",
                     f"{s['after_s']:.0f}", f"{s['seconds']:.0f}", c["bad"]))
    if o.table("Over the ring, as many streams as the pool holds",
               ("in / out", "policy", "streams", "tokens/s",
                "the same without scheduler", "share", "steady after s",
                "for s", "failed"), rows):
        pools = {r["kv_memory"] for r in of(runs, "mix") if r.get("kv_memory")}
        if pools:
            o.say("", f"The pool has {', '.join(sorted(map(str, pools)))}: "
                  "filling all of the memory takes minutes over the ring.")


def sweep_table(o, sweep, loads):
    rows = []
    for s in sweep:
        t, p = s["ttft_ms"], s["tpot_ms"]
        rows.append((o.policy(s), f"{s['rate']:g}",
                     *(f"{t[k]:.0f}" for k in ("p50", "p95", "p99")),
                     *(f"{p[k]:.1f}" for k in ("p50", "p95", "p99")),
                     f"{s['requests_per_s']:.1f}",
                     f"{s['output_tokens_per_s']:.0f}", s["good"], s["bad"]))
    if o.table(f"Poisson arrivals: {loads.strip() or 'unknown loads'}",
               ("policy", "requests/s", "TTFT p50 ms", "p95", "p99",
                "TPOT p50 ms", "p95", "p99", "done/s", "tokens/s", "good",
                "failed"), rows):
        o.say("", "![TTFT and TPOT over the request rate](gpu.svg)", "",
              "Latencies count from the moment a request was due. Past "
              "saturation they grow with the length", "of the run.")


def read_text(path, name):
    try:
        with open(os.path.join(path, name), encoding="utf-8") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def commit_of():
    if os.environ.get("COMMIT"):
        return os.environ["COMMIT"]
    try:
        return subprocess.run(["git", "-C", HERE, "rev-parse", "--short=12",
                               "HEAD"], capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("-o", "--out", help="where to write, default DIR")
    a = p.parse_args()
    out = a.out or a.dir
    runs = read_lines(os.path.join(a.dir, "bench.txt"))
    closed = read_loads(os.path.join(a.dir, "closed-*.json"),
                        ("policy", "in", "out"))
    sweep = read_loads(os.path.join(a.dir, "poisson-*.json"),
                       ("policy", "rate"))
    sweep.sort(key=lambda s: (s["policy"], s["rate"]))
    gpus = sorted({r["gpu"] for r in runs if "gpu" in r}) or ["unknown"]
    about = {"commit": commit_of(), "gpu": gpus, "host": platform.processor()
             or platform.machine(), "cores": os.cpu_count(),
             "date": datetime.date.today().isoformat()}
    try: # what the figures were made on, not where the tables are made again
        with open(os.path.join(a.dir, "about.json"), encoding="utf-8") as f:
            about.update(json.load(f))
    except FileNotFoundError:
        with open(os.path.join(a.dir, "about.json"), "w",
                  encoding="utf-8") as f:
            json.dump(about, f)
    o = Report()
    o.say("# The engine on a GPU: speed", "",
          "- command: tests/gpu/engine.sh (docs/gpu.md)",
          f"- commit: {about['commit']}",
          f"- hardware: {', '.join(about['gpu'])}, {about['cores']} CPU cores",
          f"- date: {about['date']}", "",
          "Weights are random (`load_format dummy`), so levels are set by a "
          "fixed share: `static`", "keeps 25% of the tokens at 8/4 bits, 35% "
          "at 4/2, and forgets 40%, with the kernels of", "`diffkv`. `full` "
          "keeps all at 16 bits and is the baseline, in the same run.")
    decode_table(o, runs)
    energy_table(o, runs)
    fit_table(o, runs)
    mix_table(o, runs)
    prefill_table(o, runs)
    beside_table(o, runs)
    closed_table(o, runs, closed)
    sweep_table(o, sweep, read_text(a.dir, "sweep.txt"))
    # what whoever was there has to say of the run
    notes = read_text(a.dir, "notes.md")
    if o.earlier:
        notes += f"\n\\* An earlier run, of commit {', '.join(o.earlier)}.\n"
    if notes:
        o.say("", "## Notes", "", notes.strip())
    with open(os.path.join(out, "gpu.md"), "w", encoding="utf-8") as f:
        f.write("\n".join(o.text) + "\n")
    with open(os.path.join(out, "gpu.json"), "w", encoding="utf-8") as f:
        json.dump({"about": about, "runs": runs, "closed": closed,
                   "sweep": sweep}, f, indent=1)
        f.write("\n")
    if sweep:
        plot(sweep, os.path.join(out, "gpu.svg"))
    print("\n".join(o.text))


if __name__ == "__main__":
    sys.exit(main())
