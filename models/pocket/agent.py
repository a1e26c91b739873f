#!/usr/bin/env python3
"""Tasks of an agent in the world: calling tools, and filling JSON schemas.

A case is world.py's, with two more keys:

    tools       what the request offers, as OpenAI's API has it: a list of {"type": "function", "function": {..}}
    checker     "calls"  the reply's <tool_call> blocks equal `answer`, a list of {"name", "arguments"}, as JSON
                "json"   the reply equals `answer` as JSON

Calls stand in replies as the chat template writes them (Hermes' form): `<tool_call>`, a line of JSON, `</tool_call>`.
In a history they stand as the API has them, in `tool_calls`, and their results in messages of the role "tool".

A *kind* below is something that a tool can do.  Each case dresses its kinds anew: other names for the tool and its
parameters, other descriptions, in another order, so a model has to read what it is offered.
"""
import json

from words import (ANIMALS, COLOURS, DAYS, LOOKS, NAMES, OBJECTS, ROOMS, SURNAMES, TOWNS, WORDS, an, assistant, cap,
                   joined, make, user)

NO_TOOL = "None of my tools can do that."
SKIES = "sunny cloudy rainy windy foggy snowy".split()
CHORES = ("water the flowers", "feed the fox", "clean the windows", "close the barn", "buy new candles",
          "polish the bell", "bring the ladder", "repair the kite", "lock the cellar", "sweep the stairs")
NEWS = ("the boat is late", "the lamp is broken", "supper is ready", "the meeting is over", "the key is found",
        "the train has left", "the bakery is closed", "the bridge is open", "the letter has come")

# --------------------------------------------------------------------------- parameters

# What a parameter means: (names, JSON type, description, how a value is drawn).
PARAMETERS = {
    "item": (("item", "thing", "object", "product"), "string", "the item",
             lambda r: f"{r.choice(LOOKS)} {r.choice(OBJECTS)}"),
    "town": (("town", "city", "place"), "string", "the town", lambda r: r.choice(TOWNS)),
    "from": (("from", "start", "origin"), "string", "the town to start from", lambda r: r.choice(TOWNS)),
    "to": (("to", "goal", "destination"), "string", "the town to arrive at", lambda r: r.choice(TOWNS)),
    "person": (("person", "name", "who"), "string", "the person",
               lambda r: f"{r.choice(NAMES)} {r.choice(SURNAMES)}"),
    "room": (("room", "where", "location"), "string", "the room", lambda r: r.choice(ROOMS)),
    "day": (("day", "weekday", "date"), "day", "the day", lambda r: r.choice(DAYS)),
    "hour": (("hour", "time", "at"), "integer", "the hour", lambda r: r.randint(7, 22)),
    "count": (("count", "number", "quantity", "amount"), "integer", "the number", lambda r: r.randint(2, 60)),
    "a": (("a", "x", "first", "left"), "integer", "the first number", lambda r: r.randint(12, 999)),
    "b": (("b", "y", "second", "right"), "integer", "the second number", lambda r: r.randint(12, 999)),
    "degrees": (("degrees", "temperature", "value"), "integer", "the temperature", lambda r: r.randint(12, 26)),
    "miles": (("miles", "distance", "length"), "number", "the distance", lambda r: r.randint(11, 999) / 10),
    "on": (("on", "state", "enabled", "lit"), "boolean", "whether it is on", lambda r: r.random() < 0.5),
    "text": (("text", "message", "body"), "string", "the message", lambda r: r.choice(NEWS)),
    "task": (("task", "what", "note"), "string", "the task", lambda r: r.choice(CHORES)),
    "key": (("key", "card", "badge"), "string", "the key", lambda r: f"{r.choice(LOOKS)} key"),
    "title": (("title", "list", "label"), "string", "the name of the list", lambda r: r.choice(WORDS)),
    "words": (("words", "items", "entries"), "strings", "the words",
              lambda r: r.sample(WORDS, r.randint(2, 4))),
    "express": (("express", "fast", "urgent"), "boolean", "whether it is urgent", lambda r: True),
}

# --------------------------------------------------------------------------- kinds


class Kind:
    """Something that a tool can do.

    verbs, nouns   its names are VERB_NOUN
    does           its description
    needs, may     parameters that are required, and that are not
    asks           requests with {parameter}; an optional parameter's sentence is in `more`
    result         (rng, arguments) -> what the tool returns
    tells          the answer, with {parameter} and {field of the result}
    lacks          {parameter: a request without it}
    """

    def __init__(self, verbs, nouns, does, needs, asks, result, tells, lacks=None, may=(), more=None):
        self.verbs, self.nouns, self.does = verbs.split(), nouns.split(), does
        self.needs, self.may, self.asks, self.more = needs, may, asks, more or {}
        self.result, self.tells, self.lacks = result, tells, lacks or {}


