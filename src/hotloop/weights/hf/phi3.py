"""Phi-3, Phi-3.5 and Phi-4 folders (also mini): q, k, v in one matrix, and gate and up."""

from hotloop.weights.hf.architecture import LLAMA_TENSORS, Architecture, Metadata, dense_metadata
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.rope import rope_section, rope_type

_SPLIT = ("blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v", "blk.{}.ffn_gate")


def _metadata(config: HFConfig) -> Metadata:
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.require(name, None, False)
    for name in ("full_attn_mod", "interpolate_factor"):
        config.require(name, None, 1)
    section = rope_section(config)
    if rope_type(section) not in ("default", "longrope"):  # the class has no other
        raise section.error("rope_type", "is not implemented for phi3; hotloop knows default and longrope")
    metadata = dense_metadata(config, partial_rotary=True, attention="window")
    metadata.pop("rope.scaling.type", None)  # the tensors of divisors say it
    config.raw("original_max_position_embeddings")  # says nothing where nothing is stretched
    metadata.setdefault("attention.sliding_window", 0)
    return metadata


ARCHITECTURE = Architecture(
    name="phi3",
    classes=("Phi3ForCausalLM",),
    metadata=_metadata,
    tensors={
        **{name: source for name, source in LLAMA_TENSORS.items() if name not in _SPLIT},
        "blk.{}.attn_qkv": "layers.{}.self_attn.qkv_proj",
        "blk.{}.ffn_up": "layers.{}.mlp.gate_up_proj",
    },
    defaults={
        "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "original_max_position_embeddings": 4096, "tie_word_embeddings": False,
    },
)  # fmt: skip
