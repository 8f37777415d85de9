"""StarCoder2 folders."""

from functools import partial

from hotloop.weights.hf.architecture import LLAMA_TENSORS, Architecture, dense_metadata

ARCHITECTURE = Architecture(
    name="starcoder2",
    classes=("Starcoder2ForCausalLM",),
    metadata=partial(dense_metadata, activation="gelu_tanh", layer_norm=True, attention="window"),
    tensors={
        **{name: source for name, source in LLAMA_TENSORS.items() if name != "blk.{}.ffn_gate"},
        "blk.{}.ffn_up": "layers.{}.mlp.c_fc",
        "blk.{}.ffn_down": "layers.{}.mlp.c_proj",
    },
    defaults={
        "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24,
        "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096, "norm_epsilon": 1e-5,
        "rope_theta": 10000.0, "use_bias": True, "tie_word_embeddings": True,
    },
    harmless=("mlp_type", "norm_type"),  # of a model class that came out otherwise
    switches={"use_bias": ".attn_output.bias"},
)  # fmt: skip