KINDS = [
    Kind("get find look_up", "price cost", "Finds what an item costs in a town.", ("item", "town"),
         ("How much does the {item} cost in {town}?", "What is the price of the {item} in {town}?",
          "I want to buy the {item} in {town}. What does it cost?"),
         lambda r, a: {"price": r.randint(10, 999)}, "The {item} costs {price} crowns in {town}.",
         {"town": "How much does the {item} cost?", "item": "I want to buy something in {town}. What does it cost?"}),
    Kind("get read check", "weather forecast", "Tells the weather in a town.", ("town",),
         ("What is the weather like in {town}?", "How is the weather in {town}?", "Is it raining in {town}?"),
         lambda r, a: {"sky": r.choice(SKIES), "degrees": r.randint(1, 30)},
         "It is {sky} in {town}, at {degrees} degrees.", {"town": "What is the weather like?"},
         may=("day",), more={"day": "I mean on {day}."}),
    Kind("find next look_up", "train departure", "Finds the next train to a town.", ("to",),
         ("When does the next train to {to} leave?", "I want to take a train to {to}. When does it leave?"),
         lambda r, a: {"time": f"{r.randint(6, 22)}:{r.randint(10, 59)}", "platform": r.randint(1, 9)},
         "The next train to {to} leaves at {time} from platform {platform}.",
         {"to": "I want to take a train. When does it leave?"}),
    Kind("get find look_up", "extension phone", "Finds the extension of a person.", ("person",),
         ("What is the extension of {person}?", "How can I call {person}?", "Which extension does {person} have?"),
         lambda r, a: {"extension": r.randint(1000, 9999)}, "The extension of {person} is {extension}."),
    Kind("send write post", "message note", "Sends a message to a person.", ("person", "text"),
         ("Send {person} this message: {text}.", "Please tell {person} that {text}.", "Let {person} know that {text}."),
         lambda r, a: {"sent": True}, "I have told {person} that {text}.",
         {"text": "Please send a message to {person}.", "person": "Please send this message: {text}."}),
    Kind("set switch turn", "lamp light", "Switches the lamp of a room on or off.", ("room", "on"),
         ("Please switch the lamp in the {room} {on}.", "Turn the lamp in the {room} {on}."),
         lambda r, a: {"done": True}, "The lamp in the {room} is {on} now."),
    Kind("book reserve rent", "room hall", "Books a room on a day at an hour.", ("room", "day", "hour"),
         ("Book the {room} on {day} at {hour} o'clock.", "I need the {room} on {day} at {hour} o'clock.",
          "Can you book the {room} for {day} at {hour} o'clock?"),
         lambda r, a: {"number": r.randint(1000, 9999)},
         "The {room} is booked on {day} at {hour} o'clock. The number is {number}.",
         {"day": "Book the {room} at {hour} o'clock.", "hour": "Book the {room} on {day}.",
          "room": "Book a room on {day} at {hour} o'clock."}),
    Kind("order buy request", "items goods", "Orders a number of items.", ("item", "count"),
         ("Order {count} of the {item}.", "Please buy {count} of the {item}.", "I need {count} of the {item}."),
         lambda r, a: {"order": r.randint(10000, 99999), "total": r.randint(10, 999)},
         "I have ordered {count} of the {item}. The order is {order} and costs {total} crowns.",
         {"count": "Please order some of the {item}."}, may=("express",), more={"express": "It is urgent."}),
    Kind("count check get", "stock shelf", "Tells how many of an item are left.", ("item",),
         ("How many of the {item} are left?", "Is the {item} in stock?"),
         lambda r, a: {"left": r.randint(0, 99)}, "There are {left} of the {item} left."),
    Kind("multiply compute calculate", "numbers product", "Multiplies two numbers.", ("a", "b"),
         ("What is {a} times {b}?", "Multiply {a} by {b}.", "How much is {a} times {b}?"),
         lambda r, a: {"result": a["a"] * a["b"]}, "{a} times {b} is {result}."),
    Kind("find get look_up", "locker box", "Finds the locker that a key opens.", ("key",),
         ("Which locker does the {key} open?", "What does the {key} open?"),
         lambda r, a: {"locker": r.randint(1000, 9999)}, "The {key} opens locker {locker}."),
    Kind("add set make", "reminder alarm", "Reminds of a task on a day.", ("task", "day"),
         ("Remind me to {task} on {day}.", "On {day} I have to {task}. Please remind me."),
         lambda r, a: {"saved": True}, "I will remind you to {task} on {day}.",
         {"day": "Remind me to {task}.", "task": "Please remind me on {day}."}),
    Kind("get measure find", "distance route", "Tells how far it is between two towns.", ("from", "to"),
         ("How far is it from {from} to {to}?", "How many miles are there between {from} and {to}?"),
         lambda r, a: {"miles": r.randint(3, 400)}, "It is {miles} miles from {from} to {to}.",
         {"from": "How far is it to {to}?"}),
    Kind("set heat change", "heating temperature", "Sets the temperature of a room.", ("room", "degrees"),
         ("Set the {room} to {degrees} degrees.", "I would like {degrees} degrees in the {room}."),
         lambda r, a: {"done": True}, "The {room} is set to {degrees} degrees.",
         {"degrees": "Please change the temperature in the {room}."}),
    Kind("convert turn change", "miles distance", "Converts miles to kilometres.", ("miles",),
         ("How many kilometres are {miles} miles?", "Convert {miles} miles to kilometres."),
         lambda r, a: {"kilometres": round(a["miles"] * 1.609, 1)}, "{miles} miles are {kilometres} kilometres."),
    Kind("make save create", "list collection", "Saves a list of words under a name.", ("title", "words"),
         ("Make a list called {title} with {words}.", "Save {words} in a list called {title}."),
         lambda r, a: {"entries": len(a["words"])}, "The list {title} has {entries} entries now."),
    Kind("get read tell", "time clock", "Tells the time.", (), ("What time is it?", "Please tell me the time."),
         lambda r, a: {"time": f"{r.randint(6, 22)}:{r.randint(10, 59)}"}, "It is {time}."),
]

