#!/usr/bin/env python3
"""Makes the tiny models of tests/models and their golden logits.

    make.py [--out DIR] [--mutate] [NAME ..]       needs torch, transformers 5

Each model is a family of transformers, computed there in FP32, eager, on the
CPU, so that our engine is held to code that nobody here wrote.  A model is
small (hidden 64, 4 layers, 4 query heads on 2 KV heads of 16, vocabulary 256,
window 8, original context 16) and everything in it is random: norms from 0.5 to
1.5, biases, sinks, correction biases, logits with a deviation above 1, query and
key rows 1.5 times as large as usual.  Defaults would hide errors, as prompts
within a window would.  All values are exact in BF16, the angles are not: they
are made in FP32.

DIR/NAME/config.json, model.safetensors, golden.json.  golden.json holds prompts
of 5, 40 and 70 tokens: all logits at four positions, the eight largest at the
others, and 24 tokens chosen greedily, computed without a KV cache, with the
distance between the two largest logits at each.  Keys and values are rounded to
FP16 on their way into the attention, as our KV cache keeps them: what is left of
the difference is arithmetic.

--mutate computes each model again with one feature changed, for every feature
that its family is there to show; a golden that stays equal proves nothing, and
is an error.
"""
import argparse
import copy
import json
import math
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 64, 4, 4, 2, 16
WINDOW, ORIGINAL, POSITIONS = 8, 16, 256
PROMPTS, FULL, TOP, GREEDY = (5, 40, 70), 4, 8, 24

BASE = dict(
    vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=80,
    num_hidden_layers=LAYERS, num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
    max_position_embeddings=POSITIONS, rms_norm_eps=1e-5,
    tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    pad_token_id=0, attention_dropout=0.0)

SLIDES = ["sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention"]


def rope(theta=10000.0, **more):
    return dict(rope_type="default", rope_theta=theta) | more


def yarn(theta=10000.0, factor=8.0, **more):
    return rope(theta, rope_type="yarn", factor=factor,
                original_max_position_embeddings=ORIGINAL) | more


LLAMA3 = rope(500000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL)
LONGROPE = rope(rope_type="longrope", factor=16.0,
                short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                long_factor=[1.0, 2.0, 3.0, 5.0, 8.0, 12.0],
                original_max_position_embeddings=ORIGINAL)

