#!/usr/bin/env python3
"""Writes trained stress models out: models/pocket, and what a fine-tune changed in it.

A folder beside this file is what models/pocket/stress_train.py left of a training (`make stress`): config.json,
golden.json, metrics.json, and change.safetensors, 5% of the model. For a tensor T it has

    T          BF16: it stands for pocket's, or is one that pocket does not have
    T:factor   BF16 [rows]: what pocket's rows are multiplied by first
    T:code     I8 [rows, columns]; or, of lower rank, T:left I8 [rows, rank] and T:right I8 [rank, columns],
               whose product are the codes
    T:scale    F32 [rows]: what codes are multiplied by

and a row of the model is factor * pocket's + scale * codes, rounded to BF16. Codes are whole numbers, of
which each sum is exact, so the same bits come out everywhere.

    python3 models/stress/make.py first            # build/stress/trained-first
    python3 models/stress/make.py                  # all of them

Needs nothing but Python; a model takes some seconds.
"""
import argparse
import array
import json
import os
import shutil
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
POCKET = os.path.join(ROOT, "models", "pocket")
OUT = os.path.join(ROOT, "build", "stress")
NAMES = ("biases", "bursts", "first", "norms")
LANE = 1 << 31                                             # what makes a sum of codes positive


def read(path):
    """name: (dtype, shape, bytes) of a safetensors file."""
    with open(path, "rb") as f:
        length, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    return {name: (e["dtype"], e["shape"], data[e["data_offsets"][0]:e["data_offsets"][1]])
            for name, e in header.items() if name != "__metadata__"}


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def floats(dtype, data):
    """Numbers of BF16 or F32."""
    if dtype == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data = bytes(wide)
    return array.array("f", data)


def codes(change, name, columns):
    """Each row's codes."""
    if f"{name}:code" in change:
        flat = array.array("b", change[f"{name}:code"][2])
        for i in range(0, len(flat), columns):
            yield flat[i:i + columns]
        return
    rank = change[f"{name}:right"][1][0]
    left = array.array("b", change[f"{name}:left"][2])
    right = array.array("b", change[f"{name}:right"][2])
    # a row of codes as one number, 32 bits a column, so that a product with one of left's is one as well
    rows = [sum_of_lanes(right[i * columns:(i + 1) * columns]) for i in range(rank)]
    positive = int.from_bytes(struct.pack("<I", LANE) * columns, "little")
    for i in range(0, len(left), rank):
        total = positive
        for factor, row in zip(left[i:i + rank], rows):
            total += factor * row
        yield [lane - LANE for lane in array.array("I", total.to_bytes(4 * columns, "little"))]


def sum_of_lanes(row):
    return (int.from_bytes(array.array("I", [c + 128 for c in row]).tobytes(), "little")
            - int.from_bytes(struct.pack("<I", 128) * len(row), "little"))


def changed(tensor, change, name):
    """Pocket's tensor as the change makes it."""
    dtype, (rows, columns), data = tensor
    own, out = floats(dtype, data), array.array("H")
    factors, scales = (floats(*change[key][::2]) if key in change else [1.0] * rows
                       for key in (f"{name}:factor", f"{name}:scale"))
    for i, row in enumerate(codes(change, name, columns)):
        f, s = factors[i], scales[i]
        sums = array.array("f", [f * x + s * c for x, c in zip(own[i * columns:(i + 1) * columns], row)])
        out.extend([bits + 0x7fff + (bits >> 16 & 1) >> 16 for bits in array.array("I", sums.tobytes())])
    return "BF16", [rows, columns], out.tobytes()


def make(source, folder):
    """The model of a folder of changes."""
    if sys.byteorder != "little" or array.array("I").itemsize != 4:
        sys.exit("expected a machine whose numbers begin with their lowest byte, and have 32 bits")
    change = read(os.path.join(source, "change.safetensors"))
    tensors = {}
    for name in sorted(os.listdir(POCKET)):
        if name.endswith(".safetensors"):
            tensors.update(read(os.path.join(POCKET, name)))
    for name in change:
        plain, _, part = name.partition(":")
        if not part:
            tensors[name] = change[name]
        elif part == "scale":
            tensors[plain] = changed(tensors[plain], change, plain)
    os.makedirs(folder, exist_ok=True)
    write(os.path.join(folder, "model.safetensors"), tensors)
    for at, names in ((POCKET, ("tokenizer.json", "tokenizer_config.json", "generation_config.json")),
                      (source, ("config.json", "golden.json", "metrics.json"))):
        for name in names:
            if os.path.exists(os.path.join(at, name)):
                shutil.copyfile(os.path.join(at, name), os.path.join(folder, name))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("name", nargs="*", help=f"{', '.join(NAMES)}; all of them, if none is named")
    p.add_argument("--out", default=OUT, help="folder of the models (build/stress)")
    args = p.parse_args()
    for name in args.name or NAMES:
        if name not in NAMES:
            p.error(f"{name}: expected one of {', '.join(NAMES)}")
        folder = os.path.join(args.out, f"trained-{name}")
        make(os.path.join(HERE, name), folder)
        print(folder)


if __name__ == "__main__":
    main()
