"""The native sampler against the numpy definition, bit for bit, on every instruction set."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotloop import _native
from hotloop.errors import HotloopError
from hotloop.sampling.definition import draw_row
from hotloop.sampling.draw import Draw, Row, Sampler, edits_of
from hotloop.sampling.state import SamplerState
from hotloop.sampling_params import SamplingParams

SAMPLERS = {isa: Sampler(isa) for isa in _native.usable_isas()}
TEAM_SAMPLER = Sampler(_native.usable_isas()[0], _native.ThreadTeam(2))
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 300, 1000, 2111]

Floats = NDArray[np.float32]


def logits_of(kind: str, size: int, seed: int) -> Floats:
    """A row of one kind: smooth, with many ties, flat, peaked, partly or wholly -inf, in ranges that overflow."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, size)
    if kind == "ties":
        row = np.round(row)
    elif kind == "flat":
        row = np.full(size, 1.5)
    elif kind == "narrow":
        row = row * 1e-6
    elif kind == "peaked":
        row = row * 10
    elif kind == "masked":
        row[rng.random(size) < 0.7] = -np.inf
        row[rng.integers(size)] = 0.25
    elif kind == "one":
        row[:] = -np.inf
        row[rng.integers(size)] = -3.0
    elif kind == "huge":
        row = np.where(rng.random(size) < 0.3, 3.3e38, -3.3e38) * rng.random(size)
    elif kind == "offset":  # differences of few ulps, which scaling rounds away
        row = row * 1e-3 + 1e4
    return row.astype(np.float32)


KINDS = ["smooth", "ties", "flat", "narrow", "peaked", "masked", "one", "huge", "offset"]


def expected_of(isa: str, logits: Floats, row: Row) -> Draw | HotloopError:
    state = row.state
    try:
        return draw_row(isa, logits, state.draw_params, edits_of(row), row.position, state.mirostat_mu)
    except HotloopError as error:
        return error


def assert_same(actual: Draw | HotloopError, expected: Draw | HotloopError) -> None:
    if isinstance(expected, HotloopError):
        assert isinstance(actual, HotloopError)
        assert str(actual) == str(expected)
    else:
        assert actual == expected


