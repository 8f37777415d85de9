"""LogitsProcessors: a library user's own functions on rows of logits, kept from doing harm to anybody else."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.errors import InvalidRequestError
from hotloop.sampling_params import LogitsProcessor

Logits: TypeAlias = NDArray[np.float32]

_log = logging.getLogger(__name__)
_MAX_MESSAGE_CHARS = 1000


class LogitsProcessors:
    """The logits_processors of one request, in their order."""

    def __init__(self, processors: Sequence[LogitsProcessor], prompt_token_ids: Sequence[int]) -> None:
        self._processors = [(processor, _takes_prompt(processor)) for processor in processors]
        self._prompt_token_ids = tuple(prompt_token_ids)

    def process(self, logits: Logits, output_token_ids: Sequence[int], position: int) -> Logits:
        """What they make of a row, a new one. logits: float32 [vocab_size], stays as it is. position: of the token that is
        drawn from it, for messages.

        Raises: InvalidRequestError if one of them fails or returns anything but such a row with a finite maximum.
        """
        result: Any = logits.copy()
        output = tuple(output_token_ids)
        for index, (processor, takes_prompt) in enumerate(self._processors):
            name = f"logits_processors[{index}] ({_name(processor)})"
            try:
                with _native.FloatEnvironment(), np.errstate(all="ignore"):  # what it sets of either is nobody else's
                    result = processor(self._prompt_token_ids, output, result) if takes_prompt else processor(output, result)
            except BaseException as error:
                if _may_be_of_a_signal(error):
                    raise
                _log.exception("%s failed", name)
                text = _told(partial(str, error), "(its message cannot be told)")
                raise InvalidRequestError(f"{name} raised {type(error).__name__} at position {position}: {text}") from error
            result = _checked(result, logits, name, position)
        return np.array(result, np.float32)


def _may_be_of_a_signal(error: BaseException) -> bool:
    """Whether it need not be the function's own: handlers of signals run in the main thread, in the middle of anything."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, KeyboardInterrupt | SystemExit)


def _name(processor: LogitsProcessor) -> str:
    return _told(lambda: f"{getattr(processor, '__name__', type(processor).__name__):.100}", "a function without a name")


def _told(ask: Callable[[], str], otherwise: str) -> str:
    """What an object of theirs says of itself: code of theirs as well, unless it cannot."""
    try:
        return f"{ask():.{_MAX_MESSAGE_CHARS}}"
    except BaseException as error:
        if _may_be_of_a_signal(error):
            raise
        return otherwise


def _takes_prompt(processor: LogitsProcessor) -> bool:
    """Whether it is to be called with the prompt's ids first."""
    try:
        parameters = inspect.signature(processor).parameters.values()
    except BaseException as error:  # a callable that does not tell; what asking it raises may be its own
        if _may_be_of_a_signal(error):
            raise
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) == 3


def _checked(result: Any, logits: Logits, name: str, position: int) -> Logits:
    """The row that a function returned. Nothing of it is asked that may be code of theirs: a subclass can answer anything."""
    row = np.ndarray.view(result, np.ndarray) if issubclass(type(result), np.ndarray) else None
    if row is None or row.dtype != np.float32 or row.shape != logits.shape:
        what = _told(lambda: type(result).__name__, "an object") if row is None else f"{row.dtype} {list(row.shape)}"
        raise InvalidRequestError(
            f"{name} returned {what} at position {position}; it must return float32 [{len(logits)}], the row"
        )
    top = row.max()
    if not np.isfinite(top):
        what = "NaN" if np.isnan(top) else "+inf" if top > 0 else "-inf for every token"
        raise InvalidRequestError(f"{name} returned {what} at position {position}; leave at least one token, and only numbers")
    return row
