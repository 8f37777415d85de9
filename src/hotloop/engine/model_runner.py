"""ModelRunner: a loaded model on this machine; turns a ForwardBatch into logits by replaying a step program."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.config import EngineConfig
from hotloop.engine.arithmetic import own_arithmetic
from hotloop.errors import CapacityError, InvalidRequestError
from hotloop.kv_cache.layout import KVLayout
from hotloop.kv_cache.storage import KVStorage
from hotloop.machine import available_memory_bytes
from hotloop.models.config import kv_groups
from hotloop.models.registry import Model, load_model_spec
from hotloop.ops.batch import ForwardBatch
from hotloop.ops.kernel_set import choose_kernel_set
from hotloop.ops.native import NativeOps, NativeProgram, NativeWeights
from hotloop.telemetry.traffic import weight_bytes_per_step
from hotloop.weights.model_file import ModelFile

OutputKind = Literal["logits", "hidden_states"]
ProgramKey = tuple[range | None, OutputKind]

_MAX_DRAFT_TOKENS = 32  # of one step; each takes the room of a row of logits

_log = logging.getLogger(__name__)


class ModelRunner:
    """Owns the weights, the KV pool, the thread team and the step programs of one model."""

    @own_arithmetic()
    def __init__(self, model_file: ModelFile, config: EngineConfig) -> None:
        """Loads and repacks all weights; ``model_file`` is not needed afterwards.

        Raises: ModelFileError, CapacityError, InvalidRequestError (an unusable instruction set).
        """
        self.config = config
        self.model: Model = load_model_spec(model_file)
        self.max_model_len = min(config.max_model_len or self.model.config.context_length, 2**24)
        if self.max_model_len > self.model.config.context_length and self.model.config.learned_positions:
            raise InvalidRequestError(
                f"max_model_len is {self.max_model_len}, but {model_file.path} has embeddings of "
                f"{self.model.config.context_length} positions and no more; lower it"
            )
        if self.max_model_len > self.model.config.context_length:
            _log.warning(
                "max_model_len is %d, but the model was made for %d tokens; what it writes beyond them may be nonsense",
                self.max_model_len, self.model.config.context_length,
            )  # fmt: skip
        self.max_tokens = min(config.max_num_batched_tokens, config.max_num_seqs * self.max_model_len)
        self.max_num_seqs = min(config.max_num_seqs, self.max_tokens)  # every running request has a token in every step
        self.max_draft_tokens = 0 if config.speculation == "none" else min(_MAX_DRAFT_TOKENS, self.max_tokens)
        self.isa: str = choose_kernel_set(config.isa)
        weight_bytes = self.model.weight_bytes(model_file)
        if weight_bytes > available_memory_bytes():
            raise CapacityError(
                f"{model_file.path}: the weights take {weight_bytes} bytes and {available_memory_bytes()} are free; "
                f"free some memory or choose a smaller model"
            )
        self._team = _start_team(config.num_threads)
        layout = KVLayout(kv_groups(self.model.config), config.block_size, config.kv_dtype)
        self.storage = KVStorage.allocate(layout, self._num_blocks(layout, weight_bytes))
        self.weight_bytes_per_step = weight_bytes_per_step(self.model, model_file)
        self._programs: dict[ProgramKey, NativeProgram] = {}
        try:
            self._weights = NativeWeights(model_file, self.model.tensor_shapes, self._team)
            self.program()
        except MemoryError:  # a limit of the process, which the machine's free memory does not show
            raise CapacityError(
                f"{model_file.path}: no memory for {weight_bytes} bytes of weights and the work space of "
                f"{self.max_tokens} tokens; raise the process's memory limit, lower max_num_batched_tokens or "
                f"choose a smaller model"
            ) from None

    def _num_blocks(self, layout: KVLayout, weight_bytes: int) -> int:
        """The pool: max_num_seqs requests of max_model_len, at most half of the memory that the weights, which are not
        loaded yet, will leave; or what was asked for."""
        wanted = self.max_num_seqs * layout.blocks_for(self.max_model_len)
        available = available_memory_bytes()
        asked = self.config.kv_cache_memory_bytes
        if asked is not None and asked > available:
            raise CapacityError(f"kv_cache_memory_bytes is {asked} and {available} bytes are free; lower it")
        half = (available - weight_bytes) // 2
        blocks = min(wanted, half // layout.block_bytes) if asked is None else asked // layout.block_bytes
        if blocks < len(layout.groups):
            raise CapacityError(
                f"the KV pool has room for {blocks} blocks of {layout.block_bytes} bytes and needs {len(layout.groups)}; "
                f"raise kv_cache_memory_bytes or lower block_size"
            )
        return int(blocks)

    @property
    def resolved_config(self) -> EngineConfig:
        """The configuration with nothing left open: an engine started from it is the same engine."""
        return replace(
            self.config, max_model_len=self.max_model_len, max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_tokens, kv_cache_memory_bytes=self.storage.nbytes,
            threads=self.num_threads, isa=self.isa,
        )  # fmt: skip

    @property
    def layout(self) -> KVLayout:
        return self.storage.layout

    @property
    def num_blocks(self) -> int:
        return self.storage.num_blocks

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def team(self) -> _native.ThreadTeam:
        return self._team

    @property
    def num_threads(self) -> int:
        return int(self._team.size)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the repacked weights in memory."""
        return self._weights.nbytes

    def program(self, layers: range | None = None, output: OutputKind = "logits") -> NativeProgram:
        """The step program of (layer range, output), recorded on first use."""
        key = (layers, output)
        if key not in self._programs:
            ops = NativeOps(
                self.storage, self._team, isa=self.isa, activations=self.config.activations,
                max_tokens=self.max_tokens, max_logits=self.max_num_seqs + self.max_draft_tokens,
            )  # fmt: skip
            value = self.model.forward(ops, self._weights, self.model.config, layers, output)
            self._programs[key] = ops.compile(value)
        return self._programs[key]

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source, destination) each, in this order."""
        self.storage.copy_blocks(pairs)

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Append the batch's K and V and return logits float32 [L, vocab_size]: a view until the next call."""
        assert len(batch.logits_rows) <= self.max_num_seqs + self.max_draft_tokens, "more rows of logits than the arena has"
        return self.program().replay(batch)


def _start_team(num_threads: int) -> _native.ThreadTeam:
    try:
        return _native.ThreadTeam(num_threads)
    except RuntimeError as error:
        raise CapacityError(f"cannot start {num_threads} threads ({error}); lower threads") from None
