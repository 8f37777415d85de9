"""DRY against its definition, counted out; tests/unit/sampling/test_goldens.py holds it against llama.cpp."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import _native
from hotloop.request import Breaker
from hotloop.sampling.dry import Dry


def longest_repeats(ids: list[int], most: int) -> dict[int, int]:
    """For each token: how long the sequence is that it followed and that the context ends with."""
    found: dict[int, int] = {}
    for end in range(1, len(ids)):
        length = 0
        while length < min(end, most) and ids[end - 1 - length] == ids[len(ids) - 1 - length]:
            length += 1
        found[ids[end]] = max(found.get(ids[end], 0), length)
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5), st.integers(0, 60),
    st.sampled_from([1.0, 1.2, 1.75, 1e6]),
)  # fmt: skip
def test_the_longest_repeat_counts(ids: list[int], allowed: int, most: int, base: float) -> None:
    found = _native.dry_penalties(np.array(ids, np.int32), 0.8, base, allowed, most)
    expected = {i: n for i, n in longest_repeats(ids, most).items() if n >= allowed}
    assert [i for i, _ in found] == sorted(expected)
    largest = float(np.finfo(np.float32).max)
    for token_id, penalty in found:
        exact = min(0.8 * min(base ** min(expected[token_id] - allowed, 50), 1e300), largest)
        assert penalty == pytest.approx(exact, rel=1e-6)


def test_a_long_run_is_cheap_and_finite() -> None:
    ids = np.zeros(200_000, np.int32)
    assert _native.dry_penalties(ids, 1.0, 1.75, 2, len(ids)) == [(0, float(np.finfo(np.float32).max))]


def ids_after(context: list[int], breakers: tuple[Breaker, ...]) -> list[int]:
    return Dry(1.0, 1.75, 2, breakers, context).penalties[0].tolist()


def test_nothing_is_repeated_over_a_breaker() -> None:
    assert ids_after([1, 2, 3, 9, 1, 2], ()) == [3]
    assert ids_after([1, 9, 3, 1, 9], (((9,), ((),)),)) == []
    assert ids_after([9, 1, 2, 3, 9, 1, 2], (((9,), ((),)),)) == [3]
    assert ids_after([1, 2, 9, 1, 2], (((9,), ((),)),)) == []  # a breaker itself is never penalized
    two = (((7, 8), ((9, 9), (9, 5))),)  # 7 or 8, then 9 9 or 9 5
    assert ids_after([8, 9, 9, 1, 8, 9, 9], two) == []
    assert ids_after([8, 9, 1, 8, 9], two) == [1]
    assert ids_after([5, 9, 9, 1, 5, 9, 9], two) == [1]
    assert ids_after([7, 9, 5, 1, 8, 9, 5], two) == []
    assert ids_after([9, 9], two) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30), st.lists(st.integers(0, 4), max_size=30))
def test_removal_leaves_no_trace(ids: list[int], tentative: list[int]) -> None:
    breakers = (((0,), ((),)), ((1, 2), ((3,), (3, 4))))
    dry, plain = Dry(1.0, 1.75, 1, breakers, ids), Dry(1.0, 1.75, 1, breakers, ids)
    for token_id in tentative:
        dry.add(token_id)
    for _ in tentative:
        dry.remove()
    added = Dry(1.0, 1.75, 1, breakers, ())
    for token_id in ids:
        added.add(token_id)
    for got, expected, one_by_one in zip(dry.penalties, plain.penalties, added.penalties, strict=True):
        assert got.tolist() == expected.tolist() == one_by_one.tolist()


def test_choices_share_what_is_made_of_their_breakers() -> None:
    def breakers() -> tuple[Breaker, ...]:
        return ((tuple(range(100_000)), ((1, 2), (3,))),)

    first, of_other = Dry(1.0, 1.75, 2, breakers(), [5, 1, 2]), breakers()
    tracemalloc.start()
    other = Dry(1.0, 1.75, 2, of_other, [5, 1, 2])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 100_000
    assert first.penalties[0].tolist() == other.penalties[0].tolist()
