#!/usr/bin/env python3
"""Our Jinja against Python's (reference.py): the same texts, the same refusals.

    compare.py [--seed N] [--generated N] [--show N]
    compare.py --list     templates and conversations as JSON, for ids.test.js

Templates: own/expressions.txt and own/statements.txt, those of npm packages
(templates.mjs; left out when they are not installed) and those of a folder
TEMPLATE_CORPUS (left out without; mk/templates.mk has a default).  The last two
meet CONVERSATIONS, generated ones, and the folder's conversations.json.
exceptions.json lists what may differ, and why.
"""

import argparse
import glob
import json
import os
import random
import subprocess
import sys

import reference

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RENDER = os.path.join(ROOT, os.environ.get("B", "build"), "tests/jinja_render")
CORPUS = os.environ.get("TEMPLATE_CORPUS") or "/nonexistent"
NOW = 1732600000

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Grüße <b> & 'so' \"on\"\n  x "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSure."},
    {"role": "user", "content": ""},
]
VARIABLES = {
    "s": "hello world",
    "u": "Äöü ß€😀x",
    "l": [1, "b", None, 2.0, "d"],
    "d": {"a": 1, "b": [1, 2], "C": None},
    "messages": MESSAGES,
    "tools": None,
}


def tool(name, **properties):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name}: <x> & 'y' ü",
            "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]},
        },
    }


def call(name, arguments, id="abcdefgh1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    tool("look", where={"type": "string", "description": "d"}, n={"type": "integer", "minimum": 1.0}),
    tool("list", of={"type": "array", "items": {"type": "number"}}, how={"enum": ["a", "b"], "default": None}),
    tool("noop"),
]


