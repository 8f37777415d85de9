"""SmolLM3 folders."""

from hotloop.weights.hf.architecture import (
    Architecture,
    Metadata,
    dense_metadata,
    no_window,
    num_layers,
)
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.llama import ATTENTION_BIAS, PERMUTED_TENSORS

_NOPE_PERIOD = 4


def _metadata(config: HFConfig) -> Metadata:
    config.require("mlp_bias", False)
    no_window(config)
    _check_rotating_layers(config)
    return dense_metadata(config)


def _check_rotating_layers(config: HFConfig) -> None:
    """Raise ModelFileError unless all but every fourth layer rotate: GGUF has no key for another pattern."""
    layers = num_layers(config)
    usual = [int((i + 1) % _NOPE_PERIOD != 0) for i in range(layers)]
    rotating = config.raw("no_rope_layers")  # 1 where a layer rotates
    if rotating is None:
        config.require("no_rope_layer_interval", _NOPE_PERIOD)
    elif not isinstance(rotating, list) or rotating[:layers] != usual:
        raise config.error("no_rope_layers", f"is not implemented; hotloop computes 0 in every layer {_NOPE_PERIOD} only")
    else:
        config.raw("no_rope_layer_interval")


ARCHITECTURE = Architecture(
    name="smollm3",
    classes=("SmolLM3ForCausalLM",),
    metadata=_metadata,
    tensors=PERMUTED_TENSORS,
    defaults={
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 2e6, "no_rope_layer_interval": 4, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True,
    },
    switches=ATTENTION_BIAS,
)  # fmt: skip
