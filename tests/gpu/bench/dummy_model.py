#!/usr/bin/env python3
"""A model's directory for load_format dummy, with a tokenizer as large as its
vocabulary.

    dummy_model.py SHAPE TOKENIZER OUT

SHAPE has a config.json alone, TOKENIZER is the directory of a smaller model. Ids
that its tokenizer lacks become words of their own, so that every token that
random weights say has a text, as in a real model: what has none is not
streamed, and times between tokens would be those between texts.
"""
import json
import os
import shutil
import sys


def main():
    shape, tokenizer, out = sys.argv[1:4]
    os.makedirs(out, exist_ok=True)
    shutil.copy(os.path.join(shape, "config.json"), out)
    shutil.copy(os.path.join(tokenizer, "tokenizer_config.json"), out)
    with open(os.path.join(shape, "config.json"), encoding="utf-8") as f:
        size = json.load(f)["vocab_size"]
    with open(os.path.join(tokenizer, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    vocab = t["model"]["vocab"]
    taken = set(vocab.values()) | {a["id"] for a in t.get("added_tokens", [])}
    if max(taken) >= size:
        sys.exit(f"{tokenizer}: id {max(taken)} is not below the {size} of "
                 f"{shape}")
    for i in range(size):
        if i not in taken:
            vocab[f"w{i}"] = i
    with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(t, f, ensure_ascii=False)


if __name__ == "__main__":
    main()
