"""The arithmetic environment of everything that shapes an answer, whatever the host program has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hotloop import _native


@contextmanager
def own_arithmetic() -> Iterator[None]:
    """Round to nearest even, no flush to zero, no traps, and no numpy errors or warnings; restored after.

    Also a decorator. Kernels see to themselves; this is for the numpy code around them.
    """
    with _native.FloatEnvironment(), np.errstate(all="ignore"):
        yield
