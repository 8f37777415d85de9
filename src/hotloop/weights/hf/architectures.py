"""The model classes whose folders can be read, by config.json's `model_type`."""

from collections.abc import Mapping

from hotloop.weights.hf import gemma3, llama, mistral, qwen2, qwen3
from hotloop.weights.hf.architecture import Architecture

ARCHITECTURES: Mapping[str, Architecture] = {
    "gemma3_text": gemma3.ARCHITECTURE,
    "llama": llama.ARCHITECTURE,
    "mistral": mistral.ARCHITECTURE,
    "qwen2": qwen2.ARCHITECTURE,
    "qwen3": qwen3.ARCHITECTURE,
}

TEXT_PARTS: Mapping[str, str] = {"gemma3": "gemma3_text"}
"""Models with other towers, whose `text_config` describes a model of the type named here."""
