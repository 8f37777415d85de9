"""Qwen2 and Qwen2.5 folders."""

from hotloop.weights.hf.architecture import LLAMA_TENSORS, Architecture, Metadata, dense_metadata, no_window
from hotloop.weights.hf.config import HFConfig


def _metadata(config: HFConfig) -> Metadata:
    no_window(config)
    return dense_metadata(config)


ARCHITECTURE = Architecture(
    name="qwen2",
    classes=("Qwen2ForCausalLM",),
    metadata=_metadata,
    tensors=LLAMA_TENSORS,
    defaults={
        "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    },
)  # fmt: skip
