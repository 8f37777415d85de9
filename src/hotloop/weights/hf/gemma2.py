"""Gemma 2 folders."""

import numpy as np

from hotloop.weights.hf.architecture import LLAMA_TENSORS, Architecture, Metadata, dense_metadata
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.gemma3 import GEMMA_NORMS, attention_scale, sliding_layers, softcap
from hotloop.weights.hf.rope import rope_section, rope_type

_PERIOD = 2


def _metadata(config: HFConfig) -> Metadata:
    config.require("attention_bias", False)
    config.require("use_bidirectional_attention", None, False)
    section = rope_section(config)
    if rope_type(section) in ("llama3", "longrope"):
        raise section.error("rope_type", "is not implemented for gemma2")
    metadata = dense_metadata(config, activation="gelu_tanh", act_key="hidden_activation", attention="by_layer")
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        metadata[name] = softcap(config, name)
    metadata["attention.sliding_window"] = config.size("sliding_window")
    slides = sliding_layers(config, _PERIOD)
    if slides != [i % _PERIOD == 0 for i in range(len(slides))]:
        metadata["attention.sliding_window_pattern"] = np.array(slides)
    return metadata | attention_scale(config)


ARCHITECTURE = Architecture(
    name="gemma2",
    classes=("Gemma2ForCausalLM",),
    metadata=_metadata,
    tensors={**LLAMA_TENSORS, **GEMMA_NORMS},
    defaults={
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
        "attention_bias": False, "tie_word_embeddings": True,
    },
    harmless=("hidden_act", "sliding_window_size"),
)  # fmt: skip
