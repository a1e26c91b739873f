#!/usr/bin/env python3
"""Quantises a model's weights into the formats that checkpoints come in.

    quantise.py FORMAT --out DIR [--model DIR] [--twin] [--experts N]
    quantise.py none --experts N --out DIR [--model DIR]     needs numpy
    quantise.py --tiny DIR
    quantise.py --list

FORMAT is one of those that --list prints; the model is models/pocket unless
--model says otherwise.  Files go to DIR: config.json with a quantization_config,
model.safetensors, the rest of the directory as it is.  --twin writes the weights
in 16 bits that the quantised ones stand for, instead: a model whose answers must be
the same.  Rounding is to the nearest code by the largest weight of a block; nothing
is calibrated, so a published checkpoint of the same format loses less.

--experts cuts each MLP of a Llama into N experts that are all chosen, with equal
weights, so that their sum is the MLP: MXFP4 is a format of experts.  `none` writes
such a model in 16 bits.

--tiny makes tests/models/quantised: the first layer of tests/models/llama (gpt_oss
for MXFP4) in every format, and in expected.json, for each weight, the first values
and the FNV-1a hash of all that numpy made of the codes.

Where the layouts come from: compressed-tensors' pack_quantized.py, AutoAWQ's
packing_utils.py, AutoGPTQ's qlinear, transformers' integrations/mxfp4.py (the order
of nibbles, E2M1), OCP's MX specification (E8M0), FP8 as PyTorch's float8_e4m3fn.
"""
import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

# ---- safetensors ----------------------------------------------------------
# An array of numpy, and what it is called in the file: bf16 is kept as uint16.

WIDTH = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I8": 1,
         "I32": 4, "I64": 8, "F8_E8M0": 1}
TYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F8_E4M3": "u1", "U8": "u1",
         "I8": "i1", "I32": "<i4", "I64": "<i8", "F8_E8M0": "u1"}


def load(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: (e["dtype"], np.frombuffer(
        data, TYPES[e["dtype"]], -1 if not e["shape"] else
        int(np.prod(e["shape"])), e["data_offsets"][0]).reshape(e["shape"]))
        for name, e in header.items()}


def save(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, x) in sorted(tensors.items()):
        size = int(x.size) * WIDTH[dtype]
        header[name] = dict(dtype=dtype, shape=list(x.shape),
                            data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, (dtype, x) in sorted(tensors.items()):
            f.write(np.ascontiguousarray(x).astype(TYPES[dtype]).tobytes())


def to_float(dtype, x):
    if dtype == "BF16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def to_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7fff + (u >> 16 & 1)) >> 16).astype(np.uint16)


def rounded(dtype, x):
    """x in 16 bits, as the file has it."""
    return to_bf16(x) if dtype == "BF16" else x.astype(np.float16)


# ---- codes ----------------------------------------------------------------

E4M3 = np.array([(-1) ** (c >> 7) * ((c & 7) * 2.0 ** -9 if c >> 3 & 15 == 0
                                     else (8 + (c & 7)) * 2.0 ** ((c >> 3 & 15) - 10))
                 for c in range(256)], np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6],
                np.float32)


def nearest(values, x):
    """Codes of `values` (ascending from code 0 on) for magnitudes x."""
    edges = (values[1:] + values[:-1]) / 2
    return np.searchsorted(edges, x).astype(np.uint8)


def e4m3(x):
    return nearest(E4M3[:127], np.abs(x)) | (np.signbit(x) << 7).astype(np.uint8)


def e2m1(x):
    return nearest(E2M1[:8], np.abs(x)) | (np.signbit(x) << 3).astype(np.uint8)


