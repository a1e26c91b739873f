#!/usr/bin/env python3
"""Stories of the world: a hero, something lost or wished for, friends on the way, and an end.

`story` makes a case of world.py's family of that name from a grammar of sentences.  In training its facts allow
questions afterwards.
"""
from words import (ANIMALS, COLOURS, DAYS, HE, NAMES, OBJECTS, PLACES, SHE, an, assistant, cap, make, user, where)

WEATHER = ["The sun was shining", "A soft rain was falling", "A cold wind was blowing",
           "The sky was grey and still", "Snow lay on the roofs", "The air smelled of flowers",
           "A thin mist hung over the fields", "The morning was bright and clear"]
TRAITS = "kind curious brave quiet clever cheerful patient stubborn gentle shy".split()
ADVERBS = "softly proudly quietly kindly slowly happily".split()
MORALS = ["From that day on, {n} never forgot that a small kindness can travel a long way.",
          "And {n} learned that it is always better to ask for help than to give up.",
          "After that, everyone in the village knew that {n} could be trusted.",
          "{n} went to sleep that night with a warm heart and a quiet mind.",
          "And whenever {n} looked at the {o}, {s} remembered that {w}.",
          "{n} had learned that the best part of any search is the friends you find on the way."]
HELPS = [("was trying to lift a heavy basket", "carried the basket up the steps", "thank you for your strong arms"),
         ("had tangled a long rope", "sat down and untied every knot", "thank you for your patience"),
         ("was looking for a lost button", "found the button under a leaf", "thank you for your sharp eyes"),
         ("was hungry and tired", "shared a piece of bread and some cheese", "thank you for your kindness"),
         ("could not reach the apples", "climbed up and picked three apples", "thank you for the apples"),
         ("was afraid of the dark path", "walked along and sang a cheerful song", "thank you for the song"),
         ("was sweeping up a pile of leaves", "took a broom and swept until the path was clean", "thank you for your help"),
         ("had dropped a cup of tea", "wiped the floor and made a fresh cup", "thank you, that was very good of you")]


class Hero:
    """A story's main character: a name, a kind ('girl', 'fox', ...) and its pronouns."""

    def __init__(self, rng):
        self.she = rng.random() < 0.5
        self.name = rng.choice(SHE if self.she else HE)
        if rng.random() < 0.5:
            self.kind = rng.choice(ANIMALS)
        else:
            self.kind = rng.choice(["girl", "old woman", "baker", "sailor"] if self.she
                                   else ["boy", "old man", "miller", "painter"])
        self.subj, self.obj, self.poss = ("she", "her", "her") if self.she else ("he", "him", "his")


def opening(rng, hero, trait, place, thing):
    """The first sentences of a story: who, where and what."""
    n, k, home = hero.name, hero.kind, where(place)
    first = rng.choice([
        f"Once upon a time there was {an(trait + ' ' + k)} named {n} who lived {home}.",
        f"Long ago, {home}, there lived {an(trait + ' ' + k)} called {n}.",
        f"{n} was {an(trait + ' ' + k)} who lived in a small house near the {place[1]}.",
        f"There was once {an(k)} named {n}. {n} was {trait}, and everyone near the {place[1]} knew {hero.obj} well."])
    second = rng.choice([
        f"Of all the things {hero.subj} owned, {hero.subj} loved {hero.poss} {thing} the most.",
        f"{cap(hero.poss)} dearest treasure was {an(thing)} that had belonged to {hero.poss} grandmother.",
        f"Every evening {hero.subj} took out {hero.poss} {thing} and polished it until it shone.",
        f"Wherever {hero.subj} went, {hero.subj} carried {an(thing)} in {hero.poss} bag."])
    return first + " " + second


def helper(rng, hero, used):
    """A helper character that is not yet in the story."""
    while True:
        name = rng.choice(NAMES)
        if name != hero.name and name not in used:
            used.add(name)
            return name, rng.choice(ANIMALS)


