"""Every field is validated where a request enters (known faults B01, B02, B07, B25, B41, B102, B105, B125)."""

import math

import numpy as np
import pytest

from hotloop.errors import InvalidRequestError
from hotloop.sampling_params import SamplingParams

BAD = [
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", 1e309), ("temperature", "hot"),
    ("temperature", True), ("top_p", 0), ("top_p", 1.0001), ("top_p", math.nan), ("top_p", -1), ("top_p", math.inf),
    ("min_p", math.nan), ("min_p", -0.5), ("min_p", 2), ("top_k", -2), ("top_k", 1.5), ("top_k", True),
    ("seed", 2**64), ("seed", "7"), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2.0),
    ("min_tokens", -1), ("min_tokens", None), ("stop", ""), ("stop", ["x", ""]), ("stop", [3]),
    ("stop", ["x"] * 17), ("stop_token_ids", ["a"]), ("logprobs", -1), ("logprobs", 21),
    ("stop", 5), ("stop", "a\ud800"), ("stop", {"a": 1}), ("stop", {}), ("stop_token_ids", 5), ("stop_token_ids", {5: 1}),
    ("stop_token_ids", ""), ("top_k", 2**64), ("max_tokens", 2**64), ("min_tokens", 2**64),
    ("temperature", 10**400), ("ignore_eos", "no"),
    ("skip_special_tokens", 1), ("include_stop_str_in_output", None),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", math.nan), ("repetition_penalty", "1"),
    ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("presence_penalty", math.nan), ("presence_penalty", None),
    ("frequency_penalty", 2.1), ("frequency_penalty", math.inf), ("n", 0), ("n", 129), ("n", 1.0), ("n", None),
    ("logit_bias", [5]), ("logit_bias", {"abc": 5}), ("logit_bias", {1.5: 5}), ("logit_bias", {5: 100.5}),
    ("typical_p", 0), ("typical_p", 1.5), ("typical_p", None), ("typical_p", math.nan), ("top_n_sigma", -2),
    ("top_n_sigma", math.inf), ("xtc_probability", 1.1), ("xtc_probability", -0.1), ("xtc_threshold", math.nan),
    ("mirostat", 1), ("mirostat", True), ("mirostat", 2.0), ("mirostat_tau", -1), ("mirostat_tau", math.inf),
    ("mirostat_eta", 2), ("mirostat_eta", None), ("dry_multiplier", -1), ("dry_multiplier", math.inf), ("dry_base", 0.9),
    ("dry_base", math.nan), ("dry_allowed_length", 0), ("dry_allowed_length", 2**63), ("dry_allowed_length", 2.0),
    ("dry_sequence_breakers", None), ("dry_sequence_breakers", "x"), ("dry_sequence_breakers", [""]),
    ("dry_sequence_breakers", ["x" * 201]), ("dry_sequence_breakers", [b"x"]), ("dry_sequence_breakers", ["x"] * 65),
    ("bad_words", "x"), ("bad_words", [""]), ("bad_words", [5]), ("bad_words", ["x"] * 257), ("bad_words", ["a\ud800"]),
    ("bad_words", {"x": 1}),
    ("allowed_token_ids", []), ("allowed_token_ids", 5), ("allowed_token_ids", ["a"]), ("allowed_token_ids", [True]),
    ("allowed_token_ids", [5] * 1025), ("allowed_token_ids", {5: 1}),
    ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2), ("truncate_prompt_tokens", 1.5),
    ("logprobs_mode", "cooked"), ("logprobs_mode", None), ("logprobs_mode", np.array(["raw", "raw"])),
    *((name, np.array([1, 2])) for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias", "top_k")),
    *((name, np.array(1)) for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "dry_sequence_breakers")),
    ("logit_bias", dict.fromkeys(range(1025), 1)), ("stop_token_ids", [5] * 1025), ("stop", "x" * 1001),
    ("logit_bias", {5: math.nan}), ("logit_bias", {5: "1"}), ("logit_bias", {5: 1, "5": 1}), ("logit_bias", {True: 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_name_the_field(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted({name for name, _ in BAD}))
def test_a_value_of_any_length_leaves_room_for_what_is_allowed(name: str) -> None:
    for value in ("x" * 70_000, ["x" * 70_000], {"x" * 70_000: None}):
        with pytest.raises(InvalidRequestError, match=rf"\b{name}\b") as caught:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        assert len(str(caught.value)) < 400
        assert str(caught.value)[-1] not in "x'"


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0, "top_p": 0.3, "top_k": 1, "min_p": 0.5}, {"top_k": -1}, {"top_k": 0}, {"top_k": 10**7},
        {"top_p": 1e-9}, {"temperature": 1e-30}, {"stop": None}, {"stop": []}, {"seed": 2**64 - 1}, {"seed": -1},
        {"max_tokens": None, "min_tokens": 5}, {"repetition_penalty": 1e-5}, {"presence_penalty": -2, "n": 128},
        {"logit_bias": {}}, {"logit_bias": {0: -100, 3: 100}}, {"top_n_sigma": -1}, {"top_n_sigma": 1e30}, {"typical_p": 1},
        {"mirostat": 0, "top_k": 5}, {"mirostat": 2, "top_k": -1, "top_p": 1.0, "min_p": 0}, {"dry_sequence_breakers": ()},
        {"bad_words": (" ", "\n")}, {"truncate_prompt_tokens": -1}, {"allowed_token_ids": (3, 3)},
        {"logit_bias": dict.fromkeys(range(1024), 1)},
        {"stop_token_ids": [5] * 1024}, {"stop": ["x" * 1000] * 16},
    ],
)  # fmt: skip
def test_legal_values(params: dict[str, object]) -> None:
    made = SamplingParams(**params)  # type: ignore[arg-type]
    assert {name: getattr(made, name) for name in params} == params


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(InvalidRequestError, match=r"min_tokens is 9.*max_tokens 8"):
        SamplingParams(min_tokens=9, max_tokens=8)


