"""Mistral folders: Llama's form, with a sliding window in every layer where the configuration has one."""

from functools import partial

from hotloop.weights.hf.architecture import Architecture, dense_metadata
from hotloop.weights.hf.llama import ATTENTION_BIAS, PERMUTED_TENSORS

ARCHITECTURE = Architecture(
    name="llama",
    classes=("MistralForCausalLM",),
    metadata=partial(dense_metadata, attention="window"),
    tensors=PERMUTED_TENSORS,
    defaults={
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "attention_bias": False,
    },
    switches=ATTENTION_BIAS,
)  # fmt: skip