# --------------------------------------------------------------------------- tools


def said(value):
    """A value as people say it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return joined(value) if isinstance(value, list) else str(value)


def schema_of(kind_of_value, description, rng):
    """The JSON schema of a parameter."""
    if kind_of_value == "strings":
        schema = {"type": "array", "items": {"type": "string"}}
    elif kind_of_value == "day":
        schema = {"type": "string", "enum": DAYS} if rng.random() < 0.5 else {"type": "string"}
    else:
        schema = {"type": kind_of_value}
    if rng.random() < 0.6:
        schema["description"] = cap(description)
    return schema


class Tool:
    """A kind as one request offers it: its name, and a name for each parameter."""

    def __init__(self, rng, kind, taken):
        self.kind = kind
        while True:
            verb, noun = rng.choice(kind.verbs), rng.choice(kind.nouns)
            name = verb + "_" + noun
            style = rng.random()
            if style < 0.25:                               # a name that nobody has seen
                name = rng.choice(WORDS) + "_" + (noun if style < 0.15 else name)
            elif style < 0.35:
                name = verb.replace("_", "") + cap(noun)
            if name not in taken:
                break
        taken.add(name)
        self.name = name
        self.names = {}
        for role in kind.needs + kind.may:
            free = [n for n in PARAMETERS[role][0] if n not in self.names.values()]
            self.names[role] = rng.choice(free)
        order = list(kind.needs + kind.may)
        rng.shuffle(order)
        self.order = order
        parameters = {"type": "object",
                      "properties": {self.names[p]: schema_of(PARAMETERS[p][1], PARAMETERS[p][2], rng) for p in order}}
        required = [self.names[p] for p in order if p in kind.needs]
        if required or rng.random() < 0.5:
            parameters["required"] = required
        if rng.random() < 0.3:
            parameters["additionalProperties"] = False
        self.schema = {"type": "function", "function": {"name": name, "description": kind.does, "parameters": parameters}}

    def ask(self, rng):
        """A request: its words, the arguments by role, and the call that it wants."""
        values = {p: PARAMETERS[p][3](rng) for p in self.kind.needs}
        if "from" in values:
            while values["from"] == values["to"]:
                values["from"] = PARAMETERS["from"][3](rng)
        text = rng.choice(self.kind.asks).format(**{p: said(v) for p, v in values.items()})
        for p in self.kind.may:
            if rng.random() < 0.4:
                values[p] = PARAMETERS[p][3](rng)
                text += " " + self.kind.more[p].format(**{p: said(values[p])})
        arguments = {self.names[p]: values[p] for p in self.order if p in values}
        return text, values, {"name": self.name, "arguments": arguments}

    def lack(self, rng):
        """A request that lacks a value, and the question that it deserves."""
        role = rng.choice(sorted(self.kind.lacks))
        values = {p: PARAMETERS[p][3](rng) for p in self.kind.needs if p != role}
        text = self.kind.lacks[role].format(**{p: said(v) for p, v in values.items()})
        return text, f"Please tell me {PARAMETERS[role][2]}."


def call_text(calls):
    """Calls as the chat template writes them."""
    return "\n".join("<tool_call>\n" + json.dumps(c) + "\n</tool_call>" for c in calls)


def calling(calls):
    """An assistant's message that calls tools."""
    return {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]}


