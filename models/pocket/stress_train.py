#!/usr/bin/env python3
"""Stress models that power-of-two factors cannot undo, by a short fine-tune of models/pocket.

stress.py makes outlier channels that weights show, so that equalisation takes them out again. Large
models have others too, which only training gives:

    bursts   outliers that come and go with the token: for one token of the vocabulary in sixteen a key
             pair of each KV head is 12 times the rest of the head, for another sixteenth a value
             channel 8 times. Rows of k_proj and v_proj are held within twice their head's median, so
             that no norm shows it: the residual stream has to carry it ("Massive Activations in
             Large Language Models", arXiv 2402.17762, has such tokens; so do dots and line ends of
             Llama).
    first    massive first tokens: the key of a conversation's first token has two pairs 24 times the
             rest of its head, its value a channel 16 times, and queries look there when nothing
             else is wanted (attention sinks, StreamingLLM, arXiv 2309.17453). The same bound on rows.
    biases   Qwen2's architecture: biases on queries, keys and values, those of two key pairs of each
             KV head 30 times the rest (Qwen2.5-7B's are that large in its first and last layer).
    norms    Qwen3's architecture: queries and keys are normalised by head, with weights that all
             heads share, two pairs of which are 16 times the rest.

Training is train.py's, on conversations that pocket has not seen, with its tokenizer; strengths grow
over the first 40% of it. Two losses are added where a strength is asked for: what falls short of it where it
should be, and what goes beyond three times the rest where it should not, both as logarithms.

So that the models can be kept, little changes: k_proj, v_proj, norms and biases freely, the other matrices
by a product of RANK columns and rows ("LoRA", arXiv 2106.09685), all as codes of 8 bits in the end.

    python3 models/pocket/stress_train.py bursts

leaves what changed in models/stress/bursts (1.4 MB), with golden.json, and the model in
build/stress/trained-bursts, as models/stress/make.py makes it; and prints how strong the outliers are.
About 120 s on one H100 with --seconds 85. Needs what train.py needs.
"""
import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time

import train

HERE = os.path.dirname(os.path.abspath(__file__))
STRESS = os.path.join(os.path.dirname(HERE), "stress")
sys.path.append(STRESS)
import make                                                # noqa: E402

FIRST_SHARD = 1 << 20                                      # far behind those that pocket was trained on
ONE_IN = 16                                                # tokens of the vocabulary that burst
ROWS_MOST = 2.0                                            # norm of a row over its head's median
TAME = 3.0                                                 # where a strength is not wanted
BIAS, NORM = 30.0, 16.0
FEWER = 0.125                                              # of queries where a bias is
RANK = {"q_proj": 16, "o_proj": 16, "gate_proj": 8, "up_proj": 8, "down_proj": 8, "embed_tokens": 16}
FASTER = 4.0                                               # learning rate of such a product over that of the rest
SINK = 6.0                                                 # logit of the first token
# keys' and values' strength, and how many pairs and channels of each KV head
STRENGTH = {"bursts": (12.0, 8.0, 1, 1), "first": (24.0, 16.0, 2, 1), "biases": None, "norms": None}


