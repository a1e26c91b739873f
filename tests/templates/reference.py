"""Jinja templates as transformers renders them, for compare.py.

Debian's python3-jinja2, set up as transformers' utils/chat_template_utils.py
does it.  from_json is not among transformers' filters; some templates use it,
and llama.cpp has it, so it is here as json.loads.
"""

import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %} writes what is in it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_pass")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment(now):
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(now).strftime(form)
    return env


ENVIRONMENTS = {}
COMPILED = {}


def compiled(source, now):
    if now not in ENVIRONMENTS:
        ENVIRONMENTS[now] = environment(now)
    if (source, now) not in COMPILED:
        COMPILED[source, now] = ENVIRONMENTS[now].from_string(source)
    return COMPILED[source, now]


def render(source, context, now):
    """("text", TEXT) or ("error", MESSAGE)."""
    try:
        return "text", compiled(source, now).render(**context)
    except Exception as e:  # whatever a template can do wrong
        return "error", f"{type(e).__name__}: {e}"
