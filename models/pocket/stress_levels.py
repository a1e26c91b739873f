#!/usr/bin/env python3
"""What levels would cost that KV pages do not have: 3/2 and 2/2 bits, and TurboQuant's codes.

A level earns its code in pages and kernels when it holds here. Replies of evaluation cases are
teacher-forced: the prompt is computed exactly, and each token of the reply then sees keys and values
as codes, by token and head, but for the last --window tokens and the first --sinks, which are exact.

    tests/eval/cases.sh test 75 2 cases.jsonl recall multi arith trace
    python3 models/pocket/stress_levels.py build/stress/trained-norms cases.jsonl --cases 150

prints, for each level and remedy, how many whole replies are right (every token is the likeliest), and
the mean KL divergence of their tokens from exact attention.

    plain     codes from the smallest number of a head to the largest; of two bits those of the middle three
              fifths, as in docs/kv-cache.md
    turbo     TurboQuant (arXiv 2504.19874): rotated, divided by the root of the mean square, and coded by
              the Lloyd-Max points of a normal distribution; without its second code of the residual
    rotated   a Hadamard matrix with fixed signs, keys behind RoPE, values with its inverse on the output
    centred   the mean key of the prompt taken off all keys of a head, which no softmax sees

Needs torch; a GPU is used where there is one.
"""
import argparse
import json
import math
import os

import torch
import torch.nn.functional as F

import train

LLOYD = {2: (0.4528, 1.510), 3: (0.2451, 0.7560, 1.344, 2.152),
         4: (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733)}
# name, key bits, value bits, kind of codes, remedies
VARIANTS = [(f"{k}/{v} {' '.join((kind,) + remedies)}", k, v, kind, remedies)
            for k, v in ((8, 4), (4, 2), (3, 2), (2, 2)) for kind in ("plain",)
            for remedies in ((), ("rotated",), ("rotated", "centred"))]
VARIANTS += [(f"{k}/{v} turbo", k, v, "turbo", ("rotated",)) for k, v in ((4, 4), (3, 3), (2, 2), (4, 2), (3, 2))]


