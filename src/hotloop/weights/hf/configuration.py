"""config.json of a folder: which class of model it is, and its keys."""

from __future__ import annotations

from pathlib import Path

from hotloop.errors import ModelFileError, ModelNotFoundError
from hotloop.weights.hf.architecture import Architecture
from hotloop.weights.hf.architectures import ARCHITECTURES, TEXT_PARTS
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.json_files import read_json, read_optional_json

CONFIG = "config.json"
_GPTQ_CONFIG = "quantize_config.json"  # where GPTQ's first programs put what newer ones put into config.json


def read_configuration(path: Path) -> tuple[Architecture, HFConfig]:
    """The model's class and its keys, those of quantize_config.json at the place where newer files have them.

    Raises: ModelNotFoundError if the folder has no config.json; ModelFileError for a class that is not known.
    """
    file = path / CONFIG
    if not file.is_file():
        raise ModelNotFoundError(f"{path}: there is no {CONFIG} in it; give a folder that has one, or a .gguf file")
    values = read_json(file)
    model_type, classes = values.get("model_type"), values.get("architectures")
    where = str(file)
    if isinstance(model_type, str) and model_type in TEXT_PARTS and isinstance(text := values.get("text_config"), dict):
        where, model_type = f"{where}: text_config", TEXT_PARTS[model_type]
        outer = ("tie_word_embeddings", "quantization_config")  # which the whole model's configuration may have instead
        values = text | {key: values[key] for key in outer if key in values}
    architecture = ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if architecture is None:
        known = ", ".join(sorted({*ARCHITECTURES, *TEXT_PARTS}))
        raise ModelFileError(f"{file}: model_type {model_type!r:.60} is not supported; hotloop reads folders of {known}")
    if isinstance(classes, list) and classes and not set(map(str, classes)) & set(architecture.classes):
        raise ModelFileError(
            f"{file}: architectures is {classes!r:.100}; of {model_type} models hotloop runs "
            f"{' and '.join(architecture.classes)}"
        )
    if values.get("quantization_config") is None and (gptq := read_optional_json(path / _GPTQ_CONFIG)):
        values = values | {"quantization_config": {"quant_method": "gptq", **gptq}}
    return architecture, HFConfig(values, where, architecture.defaults)
