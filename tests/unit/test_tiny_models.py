"""The tiny models themselves: reproducible, complete, and of a useful spread."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from hotloop.models.reference import reference_logits
from hotloop.weights.gguf import GGUFFile
from tiny_models import (
    ARCHITECTURES,
    checkpoint_tensor,
    permute,
    random_tokens,
    tensor_shapes,
    tiny_config,
    write_tiny_model,
)


def test_the_recipe_gives_the_same_bits_for_ever() -> None:
    """Golden files depend on it. A change here means running tools/make_model_goldens.py again."""
    config = tiny_config("gemma3")
    checksum = 0
    for name, shape in tensor_shapes(config).items():
        checksum = zlib.crc32(checkpoint_tensor(config, 7, name, shape).astype("<f4").tobytes(), checksum)
    assert checksum == 2464491430
    assert random_tokens(7, 5) == [12, 252, 13, 230, 46]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_seeds_and_overrides(architecture: str, tmp_path: Path) -> None:
    one, same, other = (
        write_tiny_model(tmp_path / f"{i}.gguf", architecture, seed=seed) for i, seed in enumerate((1, 1, 2))
    )
    assert one.read_bytes() == same.read_bytes() != other.read_bytes()
    deeper = write_tiny_model(tmp_path / "deeper.gguf", architecture, seed=1, num_layers=9)
    with GGUFFile.open(one) as a, GGUFFile.open(deeper) as b:
        assert all((a.data(name) == b.data(name)).all() for name in a.tensors)


def test_permute_pairs_the_halves() -> None:
    rows = np.arange(12, dtype=np.float32)[:, None]
    assert permute(rows, 2).ravel().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_answers_are_not_one_token_over_and_over(architecture: str, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", architecture)
    ids = random_tokens(5, 8)
    for _ in range(24):
        ids.append(int(reference_logits(path, ids)[-1].argmax()))
    assert len(set(ids[8:])) > 4
