"""Architecture: how the folders of one model class map to GGUF's terms. One file per class declares one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.rope import rope_metadata, rope_section, rope_tensors, rotated
from hotloop.weights.model_file import MetadataValue

Metadata = dict[str, MetadataValue]
_MAX_LAYERS, _MAX_HEAD_DIM = 10_000, 1 << 14

Change = Literal["as_stored", "permuted_q", "permuted_k", "plus_one", "transposed"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A tensor by the name in the folder, and what is done to it on reading (sources.py)."""

    source: str
    change: Change = "as_stored"


def permuted_q(source: str) -> Rule:
    """Query rows, from half-split to adjacent rotated pairs: llama's GGUF form."""
    return Rule(source, "permuted_q")


def permuted_k(source: str) -> Rule:
    """Key rows, likewise, by the number of KV heads."""
    return Rule(source, "permuted_k")


def plus_one(source: str) -> Rule:
    """Gemma's norm gains, stored as w, used as 1 + w."""
    return Rule(source, "plus_one")


def transposed(source: str) -> Rule:
    """The weight matrix is stored [in, out]; a bias stays as it is."""
    return Rule(source, "transposed")


def dense_rope_tensors(config: HFConfig) -> Mapping[str, NDArray[np.float32]]:
    """The rope tensors of a model whose layers all rotate alike; none where there is no such scaling."""
    section = rope_section(config)
    return rope_tensors(config, section, lambda: rotated(config, section, head_size(config)))


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model class.

    name: the GGUF architecture. classes: names that config.json's `architectures` may hold. defaults: of the class, for keys
    that config.json leaves out. metadata: from the configuration to the keys below `<name>.`, without that prefix.
    tensors: GGUF name without ".weight" or ".bias" -> the folder's, relative to `body`; "{}" stands for the layer.
    body: prefixes that the folder's names may have, the first that fits counts. head: names of the output matrix.
    generated: further tensors, that follow from the configuration. ignored: parts of names of tensors that are no weights, or
    of other towers. harmless: keys of config.json that change nothing. switches: keys that say whether there are tensors
    whose GGUF names end so; the two must agree.
    """

    name: str
    classes: tuple[str, ...]
    metadata: Callable[[HFConfig], Metadata]
    tensors: Mapping[str, str | Rule]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    body: tuple[str, ...] = ("model.",)
    head: tuple[str, ...] = ("lm_head",)
    generated: Callable[[HFConfig], Mapping[str, NDArray[np.float32]]] = dense_rope_tensors
    ignored: Sequence[str] = ("rotary_emb.inv_freq",)
    harmless: Sequence[str] = ()
    switches: Mapping[str, str] = field(default_factory=dict)


LLAMA_TENSORS: Mapping[str, str | Rule] = {
    "token_embd": "embed_tokens",
    "blk.{}.attn_norm": "layers.{}.input_layernorm",
    "blk.{}.attn_q": "layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "layers.{}.mlp.down_proj",
    "output_norm": "norm",
}
"""The names that most classes use; the others are changes of it."""


def dense_metadata(
    config: HFConfig,
    *,
    activation: str = "silu",
    act_key: str = "hidden_act",
    layer_norm: bool = False,
    partial_rotary: bool = False,
    attention: Literal["full", "window", "by_layer"] = "full",
) -> Metadata:
    """The keys that dense decoders share, with the rope of all layers. Raises ModelFileError naming the key at fault.

    partial_rotary: whether the class can rotate a part of each head; of others transformers rotates all, whatever a key says.
    attention: whether every layer of the class sees everything or, where there is one, through the `sliding_window`;
    "by_layer": the class itself reads which layer does what.
    """
    config.require(act_key, *ACTIVATIONS[activation])
    metadata = sizes(config)
    if layer_norm:
        metadata["attention.layer_norm_epsilon"] = config.number("norm_epsilon")
    else:
        metadata["attention.layer_norm_rms_epsilon"] = config.number("rms_norm_eps")
    section = rope_section(config)
    metadata["rope.dimension_count"] = rotated(config, section, head_size(config))
    if not partial_rotary:
        for stating in (section, config):
            stating.require("partial_rotary_factor", None, 1, 1.0)
    window = config.size("sliding_window") if attention == "window" and config.has("sliding_window") else None
    if window is not None:
        metadata["attention.sliding_window"] = window
    if attention != "by_layer":
        _check_layer_types(config, "full_attention" if window is None else "sliding_attention")
    return metadata | rope_metadata(config, section)


def _check_layer_types(config: HFConfig, computed: str) -> None:
    """Raise ModelFileError where a list of every layer's attention says another than the one computed in all of them."""
    stated = config.raw("layer_types")
    if stated is not None and (not isinstance(stated, list) or any(kind != computed for kind in stated)):
        raise config.error("layer_types", f"is not implemented here; hotloop computes {computed!r} in every layer")


def sizes(config: HFConfig) -> Metadata:
    """Layers, widths, heads and context, which every decoder has."""
    heads = config.size("num_attention_heads")
    head_dim = head_size(config)
    return {
        "block_count": num_layers(config),
        "context_length": config.size("max_position_embeddings"),
        "embedding_length": config.size("hidden_size"),
        "feed_forward_length": config.size("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": config.size("num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }


def num_layers(config: HFConfig, name: str = "num_hidden_layers") -> int:
    """Bounded, as something is done for every layer before any tensor is looked at."""
    return config.size(name, most=_MAX_LAYERS)


def head_size(config: HFConfig) -> int:
    """head_dim, or what its absence means."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if not config.has("head_dim") and hidden % heads:
        raise config.error("hidden_size", f"must be a multiple of {heads} heads where there is no head_dim")
    return config.size("head_dim", max(hidden // heads, 1), most=_MAX_HEAD_DIM)


ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
}
"""Names of one function; gelu_fast and gelu_new are the tanh form too."""


def no_window(config: HFConfig) -> None:
    """Raise ModelFileError where Qwen's windows are switched on: some layers would see less than all."""
    config.require("use_sliding_window", None, False)
    config.raw("sliding_window")  # says nothing as long as the switch is off
