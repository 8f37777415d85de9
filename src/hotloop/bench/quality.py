"""How far two models, or two ways to compute one, are apart on a text: divergence, agreement, perplexity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from hotloop.config import ActivationDtype, EngineConfig
from hotloop.engine.model_runner import ModelRunner
from hotloop.kv_cache.layout import KVLayout
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.models.config import kv_groups
from hotloop.models.registry import load_model_spec
from hotloop.ops.batch import Chunk, build_batch
from hotloop.weights.model_file import ModelFile

Floats = NDArray[np.floating]

_BLOCK_TOKENS = 16
CHUNK_TOKENS = 64
"""Of one step: logits of all of them are in memory."""
_ROWS_AT_A_TIME = 8  # a row of a 262,144-token vocabulary is 2 MB in float64


@dataclass(frozen=True, slots=True)
class Distance:
    """Of other logits from reference logits, row by row.

    kl_nats: KL(reference || other), float64 [T]. same_best: whether both have the same most likely token, bool [T].
    reference_nll_nats, nll_nats: -log p of the token that follows, float64 [T - 1].
    """

    kl_nats: NDArray[np.float64]
    same_best: NDArray[np.bool_]
    reference_nll_nats: NDArray[np.float64]
    nll_nats: NDArray[np.float64]

    def figures(self) -> dict[str, float]:
        """For people and JSON: see `telemetry/schema.toml`, quality."""
        return {
            "positions": len(self.kl_nats),
            "mean_kl_nats": float(self.kl_nats.mean()),
            "max_kl_nats": float(self.kl_nats.max()),
            "top1_agreement": float(self.same_best.mean()),
            "source_perplexity": float(np.exp(self.reference_nll_nats.mean())),
            "perplexity": float(np.exp(self.nll_nats.mean())),
        }


def quality_text() -> str:
    """Some 1,300 tokens: prose, questions, code, tables, five languages. Newton's Opticks (public domain) and our own."""
    return files("hotloop.bench").joinpath("quality_text.txt").read_text(encoding="utf-8")


def measure(token_ids: Sequence[int], reference: Iterable[Floats], other: Iterable[Floats]) -> Distance:
    """token_ids: [T]. reference, other: logits [T, vocab_size], both cut into the same chunks of rows."""
    kl, same, nll = [], [], ([], [])  # type: ignore[var-annotated]
    start = 0
    for chunks in zip(reference, other, strict=True):
        for first in range(0, len(chunks[0]), _ROWS_AT_A_TIME):
            rows = [chunk[first : first + _ROWS_AT_A_TIME] for chunk in chunks]
            p, q = (_log_softmax(each) for each in rows)
            kl.append((np.exp(p) * (p - q)).sum(axis=1))
            same.append(rows[0].argmax(axis=1) == rows[1].argmax(axis=1))
            targets = np.asarray(token_ids[start + first + 1 : start + first + 1 + len(p)], np.int64)
            for part, logprobs in zip(nll, (p, q), strict=True):
                part.append(-logprobs[np.arange(len(targets)), targets])
        start += len(chunks[0])
    return Distance(np.concatenate(kl), np.concatenate(same), np.concatenate(nll[0]), np.concatenate(nll[1]))


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    """float64 over the last axis, nats."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    logprobs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logprobs


def native_logits(
    model_file: ModelFile,
    token_ids: Sequence[int],
    *,
    activations: ActivationDtype,
    layers: range | None = None,
    threads: int | None = None,
    isa: str = "",
) -> Iterator[NDArray[np.float32]]:
    """Logits [<= 64, vocab_size] of every position, a chunk at a time, f32 KV; each valid until the next. layers: None for all.

    The model is loaded before the first chunk, so a wrong one raises here: ModelFileError, CapacityError.
    """
    layout = KVLayout(kv_groups(load_model_spec(model_file).config), _BLOCK_TOKENS, "f32")
    config = EngineConfig(
        max_model_len=len(token_ids), block_size=_BLOCK_TOKENS, kv_dtype="f32",
        max_num_seqs=CHUNK_TOKENS, max_num_batched_tokens=CHUNK_TOKENS,
        kv_cache_memory_bytes=layout.blocks_for(len(token_ids)) * layout.block_bytes,
        threads=threads, activations=activations, isa=isa,
    )  # fmt: skip
    return _chunk_logits(ModelRunner(model_file, config), token_ids, layers)


def _chunk_logits(runner: ModelRunner, token_ids: Sequence[int], layers: range | None) -> Iterator[NDArray[np.float32]]:
    manager = KVCacheManager(runner.storage.layout, runner.storage.num_blocks)
    for begin in range(0, len(token_ids), CHUNK_TOKENS):
        ids = list(token_ids[begin : begin + CHUNK_TOKENS])
        allocated = manager.allocate("text", begin + len(ids))
        assert allocated, "the pool has room for the text"
        chunk = Chunk(ids, begin, manager.block_tables("text"), "all")
        yield runner.program(layers).replay(build_batch([chunk], manager.layout.block_sizes))
