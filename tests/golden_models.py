"""The cases of tests/golden/models: tiny models whose logits were computed by transformers.

tools/make_model_goldens.py makes the files; tests/unit/models/test_model_goldens.py compares the op sets with them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.weights.gguf_writer import WritableValue
from tiny_models import TinyConfig, random_tokens, tiny_config, write_tiny_model

GOLDEN_DIR = Path(__file__).parent / "golden" / "models"
NUM_TOKENS = 48
COLUMN_STEP = 7
"""Every 7th logit of each token is stored."""


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One model, described twice: as a GGUF file and as a transformers configuration.

    overrides: of TinyConfig. metadata: GGUF keys, without the architecture. hf_class: transformers class of
    the model. hf_config: fields of its configuration beyond the sizes; rope parameters of a gemma model are
    those of the full-attention layers.
    """

    name: str
    architecture: str
    hf_class: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, WritableValue] = field(default_factory=dict)
    hf_rope: Mapping[str, Any] = field(default_factory=dict)
    hf_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    @property
    def config(self) -> TinyConfig:
        return tiny_config(self.architecture, **self.overrides)

    @property
    def token_ids(self) -> list[int]:
        return random_tokens(self.seed, NUM_TOKENS)

    def write(self, path: Path, **changes: Any) -> Path:
        """The model as a GGUF file; changes: further arguments of write_tiny_model."""
        metadata = {f"{self.architecture}.{key}": value for key, value in self.metadata.items()}
        arguments = {"seed": self.seed, "metadata": metadata, **self.overrides, **changes}
        return write_tiny_model(path, self.architecture, **arguments)


_LINEAR: dict[str, WritableValue] = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
_YARN: dict[str, WritableValue] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
_YARN_BETAS: dict[str, WritableValue] = {
    "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scaling.yarn_beta_slow": 2.0,
}
_HF_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_HF_YARN_MSCALE = _HF_YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}
_HF_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3_factors(
    head_dim: int,
    base: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
    **_: object,
) -> tuple[float, ...]:
    """The tensor rope_freqs.weight that a converter writes for Llama 3's rope parameters."""
    factors = []
    for i in range(head_dim // 2):
        turns = original_max_position_embeddings / (2 * math.pi * base ** (2 * i / head_dim))
        blend = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        blend = min(max(blend, 0.0), 1.0)
        factors.append(1 / ((1 - blend) / factor + blend))
    return tuple(factors)


_HF_GEMMA2_CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}
_HF_GRANITE = {
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.625,
    "attention_multiplier": 0.375,
    "logits_scaling": 1.25,
}
_LONG = (1.0, 1.25, 1.5, 2.5, 4.0, 7.5)
_SHORT = (1.0, 1.0, 1.125, 1.25, 1.375, 1.5)
_NO_BIASES = {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False}

