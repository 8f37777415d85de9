"""Phi-3, Phi-3.5 and Phi-4 (also mini): Llama's block over fused weights, with rope in half-split pairs.

attn_qkv holds the rows of q, k and v, ffn_up those of gate and up. The long-context models divide the rope frequencies
by the tensors rope_factors_long or rope_factors_short (models/rope.py); Phi-4-mini rotates three quarters of a head.
A sliding window, where a file has one, is every layer's; files state none as 0.
Source: Phi-3 report (arXiv 2404.14219), and the checkpoints' configurations.
"""

from __future__ import annotations

from hotloop.models.config import ModelConfig
from hotloop.models.dense import pre_norm_forward, read_dense_config
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes
from hotloop.models.windows import with_window

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    config = read_dense_config(meta, rope_style="half_split", fused_qkv=True, fused_gate_up=True)
    return with_window(meta, config)


tensor_shapes = dense_shapes
forward = pre_norm_forward