@pytest.mark.parametrize(
    "filters",
    [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.9}, {"top_n_sigma": 1}, {"xtc_probability": 0.5}],
)
def test_mirostat_takes_the_place_of_the_filters(filters: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{next(iter(filters))} is .* left out with mirostat 2"):
        SamplingParams(mirostat=2, **filters)  # type: ignore[arg-type]
    recommended = {"temperature": 0.2, "top_k": 20, "top_p": 0.9, "min_p": 0.1}
    params = SamplingParams(mirostat=2).with_defaults(recommended)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.2, 0, 1.0, 0.0)


def test_request_wins_over_recommendation_wins_over_built_in() -> None:
    recommended = {"temperature": 0.2, "top_k": 20, "repetition_penalty": 1.1}
    params = SamplingParams(temperature=0.9).with_defaults(recommended)
    assert params.repetition_penalty == 1.1
    assert SamplingParams(repetition_penalty=1).with_defaults(recommended).repetition_penalty == 1
    assert SamplingParams().with_defaults({}).repetition_penalty == 1
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.9, 20, 1.0, 0.0)
    plain = SamplingParams().with_defaults({})
    assert (plain.temperature, plain.top_k, plain.top_p, plain.min_p) == (1.0, 0, 1.0, 0.0)
    assert SamplingParams(temperature=0).with_defaults(recommended).temperature == 0


def test_token_ids_outside_the_vocabulary() -> None:
    SamplingParams(stop_token_ids=[0, 99], allowed_token_ids=[0, 99]).check_vocabulary(100)
    for bad in (100, -1, 10**6):
        for name in ("stop_token_ids", "allowed_token_ids"):
            with pytest.raises(InvalidRequestError, match=f"{name} is {bad};"):
                SamplingParams(**{name: [bad]}).check_vocabulary(100)  # type: ignore[arg-type]


def test_logit_bias_outside_the_vocabulary_and_with_the_keys_of_json() -> None:  # known fault B03
    params = SamplingParams(logit_bias={"7": 5, 8: -1})  # type: ignore[dict-item]
    assert params.logit_bias == {7: 5.0, 8: -1.0}
    params.check_vocabulary(9)
    for bad in ("999999", "-1", -1, 100):
        with pytest.raises(InvalidRequestError, match=f"logit_bias is {bad};"):
            SamplingParams(logit_bias={bad: 5}).check_vocabulary(100)  # type: ignore[dict-item]


def test_a_later_change_of_the_callers_logit_bias_changes_nothing() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[10**9] = 3.0
    assert params.logit_bias == {1: 2.0}