def episode(rng, hero, used, thing, here, clue, deeds):
    """One stop of a journey: a meeting, a small kindness and a clue. Returns text and helper."""
    name, kind = helper(rng, hero, used)
    trouble, deed, thanks = deeds
    meet = rng.choice([
        f"{cap(where(here))}, {hero.subj} met {an(kind)} named {name}, who {trouble}.",
        f"Soon {hero.subj} came to the {here[1]}. There {an(kind)} named {name} {trouble}.",
        f"{hero.name} went to the {here[1]} and saw {an(kind)} called {name}, who {trouble}."])
    ask = rng.choice([
        f"\"Have you seen {an(thing)}?\" asked {hero.name}.",
        f"\"I am looking for {an(thing)},\" said {hero.name}.",
        f"{hero.name} asked {rng.choice(ADVERBS)} about the {thing}."])
    tell = rng.choice([
        f"{name} smiled. \"{cap(thanks)}! {clue}\"",
        f"\"{cap(thanks)},\" said {name}. \"{clue}\"",
        f"{name} thought for a while and said, \"{cap(thanks)}. {clue}\""])
    turn = rng.choice([f"Before anything else, {hero.name} {deed}.", f"So {hero.name} {deed}.",
                       f"Without a word, {hero.name} {deed}."])
    body = [meet, turn, ask, tell] if rng.random() < 0.5 else [meet, ask, turn, tell]
    return " ".join(body), (name, kind)


