#!/usr/bin/env python3
"""Hugging Face transformers beside our engine: the same dummy model, GPU, batch
and context; tokens a second of the decode phase, without the prompt.

    bench_transformers.py BENCH_GPU LIBRARY [-o lines.txt]

Theirs: LlamaForCausalLM of the shape's config.json with random BF16 weights
made on the GPU, greedy `generate`, the better of
  dynamic     the default cache, scaled_dot_product_attention
  static      a static cache, with which generate compiles the decode step
              (reduce-overhead: CUDA graphs); `cudagraphs` where that fails
Both are reported; what does not start in time says so. A step's time is taken
by events from the prompt's logits to the last token's. Ours: bench_gpu decode,
before, since each wants the memory for itself. Nothing is downloaded.
"""
import argparse
import gc
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
import warnings

for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE",
             "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
HERE = os.path.dirname(os.path.abspath(__file__))


class Late(Exception):
    pass


def say(out, text):
    print(text, flush=True)
    if out:
        with open(out, "a", encoding="utf-8") as f:
            f.write(text + "\n")


def ours(a, batch, policy):
    """One line of bench_gpu as a dictionary, or None."""
    command = [a.bench_gpu, "decode", "--model", a.model, "--policy", policy,
               "--batch", str(batch), "--context", str(a.context),
               "--steps", str(a.new), "--set", "cuda_library=" + a.library,
               "--set", "max_batch_tokens=2048"]
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              timeout=a.limit)
    except (OSError, subprocess.TimeoutExpired) as e:
        print("FAILED ", " ".join(command), e, flush=True)
        return None
    if done.returncode != 0:
        print("FAILED ", " ".join(command), done.stderr[-2000:], flush=True)
        return None
    say(a.out, done.stdout.strip())
    return dict(p.split("=", 1) for p in shlex.split(done.stdout))


def limited(seconds, call):
    """What call returns; Late after so long. Python code alone is interrupted,
    so the caller has a limit of its own, too."""
    def late(*_):
        raise Late(f"not done after {seconds} s")
    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        return call()
    finally:
        signal.alarm(0)


def build(torch, transformers, path):
    config = transformers.LlamaConfig.from_pretrained(path)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    types = {str(p.dtype) for p in model.parameters()}
    if types != {"torch.bfloat16"}:
        raise RuntimeError(f"parameters are {types}, expected bfloat16 alone")
    return model


def generate(torch, transformers, model, batch, a, settings):
    """Milliseconds of a decode step."""
    events = []

    class Stamp(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            return scores

    ids = torch.randint(300, 1000, (batch, a.context), device="cuda")
    got = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids),
        logits_processor=transformers.LogitsProcessorList([Stamp()]),
        max_new_tokens=a.new + 1, do_sample=False, use_cache=True, **settings)
    torch.cuda.synchronize()
    if got.shape[1] != a.context + a.new + 1 or len(events) != a.new + 1:
        raise RuntimeError(f"{got.shape[1] - a.context} tokens came, "
                           f"{a.new + 1} were asked for")
    return events[0].elapsed_time(events[-1]) / a.new


def settings_of(transformers, mode):
    if mode == "dynamic":
        return {}
    if mode == "static":
        return {"cache_implementation": "static"}
    return {"cache_implementation": "static",
            "compile_config": transformers.CompileConfig(
                backend="cudagraphs", mode=None)}


def measure(torch, transformers, model, batch, mode, a):
    """Tokens a second, or None."""
    begun = time.monotonic()
    try:
        torch._dynamo.reset()
        settings = settings_of(transformers, mode)

        def run():
            return generate(torch, transformers, model, batch, a, settings)
        limited(a.limit, run)  # compiles
        start = time.monotonic() - begun
        ms = min(limited(a.limit, run) for _ in range(2))
    except Exception:  # whatever it is, the others are measured
        print(f"FAILED  transformers {mode} batch {batch}", flush=True)
        traceback.print_exc(limit=-6, file=sys.stdout)
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    say(a.out, f"bench=transformers version={transformers.__version__} "
        f"torch={torch.__version__} gpu=\"{torch.cuda.get_device_name()}\" "
        f"mode={mode} batch={batch} context={a.context} steps={a.new} "
        f"step_ms={ms:.3f} tokens_s={batch / ms * 1e3:.0f} "
        f"first_run_s={start:.1f}")
    return batch / ms * 1e3


def theirs(a):
    """The best tokens a second by batch, and how."""
    import torch
    import transformers
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    begun = time.monotonic()
    model = build(torch, transformers, a.model)
    torch.cuda.synchronize()
    print(f"model built in {time.monotonic() - begun:.1f} s, "
          f"{torch.cuda.memory_allocated() / 2**30:.1f} GiB", flush=True)
    best = {}
    for mode in a.modes:
        for batch in a.batches:
            speed = measure(torch, transformers, model, batch, mode, a)
            if speed is None and mode == "static":
                speed = measure(torch, transformers, model, batch,
                                "cudagraphs", a)
            if speed is not None and speed > best.get(batch, (0, ""))[0]:
                best[batch] = (speed, mode)
    return best


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("bench_gpu")
    p.add_argument("library")
    p.add_argument("-o", "--out", help="lines are added to this file")
    p.add_argument("--model", default=os.path.join(
        HERE, "..", "..", "bench", "shapes", "llama-3-8b"))
    p.add_argument("--context", type=int, default=2048)
    p.add_argument("--new", type=int, default=128)
    p.add_argument("--limit", type=int, default=90, help="seconds for each")
    p.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    p.add_argument("--policies", nargs="+", default=["full", "static"])
    p.add_argument("--modes", nargs="+", default=["dynamic", "static"],
                   choices=["dynamic", "static", "cudagraphs"])
    a = p.parse_args()
    mine = {(batch, policy): ours(a, batch, policy)
            for batch in a.batches for policy in a.policies}
    best = {}
    try:
        best = theirs(a)
    except Exception:  # also: no torch
        traceback.print_exc(file=sys.stdout)
    for (batch, policy), line in mine.items():
        if line is not None and batch in best:
            speed, mode = best[batch]
            say(a.out, f"bench=beside_transformers policy={policy} "
                f"batch={batch} context={a.context} "
                f"tokens_s={line['tokens_s']} theirs_s={speed:.0f} "
                f"theirs={mode} ratio={float(line['tokens_s']) / speed:.2f}")
    sys.exit(len(best) != len(a.batches) or None in mine.values())


if __name__ == "__main__":
    main()