def pack_words(codes, bits, axis):
    """Unsigned codes into int32 along an axis, the lowest bits first."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    per = 32 // bits
    pad = -codes.shape[-1] % per
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, pad)])
    codes = codes.reshape(codes.shape[:-1] + (-1, per))
    words = np.zeros(codes.shape[:-1], np.uint32)
    for i in range(per):
        words |= codes[..., i] << np.uint32(bits * i)
    return np.moveaxis(words.view(np.int32), -1, axis)


def blocks(x, rows, columns, f):
    """f of each block of rows x columns, the last ones smaller."""
    n, k = x.shape
    return np.array([[f(x[i:i + rows, j:j + columns])
                      for j in range(0, k, columns)]
                     for i in range(0, n, rows)], np.float32)


def spread(s, rows, columns, shape):
    return np.repeat(np.repeat(s, rows, 0), columns, 1)[:shape[0], :shape[1]]


def integers(x, bits, group, scales, zero, order=None):
    """Unsigned codes, scales and zero points of groups of a row.  order: the group
    of a column."""
    n, k = x.shape
    order = np.arange(k) // group if order is None else order
    groups = int(order.max()) + 1
    top = 2 ** bits - 1
    scale = np.zeros((n, groups), np.float32)
    zeros = np.full((n, groups), 2 ** (bits - 1), np.int32)
    for g in range(groups):
        part = x[:, order == g]
        if zero:
            low = np.minimum(part.min(1), 0)
            high = np.maximum(part.max(1), 0)
            scale[:, g] = np.maximum((high - low) / top, 1e-8)
            zeros[:, g] = np.clip(np.rint(-low / scale[:, g]), 0, top)
        else:
            scale[:, g] = np.maximum(np.abs(part).max(1) / (top / 2), 1e-8)
    scale = to_float(scales, rounded(scales, scale))
    codes = np.clip(np.rint(x / scale[:, order]) + zeros[:, order], 0, top)
    codes = codes.astype(np.int32)
    values = (codes - zeros[:, order]).astype(np.float32) * scale[:, order]
    return codes, scale, zeros, values


# ---- formats ---------------------------------------------------------------
# A function makes of a weight [n][k]: tensors by what is put behind its name in
# place of ".weight", and the values that they stand for, rounded.


def fp8(rows, columns, name, scales):
    def make(x, group):
        r = rows if rows else x.shape[0]
        c = columns if columns else x.shape[1]
        s = np.maximum(blocks(x, r, c, lambda b: np.abs(b).max()) / 448, 1e-8)
        s = s if scales == "F32" else to_float(scales, rounded(scales, s))
        wide = spread(s, r, c, x.shape)
        codes = e4m3(np.clip(x / wide, -448, 448))
        out = s if scales == "F32" else rounded(scales, s)
        if not rows:
            out = out.reshape(())
        return {"weight": ("F8_E4M3", codes), name: (scales, out)}, \
            "BF16", E4M3[codes] * wide
    return make


def int8(x, group):
    codes, scale, _, values = integers(x, 8, x.shape[1], "BF16", False)
    return {"weight": ("I8", codes - 128),
            "weight_scale": ("BF16", to_bf16(scale))}, "BF16", values


def words(bits, zero, shuffled):
    def make(x, group):
        order = shuffle(x.shape[1], group) if shuffled else None
        codes, scale, zeros, values = integers(x, bits, group, "BF16", zero, order)
        out = {"weight_packed": ("I32", pack_words(codes, bits, 1)),
               "weight_scale": ("BF16", to_bf16(scale)),
               "weight_shape": ("I64", np.array(x.shape))}
        if zero:
            out["weight_zero_point"] = ("I32", pack_words(zeros, bits, 0))
        if shuffled:
            out["weight_g_idx"] = ("I32", order)
        return out, "BF16", values
    return make


def awq(x, group):
    codes, scale, zeros, values = integers(x, 4, group, "F16", True)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(a):  # [.., n] to [.., n / 8]
        a = a.reshape(a.shape[0], -1, 8)[:, :, order].reshape(a.shape[0], -1)
        return pack_words(a, 4, 1)
    return {"qweight": ("I32", pack(codes.T)), "qzeros": ("I32", pack(zeros.T)),
            "scales": ("F16", scale.T)}, "F16", values


def shuffle(k, group):
    return np.random.default_rng(k).permutation(np.arange(k) // group)


def gptq(bits, less, shuffled):
    def make(x, group):
        order = shuffle(x.shape[1], group) if shuffled else None
        codes, scale, zeros, values = integers(x, bits, group, "F16", True, order)
        top = 2 ** bits - 1
        out = {"qweight": ("I32", pack_words(codes.T, bits, 0)),
               "qzeros": ("I32", pack_words((zeros.T - less) & top, bits, 1)),
               "scales": ("F16", scale.T),
               "bias": ("F16", np.zeros(x.shape[0]))}
        if shuffled:
            out["g_idx"] = ("I32", order)
        return out, "F16", values
    return make


def mxfp4(x, group):
    """x: [experts][columns][rows], as the 16-bit files of gpt-oss have it; or a weight
    [rows][columns]."""
    t = np.swapaxes(x, 1, 2) if x.ndim == 3 else x
    b = t.reshape(t.shape[:-1] + (-1, 32))
    e = np.floor(np.log2(np.maximum(np.abs(b).max(-1), 2.0 ** -100))) - 2
    codes = e2m1(np.clip(b / np.exp2(e)[..., None], -6, 6))
    values = (E2M1[codes] * np.exp2(e)[..., None]).astype(np.float32)
    return {"_blocks": ("U8", codes[..., ::2] | codes[..., 1::2] << 4),
            "_scales": ("U8", (e + 127).astype(np.uint8))}, "BF16", \
        np.swapaxes(values.reshape(t.shape), 1, 2) if x.ndim == 3 \
        else values.reshape(x.shape)


def compressed(form, weights):
    def config(group):
        w = dict(symmetric=True, dynamic=False, observer="minmax") | weights
        if w["strategy"] == "group":
            w["group_size"] = group
        return dict(quant_method="compressed-tensors", format=form,
                    quantization_status="compressed", kv_cache_scheme=None,
                    ignore=["lm_head", "re:.*embed_tokens"],
                    config_groups={"group_0": dict(
                        targets=["Linear"], weights=w, input_activations=None,
                        output_activations=None)})
    return config


INT4 = dict(num_bits=4, type="int", strategy="group")
FP8 = dict(num_bits=8, type="float")

# name: (quantization_config of a group size, weights, block of weights)
FORMATS = {
    "fp8-block": (lambda g: dict(quant_method="fp8", fmt="e4m3",
                                 activation_scheme="dynamic",
                                 weight_block_size=[g, g]), None),
    "fp8-modelopt": (lambda g: dict(quant_method="modelopt", quant_algo="FP8",
                                    kv_cache_quant_algo=None, ignore=["lm_head"],
                                    producer={"name": "modelopt"}),
                     fp8(0, 0, "weight_scale", "F32")),
    "fp8-channel": (compressed("float-quantized", FP8 | dict(strategy="channel")),
                    fp8(1, 0, "weight_scale", "BF16")),
    "int8": (compressed("int-quantized", dict(num_bits=8, type="int",
                                              strategy="channel")), int8),
    "int8-packed": (compressed("pack-quantized", INT4 | dict(num_bits=8)),
                    words(8, False, False)),
    "int4": (compressed("pack-quantized", INT4), words(4, False, False)),
    "int4-zero": (compressed("pack-quantized",
                             INT4 | dict(symmetric=False, actorder="group")),
                  words(4, True, True)),
    "awq": (lambda g: dict(quant_method="awq", bits=4, group_size=g,
                           zero_point=True, version="gemm",
                           modules_to_not_convert=None), awq),
    "gptq": (lambda g: dict(quant_method="gptq", bits=4, group_size=g,
                            desc_act=False, sym=False, damp_percent=0.01,
                            checkpoint_format="gptq"), gptq(4, 1, False)),
    "gptq-v2": (lambda g: dict(quant_method="gptq", bits=8, group_size=g,
                               desc_act=True, sym=False,
                               checkpoint_format="gptq_v2"), gptq(8, 0, True)),
    "mxfp4": (lambda g: dict(quant_method="mxfp4", modules_to_not_convert=[
        "model.layers.*.self_attn", "lm_head"]), mxfp4),
}


def is_weight(name, x, form):
    if form == "mxfp4":
        return name.endswith(("experts.gate_up_proj", "experts.down_proj")) \
            or ".experts." in name and name.endswith("_proj.weight")
    return name.endswith("_proj.weight") and x.ndim == 2


def quantise(form, tensors, group):
    """The quantised tensors, the twin's, and the names that were quantised."""
    make = FORMATS[form][1] or fp8(group, group, "weight_scale_inv", "F32")
    packed, twin, names = {}, {}, []
    half = form in ("awq", "gptq", "gptq-v2")
    for name, (dtype, x) in tensors.items():
        if not is_weight(name, x, form):
            if half:
                dtype, x = "F16", to_float(dtype, x).astype(np.float16)
            packed[name] = twin[name] = (dtype, x)
            continue
        parts, dtype, values = make(to_float(dtype, x), group)
        stem = name if form == "mxfp4" else name.removesuffix("weight")
        for part, t in parts.items():
            if part != "bias" or stem + part not in tensors:
                packed[stem + part] = t
        twin[name] = (dtype, rounded(dtype, values))
        names.append(name)
    return packed, twin, names


