"""Gemma 3 folders: the text models, and the text part of those with a vision tower."""

import math

import numpy as np

from hotloop.weights.hf.architecture import (
    LLAMA_TENSORS,
    Architecture,
    Metadata,
    num_layers,
    plus_one,
    sizes,
)
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.rope import rope_metadata, rope_section, rope_type

GEMMA_NORMS = {
    "blk.{}.attn_norm": plus_one("layers.{}.input_layernorm"),
    "blk.{}.post_attention_norm": plus_one("layers.{}.post_attention_layernorm"),
    "blk.{}.ffn_norm": plus_one("layers.{}.pre_feedforward_layernorm"),
    "blk.{}.post_ffw_norm": plus_one("layers.{}.post_feedforward_layernorm"),
    "output_norm": plus_one("norm"),
}


def _metadata(config: HFConfig) -> Metadata:
    config.require("hidden_activation", "gelu_pytorch_tanh")
    config.require("attention_bias", False)
    config.require("attn_logit_softcapping", None)
    config.require("use_bidirectional_attention", None, False)
    metadata = sizes(config)
    metadata["attention.layer_norm_rms_epsilon"] = config.number("rms_norm_eps")
    full = rope_section(config, "full_attention")
    full.require("partial_rotary_factor", None, 1, 1.0)
    if rope_type(full) in ("llama3", "longrope"):
        raise full.error("rope_type", "is not implemented for gemma3")
    metadata |= rope_metadata(config, full)
    metadata |= _sliding_layers(config)
    if config.has("final_logit_softcapping"):
        metadata["final_logit_softcapping"] = softcap(config, "final_logit_softcapping")
    return metadata | attention_scale(config)


def softcap(config: HFConfig, name: str) -> float:
    """A cap, 0 for none: null in a folder."""
    cap = config.number(name) if config.has(name) else None
    if cap is not None and cap <= 0:
        raise config.error(name, "must be greater than 0, or null for no cap")
    return cap or 0.0


def sliding_layers(config: HFConfig, period: int) -> list[bool]:
    """Which layers have the window: those that layer_types lists, by default all but the last of every `period`."""
    layers = num_layers(config)
    layer_types = config.raw("layer_types")
    if layer_types is None:
        return [i % period < period - 1 for i in range(layers)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(layer_types, list) or len(layer_types) != layers or not all(t in known for t in layer_types):
        raise config.error("layer_types", f"must be a list of {layers}, each {' or '.join(known)}")
    return [t == "sliding_attention" for t in layer_types]


def attention_scale(config: HFConfig) -> Metadata:
    """attention.scale. It is stated always: what a missing key stands for depends on the number of layers."""
    scalar = config.number("query_pre_attn_scalar")
    if scalar <= 0:
        raise config.error("query_pre_attn_scalar", "must be greater than 0")
    return {"attention.scale": float(np.float32(1 / math.sqrt(scalar)))}


def _sliding_layers(config: HFConfig) -> Metadata:
    """The window, which layers have it, and their base."""
    slides = sliding_layers(config, config.size("sliding_window_pattern", 6))
    section = rope_section(config, "sliding_attention")
    local_base = config.number("rope_local_base_freq")
    if config.has("rope_parameters") and section.has("rope_theta"):
        local_base = section.number("rope_theta")
        if rope_type(section) != "default":
            raise section.error("rope_type", "is not implemented for the sliding layers; hotloop computes 'default' there")
    return {
        "rope.freq_base_swa": local_base,
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": np.array(slides),
    }


ARCHITECTURE = Architecture(
    name="gemma3",
    classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    metadata=_metadata,
    tensors={
        **LLAMA_TENSORS,
        **GEMMA_NORMS,
        "blk.{}.attn_q_norm": plus_one("layers.{}.self_attn.q_norm"),
        "blk.{}.attn_k_norm": plus_one("layers.{}.self_attn.k_norm"),
    },
    defaults={
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "attention_bias": False, "tie_word_embeddings": True,
    },
    body=("model.language_model.", "language_model.model.", "model."),
    head=("lm_head", "language_model.lm_head"),
    ignored=("rotary_emb.inv_freq", "vision_tower.", "multi_modal_projector."),
    harmless=("hidden_act",),
)  # fmt: skip
