#!/usr/bin/env python3
"""Turns published question sets into cases of `tokenring eval` (docs/eval.md).

    tests/eval/import.py gsm8k     test.jsonl        > gsm8k.jsonl
    tests/eval/import.py math      test.jsonl ..     > math.jsonl
    tests/eval/import.py longbench hotpotqa.jsonl .. > longbench.jsonl
    tests/eval/import.py ruler     validation.jsonl  > ruler.jsonl

--prompt TEXT   what is asked, with {placeholders} for the line's fields: that of
                a paper, or a task's own (LongBench's dataset2prompt.json)
--raw           as a prompt without the chat template, for base models
--shots FILE    text before each question: solved examples, for base models
--stop TEXT     ends an answer, may be repeated
--max-tokens N  longest answer
--any           one of the expected texts is enough (RULER's qa tasks)
--family NAME   instead of the set's own name

Only the standard library is needed.  A line that lacks a field is an error with
file and line.
"""
import argparse
import json
import re
import string
import sys

WHITE = re.compile(r"\s+")


def boxed(text):
    """What stands in the last \\boxed{..}, braces balanced."""
    at = text.rfind("\\boxed")
    start = text.find("{", at)
    if at < 0 or start < 0:
        raise ValueError("the solution has no \\boxed{..}")
    depth = 0
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1:i]
    raise ValueError("the solution's \\boxed{ has no end")


def loosely(answer):
    """A pattern for LaTeX that is written with other blanks, or dfrac."""
    parts = [re.escape(p) for p in WHITE.split(answer.strip()) if p]
    spread = r"\s*".join(parts)
    return spread.replace(r"\\dfrac", r"\\frac").replace(
        r"\\frac", r"\\[dt]?frac")


def any_of(texts):
    """A pattern for a reply that has one of them, upper or lower case."""
    return "(?is)(?:" + "|".join(re.escape(t) for t in texts) + ")"


def all_of(texts):
    """A pattern for a reply that has all of them, upper or lower case."""
    return "(?is)^" + "".join(f"(?=.*{re.escape(t)})" for t in texts)


def texts_of(line, key):
    texts = [t for t in line[key] if isinstance(t, str) and t]
    if not texts:
        raise ValueError(f"\"{key}\" has no text")
    return texts


def gsm8k(line, _):
    answer = line["answer"].rsplit("####", 1)
    if len(answer) != 2:
        raise ValueError("the answer has no ####")
    return {"answer": answer[1].strip(), "match": "number"}


def math(line, _):
    answer = line.get("answer") or boxed(line["solution"])
    level = re.search(r"\d+", str(line.get("level", "")))
    case = {"answer": r"\\boxed\s*\{\s*" + loosely(answer) + r"\s*\}",
            "match": "regex"}
    if level:
        case["difficulty"] = int(level.group())
    return case


def longbench(line, _):
    return {"answer": any_of(texts_of(line, "answers")), "match": "regex",
            "family": line.get("dataset", "longbench")}


def ruler(line, args):
    texts = texts_of(line, "outputs")
    return {"answer": (any_of if args.any else all_of)(texts),
            "match": "regex"}


SETS = {
    "gsm8k": (gsm8k, "{question}\n\nLet's think step by step, and end with "
              "\"#### \" and the number.", 1024),
    "math": (math, "{problem}\n\nPlease reason step by step, and put your final "
             "answer within \\boxed{{}}.", 2048),
    "longbench": (longbench, "{context}\n\nAnswer the question from the text "
                  "above, with a few words.\n\nQuestion: {input}\nAnswer:", 64),
    "ruler": (ruler, "{input}", 128),
}


def convert(line, args):
    make, prompt, max_tokens = SETS[args.set]
    case = {"family": args.set}
    case.update(make(line, args))
    if args.family:
        case["family"] = args.family
    text = (args.shots + string.Formatter().vformat(
        args.prompt or prompt, (), line))
    if args.raw:
        case["prompt"] = text
    else:
        case["messages"] = [{"role": "user", "content": text}]
    if args.stop:
        case["stop"] = args.stop
    case["max_tokens"] = args.max_tokens or max_tokens
    return case


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--prompt")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--shots", metavar="FILE")
    parser.add_argument("--stop", action="append")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--family")
    parser.add_argument("--any", action="store_true")
    args = parser.parse_args()
    shots = ""
    if args.shots:
        with open(args.shots, encoding="utf-8") as f:
            shots = f.read()
    args.shots = shots
    for name in args.files:
        with open(name, encoding="utf-8") as f:
            for number, text in enumerate(f, 1):
                if not text.strip():
                    continue
                try:
                    case = convert(json.loads(text), args)
                except (KeyError, ValueError, IndexError, AttributeError,
                        TypeError) as e:
                    what = f"no {e}" if isinstance(e, KeyError) else e
                    sys.exit(f"import.py: {name}:{number}: {what}")
                print(json.dumps(case, ensure_ascii=False))


if __name__ == "__main__":
    main()