# name: (config class, model class, keys, {mutation: keys}).  A mutation's keys
# replace keys; "zero:TEXT" sets tensors whose name holds TEXT to zero and
# "one:TEXT" to one.
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM",
              dict(rope_parameters=LLAMA3, attention_bias=True),
              {"rope": dict(rope_parameters=rope(500000.0)),
               "theta": dict(rope_parameters=LLAMA3 | {"rope_theta": 1e4}),
               "biases": "zero:proj.bias"}),
    "llama_yarn": ("LlamaConfig", "LlamaForCausalLM",
                   dict(rope_parameters=yarn(100.0, beta_fast=1.6,
                                             beta_slow=0.3),
                        tie_word_embeddings=True),
                   {"rope": dict(rope_parameters=rope(100.0)),
                    "beta": dict(rope_parameters=yarn(100.0)),
                    "attention_factor": dict(rope_parameters=yarn(
                        100.0, beta_fast=1.6, beta_slow=0.3,
                        attention_factor=1.0))}),
    "mistral": ("MistralConfig", "MistralForCausalLM",
                dict(rope_parameters=rope(), sliding_window=WINDOW),
                {"window": dict(sliding_window=None)}),
    "ministral3": ("Ministral3Config", "Ministral3ForCausalLM",
                   dict(rope_parameters=yarn(
                       factor=16.0, mscale=1.0, mscale_all_dim=0.7,
                       beta_fast=32.0, beta_slow=1.0,
                       llama_4_scaling_beta=0.1)),
                   {"scaling": dict(rope_parameters=yarn(
                       factor=16.0, mscale=1.0, mscale_all_dim=0.7,
                       llama_4_scaling_beta=0.0)),
                    "mscale": dict(rope_parameters=yarn(
                        factor=16.0, llama_4_scaling_beta=0.1))}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM",
              dict(rope_parameters=rope(1e6)), {"biases": "zero:proj.bias"}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM",
              dict(rope_parameters=rope(1e6)),
              {"q_norm": "one:q_norm", "k_norm": "one:k_norm"}),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM",
                  dict(rope_parameters=rope(1e6), num_experts=8,
                       num_experts_per_tok=2, moe_intermediate_size=16,
                       norm_topk_prob=True, decoder_sparse_step=1,
                       mlp_only_layers=[1], intermediate_size=48),
                  {"renorm": dict(norm_topk_prob=False),
                   "top_k": dict(num_experts_per_tok=3),
                   "q_norm": "one:q_norm"}),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM",
                dict(rope_parameters=yarn(100.0, factor=16.0, truncate=False,
                                          beta_fast=1.6, beta_slow=0.3),
                     sliding_window=WINDOW, num_local_experts=8,
                     num_experts_per_tok=2, intermediate_size=16,
                     layer_types=["sliding_attention", "full_attention"] * 2,
                     attention_bias=True),
                {"sinks": "low:sinks", "window": dict(sliding_window=200),
                 "router bias": "zero:router.bias",
                 "truncate": dict(rope_parameters=yarn(
                     100.0, factor=16.0, truncate=True, beta_fast=1.6,
                     beta_slow=0.3)),
                 "biases": "zero:proj.bias",
                 "expert biases": "zero:proj_bias"}),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM",
                    dict(rope_parameters={
                        "full_attention": rope(1e6, rope_type="linear",
                                               factor=8.0),
                        "sliding_attention": rope(1e4)},
                        sliding_window=WINDOW, layer_types=SLIDES,
                        query_pre_attn_scalar=24,
                        hidden_activation="gelu_pytorch_tanh",
                        tie_word_embeddings=True),
                    {"window": dict(sliding_window=200),
                     "scale": dict(query_pre_attn_scalar=16),
                     "local theta": dict(rope_parameters={
                         "full_attention": rope(1e6, rope_type="linear",
                                                factor=8.0),
                         "sliding_attention": rope(1e6)}),
                     "linear": dict(rope_parameters={
                         "full_attention": rope(1e6),
                         "sliding_attention": rope(1e4)}),
                     "post norm": "zero:post_feedforward"}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM",
             dict(rope_parameters=rope(partial_rotary_factor=0.75),
                  original_max_position_embeddings=POSITIONS,
                  partial_rotary_factor=0.75, sliding_window=WINDOW),
             {"partial": dict(rope_parameters=rope(partial_rotary_factor=1.0),
                              partial_rotary_factor=1.0),
              "window": dict(sliding_window=None)}),
    "phi3_longrope": ("Phi3Config", "Phi3ForCausalLM",
             dict(rope_parameters=LONGROPE | {"partial_rotary_factor": 0.75},
                  original_max_position_embeddings=ORIGINAL,
                  partial_rotary_factor=0.75, sliding_window=None),
             {"longrope": dict(rope_parameters=rope(
                 partial_rotary_factor=0.75)),
              "short": dict(rope_parameters=LONGROPE | {
                  "partial_rotary_factor": 0.75,
                  "short_factor": [2.0] * 6})}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM",
              dict(rope_parameters=rope(500000.0)),
              {"q_norm": "one:q_norm", "k_norm": "one:k_norm"}),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM",
              dict(rope_parameters={
                  "full_attention": yarn(500000.0),
                  "sliding_attention": rope(500000.0)},
                  sliding_window=WINDOW, layer_types=SLIDES),
              {"window": dict(sliding_window=200),
               "full": dict(rope_parameters={
                   "full_attention": rope(500000.0),
                   "sliding_attention": rope(500000.0)}),
               "sliding": dict(rope_parameters={
                   "full_attention": yarn(500000.0),
                   "sliding_attention": yarn(500000.0)})}),
    "granite": ("GraniteConfig", "GraniteForCausalLM",
                dict(rope_parameters=rope(), embedding_multiplier=12.0,
                     attention_multiplier=0.4, residual_multiplier=0.22,
                     logits_scaling=0.3, attention_bias=True, mlp_bias=False),
                {"embedding": dict(embedding_multiplier=1.0),
                 "attention": dict(attention_multiplier=0.25),
                 "residual": dict(residual_multiplier=1.0),
                 "logits": dict(logits_scaling=1.0)}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM",
                dict(rope_parameters=rope(2e6), no_rope_layers=[1, 1, 1, 0],
                     no_rope_layer_interval=4, use_sliding_window=False),
                {"nope": dict(no_rope_layers=[1, 1, 1, 1])}),
    "glm4": ("Glm4Config", "Glm4ForCausalLM",
             dict(rope_parameters=rope(partial_rotary_factor=0.5),
                  partial_rotary_factor=0.5, attention_bias=True),
             {"partial": dict(rope_parameters=rope(partial_rotary_factor=1.0),
                              partial_rotary_factor=1.0),
              "biases": "zero:proj.bias",
              "post norm": "one:post_self_attn"}),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM",
                 dict(rope_parameters=rope(partial_rotary_factor=0.5),
                      partial_rotary_factor=0.5, attention_bias=True,
                      use_qk_norm=True, n_routed_experts=8, n_shared_experts=1,
                      num_experts_per_tok=3, moe_intermediate_size=16,
                      n_group=4, topk_group=2, first_k_dense_replace=1,
                      norm_topk_prob=True, routed_scaling_factor=1.7,
                      intermediate_size=48),
                 {"groups": dict(n_group=1, topk_group=1),
                  "scale": dict(routed_scaling_factor=1.0),
                  "renorm": dict(norm_topk_prob=False),
                  "correction": "zero:e_score_correction_bias",
                  "shared": "zero:shared_experts.down"}),
}


