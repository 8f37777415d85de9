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
    """temperature -> top_n_sigma -> min_p -> top_k -> top_p -> typical_p -> xtc -> softmax in float64, with full sorts."""
    exact = logits.astype(np.float64)
    scaled = exact / params["temperature"]
    probs = np.exp(scaled - scaled.max())
    order = np.argsort(-probs, kind="stable")
    if "top_n_sigma" in params:
        order = order[exact[order] >= exact.max() - params["top_n_sigma"] * exact.std()]
    order = order[probs[order] >= params.get("min_p", 0)]
    order = order[: int(params.get("top_k", 0)) or None]
    order = nucleus(probs, order, params.get("top_p", 1))
    if "typical_p" in params:
        share = probs[order] / probs[order].sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(share)
            entropy = np.nansum(share * surprise)
        order = order[np.argsort(np.abs(surprise - entropy), kind="stable")]
        order = np.sort(nucleus(probs, order, params["typical_p"]))
    result = np.zeros(VOCAB)
    result[order] = probs[order] / probs[order].sum()
    if "xtc_probability" in params:
        likely = order[result[order] >= params["xtc_threshold"]]
        excluded = likely[np.argsort(-probs[likely], kind="stable")][:-1]
        rest = result.copy()
        rest[excluded] = 0
        applies = params["xtc_probability"]
        result = (1 - applies) * result + applies * rest / rest.sum()
    return result


def nucleus(probs: NDArray[np.float64], order: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    mass = np.cumsum(probs[order]) / probs[order].sum()
    return order[: int(np.searchsorted(mass, share * (1 - 1e-12))) + 1]


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


SAMPLERS: dict[str, Params] = {
    "temperature": {}, "top_k": {"top_k": 50}, "top_p": {"top_p": 0.8}, "min_p": {"min_p": 0.03},
    "top_n_sigma": {"top_n_sigma": 1.2}, "typical_p": {"typical_p": 0.7},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.02},
    "all": {
        "top_n_sigma": 3.0, "min_p": 0.001, "top_k": 300, "top_p": 0.95, "typical_p": 0.9, "xtc_probability": 0.5,
        "xtc_threshold": 0.02,
    },
}  # fmt: skip


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e-2, 0.1, 0.5, 1.0, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_at_any_temperature(sampler: str, temperature: float) -> None:
    logits, params = logits_of(6), {"temperature": temperature, **SAMPLERS[sampler]}
    tokens = drawn(logits, range(NUM_DRAWS // 2), **params, seed=12)
    probs = probabilities(logits, params)
    assert_follows(tokens, probs)
    if temperature <= 1e-6:
        assert set(tokens) == {int(logits.argmax())}


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0}, {"temperature": 0.3}, {"temperature": 5.0}, {"temperature": 100.0}, {"temperature": 1e-3},
        {"temperature": 1e-30}, {"temperature": 1.0, "top_k": 5}, {"temperature": 2.0, "top_k": 200},
        {"temperature": 1.0, "top_p": 0.3}, {"temperature": 1.5, "top_p": 0.95}, {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.5, "top_k": 100, "top_p": 0.8, "min_p": 0.01}, {"temperature": 1.0, "top_n_sigma": 1.5},
        {"temperature": 3.0, "top_n_sigma": 1.0}, {"temperature": 1.0, "typical_p": 0.4},
        {"temperature": 2.0, "typical_p": 0.9},
        {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.02},
        {"temperature": 1.0, "xtc_probability": 0.3, "xtc_threshold": 0.01},
        {
            "temperature": 1.5, "top_n_sigma": 3.0, "min_p": 0.005, "top_k": 200, "top_p": 0.98, "typical_p": 0.9,
            "xtc_probability": 0.5, "xtc_threshold": 0.02,
        },
        {"temperature": 1e-30, "typical_p": 0.5}, {"temperature": 100.0, "typical_p": 0.5, "top_n_sigma": 1.0},
    ],
)  # fmt: skip
def test_draws_follow_the_filtered_softmax(params: Params) -> None:
    logits = logits_of(1)
    tokens = drawn(logits, range(NUM_DRAWS), **params, seed=11)
    assert_follows(tokens, probabilities(logits, params))


@pytest.mark.parametrize("temperature", [1e-30, 0.05, 0.3, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("mu", [-1.0, 2.0, 6.0, 30.0])
def test_mirostat_at_any_temperature(temperature: float, mu: float) -> None:
    """With the same mu for every draw: the tokens whose surprise is at most mu, or the top one."""
    logits = logits_of(6)
    params = _native.DrawParams(temperature=temperature, mirostat=True, seed=12)
    n = NUM_DRAWS // 4
    token_ids, _, _, faults = _native.Sampler(ISA).draw(logits[None], [params] * n, [0] * n, list(range(n)), [mu] * n, [])
    assert not faults
    probs = probabilities(logits, {"temperature": temperature})
    kept = probs >= min(2.0**-mu, probs.max())
    assert_follows(np.array(token_ids), np.where(kept, probs, 0) / probs[kept].sum())


def test_mirostat_draws_follow_its_cut_and_reach_its_surprise() -> None:
    """Of many tokens in a row; each one's distribution depends on mu, so their surprises are what is tested."""
    logits, tau = logits_of(1), 3.0
    sampler = _native.Sampler(ISA)
    params = _native.DrawParams(temperature=1.0, mirostat=True, mirostat_tau=tau, mirostat_eta=0.1, seed=3)
    mu, surprises, expected = 2 * tau, [], []
    surprise = -np.log2(probabilities(logits, {"temperature": 1.0}))
    for position in range(4000):
        kept = surprise <= mu if (surprise <= mu).any() else surprise == surprise.min()
        probs = np.where(kept, 2.0**-surprise, 0)
        probs /= probs.sum()
        (token_id,), _, ((_, next_mu),), _ = sampler.draw(logits[None], [params], [0], [position], [mu], [])
        assert kept[token_id]
        observed = -np.log2(probs[token_id])
        assert next_mu == pytest.approx(mu - 0.1 * (observed - tau), abs=1e-5)
        surprises.append(observed)
        expected.append(float((probs[kept] * -np.log2(probs[kept])).sum()))
        mu = next_mu
    assert np.mean(surprises) == pytest.approx(tau, abs=0.05)
    assert np.mean(surprises) == pytest.approx(np.mean(expected), abs=0.1)


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
