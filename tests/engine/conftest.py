"""A tiny model and an LLM on it, of each test module's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop import LLM
from tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", formats="Q8_0")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The ceiling is measured once and remembered in a home of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOTLOOP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model)
