"""Telling apart whose fault it was: draws one by one, and what a client is told of an exception."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import ErrorKind
from hotloop.sampling.draw import Draw, Row, Sampler

_log = logging.getLogger(__name__)


def draw_rows(
    sampler: Sampler, logits: NDArray[np.float32], rows: Sequence[Row], logits_rows: Sequence[int]
) -> Sequence[Draw | Exception]:
    """`Sampler.draw`; should the whole of it fail, each row alone."""
    try:
        return sampler.draw(logits, rows, logits_rows=logits_rows)
    except Exception:
        _log.exception("drawing %d tokens failed", len(rows))
    results: list[Draw | Exception] = []
    for row, index in zip(rows, logits_rows, strict=True):
        try:
            results += sampler.draw(logits[index : index + 1], [row])
        except Exception as error:
            results.append(error)
    return results


def message_of(error: BaseException) -> str:
    """What the client is told; the log keeps the traceback of what is no HotloopError."""
    if isinstance(error, HotloopError):
        return str(error)
    _log.error("a request failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


def kind_of(error: BaseException) -> ErrorKind:
    """Whether it is what the request asks for that cannot be done."""
    return "invalid" if isinstance(error, InvalidRequestError) else "internal"
