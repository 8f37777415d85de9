"""Values for a JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any


def finite(value: Any) -> Any:
    """The value with null for every number that JSON does not have, at any depth."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(each) for each in value]
    return value