def randomise(model, name, seed):
    """Fills every parameter, in the order of its name."""
    g = torch.Generator().manual_seed(seed)
    shift = 1.0 if name.startswith("gemma") else 0.0   # its norms are w + 1

    state = dict(model.named_parameters())
    state |= {k: v for k, v in model.named_buffers()
              if "e_score_correction_bias" in k}
    with torch.no_grad():
        for key in sorted(state):
            p = state[key]
            if "correction_bias" in key:
                value = torch.rand(p.shape, generator=g) * 0.4 - 0.2
            elif "sinks" in key:
                value = torch.rand(p.shape, generator=g) * 4 - 1
            elif "norm" in key:
                value = torch.rand(p.shape, generator=g) + 0.5 - shift
            elif key.endswith("bias") or key.endswith("_bias"):
                value = torch.randn(p.shape, generator=g) * 0.3
            else:
                fan = p.shape[-1]
                if "experts." in key and p.dim() == 3 and "gpt_oss" in name:
                    fan = p.shape[-2]                  # [E][in][out]
                scale = 1 / math.sqrt(fan)
                if "q_proj" in key or "k_proj" in key or "qkv_proj" in key:
                    scale *= 1.5
                if "embed_tokens" in key:
                    scale = 1.0 if shift == 0 else 0.125
                if "granite" in name and "embed" in key:
                    scale = 0.1
                if "lm_head" in key:
                    scale *= 1.5
                if "router" in key or "gate.weight" in key:
                    scale *= 2
                value = torch.randn(p.shape, generator=g) * scale
            p.copy_(value.to(torch.bfloat16).float())


def build(name, more, seed, change=None):
    config_class, model_class, keys, _ = FAMILIES[name]
    merged = copy.deepcopy(BASE | keys | (more or {}))
    config = getattr(transformers, config_class)(**merged)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).float().eval()
    randomise(model, name, seed)
    if change:
        kind, text = change.split(":")
        hit = 0
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for key, p in state.items():
                if text in key:
                    p.fill_({"zero": 0.0, "one": 1.0, "low": -50.0}[kind])
                    hit += 1
        if not hit:
            raise ValueError("%s: no tensor of %s" % (text, name))
    return config, model


def keep_fp16(model):
    """Rounds keys and values to FP16 before the model's own attention."""
    module = sys.modules[type(model).__module__]
    if hasattr(module, "plain_attention"):
        return
    module.plain_attention = module.eager_attention_forward

    def rounded(layer, query, key, value, *args, **kwargs):
        return module.plain_attention(layer, query, key.half().float(),
                                      value.half().float(), *args, **kwargs)

    module.eager_attention_forward = rounded


def logits_of(model, ids):
    keep_fp16(model)
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=False)
    return out.logits[0].double()


