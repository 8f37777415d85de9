"""Llama folders, and the models published in their form (SmolLM, Yi, ...)."""

from collections.abc import Mapping

from hotloop.weights.hf.architecture import (
    LLAMA_TENSORS,
    Architecture,
    Metadata,
    Rule,
    dense_metadata,
    permuted_k,
    permuted_q,
)
from hotloop.weights.hf.config import HFConfig

ATTENTION_BIAS: Mapping[str, str] = {"attention_bias": ".attn_q.bias"}

PERMUTED_TENSORS: Mapping[str, str | Rule] = {
    **LLAMA_TENSORS,
    "blk.{}.attn_q": permuted_q("layers.{}.self_attn.q_proj"),
    "blk.{}.attn_k": permuted_k("layers.{}.self_attn.k_proj"),
}


def _metadata(config: HFConfig) -> Metadata:
    config.require("mlp_bias", False)
    return dense_metadata(config)


ARCHITECTURE = Architecture(
    name="llama",
    classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
    metadata=_metadata,
    tensors=PERMUTED_TENSORS,
    defaults={
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    },
    switches=ATTENTION_BIAS,
)  # fmt: skip