def result_message(value):
    return {"role": "tool", "content": json.dumps(value)}


FAILURES = ("not found", "no connection", "the shop is closed", "try again later", "not allowed")
JOINTS = (" Also: ", " And ", " ", "\n", " Then: ")


def one_round(rng, tools, count, failing=0.0):
    """A request of `count` calls: the user's words, the calls, their results, and the answer."""
    picks = [rng.choice(tools) for _ in range(count)]
    asked = [(tool,) + tool.ask(rng) for tool in picks]
    text = asked[0][1]
    for _, words, _, _ in asked[1:]:
        text += rng.choice(JOINTS) + words
    results, answers = [], []
    for tool, _, values, _ in asked:
        if rng.random() < failing:
            why = rng.choice(FAILURES)
            results.append({"error": why})
            answers.append(f"That did not work: {why}.")
        else:
            result = tool.kind.result(rng, values)
            results.append(result)
            answers.append(tool.kind.tells.format(**{p: said(v) for p, v in {**values, **result}.items()}))
    return text, [call for _, _, _, call in asked], results, " ".join(answers)


SHAPES = {1: (("call", 6), ("result", 2), ("none", 2)),
          2: (("call", 4), ("parallel", 2), ("result", 2), ("none", 1), ("missing", 1)),
          3: (("call", 2), ("parallel", 3), ("result", 2), ("error", 1), ("none", 1), ("missing", 1)),
          4: (("call", 1), ("parallel", 4), ("result", 3), ("error", 1), ("none", 1), ("missing", 1))}


def tool(rng, difficulty, train=False):
    """A request with tools: call them, tell what they returned, or say why none can help."""
    n_tools = rng.randint(*{1: (1, 2), 2: (2, 3), 3: (3, 5), 4: (4, 6)}[difficulty])
    kinds = rng.sample(KINDS, n_tools + 1)
    other, taken = Tool(rng, kinds.pop(), set()), set()
    tools = [Tool(rng, kind, taken) for kind in kinds]
    shapes = SHAPES[difficulty]
    shape = rng.choices([s for s, _ in shapes], [w for _, w in shapes])[0]
    messages = []
    if difficulty == 4 or (train and rng.random() < 0.3):   # a round before this one
        text, calls, results, answer = one_round(rng, tools, rng.choice((1, 1, 2)))
        messages += [user(text), calling(calls)] + [result_message(r) for r in results] + [assistant(answer)]
    lacking = [t for t in tools if t.kind.lacks]
    if shape == "missing" and lacking:
        text, reply = rng.choice(lacking).lack(rng)
        case = make("tool", difficulty, messages + [user(text)], reply, reply, "exact")
    elif shape in ("none", "missing"):
        text = other.ask(rng)[0]
        case = make("tool", difficulty, messages + [user(text)], NO_TOOL, NO_TOOL, "exact")
    else:
        count = rng.choice((2, 2, 3)) if shape == "parallel" else 1
        if shape in ("result", "error") and difficulty > 2:
            count = rng.choice((1, 2))
        text, calls, results, answer = one_round(rng, tools, count, 1.0 if shape == "error" else 0.0)
        after = [calling(calls)] + [result_message(r) for r in results]
        if shape in ("result", "error"):
            case = make("tool", difficulty, messages + [user(text)] + after, answer, answer, "exact")
        else:
            case = make("tool", difficulty, messages + [user(text)], call_text(calls), calls, "calls")
            case["more"] = after + [assistant(answer)]
    case["tools"] = [t.schema for t in tools]
    return case


# --------------------------------------------------------------------------- schemas

TRADES = "baker miller sailor painter teacher farmer doctor gardener".split()


