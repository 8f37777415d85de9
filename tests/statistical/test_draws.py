"""Draws follow the distribution they are said to follow. Seeds are fixed: a test passes always or never."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop import _native
from hotloop.sampling.draw import Draw, Row, Sampler
from hotloop.sampling.state import SamplerState
from hotloop.sampling_params import SamplingParams

ISA = _native.usable_isas()[0]
VOCAB = 1000
NUM_DRAWS = 40_000
NO_IDS = np.empty(0, np.int32)

Params = dict[str, float]


def logits_of(seed: int, spread: float = 2.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, spread, VOCAB).astype(np.float32)


def drawn(logits: NDArray[np.float32], positions: Sequence[int], **params: float) -> NDArray[np.int64]:
    """One token per position."""
    sampler, of_all = _native.Sampler(ISA), _native.DrawParams(**params)  # type: ignore[arg-type]
    n = len(positions)
    token_ids, _, _, faults = sampler.draw(logits[None], [of_all] * n, [0] * n, list(positions), [0.0] * n, [])
    assert not faults
    return np.array(token_ids)


def probabilities(logits: NDArray[np.float32], params: Params) -> NDArray[np.float64]:
    """temperature -> min_p -> top_k -> top_p -> softmax in float64, with full sorts."""
    scaled = logits.astype(np.float64) / params["temperature"]
    probs = np.exp(scaled - scaled.max())
    order = np.argsort(-probs, kind="stable")
    order = order[probs[order] >= params.get("min_p", 0)]
    order = order[: int(params.get("top_k", 0)) or None]
    mass = np.cumsum(probs[order]) / probs[order].sum()
    kept = order[: int(np.searchsorted(mass, params.get("top_p", 1) * (1 - 1e-12))) + 1]
    result = np.zeros(VOCAB)
    result[kept] = probs[kept] / probs[kept].sum()
    return result


def assert_follows(tokens: NDArray[np.int64], probs: NDArray[np.float64]) -> None:
    """Pearson's chi-square at the 1e-6 level; tokens that are expected less than 10 times count as one."""
    counts, expected = np.bincount(tokens, minlength=VOCAB), len(tokens) * probs
    assert counts[probs == 0].sum() == 0, "a token that was filtered out"
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    degrees = len(observed) - 1
    if degrees == 0:
        return
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    # Wilson-Hilferty: the cube root of chi-square / degrees is near normal; 4.75 sigma is the 1e-6 level.
    limit = degrees * (1 - 2 / (9 * degrees) + 4.75 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert statistic < limit, f"chi-square {statistic:.0f} of {degrees} degrees, limit {limit:.0f}"


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0}, {"temperature": 0.3}, {"temperature": 5.0}, {"temperature": 100.0}, {"temperature": 1e-3},
        {"temperature": 1e-30}, {"temperature": 1.0, "top_k": 5}, {"temperature": 2.0, "top_k": 200},
        {"temperature": 1.0, "top_p": 0.3}, {"temperature": 1.5, "top_p": 0.95}, {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.5, "top_k": 100, "top_p": 0.8, "min_p": 0.01},
    ],
)  # fmt: skip
def test_draws_follow_the_filtered_softmax(params: Params) -> None:
    logits = logits_of(1)
    tokens = drawn(logits, range(NUM_DRAWS), **params, seed=11)
    assert_follows(tokens, probabilities(logits, params))


def test_the_test_notices_a_wrong_distribution() -> None:
    logits = logits_of(1)
    tokens = drawn(logits, range(NUM_DRAWS), temperature=1.0, seed=11)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_follows(tokens, probabilities(logits, {"temperature": 1.03}))


def test_draws_of_seeds_and_choices_follow_it_too() -> None:
    """Not only along positions: a user may fix the position and vary the seed, or ask for many choices."""
    logits, n = logits_of(2), 10_000
    expected = probabilities(logits, {"temperature": 1.0})
    sampler = _native.Sampler(ISA)
    for name in ("seed", "choice"):
        params = [_native.DrawParams(temperature=1.0, **{name: i}) for i in range(n)]
        token_ids, _, _, _ = sampler.draw(logits[None], params, [0] * n, [77] * n, [0.0] * n, [])
        assert_follows(np.array(token_ids), expected)


def test_draws_follow_the_edited_distribution() -> None:
    logits = logits_of(3)
    banned, bias_ids, bias = np.array([int(logits.argmax())], np.int32), np.array([4], np.int32), np.array([6.0], np.float32)
    n = 10_000
    params = _native.DrawParams(temperature=1.0, seed=5)
    edits = (banned, NO_IDS, bias_ids, bias, NO_IDS, NO_IDS, NO_IDS, bias[:0], None)
    token_ids, _, _, _ = _native.Sampler(ISA).draw(
        logits[None], [params] * n, [0] * n, list(range(n)), [0.0] * n, [(i, *edits) for i in range(n)]
    )
    logits[banned], logits[4] = -np.inf, logits[4] + 6
    assert_follows(np.array(token_ids), probabilities(logits, {"temperature": 1.0}))


def test_positions_are_independent() -> None:
    """Pairs of neighbouring draws among 4 equal tokens: all 16 equally often."""
    tokens = drawn(np.zeros(4, np.float32), range(NUM_DRAWS), temperature=1.0, seed=9)
    pairs = np.bincount(4 * tokens[::2] + tokens[1::2], minlength=16)
    assert float(((pairs - NUM_DRAWS / 32) ** 2).sum() / (NUM_DRAWS / 32)) < 58.0  # 1e-6 level of 15 degrees


def test_choices_differ_and_do_not_depend_on_their_number() -> None:  # known fault B09
    logits = np.tile(logits_of(4), (6, 1))
    sampler = Sampler(ISA)

    def answer(choice: int, seed: int) -> tuple[int, ...]:
        state = SamplerState(
            SamplingParams(n=4), seed=seed, choice=choice, prompt_token_ids=[1, 2], vocab_size=VOCAB
        )
        tokens = []
        for step in range(6):
            [result] = sampler.draw(logits[step : step + 1], [Row(state, 2 + step)])
            assert isinstance(result, Draw)
            tokens.append(result.token_id)
            state.push(result.token_id)
        return tuple(tokens)

    answers = [answer(choice, seed=7) for choice in range(4)]
    assert len(set(answers)) == 4
    assert answers == [answer(choice, seed=7) for choice in range(4)]
    assert set(answers).isdisjoint({answer(choice, seed=8) for choice in range(4)})
