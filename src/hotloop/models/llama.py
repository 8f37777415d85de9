"""Llama, and the many models in its form (Mistral, SmolLM, ...).

Pre-norm blocks, grouped-query attention, SwiGLU. Rotated pairs are adjacent: GGUF converters permute the
rows of q and k of this architecture and its relatives (granite, smollm3). Llama 3 scales its rope by the tensor
rope_freqs.weight. Biases of the attention projections are optional; a sliding window, where a file has one,
is every layer's.
"""

from __future__ import annotations

from hotloop.models.config import ModelConfig
from hotloop.models.dense import has_qkv_bias, pre_norm_forward, read_dense_config
from hotloop.models.metadata import ArchMetadata
from hotloop.models.tensors import dense_shapes
from hotloop.models.windows import with_window

HARMLESS_PREFIXES: tuple[str, ...] = ()


def read_config(meta: ArchMetadata) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelFileError naming the key at fault."""
    config = read_dense_config(
        meta,
        rope_style="interleaved",
        qkv_bias=has_qkv_bias(meta),
        attention_output_bias="blk.0.attn_output.bias" in meta.file.tensors,
    )
    return with_window(meta, config)


tensor_shapes = dense_shapes
forward = pre_norm_forward