def plain(x, bits):
    """Codes of the last dimension's numbers, and back."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    if bits == 2:                                          # four codes over the middle three fifths
        low, high = low + (high - low) / 5, high - (high - low) / 5
    zero, most = low.half().float(), (1 << bits) - 1
    scale = ((high - low) / most).half().float().clamp(min=6e-8)
    return ((x - zero) / scale).round().clamp(0, most) * scale + zero


def turbo(x, bits):
    points = torch.tensor(LLOYD[bits], device=x.device)
    points = torch.cat((-points.flip(0), points))
    size = x.pow(2).mean(-1, keepdim=True).sqrt().half().float().clamp(min=6e-8)
    code = torch.bucketize(x / size, (points[1:] + points[:-1]) / 2)
    return points[code] * size


def hadamard(n, device):
    """Symmetric signs would leave a constant in one channel, so rows have random ones."""
    h = torch.ones(1, 1)
    while len(h) < n:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    signs = torch.randint(0, 2, (n, 1), generator=torch.Generator().manual_seed(1)) * 2.0 - 1
    return (signs * h / math.sqrt(n)).to(device)


class Model:
    """A Llama, Qwen2 or Qwen3 of a directory, in FP32, as plain functions of its weights."""

    def __init__(self, folder, device):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.c = json.load(f)
        self.w = {k: x.to(device) for k, x in train.load_state(folder).items()}
        dim, device = self.c["head_dim"], torch.device(device)
        turn = self.c["rope_theta"] ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim)
        angle = torch.arange(self.c["max_position_embeddings"], device=device, dtype=torch.float64)[:, None] * turn
        self.cos, self.sin = (torch.cat((x, x), 1).float() for x in (angle.cos(), angle.sin()))
        self.turn, self.device = hadamard(dim, device), device

    def norm(self, x, name):
        return self.w[name] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"])

    def heads(self, x, at, what, n, start):
        """[heads, tokens, dim] of a projection, normalised and turned where it is to be."""
        y = F.linear(x, self.w[f"{at}.{what}_proj.weight"], self.w.get(f"{at}.{what}_proj.bias"))
        y = y.view(len(x), n, -1).transpose(0, 1)
        if f"{at}.{what}_norm.weight" in self.w:
            y = self.norm(y, f"{at}.{what}_norm.weight")
        if what == "v":
            return y
        cos, sin = self.cos[start:start + len(x)], self.sin[start:start + len(x)]
        half = y.shape[-1] // 2
        return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin

    def attend(self, q, k, v, start, variant, args):
        group, (rows, total) = len(q) // len(k), (q.shape[1], k.shape[1])
        t = torch.arange(start, start + rows, device=q.device)[:, None]
        s = torch.arange(total, device=q.device)[None]
        coded, coded_v, undo = k, v, None
        if variant:
            _, key_bits, value_bits, kind, remedies = variant
            code = plain if kind == "plain" else turbo
            mean = k[:, :start].mean(1, keepdim=True) if "centred" in remedies else 0
            if "rotated" in remedies:
                undo = self.turn.T
                q, k, mean = q @ self.turn, k @ self.turn, mean @ self.turn if "centred" in remedies else 0
                v = v @ self.turn
            k = k - mean
            coded, coded_v = code(k, key_bits), code(v, value_bits)
        near = (t - s < args.window) | (s < args.sinks) if variant else s >= 0
        k, coded, v, coded_v = (x.repeat_interleave(group, 0) for x in (k, coded, v, coded_v))
        logits = torch.where(near, q @ k.transpose(1, 2), q @ coded.transpose(1, 2)) / math.sqrt(q.shape[-1])
        p = logits.masked_fill(s > t, -math.inf).softmax(-1)
        y = (p * near) @ v + (p * ~near) @ coded_v
        return y @ undo if undo is not None else y

    def run(self, ids, past=None, variant=None, args=None):
        """(logits, [(k, v)] by layer) of ids behind past."""
        x, c = self.w["model.embed_tokens.weight"][ids], self.c
        start, kept = past[0][0].shape[1] if past else 0, []
        for l in range(c["num_hidden_layers"]):
            layer, at = f"model.layers.{l}", f"model.layers.{l}.self_attn"
            y = self.norm(x, f"{layer}.input_layernorm.weight")
            q = self.heads(y, at, "q", c["num_attention_heads"], start)
            k, v = (self.heads(y, at, what, c["num_key_value_heads"], start) for what in "kv")
            if past:
                k, v = torch.cat((past[l][0], k), 1), torch.cat((past[l][1], v), 1)
            kept.append((k, v))
            y = self.attend(q, k, v, start, variant, args).transpose(0, 1).reshape(len(ids), -1)
            x = x + F.linear(y, self.w[f"{at}.o_proj.weight"])
            y = self.norm(x, f"{layer}.post_attention_layernorm.weight")
            gate, up = (F.linear(y, self.w[f"{layer}.mlp.{n}_proj.weight"]) for n in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, self.w[f"{layer}.mlp.down_proj.weight"])
        return F.linear(self.norm(x, "model.norm.weight"), self.w["model.embed_tokens.weight"]), kept


def replies(encoder, path, most):
    """(prompt, reply) ids of cases evenly drawn from a file; of many turns the last."""
    with open(path, encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    step = max(1, len(cases) // most)
    for case in cases[::step][:most]:
        prompt = encoder.chat(case["messages"])
        yield prompt, encoder.encode(case["reply"]) + [train.EOT]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("cases_file")
    p.add_argument("--cases", type=int, default=300)
    p.add_argument("--window", type=int, default=64)
    p.add_argument("--sinks", type=int, default=4)
    args = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Model(args.model, "cuda" if torch.cuda.is_available() else "cpu")
    encoder = train.Encoder.load(os.path.join(args.model, "tokenizer.json"))
    right, kl, tokens, n = [0] * (len(VARIANTS) + 1), [0.0] * len(VARIANTS), 0, 0
    with torch.no_grad():
        for prompt, reply in replies(encoder, args.cases_file, args.cases):
            ids = torch.tensor(prompt + reply, device=model.device)
            behind = len(prompt) - 1                       # its logits are the reply's first
            _, past = model.run(ids[:behind])
            exact, _ = model.run(ids[behind:-1], past)
            right[0] += bool((exact.argmax(-1) == ids[len(prompt):]).all())
            exact = exact.log_softmax(-1)
            for i, variant in enumerate(VARIANTS):
                logits = model.run(ids[behind:-1], past, variant, args)[0]
                right[i + 1] += bool((logits.argmax(-1) == ids[len(prompt):]).all())
                kl[i] += float((exact.exp() * (exact - logits.log_softmax(-1))).sum())
            tokens, n = tokens + len(reply), n + 1
    print(f"{args.model}: {n} replies of {tokens} tokens; exact attention {right[0]} right")
    for variant, whole, sum_ in zip(VARIANTS, right[1:], kl):
        print(f"{variant[0]:32} {whole:5} right ({100 * (whole - right[0]) / n:+6.2f} points)  KL {sum_ / tokens:.5f}")


if __name__ == "__main__":
    main()
