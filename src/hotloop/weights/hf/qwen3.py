"""Qwen3 (dense) folders: Llama's names and a norm for every head of q and k."""

from hotloop.weights.hf.architecture import LLAMA_TENSORS, Architecture, Metadata, dense_metadata, no_window
from hotloop.weights.hf.config import HFConfig


def _metadata(config: HFConfig) -> Metadata:
    no_window(config)
    config.require("attention_bias", False)
    return dense_metadata(config)


ARCHITECTURE = Architecture(
    name="qwen3",
    classes=("Qwen3ForCausalLM",),
    metadata=_metadata,
    tensors={
        **LLAMA_TENSORS,
        "blk.{}.attn_q_norm": "layers.{}.self_attn.q_norm",
        "blk.{}.attn_k_norm": "layers.{}.self_attn.k_norm",
    },
    defaults={
        "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": False,
    },
)  # fmt: skip
