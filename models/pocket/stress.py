#!/usr/bin/env python3
"""Models with outlier channels that compute exactly what models/pocket computes.

Pocket's keys and values are tame: in every head the norms of the rows that make them lie within
0.6 to 1.7 times their median. Keys and values of larger models are not, and a code of a few bits
for a token spans what its largest channel needs. A stress model has such channels and the same
answers, so whatever it loses under a KV policy was lost to them:

    keys     a RoPE pair (i, i + D/2) of a KV head: rows of k_proj times s, those of q_proj of the
             query heads that share it divided by s. Queries by keys stay as they are.
    values   a channel of a KV head: the row of v_proj times s, the columns of o_proj that read it
             divided by s.

Biases go with their rows; where queries and keys are normalised, the weights of the norms take the
factors of keys, of all heads at once where they share them. Every s is a power of two, drawn for each pair and channel from a range,
so that FP32 results keep their bits until something is stored with fewer; KV pages of 16 bits
lose only what underflows. Golden results of the original hold for every stress model.

What is realistic, as published:

    KIVI (arXiv 2402.02750) shows keys of Llama 2, Falcon and Mistral with a few channels that are
    large for all tokens, and values without such channels.
    KVQuant (2401.18079) quantises keys by channel, before RoPE, because of the same channels in
    LLaMA; QuaRot (2404.00456) rotates heads because of them. What they draw is ten to thirty
    times the rest of a head.
    Qwen2.5-7B has biases on keys whose norm is 605 in its first layer and 921 in its last, 22 being
    the median of all layers (measured in github.com/ggml-org/llama.cpp/issues/21385).

So x4 is mild, x8 to x32 in one to four pairs is what such models do, x64 in eight is beyond.

    python3 models/pocket/stress.py keys-x16            # a preset, into build/stress/keys-x16
    python3 models/pocket/stress.py --all               # all of them
    python3 models/pocket/stress.py mine --keys 4:64 --key-pairs 2 --seed 7

--head-size 128 doubles the size of heads before that. RoPE with twice the dimensions has the old
frequencies in its even pairs, so those take the head's own rows; the odd ones, and the second half
of the values, take rows of the next KV head, with zeros in q_proj and o_proj. A token's codes then
span 128 live channels, half of which nobody reads. Queries are multiplied by sqrt(2) and stored as
F32, because scores are divided by sqrt(128) instead of sqrt(64): equal within FP32 rounding, not bit
for bit. Two heads cannot be merged into one of twice the size: each needs all the old frequencies,
and there is one pair for each.

Needs nothing but Python.
"""
import argparse
import array
import json
import math
import os
import random
import shutil
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "stress")

# (lowest and highest strength, how many pairs or channels of each head)
PRESETS = {
    "keys-x4": {"keys": (4, 4, 1)},
    "keys-x8": {"keys": (8, 8, 1)},
    "keys-x16": {"keys": (16, 16, 1)},
    "values-x8": {"values": (8, 8, 1)},
    "values-x16": {"values": (16, 16, 1)},
    "both": {"keys": (8, 32, 4), "values": (4, 16, 4)},
    "extreme": {"keys": (4, 64, 8), "values": (4, 64, 8)},
    "tame-128": {"head_size": 128},
    "both-128": {"keys": (8, 32, 4), "values": (4, 16, 4), "head_size": 128},
}

# dtype: bytes of an element, type code of its bits, bits of its mantissa; 8 bits of exponent
DTYPES = {"BF16": (2, "H", 7), "F32": (4, "I", 23)}


class Matrix:
    """Rows of a tensor as the bits of its elements; a vector has one column."""

    def __init__(self, dtype, shape, rows):
        self.dtype, self.shape, self.rows = dtype, shape, rows

    @classmethod
    def read(cls, dtype, shape, data):
        size, code, _ = DTYPES[dtype]
        step = size * (shape[1] if len(shape) > 1 else 1)
        return cls(dtype, shape, [array.array(code, data[i:i + step]) for i in range(0, len(data), step)])

    def bytes(self):
        return b"".join(row.tobytes() for row in self.rows)

    def scale(self, row, column, power):
        """Multiplies an element by 2^power, or fails where that is not exact."""
        mantissa = DTYPES[self.dtype][2]
        bits = self.rows[row][column]
        exponent = bits >> mantissa & 255
        if bits & (1 << mantissa + 8) - 1 == 0:
            return
        if not (exponent > 0 and 0 < exponent + power < 255):
            sys.exit(f"element {row}, {column} has an exponent of {exponent - 127}: "
                     f"times 2^{power} is not exact")
        self.rows[row][column] = bits + (power << mantissa)

    def scale_row(self, row, power):
        for column in range(len(self.rows[row])):
            self.scale(row, column, power)

    def scale_column(self, column, power):
        for row in range(len(self.rows)):
            self.scale(row, column, power)

    def times(self, factor):
        """As F32, rounded."""
        rows = []
        for row in self.rows:
            words = row if self.dtype == "F32" else [bits << 16 for bits in row]
            values = struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *words))
            rows.append(array.array("I", struct.pack(f"<{len(values)}f", *(factor * v for v in values))))
        return Matrix("F32", self.shape, rows)

    def zeros(self):
        return array.array(DTYPES[self.dtype][1], bytes(len(self.rows[0].tobytes())))