def mask_of(kind: str, size: int, seed: int) -> NDArray[np.uint32] | None:
    """Few, most, none, all, or only words of ids allowed; bits past the end may be anything."""
    if kind == "absent":
        return None
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (size + 31) // 32, np.uint32)
    if kind == "few":
        words &= rng.integers(0, 2**32, len(words), np.uint32) & rng.integers(0, 2**32, len(words), np.uint32)
        words[rng.random(len(words)) < 0.7] = 0
    elif kind == "most":
        words[rng.random(len(words)) < 0.9] = 2**32 - 1
    elif kind in ("none", "all"):
        words[:] = 0 if kind == "none" else 2**32 - 1
    elif kind == "one":
        words[:] = 0
        token_id = int(rng.integers(size))
        words[token_id // 32] = 1 << token_id % 32
    return words


MASKS = ["absent", "few", "half", "most", "none", "all", "one"]


def make_row(size: int, position: int = 5, **params: Any) -> Row:
    prompt, output = [i * 7 % size for i in range(position - 2)], [(i * 11 + 1) % size for i in range(2)]
    seed, choice, mask = params.pop("seed", 3), params.pop("choice", 0), params.pop("mask", "absent")
    stop, words, mu = params.pop("stop_ids", ()), params.pop("bad_word_ids", ()), params.pop("mirostat_mu", None)
    if params.get("mirostat"):
        for name in ("top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability"):
            params.pop(name, None)
    if "allowed_token_ids" in params:
        params["allowed_token_ids"] = [i % size for i in params["allowed_token_ids"]]
    state = SamplerState(
        SamplingParams(**{"max_tokens": None, **params}), seed=seed, choice=choice, prompt_token_ids=prompt,
        output_token_ids=output, stop_token_ids=[i for i in stop if i < size], mirostat_mu=mu,
        bad_word_ids=[[i % size for i in word] for word in words], vocab_size=size,
    )  # fmt: skip
    return Row(state, position, mask=mask_of(mask, size, seed))


temperatures = st.sampled_from([0.0, 1e-300, 1e-30, 1e-7, 1e-3, 0.5, 0.7, 1.0, 1.3, 10.0, 100.0, 1e30, 1e300])
parameters = st.fixed_dictionaries(
    {},
    optional={
        "temperature": temperatures,
        "top_k": st.integers(-1, 80) | st.sampled_from([300, 1000, 10**7]),
        "top_p": st.floats(1e-12, 1, exclude_min=True) | st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.95, 1 - 1e-12]),
        "min_p": st.floats(0, 1) | st.sampled_from([1e-13, 1e-12, 1e-6, 0.05, 1.0]),
        "typical_p": st.floats(1e-12, 1, exclude_min=True) | st.sampled_from([1e-9, 0.2, 0.95, 1 - 1e-12]),
        "top_n_sigma": st.floats(0, 5) | st.sampled_from([-1.0, 1e-30, 1.0, 1e300]),
        "xtc_probability": st.sampled_from([0.0, 1e-50, 0.5, 1 - 1e-12, 1.0]),
        "xtc_threshold": st.sampled_from([0.0, 1e-13, 0.01, 0.1, 0.5, 1.0]),
        "mirostat": st.sampled_from([0, 2]),
        "mirostat_mu": st.sampled_from([-3.0, 0.0, 0.5, 3.0, 10.0, 60.0, 1e300]),
        "mirostat_tau": st.sampled_from([0, 3, 5.0]),
        "dry_multiplier": st.sampled_from([0.8, 1e6]),
        "dry_allowed_length": st.integers(1, 3),
        "allowed_token_ids": st.lists(st.integers(0, 2**31), min_size=1, max_size=40),
        "bad_word_ids": st.lists(st.lists(st.integers(0, 80), min_size=1, max_size=3), max_size=20),
        "logprobs_mode": st.sampled_from(["raw", "processed"]),
        "repetition_penalty": st.sampled_from([1e-300, 0.5, 1.1, 2.0, 1e300]),
        "presence_penalty": st.sampled_from([-2.0, 0.1, 2.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.3, 2.0]),
        "logit_bias": st.sampled_from([{0: 100.0}, {0: -100.0, 1: 3.0}]),
        "logprobs": st.integers(0, 20),
        "min_tokens": st.sampled_from([0, 5]),
        "seed": st.integers(0, 2**64 - 1),
        "choice": st.integers(0, 3),
        "mask": st.sampled_from(MASKS),
    },
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(SIZES), st.integers(0, 2**32), parameters, st.integers(2, 40))
def test_native_is_the_definition(
    kind: str, size: int, seed: int, params: dict[str, Any], position: int
) -> None:  # known faults B01, B02, B04, B06
    logits = logits_of(kind, size, seed)
    if params.get("logit_bias"):
        params["logit_bias"] = {i: v for i, v in params["logit_bias"].items() if i < size}
    row = make_row(size, position, stop_ids=(0, 5, 70), **params)
    with np.errstate(all="ignore"):
        expected = expected_of("scalar", logits, row)
    for sampler in SAMPLERS.values():
        [actual] = sampler.draw(logits[None], [row])
        assert_same(actual, expected)


@pytest.mark.parametrize("size", [49_152, 151_936])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0}, {"temperature": 1.0}, {"temperature": 3.0}, {"temperature": 100.0}, {"top_k": 40},
        {"top_k": 1000}, {"top_k": 5000}, {"top_p": 0.9}, {"top_p": 0.999, "temperature": 2}, {"min_p": 1e-9},
        {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "temperature": 0.7, "logprobs": 20},
        {"repetition_penalty": 1.1, "top_p": 0.8, "top_k": 20, "temperature": 0.7, "logprobs": 0},
        {"mask": "few", "top_p": 0.9}, {"mask": "most", "logprobs": 20}, {"top_n_sigma": 1.0}, {"typical_p": 0.9},
        {"typical_p": 0.01}, {"typical_p": 1 - 1e-9}, {"typical_p": 0.5, "temperature": 100.0, "mask": "few"},
        {"typical_p": 0.7, "temperature": 0.01, "xtc_probability": 1, "xtc_threshold": 0.01},
        {"typical_p": 0.2, "top_p": 0.95, "top_n_sigma": 3}, {"xtc_probability": 1, "xtc_threshold": 0.01},
        {"xtc_probability": 0.5, "xtc_threshold": 0.02, "min_p": 0.01}, {"mirostat": 2}, {"mirostat": 2, "mirostat_mu": 3.0},
        {"logprobs": 20, "logprobs_mode": "processed"}, {"logprobs": 5, "logprobs_mode": "processed", "temperature": 0},
    ],
)  # fmt: skip
def test_native_is_the_definition_at_real_sizes(size: int, params: dict[str, Any]) -> None:
    logits = logits_of("smooth", size, size)
    for position in (2, 700):
        row = make_row(size, position, **params)
        expected = expected_of(_native.usable_isas()[0], logits, row)
        for isa, sampler in SAMPLERS.items():
            if isa != "scalar":
                assert_same(sampler.draw(logits[None], [row])[0], expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*KINDS, "nan", "inf"]), parameters), min_size=2, max_size=33))
