"""Constraint: what limits which token may be a request's next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint32]


class Constraint(Protocol):
    """A pure fold over a request's output ids. Speculation pushes drafts, which may turn out wrong, and takes them back.
    Not thread-safe."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing more may follow."""
        ...

    def sync(self, output_token_ids: Sequence[int], draft_token_ids: Sequence[int] = ()) -> None:
        """Pushed are those, all of them and nothing else: a request may be resumed, a step done again, a draft be wrong.

        Raises: InvalidRequestError if they do not keep to the constraint, or it has become too complex to go on.
        """
        ...

    def fill_mask(self, mask: Mask) -> bool:
        """Write which tokens may come next, without the GIL for the most part; False if all may.

        mask: uint32 [w], bit id % 32 of word id / 32; w x 32 is more than the ids of the vocabulary. Raises: as ``sync``.
        """
        ...

    def push(self, token_id: int) -> None:
        """The output grows by this id, which the mask allows and which is no stop id. Raises: as ``sync``."""
        ...

    def push_draft(self, token_id: int) -> bool:
        """`push` of an id that may be any; False, and nothing pushed, if it is not allowed or nothing may follow it."""
        ...

    def forced_token_ids(self) -> list[int]:
        """Ids that come next whatever is drawn, as far as that is known; maybe none."""
        ...