def read_model(folder):
    """config.json, and name: Matrix, or (header, bytes) of what is left alone."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            length, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
            data = f.read()
        for key, entry in header.items():
            if key == "__metadata__":
                continue
            first, end = entry["data_offsets"]
            if "self_attn" not in key:
                tensors[key] = (entry, data[first:end])
            elif entry["dtype"] not in DTYPES or "_norm" in key and config["model_type"].startswith("gemma"):
                sys.exit(f"{name}: {key} of {entry['dtype']}: expected BF16 or F32, and no norms of Gemma")
            else:
                tensors[key] = Matrix.read(entry["dtype"], entry["shape"], data[first:end])
    return config, tensors


def head_size(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f).get("head_dim")


def write_model(folder, source, config, tensors):
    os.makedirs(folder, exist_ok=True)
    others = ["config.json", "metrics.json", "model.safetensors.index.json"]
    if "head_dim" in config and config["head_dim"] != head_size(source):
        others.append("kv_policy.json")                    # thresholds of the model as it was
    for name in os.listdir(source):
        if name.endswith(".json") and name not in others:
            shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for key, value in tensors.items():
        if isinstance(value, Matrix):
            entry, data = {"dtype": value.dtype, "shape": value.shape}, value.bytes()
        else:
            entry, data = {"dtype": value[0]["dtype"], "shape": value[0]["shape"]}, value[1]
        header[key] = dict(entry, data_offsets=[at, at + len(data)])
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


class Attention:
    """The projections of a layer, and who shares what."""

    def __init__(self, config, tensors, layer):
        self.tensors, self.prefix = tensors, f"model.layers.{layer}.self_attn."
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.group = self.heads // self.kv_heads
        rope = config.get("rope_parameters") or {}
        share = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1
        self.pairs = int(self.dim * share) // 2
        self.interleaved = config["model_type"] == "glm4"
        self.norms = self.prefix + "k_norm.weight" in tensors
        self.shared = self.norms and self["k_norm.weight"].shape[0] == self.dim

    def __getitem__(self, name):
        return self.tensors[self.prefix + name]

    def __setitem__(self, name, value):
        self.tensors[self.prefix + name] = value

    def scale_rows(self, name, row, power):
        for part in ("weight", "bias"):
            if f"{self.prefix}{name}.{part}" in self.tensors:
                self[f"{name}.{part}"].scale_row(row, power)

    def readers(self, head, channel):
        """Rows of q_proj, columns of o_proj, of the query heads that share a KV head."""
        return [(head * self.group + g) * self.dim + channel for g in range(self.group)]

    def stress_pair(self, head, pair, power):
        keys, queries = ("k_norm", "q_norm") if self.norms else ("k_proj", "q_proj")
        for channel in (2 * pair, 2 * pair + 1) if self.interleaved else (pair, pair + self.pairs):
            if self.shared:
                self.scale_rows(keys, channel, power)
                self.scale_rows(queries, channel, -power)
                continue
            self.scale_rows(keys, head * self.dim + channel, power)
            for row in self.readers(head, channel):
                self.scale_rows(queries, row, -power)

    def stress_value(self, head, channel, power):
        self.scale_rows("v_proj", head * self.dim + channel, power)
        for column in self.readers(head, channel):
            self["o_proj.weight"].scale_column(column, -power)

    def double(self):
        """Heads of twice the size, as the head of this file tells."""
        if self.prefix + "q_proj.bias" in self.tensors or self.norms or 2 * self.pairs != self.dim:
            sys.exit("--head-size: expected a model without biases, norms of keys, partial rotation")
        dim, half = self.dim, self.dim // 2
        q, k, v, o = (self[f"{name}_proj.weight"] for name in "qkvo")
        q = q.times(math.sqrt(2))
        # where a row of the doubled head comes from: (of the next head?, channel)
        keys = [(j % 2 == 1, j // 2 + (half if j >= dim else 0)) for j in range(dim)]
        keys += [(other, channel + half) for other, channel in keys]
        values = [(j >= dim, j % dim) for j in range(2 * dim)]

        def rows(matrix, heads, places, shared):
            out = []
            for head in range(heads):
                for other, channel in places:
                    of = (head + 1) % heads if other else head
                    out.append(matrix.rows[of * dim + channel] if shared or not other else matrix.zeros())
            return Matrix(matrix.dtype, [len(out), matrix.shape[1]], [array.array(r.typecode, r) for r in out])

        self["q_proj.weight"] = rows(q, self.heads, keys, False)
        self["k_proj.weight"] = rows(k, self.kv_heads, keys, True)
        self["v_proj.weight"] = rows(v, self.kv_heads, values, True)
        wide = []
        for row in o.rows:
            new = array.array(row.typecode)
            for head in range(self.heads):
                own = row[head * dim:(head + 1) * dim]
                new += own + array.array(row.typecode, bytes(len(own.tobytes())))
            wide.append(new)
        self["o_proj.weight"] = Matrix(o.dtype, [o.shape[0], 2 * o.shape[1]], wide)


def powers(choice, rng):
    """For one head: as many exponents as it has pairs or channels to stress."""
    low, high, count = choice
    return [rng.randint(low.bit_length() - 1, high.bit_length() - 1) for _ in range(count)]


def stress(config, tensors, keys=None, values=None, head_size=None, seed=0, only=None):
    layers = range(config["num_hidden_layers"])
    if head_size:
        dim = Attention(config, tensors, 0).dim
        if head_size != 2 * dim:
            sys.exit(f"--head-size {head_size}: expected {2 * dim}, twice the model's")
        for layer in layers:
            Attention(config, tensors, layer).double()
        config["head_dim"] = head_size
    if only and not (only[0] < len(layers) and only[1] < Attention(config, tensors, 0).kv_heads):
        sys.exit(f"--only {only[0]}:{only[1]}: the model has {len(layers)} layers of "
                 f"{Attention(config, tensors, 0).kv_heads} KV heads")
    rng = random.Random(seed)
    for layer in layers:
        attention = Attention(config, tensors, layer)
        for head in range(attention.kv_heads):
            if only and only != (layer, head):
                continue
            if keys and not (attention.shared and head > 0):
                for pair, power in zip(rng.sample(range(attention.pairs), keys[2]), powers(keys, rng)):
                    attention.stress_pair(head, pair, power)
            if values:
                for channel, power in zip(rng.sample(range(attention.dim), values[2]), powers(values, rng)):
                    attention.stress_value(head, channel, power)


def strength(text):
    low, _, high = text.partition(":")
    out = int(low), int(high or low)
    if not all(4 <= s <= 64 and s & (s - 1) == 0 for s in out) or out[0] > out[1]:
        raise argparse.ArgumentTypeError(f"{text}: expected S or LOW:HIGH, powers of two from 4 to 64")
    return out


def count(text):
    n = int(text)
    if not 1 <= n <= 8:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to 8")
    return n


def place(text):
    layer, _, head = text.partition(":")
    if not (layer.isdecimal() and head.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text}: expected LAYER:HEAD, as 3:1")
    return int(layer), int(head)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                epilog="presets: " + ", ".join(PRESETS))
    p.add_argument("name", nargs="*", help="presets, or one name of your own with the options below")
    p.add_argument("--all", action="store_true", help="every preset")
    p.add_argument("--keys", type=strength, help="strength of key pairs, S or LOW:HIGH")
    p.add_argument("--key-pairs", type=count, default=1, help="pairs of each KV head (1)")
    p.add_argument("--values", type=strength, help="strength of value channels")
    p.add_argument("--value-channels", type=count, default=1, help="channels of each KV head (1)")
    p.add_argument("--head-size", type=int, help="twice the model's")
    p.add_argument("--only", type=place, help="LAYER:HEAD, the one KV head that is stressed (all)")
    p.add_argument("--seed", type=int, default=0, help="which pairs and channels, and how strong (0)")
    p.add_argument("--model", default=HERE, help="the model to start from (models/pocket)")
    p.add_argument("--out", default=OUT, help="folder of the stress models (build/stress)")
    args = p.parse_args()
    own = {"keys": args.keys and args.keys + (args.key_pairs,),
           "values": args.values and args.values + (args.value_channels,), "head_size": args.head_size}
    names = list(PRESETS) if args.all else args.name
    if not names:
        p.error("expected a name, or --all")
    for name in names:
        if any(own.values()) and (name in PRESETS or len(names) > 1):
            p.error("expected one name that is no preset with --keys, --values or --head-size")
        if not any(own.values()) and name not in PRESETS:
            p.error(f"{name}: expected one of {', '.join(PRESETS)}, or --keys, --values, --head-size")
        config, tensors = read_model(args.model)
        stress(config, tensors, seed=args.seed, only=args.only, **PRESETS.get(name, own))
        write_model(os.path.join(args.out, name), args.model, config, tensors)
        print(os.path.join(args.out, name))


if __name__ == "__main__":
    main()
