"""A scripted model, an AsyncLLM on it and a server around that, for each test module."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hotloop import AsyncLLM
from scripted_model import write_scripted_model
from server.live import live_server


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("home")
        patch.setenv("HOTLOOP_HOME", str(path))
        yield path


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    """Chats are answered with "Hello 😀!", texts with the alphabet's next characters, for ever."""
    path = tmp_path_factory.mktemp("model") / "scripted.gguf"
    emoji = "😀".encode()
    write_scripted_model(path, [["Hel", "lo ", emoji[:1], emoji[1:3], emoji[3:], "!"]])
    engine = AsyncLLM(path, max_num_seqs=16)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def url(llm: AsyncLLM) -> Iterator[str]:
    with live_server(llm) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as session:
        yield session