# ---- experts ---------------------------------------------------------------


def as_experts(config, tensors, n):
    """A Llama as glm4_moe: a router of zeros gives each expert the same weight, 1 / n
    after they are made to sum to 1, and the factor n makes that 1."""
    if config["model_type"] != "llama" or config["intermediate_size"] % n:
        sys.exit("--experts needs a Llama whose intermediate_size N divides")
    width = config["intermediate_size"] // n
    config = config | dict(
        model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"],
        partial_rotary_factor=1.0, first_k_dense_replace=0, n_routed_experts=n,
        num_experts_per_tok=n, moe_intermediate_size=width, n_shared_experts=0,
        routed_scaling_factor=float(n), norm_topk_prob=True, n_group=1,
        topk_group=1, use_qk_norm=False)
    del config["mlp_bias"]
    out = {}
    for name, (dtype, x) in tensors.items():
        if ".mlp." not in name:
            out[name] = (dtype, x)
            continue
        stem, part = name.split(".mlp.")
        for e in range(n):
            cut = slice(e * width, (e + 1) * width)
            piece = x[:, cut] if part.startswith("down") else x[cut]
            out[f"{stem}.mlp.experts.{e}.{part}"] = (dtype, piece)
        zeros = np.zeros((n, config["hidden_size"]), np.uint16)
        out[f"{stem}.mlp.gate.weight"] = ("BF16", zeros)
        out[f"{stem}.mlp.gate.e_score_correction_bias"] = \
            ("F32", np.zeros(n, np.float32))
    return config, out


