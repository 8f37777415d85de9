"""The model classes whose folders can be read, by config.json's `model_type`."""

from collections.abc import Mapping

from hotloop.weights.hf import (
    gemma2,
    gemma3,
    glm4,
    gpt2,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
    starcoder2,
)
from hotloop.weights.hf.architecture import Architecture

ARCHITECTURES: Mapping[str, Architecture] = {
    "gemma2": gemma2.ARCHITECTURE,
    "gemma3_text": gemma3.ARCHITECTURE,
    "glm4": glm4.ARCHITECTURE,
    "gpt2": gpt2.ARCHITECTURE,
    "granite": granite.ARCHITECTURE,
    "llama": llama.ARCHITECTURE,
    "mistral": mistral.ARCHITECTURE,
    "olmo2": olmo2.ARCHITECTURE,
    "olmo3": olmo2.OLMO3,
    "phi3": phi3.ARCHITECTURE,
    "qwen2": qwen2.ARCHITECTURE,
    "qwen3": qwen3.ARCHITECTURE,
    "smollm3": smollm3.ARCHITECTURE,
    "starcoder2": starcoder2.ARCHITECTURE,
}

TEXT_PARTS: Mapping[str, str] = {"gemma3": "gemma3_text"}
"""Models with other towers, whose `text_config` describes a model of the type named here."""
