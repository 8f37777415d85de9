"""Gumbel noise and log-sum-exp: Philox's known answers, accuracy at both ends, statistics."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop import _native
from kernels.bitwise import assert_same_bits

SEED = 0x299F31D0A4093822


def _philox4x32_10(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """Four 32-bit words. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        mixed = ((second >> 32) ^ c[1] ^ k[0], (first >> 32) ^ c[3] ^ k[1])
        c = [mixed[0], second & 0xFFFFFFFF, mixed[1], first & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def _words(seed: int, position: int, choice: int, stream: int, ids: range) -> NDArray[np.float64]:
    key = (seed & 0xFFFFFFFF, seed >> 32)
    return np.array([_philox4x32_10((i >> 2, position, choice, stream), key)[i & 3] for i in ids], np.float64)


def _exact_gumbel(words: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log(-np.log1p(-(words + 0.5) * 2.0**-32))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_model_of_philox_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], words: list[int]
) -> None:
    assert _philox4x32_10(counter, key) == words


@pytest.mark.parametrize(
    ("seed", "position", "choice", "stream", "first_id"),
    [
        (0, 0, 0, 0, 0),
        (SEED, 0x85A308D3, 0x13198A2E, 0x03707344, 0x90FDAA20),
        (2**64 - 1, 5, 1, 7, 151_937),
    ],
)
def test_gumbel_of_philox_words(
    isa: str, seed: int, position: int, choice: int, stream: int, first_id: int
) -> None:
    actual = _native.gumbel(isa, seed, position, choice, stream, first_id, 300)
    exact = _exact_gumbel(_words(seed, position, choice, stream, range(first_id, first_id + 300)))
    np.testing.assert_allclose(actual, exact, rtol=4 * 2.0**-23, atol=2.0**-22)


def test_known_answers_through_the_noise(isa: str) -> None:
    words = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.float64)
    np.testing.assert_allclose(_native.gumbel(isa, 0, 0, 0, 0, 0, 4), _exact_gumbel(words), rtol=1e-6)


def test_both_tails_are_accurate(isa: str) -> None:
    """Extremes of a million draws: large noise comes from tiny v, where 1 - v would have lost it."""
    n = 1 << 20
    actual = np.asarray(_native.gumbel(isa, SEED, 3, 0, 0, 0, n))
    order = np.argsort(actual)
    for i in [*order[:20], *order[-20:]]:
        exact = _exact_gumbel(_words(SEED, 3, 0, 0, range(int(i), int(i) + 1)))[0]
        assert abs(actual[i] - exact) <= 3 * float(np.spacing(np.float32(abs(exact))))
    assert actual[order[-1]] > 12


def test_noise_of_an_id_does_not_depend_on_where_the_call_starts(isa: str) -> None:
    whole = np.asarray(_native.gumbel("scalar", SEED, 9, 1, 2, 0, 500))
    for first_id, n in [(0, 0), (0, 1), (1, 3), (2, 200), (63, 65), (64, 64), (77, 400)]:
        part = np.asarray(_native.gumbel(isa, SEED, 9, 1, 2, first_id, n))
        assert_same_bits(part, whole[first_id : first_id + n].copy())


def test_every_counter_word_and_key_half_matters(isa: str) -> None:
    base = (SEED, 9, 1, 2)
    draws = [np.asarray(_native.gumbel(isa, *base, 0, 64))]
    seeds = [(SEED ^ 1, 9, 1, 2), (SEED ^ 2**40, 9, 1, 2)]
    for changed in [*seeds, (SEED, 8, 1, 2), (SEED, 9, 0, 2), (SEED, 9, 1, 3)]:
        draws.append(np.asarray(_native.gumbel(isa, *changed, 0, 64)))
    assert len({d.tobytes() for d in draws}) == len(draws)
    assert max(abs(np.corrcoef(draws[0], d)[0, 1]) for d in draws[1:]) < 0.5


def test_the_distribution_is_gumbel() -> None:
    """Kolmogorov-Smirnov distance of 2^20 draws below the 1e-6 critical value; the seed is fixed."""
    n = 1 << 20
    isa = _native.usable_isas()[0]
    draws = np.sort(np.asarray(_native.gumbel(isa, 12345, 0, 0, 0, 0, n)).astype(np.float64))
    cdf = np.exp(-np.exp(-draws))
    distance = max(np.abs(cdf - np.arange(1, n + 1) / n).max(), np.abs(cdf - np.arange(n) / n).max())
    assert distance < math.sqrt(-0.5 * math.log(0.5e-6) / n)


def test_argmax_of_noise_draws_the_softmax() -> None:
    """Chi-square of 20,000 draws from 8 tokens, a position each, below the 1e-6 critical value (42.7)."""
    isa = _native.usable_isas()[0]
    logits = np.array([0, 1, -1, 2, 0.5, -3, 1.5, 0.1])
    probs = np.exp(logits) / np.exp(logits).sum()
    draws = [int(np.argmax(logits + _native.gumbel(isa, 7, p, 0, 0, 0, 8))) for p in range(20_000)]
    counts = np.bincount(draws, minlength=8)
    assert (((counts - 20_000 * probs) ** 2) / (20_000 * probs)).sum() < 42.7


@pytest.mark.parametrize("n", [1, 15, 16, 1024, 1025, 49_152, 151_936])
def test_log_sum_exp(isa: str, n: int) -> None:
    x = (np.random.default_rng(n).normal(size=n) * 5).astype(np.float32)
    top, log_sum = _native.log_sum_exp(isa, x)
    assert top == x.max()
    expected = math.log(np.exp(x.astype(np.float64) - top).sum())
    # One chain of 64, one of n / 1024, the tree, exp and log, all relative to a sum of at least 1.
    assert abs(log_sum - expected) <= (64 + n / 1024 + 4 + 6) * 2.0**-24 + 2.0**-22 * abs(expected)
    assert (top, log_sum) == _native.log_sum_exp("scalar", x)


def test_log_sum_exp_ignores_masked_logits_and_shows_nans(isa: str) -> None:
    x = np.full(50, -np.inf, np.float32)
    x[[3, 40]] = 2.0
    top, log_sum = _native.log_sum_exp(isa, x)
    assert top == 2
    assert log_sum == pytest.approx(math.log(2), rel=2e-7)
    x[7] = np.nan
    assert math.isnan(_native.log_sum_exp(isa, x)[1])


def test_exp_is_monotone() -> None:
    """The sampler takes the order of scaled logits for the order of probabilities. All floats in [-30, -2^-26]."""
    isa = _native.usable_isas()[0]
    first, last = (int(np.float32(x).view(np.uint32)) for x in (2.0**-26, 30.0))
    for begin in range(first, last, 1 << 22):
        x = np.arange(begin, min(begin + (1 << 22), last) + 1, dtype=np.uint32).view(np.float32)
        e = _native.exp(isa, -x)
        assert (e[1:] <= e[:-1]).all(), begin
