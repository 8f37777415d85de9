"""The sampler against a float64 definition of its filters, and its draws against the softmax."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import _native
from hotloop.errors import HotloopError
from hotloop.sampling import definition
from hotloop.sampling.definition import draw_row, raw_logprobs
from hotloop.sampling.edits import Edits

ISA = _native.usable_isas()[0]


@dataclass(frozen=True, slots=True)
class RowParams:
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


def sample(
    isa: str, logits: np.ndarray, params: RowParams, *, position: int, choice: int = 0, barred: Sequence[int] = ()
) -> int:
    edits = Edits(barred=np.array(barred, np.int32)) if barred else None
    return draw_row(isa, logits, native_params(params, choice), edits, position).token_id


def native_params(params: RowParams, choice: int = 0) -> _native.DrawParams:
    return _native.DrawParams(
        temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p, seed=params.seed,
        choice=choice,
    )  # fmt: skip


def row(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0) -> RowParams:
    return RowParams(temperature, top_k, top_p, min_p, seed)


def kept_by_definition(logits: np.ndarray, params: RowParams) -> set[int]:
    """temperature -> min_p -> top_k -> top_p in float64 with full sorts; ties to the lowest id."""
    scaled = logits.astype(np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    order = [i for i in np.lexsort((np.arange(len(logits)), -scaled)) if probs[i] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    mass = np.cumsum(probs[order]) / probs[order].sum()
    return set(order[: int(np.searchsorted(mass, params.top_p * (1 - 1e-12))) + 1] if params.top_p < 1 else order)


def kept(logits: np.ndarray, params: RowParams) -> set[int]:
    scaled = definition.scale_logits(logits, params.temperature)
    ids, _ = definition.kept(ISA, logits, scaled, native_params(params), 0)
    return {int(i) for i in ids}


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(2, 400),
    st.floats(0.05, 5),
    st.integers(0, 50),
    st.just(1.0) | st.floats(0.01, 0.9999),  # nearer to 1 the definition's own rounding decides
    st.just(0.0) | st.floats(1e-6, 0.9),  # probabilities are compared in units of 2^-40
)
def test_filters_keep_what_the_definition_keeps(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)
    params = row(temperature, top_k, top_p, min_p)
    difference = kept(logits, params) ^ kept_by_definition(logits, params)
    # Rounding may move an id that sits exactly on an edge, never more.
    assert len(difference) <= 1


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # probs at temperature 1: 0.47 0.28 0.17 0.06; at 0.5: 0.66 0.24 0.09 0.01; at 2: 0.34 0.26 0.21 0.12 0.05 0.02
        (row(1.0, min_p=0.1), {0, 1, 2, 3}),
        (row(0.5, min_p=0.1), {0, 1, 2}),
        (row(2.0, min_p=0.1), {0, 1, 2, 3, 4}),  # min_p sees the probabilities after the temperature
        (row(0.5, top_p=0.8), {0, 1}),
        (row(2.0, top_p=0.8), {0, 1, 2}),  # and so does top_p
        (row(2.0, top_k=3, top_p=0.8), {0, 1, 2}),  # of what top_k left: 0.42 0.33 0.25
        (row(2.0, top_k=3, top_p=0.74), {0, 1}),  # of the whole row it would be three
        (row(2.0, top_p=0.93), {0, 1, 2, 3}),
        (row(2.0, top_p=0.93, min_p=0.4), {0, 1, 2}),  # of what min_p left: all three
        (row(2.0, top_k=2, min_p=0.9), {0}),
    ],
)
def test_filter_order_on_fixed_logits(params: RowParams, expected: set[int]) -> None:  # known fault B06
    logits = np.array([4.0, 3.5, 3.0, 2.0, 0.25, -2.0], np.float32)
    assert kept(logits, params) == kept_by_definition(logits, params) == expected
    drawn = {sample(ISA, logits, replace(params, seed=seed), position=0) for seed in range(300)}
    assert drawn == expected


def test_ties_go_to_the_lowest_ids() -> None:
    logits = np.array([1.0, 2.0, 2.0, 2.0, 0.0], np.float32)
    assert sample(ISA, logits, row(0), position=0) == 1
    assert kept(logits, row(top_k=2)) == {1, 2}
    assert kept(logits, row(top_p=0.28)) == {1}  # each of the three has 0.285
    assert kept(logits, row(top_p=0.3)) == {1, 2}


@pytest.mark.parametrize("temperature", [1e-2, 1e-4, 1e-7, 1e-30])
def test_tiny_temperatures_are_finite_and_greedy(temperature: float) -> None:  # known fault B04
    rng = np.random.default_rng(3)
    clear = 0
    for position in range(20):
        logits = rng.normal(0, 2, 1000).astype(np.float32)
        token = sample(ISA, logits, row(temperature), position=position)
        top_two = np.sort(logits)[-2:]
        if top_two[1] - top_two[0] > 40 * temperature:
            clear += 1
            assert token == logits.argmax()
    assert clear >= 8


@pytest.mark.parametrize(
    "params", [row(top_p=1e-9), row(top_p=1e-4), row(top_k=1), row(min_p=1.0), row(0, 5, 0.3, 0.2)]
)
def test_the_narrowest_filters_are_greedy(params: RowParams) -> None:  # known faults B04, B07
    logits = np.random.default_rng(5).normal(0, 2, 5000).astype(np.float32)
    assert all(sample(ISA, logits, params, position=p) == logits.argmax() for p in range(10))


def test_top_k_off_in_all_its_spellings() -> None:  # known faults B01, B02
    logits = np.random.default_rng(8).normal(0, 1, 300).astype(np.float32)
    draws = {
        tuple(sample(ISA, logits, row(top_k=k, seed=9), position=p) for p in range(30))
        for k in (0, -1, 300, 301, 10**7)
    }
    assert len(draws) == 1


def test_draws_follow_the_softmax() -> None:
    logits = np.array([1.0, 0.0, -1.0, 2.0, 0.5], np.float32)
    for temperature in (0.7, 1.0, 3.0):
        draws = [sample(ISA, logits, row(temperature, seed=s), position=s % 7) for s in range(6000)]
        probs = np.exp(logits / temperature - np.max(logits / temperature))
        expected = 6000 * probs / probs.sum()
        chi2 = float(((np.bincount(draws, minlength=5) - expected) ** 2 / expected).sum())
        assert chi2 < 23.5  # 4 degrees of freedom, p = 1e-4


def test_a_draw_depends_on_seed_position_and_choice_only() -> None:  # known fault B09
    logits = np.random.default_rng(1).normal(0, 1, 500).astype(np.float32)
    first = sample(ISA, logits, row(seed=4), position=11)
    assert all(sample(isa, logits, row(seed=4), position=11) == first for isa in _native.usable_isas())
    varied = {sample(ISA, logits, row(seed=4), position=11, choice=c) for c in range(20)}
    assert len(varied) > 5


def test_few_ids_and_whole_rows_see_the_same_noise() -> None:
    scaled, few = np.zeros(300, np.float32), np.array([290, 3, 77])
    noise = _native.gumbel(ISA, 12, 5, 0, 0, 0, 300)
    assert definition.draw(ISA, scaled, few, 12, 5, 0) == few[noise[few].argmax()]


def test_barred_ids_are_never_drawn_and_logits_stay() -> None:
    logits = np.array([5.0, 1.0, 0.0], np.float32)
    assert sample(ISA, logits, row(0), position=0, barred=[0]) == 1
    assert all(sample(ISA, logits, row(seed=s), position=0, barred=[0]) != 0 for s in range(200))
    assert logits[0] == 5.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_an_error_that_names_the_position(bad: float) -> None:  # known fault B105
    with pytest.raises(HotloopError, match="position 9"):
        sample(ISA, np.array([0, bad, 1], np.float32), row(), position=9)
    with pytest.raises(HotloopError, match=r"no finite maximum"):
        sample(ISA, np.full(2, -np.inf, np.float32), row(), position=0)
    with pytest.raises(HotloopError, match=r"nothing is left to draw at position 3.*2 stop tokens.*lower min_tokens"):
        sample(ISA, np.zeros(2, np.float32), row(), position=3, barred=[0, 1])


def test_logprobs_are_raw_sorted_and_complete() -> None:  # known faults B14, B15
    logits = np.random.default_rng(2).normal(0, 4, 1000).astype(np.float32)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    entry = raw_logprobs(ISA, logits, 17, 10)
    assert entry.logprob == pytest.approx(exact[17], abs=1e-5)
    assert entry.rank == int((logits > logits[17]).sum()) + 1
    assert [i for i, _ in entry.top] == list(np.argsort(-logits, kind="stable")[:10])
    assert [p for _, p in entry.top] == pytest.approx([exact[i] for i, _ in entry.top], abs=1e-5)
    assert raw_logprobs(ISA, logits, int(logits.argmax()), 0).top == ()


def test_logprobs_with_ties_and_minus_infinity() -> None:
    logits = np.array([0.0, -np.inf, 0.0, 0.0], np.float32)
    entry = raw_logprobs(ISA, logits, 2, 2)
    assert [i for i, _ in entry.top] == [0, 2]
    assert entry.rank == 2
    assert entry.logprob == pytest.approx(-np.log(3), abs=1e-6)
