"""config.json files as published, without what follows from the size: each key is read or known to change nothing."""

from typing import Any

import numpy as np
import pytest

from hotloop.weights.hf.architectures import ARCHITECTURES
from hotloop.weights.hf.config import HFConfig

COMMON: dict[str, Any] = {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0", "use_cache": True, "vocab_size": 32064,
}  # fmt: skip
PHI35: dict[str, Any] = {
    "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "_name_or_path": "Phi-3.5-mini-instruct",
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "attention_bias": False, "embd_pdrop": 0.0,
    "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 32000,
    "original_max_position_embeddings": 4096, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "sliding_window": 262144, "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SmolLM2-135M": (
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "hidden_act": "silu",
            "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192,
            "mlp_bias": False, "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
            "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
            "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        },
        {"rope.freq_base": 100000.0, "attention.key_length": 64, "context_length": 8192},
    ),
    "Qwen2.5-0.5B": (
        {
            "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896,
            "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
            "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False,
            "use_sliding_window": False,
        },
        {"attention.key_length": 64, "attention.head_count_kv": 2},
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
            "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
            "tie_word_embeddings": True, "use_sliding_window": False,
        },
        {"attention.key_length": 128, "rope.freq_base": 1000000.0},
    ),
    "Mistral-7B-v0.1": (
        {
            "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
            "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "sliding_window": 4096, "tie_word_embeddings": False,
        },
        {"attention.sliding_window": 4096, "attention.key_length": 128},
    ),
    "gemma-3-1b": (
        {
            "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
            "attn_logit_softcapping": None, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
            "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
            "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
            "sliding_window": 512, "sliding_window_pattern": 6,
        },
        {"rope.freq_base": 1000000.0, "rope.freq_base_swa": 10000.0, "attention.sliding_window": 512},
    ),
    "gemma-3-27b, its text part": (
        {
            "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "head_dim": 128,
            "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        {"attention.scale": float(np.float32(168**-0.5)), "context_length": 131072, "rope.scaling.factor": 8.0},
    ),
    "Phi-3.5-mini": (PHI35, {"rope.dimension_count": 96, "attention.sliding_window": 262144}),
    "Phi-4-mini": (
        PHI35 | {
            "num_attention_heads": 24, "num_key_value_heads": 8, "partial_rotary_factor": 0.75, "full_attn_mod": 1,
            "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
        },
        {"rope.dimension_count": 96, "attention.key_length": 128},
    ),
    "Phi-4": (
        PHI35 | {
            "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10, "rope_scaling": None,
            "rope_theta": 250000, "sliding_window": None, "max_position_embeddings": 16384,
            "original_max_position_embeddings": 16384,
        },
        {"attention.sliding_window": 0, "rope.freq_base": 250000.0, "rope.dimension_count": 128},
    ),
    "Granite-3.1-2b": (
        {
            "model_type": "granite", "architectures": ["GraniteForCausalLM"], "attention_bias": False,
            "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 2048,
            "intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": False,
            "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "residual_multiplier": 0.22,
            "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True,
        },
        {"attention.scale": 0.015625, "logit_scale": 8.0, "attention.key_length": 64},
    ),
    "SmolLM3-3B": (
        {
            "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False,
            "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
            "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "max_window_layers": 28,
            "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
            "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
            "use_sliding_window": False,
        },
        {"rope.freq_base": 5000000.0, "attention.key_length": 128},
    ),
    "gemma-2-27b": (
        {
            "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "attention_bias": False,
            "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0,
            "head_dim": 128, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 4608, "intermediate_size": 36864, "max_position_embeddings": 8192,
            "num_attention_heads": 32, "num_hidden_layers": 46, "num_key_value_heads": 16,
            "query_pre_attn_scalar": 144, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
            "sliding_window_size": 4096,
        },
        {"attn_logit_softcapping": 50.0, "attention.sliding_window": 4096, "attention.key_length": 128},
    ),
    "Mistral-Nemo": (
        {
            "model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 5120, "intermediate_size": 14336, "max_position_embeddings": 131072,
            "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
        },
        {"attention.key_length": 128, "embedding_length": 5120},
    ),
    "Llama-3.2-1B": (
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": 64,
            "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
            "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True,
            "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        },
        {"attention.key_length": 64},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_is_known(name: str) -> None:
    keys, expected = PUBLISHED[name]
    architecture = ARCHITECTURES[keys["model_type"]]
    config = HFConfig(COMMON | keys, "config.json", architecture.defaults)
    metadata = architecture.metadata(config)
    tensors = architecture.generated(config)
    config.flag("tie_word_embeddings")
    config.check_all_used(architecture.harmless)
    assert expected.items() <= metadata.items()
    dim = metadata.get("rope.dimension_count", metadata["attention.key_length"])
    assert isinstance(dim, int)
    assert {values.shape for values in tensors.values()} <= {(dim // 2,)}
    scaling = keys.get("rope_scaling") or {}
    assert bool(tensors) == (scaling.get("rope_type", scaling.get("type")) in ("llama3", "longrope"))
