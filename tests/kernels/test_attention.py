"""Attention: the float64 definition, the same bits however the work is cut, no forbidden slot read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import _native
from kernels.attention_cases import Case
from kernels.bitwise import assert_same_bits

CASES = [
    Case(1, 4, 1, 64, 1),
    Case(1, 9, 3, 64, 515),
    Case(5, 9, 3, 64, 300, f16=False),
    Case(3, 14, 2, 64, 257, softcap=30.0),
    Case(9, 4, 1, 256, 280, window=100),
    Case(4, 12, 2, 128, 512, f16=False),
    Case(7, 4, 4, 80, 260, window=16),
    Case(6, 8, 2, 112, 530, window=300),
    Case(20, 2, 2, 96, 20, f16=False, window=7),
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


@settings(max_examples=40, deadline=None)
@given(
    context=st.integers(1, 600),
    tokens=st.integers(1, 70),
    window=st.sampled_from([0, 1, 5, 255, 256, 257]),
    heads=st.sampled_from([(1, 1), (3, 1), (7, 1), (4, 2)]),
    block_size=st.sampled_from([4, 16, 48, 256]),
    tokens_per_call=st.integers(1, 70),
)
def test_a_chunk_equals_its_tokens_one_by_one(
    context: int, tokens: int, window: int, heads: tuple[int, int], block_size: int, tokens_per_call: int
) -> None:
    """Tile shapes, ragged edges and spans that only some rows of a tile see."""
    case = Case(min(tokens, context), *heads, 16, context, window)
    isa = _native.usable_isas()[0]
    alone = case.run(isa, 16, tokens_per_call=1, heads_per_call=1)
    assert np.isfinite(alone).all()
    assert_same_bits(case.run(isa, block_size, tokens_per_call), alone)


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


def test_large_scores_do_not_overflow(isa: str) -> None:
    case = Case(1, 1, 1, 64, 300)
    k, v = case.keys_values()
    k[7] = 1000 * np.sign(case.queries()[0])
    np.testing.assert_array_equal(case.run(isa, k=k, v=v)[0], v[7, 0].astype(np.float32))


def test_equal_keys_average_the_values(isa: str) -> None:
    case = Case(1, 1, 1, 16, 512, f16=False)
    k, v = case.keys_values()
    k[:] = k[0]
    mean = v[:, 0].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(case.run(isa, k=k, v=v)[0], mean, atol=270 * 2.0**-24 * np.abs(v).mean())
