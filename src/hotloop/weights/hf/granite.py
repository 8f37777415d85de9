"""Granite folders (dense, 3.x)."""

from hotloop.weights.hf.architecture import Architecture, Metadata, dense_metadata
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.llama import ATTENTION_BIAS, PERMUTED_TENSORS

_MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def _metadata(config: HFConfig) -> Metadata:
    config.require("mlp_bias", False)
    return dense_metadata(config) | {key: config.number(name) for key, name in _MULTIPLIERS.items()}


ARCHITECTURE = Architecture(
    name="granite",
    classes=("GraniteForCausalLM",),
    metadata=_metadata,
    tensors=PERMUTED_TENSORS,
    defaults={
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        **dict.fromkeys(_MULTIPLIERS.values(), 1.0),
    },
    switches=ATTENTION_BIAS,
)  # fmt: skip
