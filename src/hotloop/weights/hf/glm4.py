"""GLM-4 folders (0414 and later; earlier ones are of another class)."""

from functools import partial

from hotloop.weights.hf.architecture import LLAMA_TENSORS, Architecture, dense_metadata
from hotloop.weights.hf.llama import ATTENTION_BIAS

ARCHITECTURE = Architecture(
    name="glm4",
    classes=("Glm4ForCausalLM",),
    metadata=partial(dense_metadata, partial_rotary=True),
    tensors={
        **{name: source for name, source in LLAMA_TENSORS.items() if name != "blk.{}.ffn_gate"},
        "blk.{}.post_attention_norm": "layers.{}.post_self_attn_layernorm",
        "blk.{}.ffn_up": "layers.{}.mlp.gate_up_proj",
        "blk.{}.post_ffw_norm": "layers.{}.post_mlp_layernorm",
    },
    defaults={
        "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "attention_bias": True,
        "tie_word_embeddings": False,
    },
    switches=ATTENTION_BIAS,
)  # fmt: skip
