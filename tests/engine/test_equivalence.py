"""Output is a pure function: the same bits whatever the chunks, blocks, threads and instruction set."""

from pathlib import Path

import numpy as np
import pytest

from engine.engines import all_logits, assert_same_bits, batch_of, make_runner
from hotloop import _native
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.models.reference import reference_logits
from hotloop.weights.gguf_writer import WritableValue
from tiny_models import ARCHITECTURES, random_tokens, write_tiny_model

# (architecture, tensor formats): every architecture once in a simple quantized format, every format once.
MODELS = [
    ("llama", {"*": "Q4_1", "token_embd": "Q8_0"}),
    ("qwen2", {"*": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_q": "Q5_0"}),
    ("qwen3", "Q8_0"),
    ("gemma3", {"*": "Q4_0", "token_embd": "Q8_0", "ffn_down": "F16"}),
    ("llama", {"*": "BF16", "ffn_up": "F32", "ffn_gate": "Q8_0"}),
    ("qwen3", {"*": "Q3_K", "token_embd": "Q5_K", "output": "Q6_K", "ffn_down": "Q5_K", "attn_v": "Q5_K", "attn_k": "Q2_K"}),
    ("llama", {"*": "IQ4_XS", "token_embd": "IQ4_NL", "ffn_gate": "MXFP4", "attn_v": "Q5_1"}),
    ("gemma2", {"*": "Q4_0", "token_embd": "Q8_0"}),
    ("granite", {"*": "Q4_1", "token_embd": "Q8_0", "attn_output": "F16"}),
    ("phi3", {"*": "Q4_K", "attn_qkv": "Q5_K", "ffn_down": "Q6_K"}),
    ("smollm3", "Q8_0"),
]
TOKENS = random_tokens(11, 100)


@pytest.fixture(params=range(len(MODELS)), ids=lambda i: f"{MODELS[i][0]}-{i}")
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    architecture, formats = MODELS[request.param]
    return write_tiny_model(tmp_path / "tiny.gguf", architecture, seed=request.param, formats=formats)


def test_chunks_do_not_matter(tiny: Path) -> None:
    runner = make_runner(tiny)
    whole = all_logits(runner, TOKENS)
    assert np.isfinite(whole).all()
    for chunks in ([1] * 100, [7, 1, 30, 2, 50], [16, 16, 16], [33, 64], [15, 1, 17, 1]):
        assert_same_bits(all_logits(runner, TOKENS, chunks), whole)


def test_block_size_does_not_matter(tiny: Path) -> None:
    whole = all_logits(make_runner(tiny), TOKENS)
    for block_size in (4, 8, 32, 100):
        assert_same_bits(all_logits(make_runner(tiny, block_size=block_size), TOKENS, [20, 1, 9]), whole)


def test_threads_do_not_matter(tiny: Path) -> None:
    one = all_logits(make_runner(tiny, threads=1), TOKENS, [50, 1, 1])
    for threads in (2, 3, 16):
        assert_same_bits(all_logits(make_runner(tiny, threads=threads), TOKENS, [50, 1, 1]), one)


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
def test_instruction_sets_do_not_matter(tiny: Path, kv_dtype: str, activations: str) -> None:
    options = {"kv_dtype": kv_dtype, "activations": activations}
    scalar = make_runner(tiny, isa="scalar", **options)
    assert scalar.program().isa == "scalar"
    expected = all_logits(scalar, TOKENS)
    for isa in _native.usable_isas():
        runner = make_runner(tiny, isa=isa, **options)
        assert runner.program().isa == isa
        assert_same_bits(all_logits(runner, TOKENS), expected)


def test_the_forced_instruction_set_runs(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in _native.usable_isas():
        monkeypatch.setenv("HOTLOOP_ISA", isa)
        assert make_runner(tiny).program().isa == isa


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_native_equals_reference(architecture: str, tmp_path: Path) -> None:
    """Float weights, f32 activations and KV: only rounding may differ between the two op sets."""
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture)
    native = all_logits(make_runner(path, kv_dtype="f32", activations="f32"), TOKENS)
    expected = reference_logits(path, TOKENS, activations="f32", dtype=np.float64)
    # A logit is the end of about 10 dependent layers of dot products of up to 100 terms: error <= 1000 eps of its scale.
    assert np.abs(native - expected).max() <= 1000 * np.finfo(np.float32).eps * np.abs(expected).max()


def test_hidden_states_and_fewer_layers(tmp_path: Path) -> None:
    """Programs are keyed by layer range and output; an early exit equals the model cut to those layers."""
    path = write_tiny_model(tmp_path / "deep.gguf", "llama", formats="Q8_0", num_layers=3)
    cut = write_tiny_model(tmp_path / "cut.gguf", "llama", formats="Q8_0", num_layers=2)
    deep, short = make_runner(path), make_runner(cut)
    expected = all_logits(short, TOKENS[:20])
    manager = KVCacheManager(deep.storage.layout, deep.storage.num_blocks)
    assert manager.allocate("x", 20)
    batch = batch_of(manager, TOKENS, 0, 20)
    assert_same_bits(deep.program(range(2)).replay(batch).copy(), expected)
    hidden = deep.program(range(2), "hidden_states").replay(batch)
    assert hidden.shape == (20, 64)
    assert np.isfinite(hidden).all()


def test_a_used_pool_gives_the_same_bits_as_a_fresh_one(tiny: Path) -> None:  # known fault B56
    """What an earlier request left in the blocks is never read."""
    runner = make_runner(tiny)
    fresh = all_logits(runner, TOKENS[:40])
    runner.storage.pool[:] = 0xFF  # NaN in every KV dtype
    assert_same_bits(all_logits(runner, TOKENS[:40]), fresh)


def test_a_limit_does_not_choose_the_rope(tmp_path: Path) -> None:
    """longrope goes by the file's context, also where max_model_len is within the original one."""
    keys: dict[str, WritableValue] = {"phi3.rope.scaling.original_context_length": 64}
    sizes = {"long_factors": tuple(range(1, 9)), "short_factors": (1.0,) * 8}
    path = write_tiny_model(tmp_path / "tiny.gguf", "phi3", metadata=keys, **sizes)
    expected = all_logits(make_runner(path), TOKENS)
    for max_model_len in (50, 64, 65):
        got = all_logits(make_runner(path, max_model_len=max_model_len), TOKENS[:50], [20, 1, 29])
        assert_same_bits(got, expected[:50])
    short = write_tiny_model(tmp_path / "short.gguf", "phi3", metadata=keys, context_length=64, **sizes)
    assert (all_logits(make_runner(short), TOKENS[:50]) != expected[:50]).any()
