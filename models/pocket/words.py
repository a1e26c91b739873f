"""The words of the world, and how its parts are put together.

world.py and agent.py draw names, places and objects from these lists, so a model needs only a few thousand distinct words.
"""
SHE = ("Mira Fern Ada Hazel Ivy Juno Lena Nora Opal Pia Rosa Sela Tess Uma Vera Wren "
       "Yara Zoe Bea Cora Dora Elsa Greta Hilda Ines Kira Lila Maud Nell Olive").split()
HE = ("Tobin Alder Bram Cole Dario Emil Finn Gus Hugo Ivan Jonas Kit Leo Milo Ned Otto "
      "Percy Quinn Rufus Silas Theo Ugo Victor Walt Yusuf Zane Arlo Boris Caleb Edgar").split()
NAMES = SHE + HE
SURNAMES = ("Marsh Bell Stone Carter Hale Frost Rivers Dale Ward Poole Lane Brook Cross Nash "
            "Webb Sharp Voss Lund Kerr Drake Flint Grove Holt Moss Pike Reed Swift Thorn "
            "Vale Winter").split()
COLOURS = "red blue green yellow purple orange white black silver golden brown pink".split()
MATERIALS = ("brass iron copper wooden glass stone paper velvet ivory amber marble tin "
             "leather crystal clay steel").split()
LOOKS = COLOURS + MATERIALS
OBJECTS = ("lamp key bell box cup kite drum clock coin ring map book hat rope basket "
           "candle lantern flute compass mirror bottle button feather whistle ladder "
           "bucket blanket teapot locket kettle spoon scarf globe puppet umbrella brush "
           "hammer jar mask statue").split()
ANIMALS = ("fox owl cat dog goat duck hen mouse rabbit bear otter badger crow frog pony "
           "sheep goose turtle squirrel hedgehog").split()
PLACES = [("in", "kitchen"), ("in", "cellar"), ("in", "garden"), ("in", "library"),
          ("in", "attic"), ("in", "barn"), ("at", "harbour"), ("at", "market"),
          ("at", "station"), ("at", "school"), ("at", "bakery"), ("at", "windmill"),
          ("on", "hill"), ("on", "bridge"), ("on", "beach"), ("in", "forest"),
          ("in", "meadow"), ("by", "river"), ("by", "lake"), ("in", "tower"),
          ("in", "workshop"), ("in", "stable"), ("at", "museum"), ("in", "orchard"),
          ("in", "cave"), ("at", "lighthouse"), ("in", "chapel"), ("on", "island")]
ROOMS = [name for _, name in PLACES]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TOWNS = [a + b for a in ("Ash Bram Cor Dun El Glen Har Kel Lin Mor Nor Oak Pen Ros Stan "
                         "Tarn Wes Yar").split()
         for b in "ford wick mere dale ton stow holm port field gate".split()]
WORDS = sorted(set((
    "acorn anchor apple arrow autumn badge bamboo banjo barrel basket beach beacon beetle berry "
    "bishop blossom boulder branch breeze bridge bronze bubble butter cabin cactus camel canal "
    "candle canyon carpet castle cedar chapel cherry chimney cinder circle cliff clover cobweb "
    "comet copper coral cotton cradle cricket crown curtain daisy desert diamond dolphin donkey "
    "dragon eagle ember engine falcon feather fiddle finger flame forest fossil fountain galaxy "
    "garden garlic ginger glacier goblet granite grape gravel hammer harbour harvest hazel helmet "
    "hollow honey island ivory jacket jasmine jungle kernel kettle kitten ladder lagoon lantern "
    "lemon lettuce lily lizard magnet mango maple marble meadow melon mirror monkey mortar "
    "mountain mushroom needle nettle nickel nutmeg oasis ocean olive onion orchid otter oyster "
    "paddle palace panda parrot pebble pencil pepper piano pigeon pillow planet plum pocket "
    "pollen poppy prairie pumpkin puzzle quarry quartz quilt rabbit radish raven ribbon river "
    "robin rocket saddle salmon sandal saturn shadow shovel signal silk sparrow spider spiral "
    "sponge spruce statue summit sunset swallow tablet temple thimble thunder ticket tiger timber "
    "tulip tunnel turnip turtle umbrella valley vanilla velvet village violet walnut walrus "
    "whistle willow window winter wizard yarn zebra zipper").split()))


def an(phrase):
    """The phrase with its indefinite article."""
    return ("an " if phrase[0] in "aeiouAEIOU" else "a ") + phrase


def cap(text):
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def where(place):
    """('in', 'cellar') -> 'in the cellar'."""
    return place[0] + " the " + place[1]


def joined(items):
    """['a', 'b', 'c'] -> 'a, b and c'."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def make(family, difficulty, messages, reply, answer, checker):
    return {"family": family, "difficulty": difficulty, "messages": messages,
            "reply": reply, "answer": answer, "checker": checker}
