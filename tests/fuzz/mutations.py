"""Changes that parsers get wrong: of bytes, of the numbers in a header, of a JSON value, of the words of a text."""

import struct
from copy import deepcopy
from random import Random
from typing import Any

_NUMBERS = (
    0, 1, 2, 7, 31, 32, 127, 128, 255, 256, 65535, 65536,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
_JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 1e308, 2**31, 2**63, 2**64, 10**100,
    "", "a", "\ud800", "\0", "F32", "BF16", "__metadata__", "x" * 300,
    [], [0], [0, 0], [-1, 4], [2**62, 2**62], [[]], [1] * 20, {}, {"a": 1}, {"dtype": "F32"},
)  # fmt: skip


def mutate_bytes(random: Random, data: bytes, others: bytes = b"") -> bytes:
    """One to eight changes: bytes flipped, numbers of 4 and 8 bytes replaced, pieces cut, doubled and moved."""
    changed = bytearray(data)
    for _ in range(1 + random.randrange(8)):
        if not changed:
            return bytes(changed)
        at = random.randrange(len(changed))
        match random.randrange(8):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at] = random.randrange(256)
            case 2 | 3:
                code = random.choice(("<I", "<Q"))
                number = random.choice(_NUMBERS) % (1 << 8 * struct.calcsize(code))
                changed[at : at + struct.calcsize(code)] = struct.pack(code, number)
            case 4:
                del changed[at : at + 1 + random.randrange(40)]
            case 5:
                piece = changed[at : at + 1 + random.randrange(40)]
                changed[at:at] = piece * (1 + random.randrange(3))
            case 6:
                source = others or data
                start = random.randrange(len(source))
                changed[at : at + random.randrange(9)] = source[start : start + random.randrange(64)]
            case 7:
                if random.randrange(4) == 0:
                    del changed[at:]
    return bytes(changed)


def mutate_json(random: Random, value: Any) -> Any:
    """One to four places replaced, removed, doubled or renamed."""
    value = deepcopy(value)
    for _ in range(1 + random.randrange(4)):
        parent, node = None, value
        while isinstance(node, dict | list) and node and random.randrange(5):
            key = random.choice(list(node)) if isinstance(node, dict) else random.randrange(len(node))
            parent, node = (node, key), node[key]
        if parent is None:
            continue
        container, key = parent
        new = deepcopy(random.choice(_JSON_VALUES))
        match random.randrange(6):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[random.choice(("", "dtype", "shape", "data_offsets", "__metadata__", "\ud800", "é"))] = node
            case 2 if isinstance(node, int):
                container[key] = node + random.choice((-1, 1, 4, -8, 2**32))
            case _:
                container[key] = new
    return value


def mutate_words(random: Random, words: list[str], pool: list[str]) -> list[str]:
    """One to six words replaced, removed, doubled, swapped or put in from a pool."""
    changed = list(words)
    for _ in range(1 + random.randrange(6)):
        if not changed:
            return [random.choice(pool)]
        at = random.randrange(len(changed))
        match random.randrange(6):
            case 0:
                changed[at] = random.choice(pool)
            case 1:
                changed.insert(at, random.choice(pool))
            case 2:
                del changed[at : at + 1 + random.randrange(4)]
            case 3:
                changed[at:at] = changed[at : at + 1 + random.randrange(12)]
            case 4:
                other = random.randrange(len(changed))
                changed[at], changed[other] = changed[other], changed[at]
            case 5:
                changed[at] = changed[at] * random.choice((2, 3, 50))
    return changed