def fields_of(rng, who, count, nested):
    """`count` facts about a person: [(names, schema, value, sentence)]."""
    town, age, day, n = rng.choice(TOWNS), rng.randint(9, 90), rng.choice(DAYS), rng.randint(1000, 9999)
    trade, height = rng.choice(TRADES), rng.randint(110, 199) / 100
    member, pet, pet_name = rng.random() < 0.5, rng.choice(ANIMALS), cap(rng.choice(WORDS))
    colours = rng.sample(COLOURS, rng.randint(2, 4))
    bought = [(rng.choice(OBJECTS), rng.randint(2, 30)) for _ in range(rng.randint(1, 3))]
    whole, text = {"type": "integer"}, {"type": "string"}
    simple = [
        (("town", "home", "lives_in"), text, town, f"{who} lives in {town}."),
        (("age", "years"), whole, age, f"{who} is {age} years old."),
        (("day", "visit", "comes_on"), {"type": "string", "enum": DAYS}, day, f"{who} comes on {day}."),
        (("extension", "phone", "number"), whole, n, f"The extension of {who} is {n}."),
        (("trade", "job", "work"), text, trade, f"{who} is {an(trade)}."),
        (("height", "metres"), {"type": "number"}, height, f"{who} is {height} metres tall."),
        (("member", "in_club"), {"type": "boolean"}, member,
         f"{who} is {'' if member else 'not '}a member of the club.")]
    deep = [
        (("pet", "animal"), {"type": "object", "properties": {"kind": text, "name": text},
                              "required": ["kind", "name"]}, {"kind": pet, "name": pet_name},
         f"{who} has {an(pet)} called {pet_name}."),
        (("colours", "likes"), {"type": "array", "items": text}, colours, f"{who} likes {joined(colours)}."),
        (("bought", "items", "orders"), {"type": "array", "items": {
            "type": "object", "properties": {"item": text, "count": whole}, "required": ["item", "count"]}},
         [{"item": o, "count": c} for o, c in bought],
         f"{who} bought {joined([f'{c} of the {o}' for o, c in bought])}.")]
    chosen = rng.sample(deep, min(nested, len(deep)))
    return chosen + rng.sample(simple, min(len(simple), count - len(chosen)))


def plain(schema):
    """A schema in words."""
    return "list" if schema["type"] == "array" else schema["type"]


def form(rng, difficulty, train=False):
    """A text and a JSON schema (or a list of fields) to fill from it."""
    count = rng.randint(*{1: (2, 3), 2: (3, 4), 3: (5, 6), 4: (7, 9)}[difficulty])
    nested = {1: 0, 2: rng.choice((0, 1)), 3: rng.choice((1, 2)), 4: rng.choice((2, 3))}[difficulty]
    who = f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"
    facts = fields_of(rng, who, count - 1, nested)
    sentences = [sentence for _, _, _, sentence in facts]
    if difficulty > 2 or rng.random() < 0.3:               # somebody else, who is not asked about
        other = f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"
        sentences += [s for _, _, _, s in fields_of(rng, other, rng.randint(1, 3), 0)] if other != who else []
    rng.shuffle(sentences)
    rows = [(rng.choice(names), schema, value) for names, schema, value, _ in facts]
    rows.append((rng.choice(("name", "person", "who")), {"type": "string"}, who))
    rng.shuffle(rows)
    value = {name: v for name, _, v in rows}
    text = " ".join(sentences)
    if rng.random() < 0.6:
        schema = {"type": "object", "properties": {name: s for name, s, _ in rows},
                  "required": [name for name, _, _ in rows]}
        if rng.random() < 0.5:
            schema["additionalProperties"] = False
        wanted = rng.choice((f"Fill this JSON schema for {who}.", f"Answer with JSON of this schema, about {who}.",
                             f"What do we know about {who}? Use this schema.")) + "\n\n" + json.dumps(schema)
    else:
        named = ", ".join(f"{name} ({plain(s)})" for name, s, _ in rows)
        wanted = rng.choice((f"Answer with JSON about {who}: {named}.", f"Reply in JSON with these fields for {who}: {named}.",
                             f"Make a JSON object about {who} with {named}."))
    prompt = f"{text}\n\n{wanted}" if rng.random() < 0.6 else f"{wanted}\n\n{text}"
    return make("json", difficulty, [user(prompt)], json.dumps(value), value, "json")


# --------------------------------------------------------------------------- checks


def calls_of(reply):
    """The calls of a reply, or None where a block is broken or text stands beside them."""
    calls, rest = [], reply.strip()
    while rest:
        if not rest.startswith("<tool_call>"):
            return None
        body, end, rest = rest[len("<tool_call>"):].partition("</tool_call>")
        try:
            call = json.loads(body)
        except ValueError:
            return None
        if not end or not isinstance(call, dict):
            return None
        calls.append(call)
        rest = rest.strip()
    return calls


def check(case, reply):
    """Whether a reply is right ("calls" and "json" alone)."""
    if case["checker"] == "calls":
        return calls_of(reply) == case["answer"]
    try:
        return json.loads(reply) == case["answer"]
    except ValueError:
        return False
