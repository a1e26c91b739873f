#!/usr/bin/env python3
"""Writes tests/models/granitemoehybrid from tests/models/granite: the same model,
as Granite 4 spells it.

    respell.py

A dense model of GraniteMoeHybrid computes what Granite does; its config.json has
keys of Mamba and of experts, which it has not, and its MLP has the names of the
one that is shared, gate and up being one tensor.  So it has the golden logits that
make.py computed of the other.
"""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def load(path):
    """{name: (shape, bytes)}"""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    header.pop("__metadata__", None)
    return {k: (t["shape"], data[slice(*t["data_offsets"])])
            for k, t in header.items()}


def save(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for k, (shape, values) in sorted(tensors.items()):
        header[k] = dict(dtype="BF16", shape=shape,
                         data_offsets=[len(data), len(data) + len(values)])
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def behind(a, b):
    """Rows of b behind those of a."""
    return [a[0][0] + b[0][0], a[0][1]], a[1] + b[1]


def main():
    old, new = HERE + "/granite", HERE + "/granitemoehybrid"
    os.makedirs(new, exist_ok=True)
    keys = json.load(open(old + "/config.json"))
    layers = keys["num_hidden_layers"]
    keys |= dict(
        model_type="granitemoehybrid", init_method="mup",
        architectures=["GraniteMoeHybridForCausalLM"],
        layer_types=["attention"] * layers, position_embedding_type="rope",
        normalization_function="rmsnorm", num_local_experts=0,
        num_experts_per_tok=0, router_aux_loss_coef=0.01,
        shared_intermediate_size=keys["intermediate_size"],
        intermediate_size=512, mamba_chunk_size=256, mamba_conv_bias=True,
        mamba_d_conv=4, mamba_d_head=64, mamba_d_state=256, mamba_expand=2,
        mamba_n_groups=1, mamba_n_heads=128, mamba_proj_bias=False)
    with open(new + "/config.json", "w") as f:
        json.dump(keys, f, indent=2, sort_keys=True)
        f.write("\n")
    tensors = load(old + "/model.safetensors")
    for i in range(layers):
        mlp = "model.layers.%d.mlp." % i
        shared = "model.layers.%d.shared_mlp." % i
        tensors[shared + "input_linear.weight"] = behind(
            tensors.pop(mlp + "gate_proj.weight"),
            tensors.pop(mlp + "up_proj.weight"))
        tensors[shared + "output_linear.weight"] = tensors.pop(
            mlp + "down_proj.weight")
    save(new + "/model.safetensors", tensors)
    with open(old + "/golden.json") as f, \
            open(new + "/golden.json", "w") as g:
        g.write(f.read())


if __name__ == "__main__":
    main()
