"""What EngineCore needs of a model runner: ModelRunner is one, the fakes of the tests are others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.kv_cache.layout import KVLayout
from hotloop.ops.batch import ForwardBatch


class Runner(Protocol):
    """A loaded model with its KV pool.

    max_tokens: of one batch. max_num_seqs: requests of one batch. max_draft_tokens: of one batch; each may have a row of logits
    beside those of max_num_seqs.
    """

    @property
    def layout(self) -> KVLayout: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_draft_tokens(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def team(self) -> _native.ThreadTeam | None:
        """The threads that the model runs on, which draw the rows of a step too; None: the calling thread alone."""
        ...

    @property
    def weight_bytes_per_step(self) -> int: ...

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source, destination) each, in this order."""
        ...

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Append the batch's K and V and return logits float32 [L, vocab_size]: valid until the next call."""
        ...