# ---- files -----------------------------------------------------------------


def write(out, config, tensors, source=None):
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(source) if source else []:
        if name.endswith((".json", ".jinja")) and name != "config.json" \
                and "index" not in name:
            shutil.copy(os.path.join(source, name), out)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    save(os.path.join(out, "model.safetensors"), tensors)


def read(model):
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    index = os.path.join(model, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    tensors = {}
    for name in files:
        tensors |= load(os.path.join(model, name))
    return config, tensors


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def tiny_base(form):
    """The first layer of a tiny model, 64 words, wide enough for groups."""
    moe = form == "mxfp4"
    config, tensors = read(os.path.join(ROOT, "tests/models",
                                        "gpt_oss" if moe else "llama"))
    small = {}
    for name, (dtype, x) in tensors.items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            x = x[:64]
        if moe and "experts.gate_up_proj" in name:  # 32 wide, not 16
            x = np.concatenate([x, x[..., ::-1]], -1)
        if moe and name.endswith("experts.down_proj"):
            x = np.concatenate([x, x[:, ::-1]], 1)
        small[name] = (dtype, x)
    config |= dict(num_hidden_layers=1, vocab_size=64)
    if moe:
        config |= dict(intermediate_size=32, layer_types=["full_attention"])
    return config, small


def write_tiny(out):
    for form in FORMATS:
        config, tensors = tiny_base(form)
        packed, twin, names = quantise(form, tensors, 16)
        config["quantization_config"] = FORMATS[form][0](16)
        write(os.path.join(out, form), config, packed)
        expected = {}
        for name in sorted(names):
            dtype, x = twin[name]
            raw = np.ascontiguousarray(x).astype(TYPES[dtype])
            expected[name] = dict(
                dtype=dtype, fnv=fnv(raw.tobytes()),
                first=[float(v) for v in to_float(dtype, raw.reshape(-1)[:8])])
        with open(os.path.join(out, form, "expected.json"), "w") as f:
            json.dump(expected, f, indent=1)
            f.write("\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("format", nargs="?", choices=sorted(FORMATS) + ["none"])
    p.add_argument("--model", default=HERE)
    p.add_argument("--out")
    p.add_argument("--group", type=int)
    p.add_argument("--twin", action="store_true")
    p.add_argument("--experts", type=int, metavar="N")
    p.add_argument("--tiny", metavar="DIR")
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    if args.list:
        print("\n".join(FORMATS))
        return
    if args.tiny:
        write_tiny(args.tiny)
        return
    if not args.format or not args.out:
        p.error("FORMAT and --out are needed")
    group = args.group or (128 if args.format == "fp8-block" else 32)
    config, tensors = read(args.model)
    if args.experts:
        config, tensors = as_experts(config, tensors, args.experts)
    if args.format == "none":
        write(args.out, config, tensors, args.model)
        return
    packed, twin, _ = quantise(args.format, tensors, group)
    if not args.twin:
        config["quantization_config"] = FORMATS[args.format][0](group)
    write(args.out, config, twin if args.twin else packed, args.model)


if __name__ == "__main__":
    sys.exit(main())
