"""Sliding windows as model files state them."""

from __future__ import annotations

from dataclasses import replace

from hotloop.models.config import ModelConfig
from hotloop.models.metadata import ArchMetadata


def read_window(meta: ArchMetadata, default: int = 0) -> int | None:
    """attention.sliding_window, in tokens; None for no window, which a file may also state as 0."""
    return meta.size("attention.sliding_window", default, least=0) or None


def with_window(meta: ArchMetadata, config: ModelConfig) -> ModelConfig:
    """The configuration with the file's window, if it has one, in every layer."""
    window = read_window(meta)
    return replace(config, layers=tuple(replace(layer, window=window) for layer in config.layers))


def read_sliding_layers(meta: ArchMetadata, num_layers: int, period: int) -> tuple[bool, ...]:
    """Which layers have the window: all but the last of every `period`, unless the file says otherwise.

    attention.sliding_window_pattern is another period, or a boolean for each layer.
    """
    sliding = meta.flags("attention.sliding_window_pattern", num_layers)
    if sliding is None:
        period = meta.size("attention.sliding_window_pattern", period)
        sliding = tuple(i % period < period - 1 for i in range(num_layers))
    return sliding
