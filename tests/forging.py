"""Files of JSON made by hand: a tree with each of its entries replaced in turn by what does not belong there."""

import json
import random

from nestling.errors import NestlingError
from nestling.storage.files import digest

VALUES = (
    *(None, True, False, 0, 1, 2, -1, 7, 10**9, 2**31, 2**63, 10**400, 0.5, -0.5, 1e308, "", "x", "a\nb", "nan"),
    *(
        "../x",
        "/etc/passwd",
        "float64",
        "aten.neg.default",
        [],
        {},
        [[]],
        [None],
        [1] * 300,
        {"node": 0},
        {"tuple": []},
    ),
    *({"a\nb": 1}, {"value": 3}, {"shape": [], "dtype": "int64"}, "float16", [2, 2], {"device": "meta"}),
)


def places(tree, at=()):
    """The place of every entry of a JSON tree."""
    if at:
        yield at
    if isinstance(tree, dict | list):
        for key, own in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(own, (*at, key))


def forgeries(tree, turns=1):
    """Each place of a JSON tree, with the tree whose entry there is dropped or replaced, ``turns`` times."""
    for number, place in enumerate(places(tree)):
        for turn in range(turns):
            other = json.loads(json.dumps(tree))
            *way, last = place
            inner = other
            for key in way:
                inner = inner[key]
            pick = random.Random(f"{number} {turn}").randrange(len(VALUES) + 3)
            if pick < len(VALUES):
                inner[last] = VALUES[pick]
            elif pick == len(VALUES):
                del inner[last]
            elif isinstance(inner[last], int | float):
                inner[last] = inner[last] + (1 if pick % 2 else -1)
            else:
                inner[last] = [inner[last]]
            yield place, other


def write_signed(path, content):
    """Write a file of JSON with the version of its format and a checksum that fits."""
    text = {"format": 1} | content
    path.write_text(json.dumps(text | {"sha256": digest(text)}))


def read_or_refused(read, place):
    """What ``read`` gives, or None if it refuses the file in one line; ``place`` is shown if it does neither."""
    try:
        return read()
    except NestlingError as error:
        said = str(error)
    assert "\n" not in said, place
    assert len(said) < 2000, place
    return None