CASES = (
    GoldenCase("llama-mha", "llama", "LlamaForCausalLM", {"num_kv_heads": 4}),
    GoldenCase("llama-gqa-tied", "llama", "LlamaForCausalLM", {"tied": True}),
    GoldenCase(
        "llama-bias-head-dim",
        "llama",
        "LlamaForCausalLM",
        {"qkv_bias": True, "output_bias": True, "head_dim": 48, "num_kv_heads": 1, "num_layers": 3},
        hf_config={"attention_bias": True},
    ),
    GoldenCase(
        "llama-linear",
        "llama",
        "LlamaForCausalLM",
        metadata=_LINEAR,
        hf_rope={"rope_type": "linear", "factor": 4.0},
    ),
    GoldenCase("llama-yarn", "llama", "LlamaForCausalLM", metadata=_YARN, hf_rope=_HF_YARN),
    GoldenCase(
        "llama-llama3",
        "llama",
        "LlamaForCausalLM",
        {"freq_factors": llama3_factors(16, 10000.0, **_HF_LLAMA3)},
        hf_rope=_HF_LLAMA3,
    ),
    GoldenCase("llama-window", "llama", "MistralForCausalLM", {"window": 8}, hf_config={"sliding_window": 8}),
    GoldenCase("qwen2-gqa", "qwen2", "Qwen2ForCausalLM", {"rope_base": 1e6}),
    GoldenCase(
        "qwen2-yarn-tied",
        "qwen2",
        "Qwen2ForCausalLM",
        {"tied": True, "num_kv_heads": 1},
        metadata=_YARN | _YARN_BETAS,
        hf_rope=_HF_YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    ),
    GoldenCase("qwen3", "qwen3", "Qwen3ForCausalLM"),
    GoldenCase("gemma3", "gemma3", "Gemma3ForCausalLM", {"window": 8}),
    GoldenCase(
        "gemma3-linear",
        "gemma3",
        "Gemma3ForCausalLM",
        {"window": 20, "num_kv_heads": 2},
        metadata=_LINEAR,
        hf_rope={"rope_type": "linear", "factor": 4.0},
    ),
    GoldenCase(
        "llama-yarn-mscale",
        "llama",
        "LlamaForCausalLM",
        metadata=_YARN | {"rope.scaling.yarn_log_multiplier": 0.5, "rope.scaling.yarn_truncate": False},
        hf_rope=_HF_YARN_MSCALE,
    ),
    GoldenCase(
        # transformers scales for the length of the sequence, which here is the whole context.
        "llama-dynamic",
        "llama",
        "LlamaForCausalLM",
        {"context_length": NUM_TOKENS},
        metadata={
            "rope.scaling.type": "dynamic",
            "rope.scaling.factor": 2.0,
            "rope.scaling.original_context_length": 32,
        },
        hf_rope={"rope_type": "dynamic", "factor": 2.0},
        hf_config={"max_position_embeddings": 32},
    ),
    GoldenCase(
        "mistral-head-dim",
        "llama",
        "MistralForCausalLM",
        {"head_dim": 32, "window": 20, "num_kv_heads": 1, "rope_base": 1e6},
        hf_config={"sliding_window": 20},
    ),
    GoldenCase(
        "gemma2-gqa",
        "gemma2",
        "Gemma2ForCausalLM",
        {"window": 8},
        hf_config=_HF_GEMMA2_CAPS | {"sliding_window": 8, "query_pre_attn_scalar": 16},
    ),
    GoldenCase(
        "gemma2-mha-scalar",
        "gemma2",
        "Gemma2ForCausalLM",
        {"window": 20, "num_kv_heads": 4, "head_dim": 32},
        metadata={"attention.scale": 0.25},
        hf_config=_HF_GEMMA2_CAPS | {"sliding_window": 20, "query_pre_attn_scalar": 16},
    ),
    GoldenCase("granite-gqa", "granite", "GraniteForCausalLM", hf_config=_HF_GRANITE),
    GoldenCase(
        "granite-mha-bias-tied",
        "granite",
        "GraniteForCausalLM",
        {"num_kv_heads": 4, "qkv_bias": True, "output_bias": True, "tied": True},
        hf_config=_HF_GRANITE | {"attention_bias": True},
    ),
    GoldenCase("smollm3-gqa-tied", "smollm3", "SmolLM3ForCausalLM", {"num_layers": 5, "tied": True}),
    GoldenCase(
        "smollm3-mha-yarn",
        "smollm3",
        "SmolLM3ForCausalLM",
        {"num_kv_heads": 4, "qkv_bias": True, "output_bias": True},
        metadata=_YARN,
        hf_rope=_HF_YARN,
        hf_config={"attention_bias": True},
    ),
    GoldenCase("phi3-mha", "phi3", "Phi3ForCausalLM"),
    GoldenCase(
        # The context is longer than the original one, and so is the prompt: transformers goes by the latter.
        "phi3-long-gqa-tied",
        "phi3",
        "Phi3ForCausalLM",
        {"num_kv_heads": 2, "tied": True, "head_dim": 16, "long_factors": _LONG, "short_factors": _SHORT},
        metadata={
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(32)),
            "rope.dimension_count": 12,
        },
        hf_rope={
            "rope_type": "longrope",
            "long_factor": list(_LONG),
            "short_factor": list(_SHORT),
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
        },
        hf_config={"original_max_position_embeddings": 32},
    ),
    GoldenCase(
        "phi3-short-window",
        "phi3",
        "Phi3ForCausalLM",
        {"window": 8, "context_length": 64, "long_factors": _LONG, "short_factors": _SHORT},
        metadata={
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.25,
            "rope.dimension_count": 12,
        },
        hf_rope={
            "rope_type": "longrope",
            "long_factor": list(_LONG),
            "short_factor": list(_SHORT),
            "attention_factor": 1.25,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
        },
        hf_config={"original_max_position_embeddings": 64, "sliding_window": 8},
    ),
    GoldenCase("gpt2", "gpt2", "GPT2LMHeadModel"),
    GoldenCase("gpt2-tied", "gpt2", "GPT2LMHeadModel", {"tied": True, "num_layers": 3, "intermediate_size": 160}),
    GoldenCase("starcoder2", "starcoder2", "Starcoder2ForCausalLM"),
    GoldenCase(
        "starcoder2-window-mha-tied",
        "starcoder2",
        "Starcoder2ForCausalLM",
        {"window": 8, "num_kv_heads": 4, "tied": True},
        hf_config={"sliding_window": 8},
    ),
    GoldenCase("starcoder2-no-bias", "starcoder2", "Starcoder2ForCausalLM", _NO_BIASES, hf_config={"use_bias": False}),
    GoldenCase("olmo2", "olmo2", "Olmo2ForCausalLM"),
    GoldenCase("olmo2-mha-tied", "olmo2", "Olmo2ForCausalLM", {"num_kv_heads": 4, "tied": True, "num_layers": 3}),
    GoldenCase("olmo3", "olmo2", "Olmo3ForCausalLM", {"window": 8, "num_layers": 5}, _YARN, _HF_YARN),
    GoldenCase("glm4", "glm4", "Glm4ForCausalLM"),
    GoldenCase(
        "glm4-mha-no-bias-tied",
        "glm4",
        "Glm4ForCausalLM",
        {"num_kv_heads": 4, "qkv_bias": False, "tied": True, "head_dim": 16, "rotary_dim": 8},
        hf_config={"attention_bias": False},
    ),
)


