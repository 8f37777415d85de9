"""GPT-2 folders. The linear layers' matrices are stored [inputs, outputs]; older folders have no "transformer." in names."""

from hotloop.weights.hf.architecture import ACTIVATIONS, Architecture, Metadata, transposed
from hotloop.weights.hf.config import HFConfig


def _metadata(config: HFConfig) -> Metadata:
    config.require("activation_function", *ACTIVATIONS["gelu_tanh"])
    config.require("scale_attn_weights", True)
    config.require("scale_attn_by_inverse_layer_idx", False)
    config.require("add_cross_attention", False)
    hidden, positions = config.size("n_embd"), config.size("n_positions")
    config.require("n_ctx", None, positions)
    return {
        "block_count": config.size("n_layer"),
        "context_length": positions,
        "embedding_length": hidden,
        "feed_forward_length": config.size("n_inner", 4 * hidden),
        "attention.head_count": config.size("n_head"),
        "attention.layer_norm_epsilon": config.number("layer_norm_epsilon"),
    }


ARCHITECTURE = Architecture(
    name="gpt2",
    classes=("GPT2LMHeadModel",),
    metadata=_metadata,
    tensors={
        "token_embd": "wte",
        "position_embd": "wpe",
        "blk.{}.attn_norm": "h.{}.ln_1",
        "blk.{}.attn_qkv": transposed("h.{}.attn.c_attn"),
        "blk.{}.attn_output": transposed("h.{}.attn.c_proj"),
        "blk.{}.ffn_norm": "h.{}.ln_2",
        "blk.{}.ffn_up": transposed("h.{}.mlp.c_fc"),
        "blk.{}.ffn_down": transposed("h.{}.mlp.c_proj"),
        "output_norm": "ln_f",
    },
    defaults={
        "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False, "tie_word_embeddings": True,
    },
    body=("transformer.", ""),
    generated=lambda _: {},
    ignored=(".attn.bias", ".attn.masked_bias"),  # masks
    harmless=("reorder_and_upcast_attn",),
)  # fmt: skip
