"""The choice of a kernel set: the best one this machine can run that computes what the scalar set computes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from itertools import pairwise

from hotloop import _native
from hotloop.errors import InvalidRequestError

_log = logging.getLogger(__name__)


@cache
def self_check(isa: str) -> str | None:
    """What the kernel set computes differently from scalar on small inputs, or None; measured once in a process."""
    return _native.self_check(isa)


def choose_kernel_set(requested: str = "", check: Callable[[str], str | None] = self_check) -> str:
    """The requested set, or the best usable one; a set that fails its check is replaced by the next, with a warning.

    Raises: InvalidRequestError that lists the usable sets if the requested one is not among them.
    """
    usable: list[str] = _native.usable_isas()
    if requested and requested not in usable:
        raise InvalidRequestError(
            f"instruction set '{requested}' is not usable on this machine; usable: {', '.join(usable)}"
        )
    candidates = usable[usable.index(requested) :] if requested else usable
    for isa, fallback in pairwise(candidates):
        differs = check(isa)
        if differs is None:
            return isa
        _log.warning(
            "kernel set '%s' computes something else than 'scalar' on this machine (%s); using '%s' instead. "
            "Please report this with the name of the processor.", isa, differs, fallback,
        )  # fmt: skip
    return candidates[-1]  # scalar: the definition