def story(rng, difficulty, train=False):
    """A story on request; its facts allow follow-up questions in training conversations."""
    hero, used = Hero(rng), set()
    look, thing = rng.choice(COLOURS), rng.choice(OBJECTS)
    item = look + " " + thing
    trait, day = rng.choice(TRAITS), rng.choice(DAYS)
    stops = rng.sample(PLACES, 7)
    home, goal = stops[0], stops[1]
    n, s, p = hero.name, hero.subj, hero.poss
    weather = rng.choice(WEATHER)
    parts = [opening(rng, hero, trait, home, item)]
    plot = rng.choice(("lost", "gift", "storm", "map"))
    first_helper = None

    if plot == "lost":
        parts.append(rng.choice([
            f"One {day}, the {item} was gone. {weather}, and {n} looked everywhere, but {s} could not find it.",
            f"{weather} on the {day} when {n} opened {p} bag and found it empty. The {item} had vanished!",
            f"Then, on a {day}, something terrible happened: the {item} disappeared. {n} searched under the bed and behind the door."]))
        goal_text = [f"At last, {where(goal)}, {n} saw something {look} behind a stone. It was the {item}!",
                     f"{n} ran to the {goal[1]}, and there, under a pile of leaves, lay the {item}.",
                     f"And there it was, {where(goal)}, just as {n} had been told: the {item}, safe and sound."]
        moral_why = "nothing is truly lost while friends are near"
    elif plot == "gift":
        friend, _ = helper(rng, hero, used)
        parts.append(rng.choice([
            f"On {day} it would be the birthday of {p} best friend, {friend}. {n} wanted to find a second {item}, just like {p} own, as a present.",
            f"{p.capitalize()} friend {friend} had always wished for {an(item)} too, and {friend}'s birthday was on {day}. \"I will find one,\" said {n}."]))
        parts.append(f"{weather} when {n} set out.")
        goal_text = [f"{cap(where(goal))}, a trader had one last {item} for sale. {n} paid with a song and ran home. {friend} was so happy that {s} had to laugh.",
                     f"At last {n} found {an(item)} {where(goal)}. {friend} opened the present on {day} and cried with joy."]
        moral_why = "giving is a joy of its own"
    elif plot == "storm":
        small = rng.choice(ANIMALS)
        parts.append(rng.choice([
            f"One {day} a great storm came over the hills. The river rose, and a young {small} was trapped {where(goal)}.",
            f"On {day} the wind howled and the rain fell like stones. Somebody cried for help {where(goal)}: it was a little {small}."]))
        parts.append(f"{n} took {p} {item} and went out into the night, although {s} was afraid, and lost it in the dark.")
        goal_text = [f"{n} found the {item} {where(goal)}, and beside it sat the little {small}, wet but safe. They walked home together.",
                     f"In the end {n} reached the place. There lay the {item}, {where(goal)}, and the {small} jumped into {p} arms."]
        moral_why = "courage is being afraid and going on"
    else:
        parts.append(rng.choice([
            f"One {day}, {n} found an old letter. It said: \"Whoever loses {an(item)} shall find a treasure.\" The next morning, the {item} was gone.",
            f"{weather} on the {day} when a stranger came, took the {item}, and left only a map. {n} decided to follow it."]))
        goal_text = [f"The trail ended {where(goal)}. {n} dug in the ground and found a chest. Inside were the {item} and a hundred gold coins.",
                     f"{cap(where(goal))}, under a flat stone, {n} found the {item}, and with it a letter that said: \"Well done.\""]
        moral_why = "every ending is the start of something new"

    episodes = {1: 0, 2: 1, 3: rng.choice((2, 3)), 4: rng.choice((4, 5))}[difficulty]
    route = stops[2:2 + episodes]
    deeds = rng.sample(HELPS, episodes)
    for i, here in enumerate(route):
        nxt = route[i + 1] if i + 1 < len(route) else goal
        clue = rng.choice([f"You should look {where(nxt)}.",
                           f"I would try the {nxt[1]} if I were you.",
                           f"I heard that you may find it {where(nxt)}."])
        text, who = episode(rng, hero, used, item, here, clue, deeds[i])
        first_helper = first_helper or (who[0], here)
        parts.append(text)
    parts.append(rng.choice(goal_text))
    parts.append(rng.choice(MORALS).format(n=n, o=item, s=s, w=moral_why))
    if rng.random() < 0.5:
        parts.append("The end.")
    per = 3 if difficulty < 3 else 2
    text = "\n\n".join(" ".join(parts[i:i + per]) for i in range(0, len(parts), per))

    verb = rng.choice(["Tell me a story", "Tell me a short story", "Write a story",
                       "Please tell me a story", "Can you tell me a story", "Write a short story"])
    if difficulty >= 3:
        verb = verb.replace("short", "long").replace("a story", "a long story")
    ask, words = rng.choice([
        (f" about {an(hero.kind)} named {n} and {an(item)}", [n, hero.kind, item]),
        (f" about {n} and {an(item)}", [n, item]),
        (f" about {an(hero.kind)} named {n}", [n, hero.kind]),
        (f" about {an(item)} that is found {where(goal)}", [item, goal[1]]),
        (f" about {an(trait + ' ' + hero.kind)} called {n} and {an(item)}", [n, trait, item]),
        (f" with {an(hero.kind)} named {n}, {an(item)} and the {goal[1]}", [n, item, goal[1]])])
    if train and rng.random() < 0.12:
        ask, words = rng.choice([("", []), (f" about {an(hero.kind)}", []), (f" about {an(item)}", [])])
    prompt = verb + ask + ("?" if verb.startswith("Can") else ".")
    case = make("story", difficulty, [user(prompt)], text, "|".join(words), "contains")

    if train and rng.random() < 0.5:                       # a follow-up turn about the story
        follow = [(f"What colour was the {thing}?", f"The {thing} was {look}."),
                  (f"Where did {n} find the {thing}?", f"{n} found the {item} {where(goal)}."),
                  (f"Who was the story about?", f"The story was about {n}, {an(trait + ' ' + hero.kind)}."),
                  (f"Where did {n} live?", f"{n} lived {where(home)}." if where(home) in parts[0]
                   else f"{n} lived near the {home[1]}.")]
        if first_helper:
            follow.append((f"Who did {n} meet {where(first_helper[1])}?",
                           f"{n} met {first_helper[0]} {where(first_helper[1])}."))
        turns = rng.sample(follow, rng.choice((1, 2)))
        case["more"] = [m for q, a in turns for m in (user(q), assistant(a))]
    return case
