"""Every KV dtype through whole models: the same bits whatever the chunks, blocks, threads and instruction set."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from engine.engines import all_logits, assert_same_bits, make_runner
from hotloop import _native
from hotloop.config import KVDtype
from hotloop.models.reference import reference_logits
from tiny_models import random_tokens, write_tiny_model

DTYPES = get_args(KVDtype)
LONG = 700  # three spans
TOKENS = random_tokens(31, LONG)


@pytest.fixture(params=["llama", "qwen2", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf", request.param, formats="Q8_0", context_length=LONG)


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_chunks_blocks_and_threads_do_not_matter(tiny: Path, kv_dtype: str) -> None:
    """Decodes over several spans are shared out among threads; the last positions are computed one by one."""
    expected = all_logits(make_runner(tiny, kv_dtype=kv_dtype, threads=1), TOKENS)
    assert np.isfinite(expected).all()
    tail = [64] * 10 + [17, 3] + [1] * 40
    for block_size, threads in ((8, 2), (16, 3), (32, 2), (20, 16)):
        runner = make_runner(tiny, kv_dtype=kv_dtype, threads=threads, block_size=block_size)
        assert_same_bits(all_logits(runner, TOKENS, tail), expected)


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_instruction_sets_do_not_matter(tiny: Path, kv_dtype: str) -> None:
    expected = all_logits(make_runner(tiny, kv_dtype=kv_dtype, isa="scalar"), TOKENS[:300])
    for isa in _native.usable_isas():
        assert_same_bits(all_logits(make_runner(tiny, kv_dtype=kv_dtype, isa=isa), TOKENS[:300]), expected)


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_used_pool_gives_the_same_bits_as_a_fresh_one(tiny: Path, kv_dtype: str) -> None:
    runner = make_runner(tiny, kv_dtype=kv_dtype)
    fresh = all_logits(runner, TOKENS[:300])
    runner.storage.pool[:] = 0xFF  # NaN in every KV dtype
    assert_same_bits(all_logits(runner, TOKENS[:300]), fresh)


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_native_equals_reference(tiny: Path, kv_dtype: KVDtype) -> None:
    """An element on the edge between two codes may fall either way: less than what the dtype costs altogether."""
    tokens = TOKENS[:120]
    exact = reference_logits(tiny, tokens, activations="f32")
    expected = reference_logits(tiny, tokens, activations="f32", kv_dtype=kv_dtype)  # type: ignore[arg-type]
    native = all_logits(make_runner(tiny, activations="f32", kv_dtype=kv_dtype), tokens)
    cost = np.abs(expected - exact)
    assert cost.max() > 0
    assert np.abs(native - expected).max() <= cost.max() / 2
    assert np.median(np.abs(native - expected)) <= np.median(cost) / 5
