"""The sampling that a model's makers recommend: what applies where a request says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.sampling_params import SamplingParams
from hotloop.weights.catalog import entry_for
from hotloop.weights.model_file import ModelFile

# `general.sampling.*` of a model file, which a folder's generation_config.json becomes.
_NAMES: Mapping[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_DIGITS = 6  # a file's float32 of 0.7 is 0.699999988


def recommended_sampling(model: str | Path, model_file: ModelFile) -> dict[str, Any]:
    """Parameters by their names in SamplingParams: the catalog's, else those that the model has with it.

    Raises: ModelFileError naming a value that no request could have.
    """
    values: dict[str, Any] = {}
    for key, name in _NAMES.items():
        full = f"general.sampling.{key}"
        value = model_file.get_int(full, None) if name == "top_k" else model_file.get_float(full, None)
        if value is not None:
            values[name] = value if isinstance(value, int) else round(value, _DIGITS)
    try:
        SamplingParams(**values)
    except InvalidRequestError as error:
        raise ModelFileError(f"{model_file.path}: the sampling that the model recommends is impossible: {error}") from None
    entry = entry_for(model) or entry_for(model_file.path)
    if entry is not None:
        stated = {f.name: getattr(entry.sampling, f.name) for f in fields(entry.sampling)}
        values |= {name: value for name, value in stated.items() if value is not None}
    return values
