"""The reference op set, op by op, against definitions written in another way."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hotloop.kv_cache.layout import KVGroup
from hotloop.models.reference import reference_logits
from hotloop.ops.batch import Chunk, build_batch
from hotloop.ops.protocol import QKV, Rope
from hotloop.ops.reference import ReferenceKV, ReferenceMatrix, ReferenceOps
from hotloop.quant.activations import quantize_activations
from hotloop.quant.formats import quantize, unpack
from tiny_models import random_tokens, write_tiny_model

RNG = np.random.default_rng


def matrix(values: np.ndarray, format: str = "F32") -> ReferenceMatrix:
    return ReferenceMatrix(format, quantize(format, values), values.shape, keep=True)


def ops_at(positions_from: int = 0, tokens: int = 3) -> ReferenceOps:
    """An op set for one request of `tokens` tokens from a position on, without KV."""
    blocks = list(range(positions_from + tokens))
    batch = build_batch([Chunk([0] * tokens, positions_from, [blocks])], block_size=1)
    kv = ReferenceKV([KVGroup((0,), 1, 8)], num_blocks=len(blocks), block_size=1)
    return ReferenceOps(batch, kv)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return RNG([seed, *shape]).standard_normal(shape).astype(np.float32)


def test_linear_with_integer_weights_is_an_integer_dot_per_group() -> None:
    x = random(3, 64)
    weight = matrix(random(5, 64, seed=1), "Q4_1")
    codes, scales = quantize_activations(x)
    groups = unpack("Q4_1", weight._rows.reshape(-1), (5, 64))
    expected = np.zeros((3, 5))
    for t in range(3):
        for r in range(5):
            for g in range(2):
                part = slice(32 * g, 32 * g + 32)
                a, w = codes[t, part].astype(int), groups.codes[r, part].astype(int)
                dot = float(groups.scales[r, g]) * int(a @ w) + float(groups.minimums[r, g]) * int(a.sum())
                expected[t, r] += float(scales[t, g]) * dot
    np.testing.assert_allclose(ops_at().linear(x, weight), expected, rtol=1e-6, atol=1e-6)
    exact = x.astype(np.float64) @ weight.values(slice(None)).T
    assert np.abs(expected - exact).max() > 1e-4, "int8 activations must be visible here"


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
def test_float_weights_meet_float_activations(format: str) -> None:
    x, weight = random(3, 64), matrix(random(5, 64, seed=1), format)
    expected = x.astype(np.float64) @ weight.values(slice(None)).astype(np.float64).T
    np.testing.assert_array_equal(ops_at().linear(x, weight), expected.astype(np.float32))


def test_bias_and_residual_are_added() -> None:
    x, weight, bias, residual = random(3, 32), matrix(random(4, 32)), random(4), random(3, 4)
    plain = ops_at().linear(x, weight)
    both = ops_at().linear(x, weight, bias=bias, residual=residual)
    np.testing.assert_array_equal(both, plain + bias + residual)


def test_a_scale_multiplies_what_the_residual_is_added_to() -> None:
    x, weight, bias, residual = random(3, 32), matrix(random(4, 32)), random(4), random(3, 4)
    plain = ops_at().linear(x, weight, bias=bias)
    scaled = ops_at().linear(x, weight, bias=bias, scale=0.75, residual=residual)
    np.testing.assert_array_equal(scaled, np.float32(0.75) * plain + residual)


def test_a_matrix_that_is_not_kept_has_the_same_values() -> None:
    values = random(40, 64)
    kept, passing = (ReferenceMatrix("Q8_0", quantize("Q8_0", values), (40, 64), keep=keep) for keep in (True, False))
    rows = np.array([3, 0, 39], np.int32)
    np.testing.assert_array_equal(kept.values(rows), passing.values(rows))
    np.testing.assert_array_equal(kept.values(slice(5, 9)), passing.values(slice(5, 9)))


def test_norm_and_its_residual() -> None:
    x, gain, residual = random(3, 8), random(8, seed=1), random(3, 8, seed=2)
    expected = [[v / math.sqrt(sum(w * w for w in row) / 8 + 1e-5) for v in row] for row in x.tolist()] * gain
    np.testing.assert_allclose(ops_at().norm(x, gain, 1e-5), expected, rtol=1e-6)
    np.testing.assert_allclose(
        ops_at().norm(x, gain, 1e-5, residual=residual), expected + residual, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_up(activation: str) -> None:
    x, gate, up = random(3, 32) * 4, matrix(random(6, 32)), matrix(random(6, 32, seed=1))
    result = ops_at().gate_up(x, gate, up, activation)
    g, u = ops_at().linear(x, gate), ops_at().linear(x, up)
    for value, gated, linear in zip(result.ravel(), g.ravel(), u.ravel(), strict=True):
        z = float(gated)
        if activation == "silu":
            act = z / (1 + math.exp(-z))
        else:
            act = z * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        assert value == pytest.approx(act * linear, rel=1e-6, abs=1e-6)


def test_silu_of_large_values_does_not_overflow() -> None:
    x = np.full((3, 32), -1000, np.float32)
    with np.errstate(all="raise"):
        assert ops_at().gate_up(x, matrix(np.ones((1, 32))), matrix(np.ones((1, 32))), "silu").max() == 0


def test_embed_scales_rows_and_softcap_bounds() -> None:
    table = random(4, 32)
    batch = build_batch([Chunk([2, 0], 0, [[0]])], block_size=2)
    ops = ReferenceOps(batch, ReferenceKV([KVGroup((0,), 1, 8)], num_blocks=1, block_size=2))
    np.testing.assert_array_equal(ops.embed(matrix(table), scale=2.0), 2 * table[[2, 0]])
    capped = ops.softcap(np.array([[-1e6, 0, 15, 1e6]], np.float32), 30.0)
    np.testing.assert_allclose(capped, [[-30, 0, 30 * math.tanh(0.5), 30]], rtol=1e-7)


@pytest.mark.parametrize("style", ["interleaved", "half_split"])
def test_rope_turns_pairs_and_leaves_the_rest(style: str) -> None:
    frequencies = np.array([1.0, 0.25])
    ops = ops_at(positions_from=5, tokens=2)
    plan = ops.plan_rope(Rope(frequencies, style, attention_factor=1.5))
    identity = np.eye(8, dtype=np.float32)
    weights = QKV(
        matrix(np.tile(identity, (2, 4))),
        matrix(np.tile(identity, (1, 4))),
        matrix(np.tile(identity, (1, 4))),
    )
    x = random(2, 8)
    q = ops.qkv(np.tile(x / 4, (1, 4)), weights, plan, 0).reshape(2, 2, 8)
    pairs = [(0, 1), (2, 3)] if style == "interleaved" else [(0, 2), (1, 3)]
    expected = x.astype(np.float64)
    for t, position in enumerate((5, 6)):
        for (a, b), frequency in zip(pairs, frequencies, strict=True):
            turned = complex(x[t, a], x[t, b]) * 1.5 * np.exp(1j * position * frequency)
            expected[t, a], expected[t, b] = turned.real, turned.imag
    np.testing.assert_allclose(q[:, 0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(q[:, 0], q[:, 1])
    np.testing.assert_array_equal(ops._kv.k[0][[5, 6], 0], q[:, 0])
    np.testing.assert_allclose(ops._kv.v[0][[5, 6], 0], x, rtol=1e-6, atol=1e-7)


def naive_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int, window: int | None, softcap: float
) -> np.ndarray:
    """Softmax over one row at a time. q: [tokens, heads, head_dim], k, v: [positions, kv heads, head_dim]."""
    out = np.zeros(q.shape)
    for t in range(len(q)):
        low = 0 if window is None else max(first + t - window + 1, 0)
        for h in range(q.shape[1]):
            kv = h * k.shape[1] // q.shape[1]
            scores = k[low : first + t + 1, kv].astype(np.float64) @ q[t, h].astype(np.float64) * 0.3
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ v[low : first + t + 1, kv] / weights.sum()
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("window", [None, 1, 7, 256, 300])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("first", [0, 255, 256, 590])
def test_attention_in_spans_is_softmax(first: int, block_size: int, window: int | None, softcap: float) -> None:
    length = first + 30
    group = KVGroup((0,), num_kv_heads=2, head_dim=8, window=window)
    num_blocks = -(-length // block_size)
    kv = ReferenceKV([group], num_blocks=num_blocks, block_size=block_size)
    blocks = RNG(first).permutation(num_blocks)
    slots = np.repeat(blocks * block_size, block_size)[:length] + np.arange(length) % block_size
    k, v, q = random(length, 2, 8), random(length, 2, 8, seed=1), random(30, 4, 8, seed=2)
    # Positions behind every token's window stay NaN: they must not be loaded.
    oldest = 0 if window is None else max(first - window + 1, 0)
    kv.k[0][slots[oldest:]], kv.v[0][slots[oldest:]] = k[oldest:], v[oldest:]
    batch = build_batch([Chunk([0] * 30, first, [blocks.tolist()])], block_size)
    ops = ReferenceOps(batch, kv)
    result = ops.attention(q.reshape(30, -1), ops.plan_attention(0), 0, scale=0.3, softcap=softcap)
    np.testing.assert_allclose(result, naive_attention(q, k, v, first, window, softcap), rtol=1e-5, atol=1e-6)


def test_keys_and_values_are_stored_in_the_kv_dtype() -> None:
    batch = build_batch([Chunk([0, 0], 0, [[0]])], block_size=2)
    kv = ReferenceKV([KVGroup((0,), 1, 8)], num_blocks=1, block_size=2, dtype=np.float16)
    weights = [matrix(random(8, 32, seed=i)) for i in range(3)]
    x = random(2, 32)
    ops = ReferenceOps(batch, kv)
    ops.qkv(x, QKV(*weights), None, 0)
    np.testing.assert_array_equal(kv.k[0][:, 0], ops.linear(x, weights[1]).astype(np.float16))
    np.testing.assert_array_equal(kv.v[0][:, 0], ops.linear(x, weights[2]).astype(np.float16))


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_requests_of_one_batch_do_not_see_each_other(architecture: str, tmp_path: Path) -> None:
    from hotloop.models.config import kv_groups
    from hotloop.models.registry import load_model_spec
    from hotloop.ops.reference import ReferenceWeights
    from hotloop.weights.gguf import GGUFFile

    path = write_tiny_model(tmp_path / "m.gguf", architecture)
    gguf = GGUFFile.open(path)
    spec = load_model_spec(gguf)
    weights, groups = ReferenceWeights(gguf), kv_groups(spec.config)
    prompts = [random_tokens(1, 19), random_tokens(2, 30), random_tokens(3, 7)]
    tables = [[[4, 0], [3, 6]], [[2, 1], [0, 5]], [[6], [1]]]
    tables = [table[: len(groups)] for table in tables]
    kv = ReferenceKV(groups, num_blocks=7, block_size=16)
    # Two steps: uneven chunks; the first request decodes its last token while the second is prefilled.
    first = [Chunk(prompts[0][:18], 0, tables[0]), Chunk(prompts[1][:5], 0, tables[1])]
    second = [
        Chunk(prompts[1][5:], 5, tables[1], logits="last"),
        Chunk(prompts[0][18:], 18, tables[0]),
        Chunk(prompts[2], 0, tables[2], logits="last"),
    ]
    for step in (first, second):
        ops = ReferenceOps(build_batch(step, 16), kv)
        logits = spec.forward(ops, weights, spec.config)
    alone = [reference_logits(gguf, prompt)[-1] for prompt in (prompts[1], prompts[0], prompts[2])]
    np.testing.assert_allclose(logits, alone, rtol=0, atol=1e-5)
