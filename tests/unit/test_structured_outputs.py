"""The form of an answer is checked for shape where a request enters."""

import json

import pytest

from hotloop.errors import InvalidRequestError
from hotloop.sampling_params import SamplingParams
from hotloop.structured_outputs import MAX_SPEC_CHARS, StructuredOutputsParams

BAD = [
    {}, {"json": None}, {"regex": "a", "choice": ["a"]}, {"json": {}, "json_object": True}, {"json_object": False},
    {"json_object": "yes"}, {"json": "{"}, {"json": "[]"}, {"json": 3}, {"json": "NaN"}, {"json": {"x": {1, 2}}},
    {"json": {"x": float("nan")}}, {"json": '{"a":' * 100_000}, {"json": json.dumps({"x": "y" * MAX_SPEC_CHARS})},
    {"json": '{"maximum": ' + "9" * 5000 + "}"}, {"regex": ""}, {"regex": 5}, {"regex": "a\ud800"},
    {"regex": "a" * (MAX_SPEC_CHARS + 1)}, {"choice": []}, {"choice": "abc"}, {"choice": [""]}, {"choice": ["a", 1]},
    {"choice": ["a"] * 10_001}, {"choice": ["a" * 30] * 9000}, {"grammar": ""}, {"grammar": ["root"]},
    {"regex": "a", "disable_any_whitespace": 1}, {"json": {}, "finish_within": 0}, {"json": {}, "finish_within": 2**63},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: repr(fields)[:40])
def test_bad_forms(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        StructuredOutputsParams(**fields)  # type: ignore[arg-type]


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    properties = {"z": {"const": "é"}, "a": {}, "m": {}}
    spec = StructuredOutputsParams(json={"properties": properties})
    assert isinstance(spec.json, str)
    assert list(json.loads(spec.json)["properties"].items()) == list(properties.items())
    assert spec == StructuredOutputsParams(json=spec.json)
    assert len({spec, StructuredOutputsParams(json=spec.json), StructuredOutputsParams(json_object=True)}) == 2


def test_sampling_params_take_nothing_else() -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_what_is_offered_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"has nothing; .* of json, regex, choice, grammar, json_object$"):
        StructuredOutputsParams()