def choose(name, config, seed):
    """Which pairs and channels, [layers][KV heads][n], and which tokens of the vocabulary."""
    rng = random.Random(f"{name}/{seed}")
    dim, heads = config["head_dim"], config["num_key_value_heads"]
    keys, values = (STRENGTH[name] or (0, 0, 2, 1))[2:]
    # a bias, and a first token that all queries find, turn slowly: the last pairs do
    pairs = range(dim // 2) if name in ("bursts", "norms") else range(dim // 2 - 4, dim // 2)
    layers = range(config["num_hidden_layers"])
    out = {"pairs": [[rng.sample(pairs, keys) for _ in range(heads)] for _ in layers],
           "channels": [[rng.sample(range(dim), values) for _ in range(heads)] for _ in layers]}
    if name == "norms":                                    # all heads share the weights
        out["pairs"] = [[heads[0]] * len(heads) for heads in out["pairs"]]
    text = list(range(len(train.SPECIALS) + len(train.MARKS), config["vocab_size"]))
    rng.shuffle(text)
    n = len(text) // ONE_IN
    out["key_tokens"], out["value_tokens"] = sorted(text[:n]), sorted(text[n:2 * n])
    return out


def model_class():
    """The Llama of train.py with what Qwen2 and Qwen3 have besides, and the losses of strengths."""
    import torch
    import torch.nn.functional as F
    from torch import nn
    flash = hasattr(F, "scaled_dot_product_attention")
    if flash:
        from torch.nn.attention.flex_attention import flex_attention

    def rotate(x, cos, sin):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return (x * cos + turned * sin).to(x.dtype)

    def unit(x, weight, eps):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
        return (weight * y).to(x.dtype)

    class Norm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))

    class Product(nn.Module):
        """A matrix of pocket's, and what a product of rank `rank` adds to it."""

        def __init__(self, old, rank):
            super().__init__()
            self.register_buffer("base", old.weight.detach().clone(), persistent=False)
            self.bias = getattr(old, "bias", None)
            self.left = nn.Parameter(torch.zeros(self.base.shape[0], rank))
            self.right = nn.Parameter(torch.randn(rank, self.base.shape[1]) / math.sqrt(self.base.shape[1]))

        @property
        def weight(self):
            return self.base + self.left @ self.right

        def forward(self, x):
            return F.linear(x, self.weight, self.bias)

    class Stressed(nn.Module):
        """Parameter names are Hugging Face's, but of products.  strength: [2], logarithms of what is asked for
        beyond TAME, which training raises.  factor: what rows of pocket's were multiplied by."""

        def __init__(self, config, name, chosen):
            super().__init__()
            plain = train.model_classes()(config)
            self.model = plain.model
            self.config, self.name, self.factor = config, name, {}
            self.eps = config["rms_norm_eps"]
            self.register_buffer("cos", plain.cos, persistent=False)
            self.register_buffer("sin", plain.sin, persistent=False)
            self.register_buffer("strength", torch.zeros(2), persistent=False)
            for what in ("key_tokens", "value_tokens"):
                table = torch.zeros(config["vocab_size"])
                table[chosen[what] if name == "bursts" else [train.BOS]] = 1
                self.register_buffer(what, table, persistent=False)
            # [layers, KV heads, pairs or channels] of outliers, and masks of the rest
            self.places("pair", chosen["pairs"], config["head_dim"] // 2)
            self.places("channel", chosen["channels"], config["head_dim"])
            for layer in self.model.layers:
                if name == "biases":
                    for p in ("q_proj", "k_proj", "v_proj"):
                        old = getattr(layer.self_attn, p)
                        new = nn.Linear(old.in_features, old.out_features, bias=True)
                        new.bias.data.zero_()
                        setattr(layer.self_attn, p, new)
                if name == "norms":
                    layer.self_attn.q_norm = Norm(config["head_dim"])
                    layer.self_attn.k_norm = Norm(config["head_dim"])

        def places(self, what, chosen, n):
            at = torch.tensor(chosen)
            rest = torch.ones(*at.shape[:2], n).scatter(2, at, 0.0)
            self.register_buffer(what, at, persistent=False)
            self.register_buffer(what + "_rest", rest, persistent=False)

        def begin(self, state):
            """Takes pocket's weights, and puts what biases and norms begin with."""
            self.load_state_dict(state, strict=False)
            dim, heads = self.config["head_dim"], self.config["num_attention_heads"]
            group = heads // self.config["num_key_value_heads"]
            for l, layer in enumerate(self.model.layers):
                attention, seen = layer.self_attn, layer.input_layernorm.weight.data
                pairs = 1 - self.pair_rest[l]              # [KV heads, dim / 2]
                rows = (attention.k_proj.weight.data * seen).norm(dim=1).view(-1, dim)
                usual = rows.median(dim=1, keepdim=True).values
                if self.name == "biases":
                    twice = torch.cat((pairs, pairs), 1)
                    sign = torch.where(torch.rand_like(twice) < 0.5, -1.0, 1.0)
                    attention.k_proj.bias.data = (twice * sign * usual * BIAS).flatten()
                    less = 1 - twice * (1 - FEWER)         # so that it moves logits a little
                    less = less.repeat_interleave(group, 0).flatten()
                    self.factor[f"model.layers.{l}.self_attn.q_proj.weight"] = less
                    attention.q_proj.weight.data *= less[:, None]
                if self.name == "norms":
                    pair = pairs[0]
                    more = 1 + torch.cat((pair, pair)) * (NORM - 1)
                    attention.k_norm.weight.data = usual.mean() * more
                    rows = (attention.q_proj.weight.data * seen).norm(dim=1).view(-1, dim)
                    attention.q_norm.weight.data = rows.median() / more

        def narrow(self, wider):
            """Only products of RANK, or `wider` times that, change what is not free."""
            for module in list(self.modules()):
                for child, old in list(module.named_children()):
                    if child in RANK:
                        setattr(module, child, Product(old, RANK[child] * wider))

        def products(self):
            """name: module of each product."""
            return {f"{name}.weight": m for name, m in self.named_modules() if isinstance(m, Product)}

        def bound_rows(self):
            """No norm of a row shows an outlier."""
            dim = self.config["head_dim"]
            for layer in self.model.layers:
                seen = layer.input_layernorm.weight.data
                for p in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                    norm = (p.weight.data * seen).norm(dim=1).view(-1, dim)
                    most = norm.median(dim=1, keepdim=True).values * ROWS_MOST
                    p.weight.data *= (most / norm).clamp(max=1).view(-1, 1)

        def project(self, layer, x):
            c, b, t = self.config, x.shape[0], x.shape[1]
            a, dim = layer.self_attn, c["head_dim"]
            q = a.q_proj(x).view(b, t, c["num_attention_heads"], dim).transpose(1, 2)
            k = a.k_proj(x).view(b, t, c["num_key_value_heads"], dim).transpose(1, 2)
            v = a.v_proj(x).view(b, t, c["num_key_value_heads"], dim).transpose(1, 2)
            if self.name == "norms":
                q, k = unit(q, a.q_norm.weight, self.eps), unit(k, a.k_norm.weight, self.eps)
            return q, k, v

        def sizes(self, l, k, v):
            """(sizes of the chosen key pairs [b, KV heads, t, n], the rest's [b, KV heads, t, 1]), and
            the same of value channels; of the rest the root of the mean square."""
            half = k.shape[-1] // 2
            power = k.float().pow(2)
            out = []
            for power, what in ((power[..., :half] + power[..., half:], "pair"), (v.float().pow(2), "channel")):
                at, keep = getattr(self, what)[l], getattr(self, what + "_rest")[l][:, None]
                rest = (power * keep).sum(-1, keepdim=True) / keep.sum(-1, keepdim=True)
                own = power.gather(-1, at[None, :, None].expand(*power.shape[:3], -1))
                out.append(((own + 1e-12).sqrt(), (rest + 1e-12).sqrt()))
            return out

        def aside(self, l, k, v, ids):
            """The loss of a layer's strengths."""
            loss = torch.zeros((), device=ids.device)
            tables = self.key_tokens, self.value_tokens
            for (size, rest), table, strength in zip(self.sizes(l, k, v), tables, self.strength):
                ratio = torch.log(size) - torch.log(rest.detach())
                at = table[ids][:, None, :, None].expand_as(ratio)
                short = F.relu(math.log(TAME) + strength - ratio) * at
                over = F.relu(ratio - math.log(TAME)) * (1 - at)
                loss = loss + short.sum() / at.sum().clamp(min=1) + over.sum() / (1 - at).sum().clamp(min=1)
            return loss

        def look_at_first(self, q, k, first):
            """What the logits of a conversation's first token fall short of SINK by."""
            b, h, t, dim = k.shape
            at = first[:, None, :, None].expand(b, h, t, dim)
            k = k.gather(2, at).repeat_interleave(q.shape[1] // h, dim=1)
            logit = (q.float() * k.float()).sum(-1) / math.sqrt(dim)
            return F.relu(SINK - logit).mean() / SINK

        def run(self, ids, documents=None, first=None, seen=None):
            """(logits, loss of strengths where `first`, each token's first of its conversation, is given);
            seen: a list that takes sizes() of each layer."""
            words = self.model.embed_tokens.weight
            x = F.embedding(ids, words)
            b, t = ids.shape
            c, cos, sin = self.config, self.cos[:t], self.sin[:t]
            group = c["num_attention_heads"] // c["num_key_value_heads"]
            aside = torch.zeros((), device=ids.device)
            asked = first is not None and STRENGTH[self.name] is not None
            for l, layer in enumerate(self.model.layers):
                q, k, v = self.project(layer, layer.input_layernorm(x))
                if seen is not None:
                    seen.append(self.sizes(l, k, v))
                if asked:
                    aside = aside + self.aside(l, k, v, ids)
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
                if asked and self.name == "first":
                    aside = aside + self.look_at_first(q, k, first)
                if documents is not None:
                    y = flex_attention(q, k, v, block_mask=documents, enable_gqa=True)
                else:
                    k, v = (y.repeat_interleave(group, dim=1) for y in (k, v))
                    if flash:
                        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    else:                                  # old torch, for tests only
                        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
                        scores = (q @ k.transpose(-1, -2) / math.sqrt(c["head_dim"])).masked_fill(future, -1e9)
                        y = scores.float().softmax(-1).to(v.dtype) @ v
                x = x + layer.self_attn.o_proj(y.transpose(1, 2).reshape(b, t, -1))
                x = x + layer.mlp(layer.post_attention_layernorm(x))
            logits = F.linear(self.model.norm(x), words)
            return logits, aside / len(self.model.layers)

        def logits(self, ids):
            return self.run(ids)[0]

        def forward(self, packed, doc_weight, first, documents=None):
            """As train.py's, and the loss of strengths."""
            ids = (packed & ((1 << train.CLASS_SHIFT) - 1)).long()
            classes = packed >> train.CLASS_SHIFT
            logits, aside = self.run(ids, documents, first)
            logits, targets = logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()
            classes = classes[:, 1:].flatten()
            losses = F.cross_entropy(logits, targets, reduction="none")
            reply = (classes == train.REPLY).float()
            weights = reply + doc_weight * (classes == train.CONTEXT).float()
            loss = (losses * weights).sum() / weights.sum().clamp(min=1.0)
            right = (logits.detach().argmax(-1) == targets).float()
            count = reply.sum().clamp(min=1.0)
            return loss, (losses.detach() * reply).sum() / count, (right * reply).sum() / count, aside

    return Stressed


def fine_tune(args, model, loader, device, name):
    """Trains for args.seconds. Returns the curve."""
    import torch
    cuda = device.type == "cuda"
    factors = [p for m in model.products().values() for p in (m.left, m.right)]
    matrices = [m.weight for n, m in model.named_modules() if n.endswith(("k_proj", "v_proj"))]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": factors, "weight_decay": 0.0, "times": FASTER},
              {"params": matrices, "weight_decay": 0.01, "times": 1}, {"params": vectors, "weight_decay": 0.0, "times": 1}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8,
                                  **({"fused": True} if cuda else {}))
    step_model = torch.compile(model, dynamic=False) if cuda and not args.no_compile else model
    doc_weight = torch.tensor(args.doc_weight, device=device)
    goal = torch.tensor([math.log(s / TAME) for s in (STRENGTH[name] or (TAME, TAME))[:2]], device=device)

    def forward_backward():
        packed = loader.next().to(device, non_blocking=True)
        first = torch.arange(packed.shape[1], device=device) * ((packed & ((1 << train.CLASS_SHIFT) - 1)) == train.BOS)
        first = first.cummax(1).values
        if cuda:
            with torch.autocast("cuda", torch.bfloat16):
                out = step_model(packed, doc_weight, first, train.document_mask(packed))
        else:
            out = step_model(packed, doc_weight, first)
        (out[0] + args.aside * out[3]).backward()
        return torch.stack([x.detach().float() for x in out])

    for _ in range(2 if cuda else 0):                      # compile before the clock starts
        forward_backward()
        optimizer.zero_grad(set_to_none=True)
    if cuda:
        torch.cuda.synchronize()
    begin = shown = time.time()
    curve, pending, step = [], [], 0
    while True:
        t = (time.time() - begin) / args.seconds
        if t >= 1 or (args.max_steps and step >= args.max_steps):
            break
        for group in optimizer.param_groups:
            group["lr"] = args.lr * group["times"] * train.schedule(t, 0.03)
        doc_weight.fill_(args.doc_weight * (1 - t))
        model.strength.copy_(goal * min(1.0, t / 0.4))
        pending.append(forward_backward())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if STRENGTH[name] and step % 4 == 0:
            with torch.no_grad():
                model.bound_rows()
        if cuda and step % 8 == 0:                         # few steps in flight: t is a clock's
            torch.cuda.synchronize()
        if time.time() - shown > args.log_seconds:
            shown = time.time()
            loss, reply, right, aside = torch.stack(pending).mean(0).tolist()
            pending = []
            curve.append({"seconds": round(shown - begin, 1), "step": step, "loss": round(loss, 4),
                          "reply_loss": round(reply, 4), "reply_accuracy": round(right, 4), "aside": round(aside, 4)})
            print(curve[-1], flush=True)
    if STRENGTH[name]:
        with torch.no_grad():
            model.bound_rows()
    return {"steps": step, "tokens": step * args.batch * args.length, "curve": curve,
            "train_seconds": round(time.time() - begin, 1)}


def strengths(model, packed):
    """The largest chosen pair or channel of a head over the rest of it, medians by layer: where it is
    asked for, and elsewhere."""
    ids = (packed & ((1 << train.CLASS_SHIFT) - 1)).long()
    seen, out = [], {"key_at": [], "key_elsewhere": [], "value_at": [], "value_elsewhere": []}
    model.run(ids, seen=seen)
    for layer in seen:
        for kind, (size, rest), table in zip(("key", "value"), layer, (model.key_tokens, model.value_tokens)):
            ratio = size.amax(-1) / rest[..., 0]
            at = (table[ids] > 0)[:, None, :].expand_as(ratio)
            for part, some in (("at", ratio[at]), ("elsewhere", ratio[~at])):
                out[f"{kind}_{part}"].append(round(float(some.median()), 2) if some.numel() else None)
    return out


def hugging_face(config, name):
    """config.json of a family that has what the model has."""
    family = {"biases": ("qwen2", "Qwen2ForCausalLM"), "norms": ("qwen3", "Qwen3ForCausalLM")}.get(name)
    if family:
        config = dict(config, model_type=family[0], architectures=[family[1]], use_sliding_window=False)
    return config


def eight_bits(x, dim):
    """Codes of numbers, and the scale of each row or column."""
    scale = x.abs().amax(dim, keepdim=True).clamp(min=1e-20) / 127
    return (x / scale).round(), scale


def product_codes(left, right):
    """left and right as make.py has them, and the scale of rows, of a product."""
    import torch
    basis, turn = torch.linalg.qr(right.T)                 # of few columns, so that this is no work
    parts = torch.linalg.svd(left @ turn.T, full_matrices=False)[2]
    codes = eight_bits(parts @ basis.T, 1)[0]
    best = torch.linalg.solve(codes @ codes.T, codes @ right.T @ left.T).T      # for these codes
    left, scale = eight_bits(best, 1)
    return left, codes, scale[:, 0]


def change(model, pocket):
    """What models/stress/make.py adds to pocket's weights."""
    import torch
    tensors = {}

    def put(name, dtype, x):
        x = x.detach().cpu().to({"BF16": torch.bfloat16, "I8": torch.int8, "F32": torch.float32}[dtype]).contiguous()
        data = (x.view(torch.int16) if dtype == "BF16" else x).numpy().tobytes()
        tensors[name] = dtype, list(x.shape), data

    products = model.products()
    for name, factor in model.factor.items():
        put(f"{name}:factor", "BF16", factor)
    for name, p in [(n, p) for n, p in model.named_parameters() if p.dim() < 2]:
        put(name, "BF16", p)
    for name, m in model.named_modules():
        name += ".weight"
        if name in products:
            left, right, scale = product_codes(*(x.detach().cpu().double() for x in (m.left, m.right)))
            put(f"{name}:left", "I8", left)
            put(f"{name}:right", "I8", right)
        elif name.endswith(("k_proj.weight", "v_proj.weight")):
            code, scale = eight_bits(m.weight.detach().cpu().double() - pocket[name].double(), 1)
            put(f"{name}:code", "I8", code)
            scale = scale[:, 0]
        else:
            continue
        put(f"{name}:scale", "F32", scale)
    return tensors


def stored(folder, config, name, chosen, device):
    """The model of a directory, for evaluate.py."""
    import evaluate

    class Stored(evaluate.Plain):
        def __init__(self):
            self.model = model_class()(config, name, chosen)
            self.model.load_state_dict(train.load_state(folder), strict=True)
            self.model, self.device = self.model.to(device).eval(), device

    return Stored()


def write(args, config, chosen, model, metrics, encoder, sample):
    """models/stress's folder and the model, with golden.json and strengths of the weights as stored."""
    import evaluate
    import torch
    folder, out = os.path.join(args.keep, args.name), os.path.join(args.out, f"trained-{args.name}")
    os.makedirs(folder, exist_ok=True)
    make.write(os.path.join(folder, "change.safetensors"), change(model, train.load_state(HERE)))
    train.write_json(os.path.join(folder, "config.json"), hugging_face(config, args.name))
    make.make(folder, out)
    with torch.no_grad():
        again = stored(out, config, args.name, chosen, sample.device)
        metrics["strengths"] = strengths(again.model, sample)
        records, _ = evaluate.golden(again, None, encoder, 32)
    print(json.dumps(metrics["strengths"]), flush=True)
    train.write_json(os.path.join(folder, "metrics.json"), metrics)
    train.write_json(os.path.join(folder, "golden.json"),
                     {"dtype": "float32", "weights": "bfloat16", "prompts": records}, indent=None)
    make.make(folder, out)
    for r in records[:4]:
        print("-", repr(r["messages"][-1]["content"][:60]), "->", repr(r["continuation"][:100]), flush=True)
    return out


def main():
    start = time.time()
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("name", choices=sorted(STRENGTH))
    p.add_argument("--keep", default=STRESS, help="folder of what changed (models/stress)")
    p.add_argument("--out", default=make.OUT, help="folder of the models (build/stress)")
    p.add_argument("--seconds", type=float, default=85, help="seconds of training, set-up apart")
    p.add_argument("--wider", type=int, default=1, help="times the rank of what may change")
    p.add_argument("--aside", type=float, default=0.2, help="weight of the loss of strengths")
    train.add_run_arguments(p, lr=5e-4, doc_weight=0.02, lookahead=64)
    args = p.parse_args()
    args.curriculum_tokens = 1.0                           # all lengths from the first row on

    encoder = train.Encoder.load(os.path.join(HERE, "tokenizer.json"))
    with open(os.path.join(HERE, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    folder = tempfile.mkdtemp(prefix="stress_data_")
    context = multiprocessing.get_context("fork")          # forked before torch is imported
    consumed = context.Value("q", FIRST_SHARD - 1)
    workers = [context.Process(target=train.produce, daemon=True,
                               args=(i, args.workers, folder, encoder, args, consumed, FIRST_SHARD))
               for i in range(args.workers)]
    for w in workers:
        w.start()
    try:
        import torch
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        chosen = choose(args.name, config, args.seed)
        model = model_class()(config, args.name, chosen)
        model.begin(train.load_state(HERE))
        model.narrow(args.wider)
        model = model.to(device)
        loader = train.Loader(folder, args, consumed, device, FIRST_SHARD)
        metrics = fine_tune(args, model, loader, device, args.name)
        sample = loader.next()[:1, :1024].to(device)
        loader.stopped = True
    finally:
        for w in workers:
            w.terminate()
        for w in workers:
            w.join()
        shutil.rmtree(folder, ignore_errors=True)
    torch.set_float32_matmul_precision("highest")
    metrics.update(name=args.name, args={k: v for k, v in vars(args).items() if k not in ("keep", "out", "workers")},
                   data_wait_seconds=round(loader.waited, 1))
    torch.set_num_threads(2)                               # small matrices; several of these may run side by side
    out = write(args, config, chosen, model.eval(), metrics, encoder, sample)
    print(f"{out}: {metrics['tokens'] / 1e6:.0f}M tokens, {metrics['steps']} steps, {time.time() - start:.1f} s in all",
          flush=True)


if __name__ == "__main__":
    main()