def golden(model, seed):
    g = torch.Generator().manual_seed(seed + 1)
    prompts = []
    for n in PROMPTS:
        ids = torch.randint(3, VOCAB, (n,), generator=g).tolist()
        x = logits_of(model, ids)
        full = sorted({0, n // 3, 2 * n // 3, n - 1})
        greedy, margins, all_ids = [], [], list(ids)
        for _ in range(GREEDY):
            top = torch.topk(logits_of(model, all_ids)[-1], 2)
            greedy.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            all_ids.append(greedy[-1])
        prompts.append(dict(
            ids=ids,
            logits=[dict(position=p, values=[float("%.7g" % v) for v in x[p]])
                    for p in full],
            top=[dict(position=p, ids=t.indices.tolist(),
                      values=[float("%.7g" % v) for v in t.values])
                 for p in range(n) if p not in full
                 for t in [torch.topk(x[p], TOP)]],
            greedy=greedy, margins=[float("%.4g" % m) for m in margins]))
    return prompts


def mutate(name, seed, prompts):
    good = True
    for what, how in FAMILIES[name][3].items():
        more, change = (None, how) if isinstance(how, str) else (how, None)
        _, model = build(name, more, seed, change)
        worst = 0
        for p in prompts:
            x = logits_of(model, p["ids"])
            for at in p["logits"]:
                want = torch.tensor(at["values"], dtype=torch.float64)
                worst = max(worst, float((x[at["position"]] - want).abs().max()
                                         / want.abs().max()))
        if not worst > 2e-3:
            good = False
        print("%s without %s: off by %.2g%s" % (
            name, what, worst, "" if worst > 2e-3 else "  NOT SEEN"))
    return good


def ties(model, prompts):
    """The smallest distance of a router's last chosen expert to the next."""
    smallest, hooks = [1.0], []

    def watch(_, __, out):
        scores = out[0] if isinstance(out, tuple) else out
        if scores.dim() == 2 and scores.shape[-1] == 8:
            s = scores.float().sort(dim=-1, descending=True).values
            k = getattr(model.config, "num_experts_per_tok", 0)
            smallest[0] = min(smallest[0], float((s[:, k - 1] - s[:, k]).abs()
                                                 .min()))

    for key, module in model.named_modules():
        if key.endswith("mlp.gate") or key.endswith("mlp.router"):
            hooks.append(module.register_forward_hook(watch))
    for p in prompts:
        logits_of(model, p["ids"] + p["greedy"])
    for h in hooks:
        h.remove()
    return smallest[0]


def make(name, out, with_mutations):
    seed = 1000 + sorted(FAMILIES).index(name)
    for attempt in range(20):
        config, model = build(name, None, seed)
        prompts = golden(model, seed)
        spread = min(torch.tensor(at["values"]).std().item()
                     for p in prompts for at in p["logits"])
        tie = ties(model, prompts)
        if spread >= 1 and tie >= 1e-4:
            break
        seed += 100
    else:
        raise ValueError("no seed: deviation %.3g, tie %.2g" % (spread, tie))
    path = os.path.join(out, name)
    os.makedirs(path, exist_ok=True)
    model.save_pretrained(path + "/t", safe_serialization=True)
    with open(path + "/t/config.json") as f:
        keys = json.load(f)
    keys["dtype"] = "bfloat16"
    with open(path + "/config.json", "w") as f:
        json.dump(keys, f, indent=2, sort_keys=True)
        f.write("\n")
    from safetensors.torch import load_file
    state = load_file(path + "/t/model.safetensors")
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in state.items()}
    save_file(state, path + "/model.safetensors", metadata={"format": "pt"})
    for f in os.listdir(path + "/t"):
        os.unlink(path + "/t/" + f)
    os.rmdir(path + "/t")
    with open(path + "/golden.json", "w") as f:
        json.dump(dict(made_by="transformers %s, torch %s, FP32" % (
            transformers.__version__, torch.__version__.split("+")[0]),
            seed=seed, prompts=prompts), f, separators=(",", ":"))
        f.write("\n")
    print("%s: seed %d, deviation %.2f, tie %.2g, %d bytes, keys %s" % (
        name, seed, spread, tie, os.path.getsize(path + "/model.safetensors"),
        " ".join(sorted(k for k in state if ".layers.1." in k or
                        "layers" not in k))))
    return not with_mutations or mutate(name, seed, prompts)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    p.add_argument("--mutate", action="store_true")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    torch.set_num_threads(4)
    good = True
    for name in a.names or FAMILIES:
        try:
            good = make(name, a.out, a.mutate) and good
        except Exception as e:                      # say all, then fail
            import traceback
            traceback.print_exc()
            print("%s: FAILED: %s" % (name, e))
            good = False
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