def test_rows_on_a_team_are_rows_alone(wanted: list[tuple[str, dict[str, Any]]]) -> None:  # known faults B105, B122
    size = 300
    rows = [make_row(size, 7, **params) for _, params in wanted]
    logits = np.stack([logits_of(kind, size, i) for i, (kind, _) in enumerate(wanted)])
    for i, (kind, _) in enumerate(wanted):
        if kind in ("nan", "inf"):
            logits[i, [4, 250]] = [np.inf, np.nan if kind == "nan" else -1]
    together = TEAM_SAMPLER.draw(logits, rows)
    for i, (result, (kind, _)) in enumerate(zip(together, wanted, strict=True)):
        with np.errstate(all="ignore"):
            assert_same(result, expected_of("scalar", logits[i], rows[i]))
        if kind in ("nan", "inf"):
            assert isinstance(result, HotloopError)
            assert ("token 250: nan" if kind == "nan" else "token 4: inf") in str(result)


@pytest.mark.parametrize(
    "params", [{"top_n_sigma": 1.0, "logprobs": 20}, {"logit_bias": {700: 3.0, 1999: 1.0}}, {"top_k": 40, "logprobs": 20}]
)
def test_a_mask_leaves_nothing_of_the_row_before(params: dict[str, Any]) -> None:
    """What a mask excludes is not written, so the work space still holds what the row before left there."""
    size = 2111
    before, row = make_row(size, 5, logit_bias={0: 1.0}), make_row(size, 5, mask="few", logprobs_mode="processed", **params)
    logits = np.stack([logits_of("offset", size, 1), logits_of("smooth", size, 2)])
    expected = expected_of("scalar", logits[1], row)
    for sampler in SAMPLERS.values():
        assert_same(sampler.draw(logits, [before, row])[1], expected)


def test_a_penalty_that_overflows_is_the_largest_float_before_dry() -> None:
    """So dry can still tell the tokens apart."""
    logits = np.array([10.0, 9.5, 1.0], np.float32)
    state = SamplerState(
        SamplingParams(temperature=0, repetition_penalty=1e-300, dry_multiplier=1e6, dry_base=1e6, dry_allowed_length=1),
        seed=0, prompt_token_ids=[1, *[0] * 20], vocab_size=3,
    )  # fmt: skip
    row = Row(state, 21)
    assert expected_of("scalar", logits, row) == Draw(1)
    for sampler in SAMPLERS.values():
        assert sampler.draw(logits[None], [row]) == [Draw(1)]


def test_rows_of_an_arena() -> None:
    """Rows with room between them, as a step program leaves them, in any order and more than once."""
    arena = np.random.default_rng(0).normal(0, 3, (4, 320)).astype(np.float32)
    rows = [make_row(300, 4, seed=i) for i in range(5)]
    picked = [3, 0, 0, 2, 1]
    view = arena[:, :300]
    view.flags.writeable = False
    expected = [expected_of("scalar", view[p], row) for p, row in zip(picked, rows, strict=True)]
    assert TEAM_SAMPLER.draw(view, rows, logits_rows=picked) == expected
    assert TEAM_SAMPLER.draw(view[:0], []) == []


def test_wrong_arguments_are_refused() -> None:
    sampler, logits, row = SAMPLERS["scalar"], np.zeros((2, 10), np.float32), make_row(10)
    with pytest.raises(ValueError, match="no such row"):
        sampler.draw(logits, [row], logits_rows=[2])
    with pytest.raises(ValueError, match="side by side"):
        sampler.draw(np.zeros((10, 10), np.float32).T, [row])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        sampler.draw(logits[:, :3].copy(), [make_row(10, repetition_penalty=2)])
    with pytest.raises(ValueError, match="instruction set 'z80' is not usable"):
        Sampler("z80")
