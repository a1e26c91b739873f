#!/usr/bin/env python3
"""Writes a text for `tokenring eval --perplexity` from evaluation cases.

    tests/eval/text.py CASES.jsonl > TEXT

The cases follow one another in a random but fixed order, each with all of its
messages and the reference reply, so that most of what can be predicted stands
in the same case before it.
"""
import json
import random
import sys


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    random.Random(1).shuffle(cases)
    for case in cases:
        for message in case["messages"]:
            print(message["content"])
        print(case["reply"], end="\n\n")


if __name__ == "__main__":
    main()
