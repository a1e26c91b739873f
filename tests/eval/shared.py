#!/usr/bin/env python3
"""Writes cases for `tokenring eval --shared-prefix`: several questions behind one document.

    tests/eval/shared.py SPLIT DOCUMENTS QUESTIONS SEED OUT.jsonl

DOCUMENTS of each difficulty 1 to 4 (models/pocket/world.py), each with QUESTIONS about other facts of it. The family is
`shared`. SPLIT is dev or test, by a document's first question.
"""
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/pocket"))
import world  # noqa: E402


def group(rng, difficulty, questions):
    """The cases of one document; all its first messages have the same form."""
    doc, facts = world.document(rng, difficulty)
    form = rng.random()
    out = []
    for statement, asks in rng.sample(facts, min(questions, len(facts))):
        message = world.user(world.first_question(random.Random(form), doc, rng.choice(asks)))
        out.append(world.make("shared", difficulty, [message], statement, statement, "exact"))
    return out


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__.strip())
    split, documents, questions, seed, path = sys.argv[1:]
    with open(path, "w") as out:
        for difficulty in world.DIFFICULTIES:
            rng = random.Random(f"{split}/shared/{difficulty}/{seed}")
            left = int(documents)
            while left > 0:
                cases = group(rng, difficulty, int(questions))
                if world.split_of(cases[0]) == split:
                    left -= 1
                    out.writelines(json.dumps(case) + "\n" for case in cases)


main()
