"""What config.json calls GGUF's keys, for messages about values that a model is refused for."""

from collections.abc import Mapping

from hotloop.weights.hf.config import HFConfig

_NAMES: Mapping[str, tuple[str, ...]] = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim", "n_embd"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("norm_epsilon", "layer_norm_epsilon"),
    "attention.scale": ("attention_multiplier", "query_pre_attn_scalar"),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "rope.freq_base": ("rope_theta",),
    "rope.freq_base_swa": ("rope_local_base_freq",),
    "rope.scaling.factor": ("factor",),
    "rope.scaling.attn_factor": ("attention_factor",),
    "rope.scaling.yarn_beta_fast": ("beta_fast",),
    "rope.scaling.yarn_beta_slow": ("beta_slow",),
    "rope.scaling.yarn_log_multiplier": ("mscale_all_dim",),
}


def config_name(config: HFConfig, key: str) -> str | None:
    """The name of a key (without the architecture) in this config.json: the one that it, or its class, has; None if unknown."""
    names = _NAMES.get(key, ())
    return next((name for name in names if config.has(name)), names[0] if names else None)
