"""generation_config.json: the sampling that a model's makers recommend, as GGUF's `general.sampling.*` keys."""

from collections.abc import Mapping
from pathlib import Path

from hotloop.errors import ModelFileError
from hotloop.weights.hf.json_files import read_optional_json
from hotloop.weights.model_file import MetadataValue

_INTEGERS: Mapping[str, str] = {"top_k": "top_k"}
_FLOATS: Mapping[str, str] = {
    "temperature": "temp",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def sampling_metadata(folder: Path) -> dict[str, MetadataValue]:
    """The recommended parameters of a folder; none where there is no file. Their ranges are checked where they are used.

    Raises ModelFileError naming a value that is no number.
    """
    path = folder / "generation_config.json"
    values = read_optional_json(path)
    metadata: dict[str, MetadataValue] = {}
    for name, key in (*_INTEGERS.items(), *_FLOATS.items()):
        value = values.get(name)
        if value is None:
            continue
        kinds = (int,) if name in _INTEGERS else (int, float)
        if type(value) not in kinds or not abs(value) < 2**31:
            wanted = "an integer" if name in _INTEGERS else "a number"
            raise ModelFileError(f"{path}: {name} is {value!r:.60}; it must be {wanted}")
        metadata[f"general.sampling.{key}"] = value if name in _INTEGERS else float(value)
    return metadata
