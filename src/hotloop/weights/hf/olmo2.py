"""OLMo 2 folders, and OLMo 3's, which GGUF counts as the same architecture."""

import numpy as np

from hotloop.weights.hf.architecture import LLAMA_TENSORS, Architecture, Metadata, dense_metadata, sizes
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.gemma3 import sliding_layers
from hotloop.weights.hf.rope import rope_base, rope_metadata, rope_section, rope_type

_TENSORS = {
    **{name: source for name, source in LLAMA_TENSORS.items() if name not in ("blk.{}.attn_norm", "blk.{}.ffn_norm")},
    "blk.{}.attn_q_norm": "layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "layers.{}.self_attn.k_norm",
    "blk.{}.post_attention_norm": "layers.{}.post_attention_layernorm",
    "blk.{}.post_ffw_norm": "layers.{}.post_feedforward_layernorm",
}
_DEFAULTS = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip


def _metadata(config: HFConfig) -> Metadata:
    config.require("attention_bias", False)
    return dense_metadata(config)


def _sliding_metadata(config: HFConfig) -> Metadata:
    config.require("attention_bias", False)
    config.require("hidden_act", "silu")
    full, sliding = rope_section(config, "full_attention"), rope_section(config, "sliding_attention")
    if rope_type(full) in ("llama3", "longrope"):
        raise full.error("rope_type", "is not implemented for olmo3")
    metadata = sizes(config) | rope_metadata(config, full)
    metadata["attention.layer_norm_rms_epsilon"] = config.number("rms_norm_eps")
    if config.has("rope_parameters"):
        if rope_type(sliding) != "default":
            raise sliding.error("rope_type", "is not implemented for the sliding layers; hotloop computes 'default' there")
        if rope_base(config, sliding) != metadata["rope.freq_base"]:
            raise sliding.error("rope_theta", f"must be that of the full layers, {metadata['rope.freq_base']}")
    metadata["attention.sliding_window"] = config.size("sliding_window")
    metadata["attention.sliding_window_pattern"] = np.array(sliding_layers(config, 4))
    return metadata


ARCHITECTURE = Architecture(
    name="olmo2",
    classes=("Olmo2ForCausalLM",),
    metadata=_metadata,
    tensors=_TENSORS,
    defaults=_DEFAULTS,
)
OLMO3 = Architecture(
    name="olmo2",
    classes=("Olmo3ForCausalLM",),
    metadata=_sliding_metadata,
    tensors=_TENSORS,
    defaults=_DEFAULTS | {"rope_theta": 500000.0, "sliding_window": 4096},
    generated=lambda _: {},
)
