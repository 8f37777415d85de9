"""What a KV dtype costs: its logits against those of another KV dtype, on the same text at 2k to 4k tokens of context.

    python tools/oracles/kv_quality.py MODEL.gguf ... [--dtype int8] [--against f16] [--activations f32] [--tokens 4096]

Prints mean and largest KL(against || dtype) in nats, how often both have the same best token, and the change of perplexity
over the second half of the text. `--activations int8` is what the engine runs, but their rounding is chaotic: a change in
the last bit of K draws another sample of it, so that even `--dtype f32` is some 3e-3 nats away from f16. Float activations
show the KV dtype alone.
Exit status 1 if mean KL or perplexity miss their limits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from corpus import long_text
from gguf_model import F32
from metrics import agreement, joined, negative_log_likelihoods

from hotloop.config import EngineConfig
from hotloop.engine.model_runner import ModelRunner
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.ops.batch import Chunk, build_batch
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf import GGUFFile

MAX_MEAN_KL = 2e-3
MAX_PERPLEXITY_CHANGE = 0.003
CHUNK = 64
SCORED_EVERY = 2  # chunks of the second half


def chunk_logits(model: Path, ids: list[int], kv_dtype: str, activations: str) -> Iterator[tuple[int, F32]]:
    """(first position, logits float32 [CHUNK, vocab_size]) of the scored chunks."""
    with GGUFFile.open(model) as gguf:
        config = EngineConfig(
            max_model_len=len(ids), max_num_seqs=CHUNK, max_num_batched_tokens=CHUNK,
            kv_dtype=kv_dtype, activations=activations,  # type: ignore[arg-type]
        )  # fmt: skip
        runner = ModelRunner(gguf, config)
    manager = KVCacheManager(runner.storage.layout, runner.storage.num_blocks)
    for begin in range(0, len(ids), CHUNK):
        scored = begin >= len(ids) // 2 and begin // CHUNK % SCORED_EVERY == 0
        allocated = manager.allocate("text", begin + CHUNK)
        assert allocated, "the pool has room for the text"
        chunk = Chunk(ids[begin : begin + CHUNK], begin, manager.block_tables("text"), "all" if scored else "none")
        logits = runner.forward(build_batch([chunk], manager.layout.block_sizes))
        if scored:
            yield begin, logits


def compare(model: Path, args: argparse.Namespace) -> bool:
    """Measure one model, print one line."""
    with GGUFFile.open(model) as gguf:
        ids = Tokenizer.from_metadata(gguf.metadata).encode(long_text())[: args.tokens // CHUNK * CHUNK]
    parts, changes = [], []
    pair = (chunk_logits(model, ids, dtype, args.activations) for dtype in (args.against, args.dtype))
    for (begin, reference), (_, other) in zip(*pair, strict=True):
        parts.append(agreement(reference, other))
        targets = np.array(ids[begin + 1 : begin + CHUNK + 1])
        n = len(targets)
        changes.append(negative_log_likelihoods(other[:n], targets) - negative_log_likelihoods(reference[:n], targets))
    total = joined(parts)
    change = np.concatenate(changes)
    perplexity = float(np.expm1(change.mean()))
    error = float(change.std() / np.sqrt(len(change)))
    passed = total.mean_kl <= MAX_MEAN_KL and perplexity <= MAX_PERPLEXITY_CHANGE
    print(
        f"{'pass' if passed else 'FAIL'}: {model.stem}, {args.dtype} against {args.against}, {args.activations} activations, "
        f"positions {len(ids) // 2} to {len(ids)}: {total}, perplexity {perplexity:+.3%} (standard error {error:.3%})",
        flush=True,
    )
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--against", default="f16")
    parser.add_argument("--activations", default="f32", choices=["int8", "f32"])
    parser.add_argument("--tokens", type=int, default=4096)
    args = parser.parse_args()
    results = [compare(model, args) for model in args.models]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
