"""A tiny model, loaded for benchmarks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.weights.gguf import GGUFFile
from tiny_models import write_tiny_model


@pytest.fixture(params=["llama", "gemma3"])
def gguf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GGUFFile]:
    with GGUFFile.open(write_tiny_model(tmp_path / "tiny.gguf", request.param)) as file:
        yield file
