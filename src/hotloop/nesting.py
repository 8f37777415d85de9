"""How deep data is nested. Encoders and decoders of JSON give up at a depth that depends on who calls them, so a value that one
of them took may be too deep for the next; what has fewer levels than this is for none."""

from __future__ import annotations

from collections.abc import Mapping

MAX_LEVELS = 200


def is_too_deep(value: object) -> bool:
    """value: JSON data without circles. Whether it has lists or objects in each other on more than MAX_LEVELS levels."""
    layer = [value]
    for _ in range(MAX_LEVELS + 1):
        containers = [item for item in layer if isinstance(item, Mapping | list | tuple)]
        if not containers:
            return False
        layer = [item for c in containers for item in (c.values() if isinstance(c, Mapping) else c)]
    return True