@dataclass(frozen=True, slots=True)
class RopeCase:
    """Rope parameters of a real model, described twice. metadata: GGUF keys, without the architecture."""

    name: str
    head_dim: int
    base: float
    context_length: int
    hf_rope: Mapping[str, Any]
    metadata: Mapping[str, WritableValue] = field(default_factory=dict)
    freq_factors: tuple[float, ...] | None = None


_LLAMA31: dict[str, Any] = _HF_LLAMA3 | {"original_max_position_embeddings": 8192}

ROPE_CASES = (
    RopeCase("default", 128, 1e6, 32768, {"rope_type": "default"}),
    RopeCase("linear", 128, 10000.0, 16384, {"rope_type": "linear", "factor": 4.0}, _LINEAR),
    RopeCase("llama31", 128, 500000.0, 131072, _LLAMA31, freq_factors=llama3_factors(128, 500000.0, **_LLAMA31)),
    RopeCase(
        "llama32-keys",
        64,
        500000.0,
        131072,
        _LLAMA31 | {"factor": 32.0},
        {
            "rope.scaling.type": "llama3",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 8192,
        },
    ),
    RopeCase(
        "yarn-qwen",
        128,
        1e6,
        131072,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        _YARN | {"rope.scaling.original_context_length": 32768},
    ),
    RopeCase(
        "yarn-betas",
        64,
        10000.0,
        65536,
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 24.0,
            "beta_slow": 0.5,
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 16.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_beta_fast": 24.0,
            "rope.scaling.yarn_beta_slow": 0.5,
        },
    ),
)