def said(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def plain_conversations():
    """Without tools: roles in and out of order, contents of every kind."""
    u, a, s, t = "user", "assistant", "system", "tool"
    think = "<think>\nstep\n</think>\n\nanswer"
    lists = [
        said((u, "Hi")),
        said((s, "S"), (u, "Hi")),
        said((u, "Hi"), (a, "Ho"), (u, "He")),
        said((s, " S \n"), (u, "  U "), (a, " A\n"), (u, "V\n\n")),
        said((a, "A")),
        said((u, "U"), (u, "V")),
        said((u, "U"), (a, "A"), (a, "B")),
        said((u, "U"), (s, "S"), (u, "V")),
        said((s, "S"), (s, "T"), (u, "U")),
        said((u, "U"), (a, think), (u, "V")),
        said((u, "U"), (a, think)),
        said((s, "/no_think"), (u, "U /think"), (a, think)),
        said((u, "U"), (t, "T"), (a, "A")),
        said((u, "")),
        said((s, ""), (u, "\n")),
        said((u, "<|im_end|> [INST] {{ x }} {% y %} \u2028\u00a0")),
        said(("developer", "D"), (u, "U")),
        said((u, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), (a, "A")),
    ]
    return [{"messages": m} for m in lists]


def generated(r):
    """A conversation at random, with what agents send."""
    words = ["", " ", "a", "x\ny", "<think>t</think> z", "ü€😀", "{\"k\": 1}", "None", "'q'", "\t z \n"]
    text = lambda: r.choice(words) + r.choice(words)
    value = lambda: r.choice([1, -2.5, 1e20, True, None, "s", "ä\"", [1, "x"], {"n": {"m": []}}, 0.1])
    messages = []
    if r.random() < 0.5:
        messages.append({"role": "system", "content": text()})
    for _ in range(r.randint(1, 5)):
        messages.append({"role": "user", "content": text()})
        answer = {"role": "assistant", "content": text()}
        if r.random() < 0.3:
            answer[r.choice(["reasoning_content", "reasoning", "thinking"])] = text()
        if r.random() < 0.5:
            n = r.randint(1, 3)
            names = [f"{k}abcdefgh"[:9] for k in range(n)]
            as_text = r.random() < 0.3
            calls = []
            for k in range(n):
                arguments = {r.choice("abcde"): value() for _ in range(r.randint(0, 3))}
                calls.append(call(r.choice(["look", "list"]), json.dumps(arguments) if as_text else arguments, names[k]))
            answer["tool_calls"] = calls
            answer["content"] = r.choice([None, "", text()])
            messages.append(answer)
            for k in range(n):
                messages.append({"role": "tool", "tool_call_id": names[k], "name": "look", "content": text()})
        else:
            messages.append(answer)
    if r.random() < 0.6:
        messages.append({"role": "user", "content": text()})
    context = {"messages": messages}
    if r.random() < 0.6:
        context["tools"] = r.sample(TOOLS, r.randint(1, 3))
    if r.random() < 0.2:
        context["documents"] = [{"title": text(), "text": text(), "content": "c"}]
    if r.random() < 0.3:
        context["enable_thinking"] = r.random() < 0.5
    if r.random() < 0.2:
        context["reasoning_effort"] = r.choice(["low", "high"])
    context["add_generation_prompt"] = r.random() < 0.7
    return context


def completed(context):
    c = {"tools": None, "documents": None, "add_generation_prompt": True}
    c.update(bos_token="<s>", eos_token="</s>", **context)
    return c


def own_templates():
    with open(f"{HERE}/own/expressions.txt", encoding="utf-8") as f:
        text = f.read()
    lines, held = [], None
    for line in text.split("\n"):
        if held is not None:  # the one literal with a line end in it
            lines.append(held + "\n" + line)
            held = None
        elif line == "'a":
            held = line
        elif line and not line.startswith("#"):
            lines.append(line)
    for line in lines:
        yield f"expression {line}", "{{ " + line + " }}"
        yield f"block {line}", "{% set x %}{{ " + line + " }}{% endset %}{{ x | length }}{{ x }}"
    with open(f"{HERE}/own/statements.txt", encoding="utf-8") as f:
        for part in f.read().split("\n", 1)[1].split("\n----\n"):
            yield f"statement {part}", part
            yield f"statement with CRLF {part}", part.replace("\n", "\r\n")


def npm_templates():
    if not os.path.isdir(f"{HERE}/node_modules"):
        return
    out = subprocess.run(["node", f"{HERE}/templates.mjs"], capture_output=True, text=True, check=True)
    for entry in json.loads(out.stdout):
        yield entry["name"], entry["source"]


def corpus_templates():
    for path in sorted(glob.glob(f"{CORPUS}/templates/*.jinja")):
        with open(path, newline="", encoding="utf-8") as f:
            yield f"corpus/{os.path.basename(path)}", f.read()


def corpus_conversations():
    path = f"{CORPUS}/conversations.json"
    if not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8") as f:
        return list(json.load(f).items())


def ask(questions):
    lines = "\n".join(json.dumps(q) for q in questions) + "\n"
    out = subprocess.run([RENDER], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in out.stdout.rstrip("\n").split("\n")]
    assert len(answers) == len(questions), "an answer for each question"
    return answers


class Tally:
    def __init__(self, show):
        self.equal = self.refused = self.excepted = 0
        self.different = []
        self.show = show
        with open(f"{HERE}/exceptions.json", encoding="utf-8") as f:
            self.exceptions = json.load(f)

    def is_exception(self, name):
        return any(
            name == e or (e.endswith("*") and name.startswith(e[:-1])) for e in self.exceptions if e
        )

    def add(self, name, wanted, got):
        kind, text = wanted
        if kind == "text" and got.get("text") == text:
            self.equal += 1
        elif kind == "error" and "error" in got:
            self.refused += 1
        elif self.is_exception(name):
            self.excepted += 1
        else:
            self.different.append(name)
            if len(self.different) <= self.show:
                print(f"# {name}\n#   Python: {kind} {text[-300:]!r}")
                print(f"#   here:   {got.get('error', got.get('text', ''))[-300:]!r}")

    def compare(self, what, cases):
        """cases: [(name, source, context)]."""
        before = self.equal, self.refused, len(self.different), self.excepted
        wanted = [reference.render(source, context, NOW) for _, source, context in cases]
        answers = ask([{"template": s, "context": c, "now": NOW} for _, s, c in cases])
        for (name, _, _), w, got in zip(cases, wanted, answers):
            self.add(name, w, got)
        print(
            f"{what}: {len(cases)} renderings, {self.equal - before[0]} equal texts, "
            f"{self.refused - before[1]} refused by both, {len(self.different) - before[2]} different, "
            f"{self.excepted - before[3]} exceptions"
        )


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--generated", type=int, default=15)
    args.add_argument("--show", type=int, default=10)
    args.add_argument("--list", action="store_true")
    o = args.parse_args()
    r = random.Random(o.seed)
    tally = Tally(o.show)
    conversations = [(f"plain {i}", c) for i, c in enumerate(plain_conversations())]
    conversations += [(f"seed {o.seed} number {i}", generated(r)) for i in range(o.generated)]
    conversations += corpus_conversations()
    if o.list:
        json.dump({"templates": [*npm_templates(), *corpus_templates()], "conversations": conversations}, sys.stdout)
        return 0

    tally.compare("own", [(name, source, VARIABLES) for name, source in own_templates()])
    for what, found in (("npm", npm_templates()), ("corpus", corpus_templates())):
        templates = list(found)
        if not templates:
            print(f"{what}: left out, not there")
            continue
        tally.compare(
            f"{what}, {len(templates)} templates",
            [(f"{t} with {n}", source, completed(c)) for t, source in templates for n, c in conversations],
        )
    return 1 if tally.different else 0


if __name__ == "__main__":
    sys.exit(main())
