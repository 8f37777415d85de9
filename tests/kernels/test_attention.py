"""Attention: the float64 definition, the same bits however the work is cut, no forbidden slot read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import _native
from hotloop.config import KVDtype
from hotloop.quant.kv import dequantize_kv, from_bf16, quantize_kv, to_bf16
from kernels.attention_cases import Case
from kernels.bitwise import assert_same_bits

CASES = [
    Case(1, 4, 1, 64, 1),
    Case(1, 9, 3, 64, 515),
    Case(5, 9, 3, 64, 300, dtype="f32"),
    Case(3, 14, 2, 64, 257, softcap=30.0),
    Case(9, 4, 1, 256, 280, window=100),
    Case(4, 12, 2, 128, 512, dtype="f32"),
    Case(7, 4, 4, 80, 260, window=16),
    Case(6, 8, 2, 112, 530, window=300),
    Case(20, 2, 2, 96, 20, dtype="f32", window=7),
    Case(3, 9, 3, 64, 300, dtype="bf16"),
    Case(5, 6, 1, 128, 40, window=9, dtype="bf16"),
    Case(1, 4, 1, 64, 600, dtype="int8"),
    Case(5, 9, 3, 64, 300, dtype="int8", softcap=20.0),
    Case(3, 6, 1, 256, 270, dtype="int8"),
    Case(9, 4, 2, 80, 300, window=30, dtype="int8"),
    Case(6, 2, 1, 16, 530, window=300, dtype="int8"),
    Case(4, 12, 2, 128, 300, dtype="int8", precise_keys=True),
    Case(7, 7, 1, 112, 290, window=40, dtype="int8", precise_keys=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_within_the_derived_bound_of_float64(isa: str, case: Case) -> None:
    expected, bound = case.exact()
    assert (np.abs(case.run(isa) - expected) <= bound).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_do_not_depend_on_blocks_calls_or_instruction_set(isa: str, case: Case) -> None:
    expected = case.run("scalar", block_size=16, tokens_per_call=1, heads_per_call=1)
    for block_size in (8, 16, 24, 32, 64):
        assert_same_bits(case.run(isa, block_size), expected)
    for tokens_per_call, heads_per_call in ((1, 64), (2, 1), (3, 2), (64, 64), (64, 3)):
        assert_same_bits(case.run(isa, 32, tokens_per_call, heads_per_call), expected)
    for spans_per_call, tokens_per_call in ((1, 1), (2, 16), (1, 64)):
        assert_same_bits(case.run(isa, 16, tokens_per_call, spans_per_call=spans_per_call), expected)


@settings(max_examples=40, deadline=None)
@given(
    context=st.integers(1, 600),
    tokens=st.integers(1, 70),
    window=st.sampled_from([0, 1, 5, 255, 256, 257]),
    heads=st.sampled_from([(1, 1), (3, 1), (7, 1), (4, 2)]),
    block_size=st.sampled_from([4, 16, 48, 256]),
    tokens_per_call=st.integers(1, 70),
    spans_per_call=st.integers(0, 3),
    dtype=st.sampled_from(["f32", "f16", "bf16", "int8"]),
    precise_keys=st.booleans(),
)
def test_a_chunk_equals_its_tokens_one_by_one(
    context: int,
    tokens: int,
    window: int,
    heads: tuple[int, int],
    block_size: int,
    tokens_per_call: int,
    spans_per_call: int,
    dtype: KVDtype,
    precise_keys: bool,
) -> None:
    """Tile shapes, ragged edges and spans that only some rows of a tile see."""
    case = Case(min(tokens, context), *heads, 16, context, window, dtype=dtype, precise_keys=precise_keys)
    isa = _native.usable_isas()[0]
    alone = case.run(isa, 16, tokens_per_call=1, heads_per_call=1)
    assert np.isfinite(alone).all()
    assert_same_bits(case.run(isa, block_size, tokens_per_call, spans_per_call=spans_per_call), alone)


def test_a_token_does_not_see_later_positions_of_its_chunk(isa: str) -> None:
    case = Case(4, 2, 1, 64, 40)
    k, v = case.keys_values()
    before = case.run(isa)
    k[38:], v[38:] = np.nan, np.inf
    after = case.run(isa, k=k, v=v)
    assert_same_bits(after[:2], before[:2])
    assert np.isnan(after[2:]).all()


@pytest.mark.parametrize("position", [0, 100, 299])
@pytest.mark.parametrize("which", ["k", "v"])
def test_a_nan_in_the_cache_shows_in_the_output_of_its_head_only(isa: str, position: int, which: str) -> None:
    case = Case(2, 4, 2, 64, 301)
    k, v = case.keys_values()
    before = case.run(isa)
    (k if which == "k" else v)[position, 1, 3] = np.nan
    after = case.run(isa, k=k, v=v)
    assert_same_bits(after[:, :128], before[:, :128])
    hit = np.isnan(after[:, 128:].reshape(2, 2, 64))
    assert hit.all() if which == "k" else (hit[..., 3].all() and hit.sum() == 4)


@pytest.mark.parametrize("precise_keys", [False, True])
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_in_int8_shows_in_all_that_reads_its_group(isa: str, bad: float, which: str, precise_keys: bool) -> None:
    case = Case(2, 4, 2, 128, 301, dtype="int8", precise_keys=precise_keys)
    k, v = case.keys_values()
    before = case.run(isa)
    (k if which == "k" else v)[100, 1, 3] = bad
    after = case.run(isa, k=k, v=v)
    assert_same_bits(after[:, :256], before[:, :256])
    hit = np.isnan(after[:, 256:].reshape(2, 2, 128))
    if which == "v":
        assert hit[..., :64].all()
        assert not hit[..., 64:].any()
    elif not (precise_keys and np.isinf(bad)):  # f16 keeps an infinity, whose score may be -inf
        assert hit.all()


@pytest.mark.parametrize("group_size", [32, 64])
def test_int8_vectors_are_stored_as_defined(isa: str, group_size: int) -> None:
    """Bits of codes and scales equal the numpy definition; a vector's bytes do not depend on its slot or neighbours."""
    x = np.random.default_rng(5).normal(size=(60, 112)).astype(np.float32)
    x *= np.float32(2) ** np.random.default_rng(6).integers(-130, 100, (60, 1)).astype(np.float32)
    x[3, 5], x[4, 40], x[5, :], x[6, 100] = np.nan, -np.inf, 0, -0.0
    x[7, :32] = np.arange(-16, 16) + 0.5  # ties, if the scale is a power of two
    x[7, 0] = 127
    x[8, 0] = np.float32(127 * (1 + 2**-8))  # a scale that rounds down asks for 127.5
    codes, scales = quantize_kv(x, group_size)
    for row, expected_codes, expected_scales in zip(x, codes, scales, strict=True):
        got_codes, got_scales = _native.quantize_kv(isa, row, group_size)
        np.testing.assert_array_equal(got_codes, expected_codes)
        nan = np.isnan(from_bf16(expected_scales))
        assert (np.isnan(from_bf16(got_scales)) == nan).all()
        np.testing.assert_array_equal(got_scales[~nan], expected_scales[~nan])
    finite = np.isfinite(x).all(axis=1)
    error = np.abs(dequantize_kv(codes, scales, group_size) - x)[finite]
    amax = np.abs(x[finite]).max(axis=1, keepdims=True)
    assert (error <= np.maximum(amax / 127 * 0.502, 2.0**-100)).all()


def test_bf16_is_rounded_as_defined(isa: str) -> None:
    bits = np.random.default_rng(7).integers(0, 2**32, 4000, dtype=np.uint32)
    special = np.array([0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 1, 0x80000000, 0x00008000, 0x3F808000])
    x = np.concatenate([bits, special.astype(np.uint32)]).view(np.float32)
    got = _native.store_bf16(isa, x)
    expected = to_bf16(x)
    nan = np.isnan(x)
    assert np.isnan(from_bf16(got[nan])).all()
    np.testing.assert_array_equal(got[~nan], expected[~nan])


def test_large_scores_do_not_overflow(isa: str) -> None:
    case = Case(1, 1, 1, 64, 300)
    k, v = case.keys_values()
    k[7] = 1000 * np.sign(case.queries()[0])
    np.testing.assert_array_equal(case.run(isa, k=k, v=v)[0], v[7, 0].astype(np.float32))


def test_equal_keys_average_the_values(isa: str) -> None:
    case = Case(1, 1, 1, 16, 512, dtype="f32")
    k, v = case.keys_values()
    k[:] = k[0]
    mean = v[:, 0].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(case.run(isa, k=k, v=v)[0], mean, atol=270 * 2.0**-24 * np.abs(v).mean())
