"""Servers in this process around an AsyncLLM on a scripted model, one for each test module; and two that are processes of
their own, with an engine process each, which the tests of a session share."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hotloop import AsyncLLM
from scripted_model import write_scripted_model
from server.live import live_server
from server.models import SCRIPTS, STRICT_TEMPLATE, Scripted
from server.serving import ServerProcess
from tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", autouse=True)
def hotloop_home(home: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOTLOOP_HOME", str(home))
        yield


# ---- in this process ------------------------------------------------------------------------------------------------


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


# ---- processes of their own -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def scripted_model(home: Path) -> tuple[Path, list[int]]:
    """The file, and the token that starts each script. Texts go on for ever; the context is long enough for that."""
    path = home / "scripted.gguf"
    return path, write_scripted_model(path, list(SCRIPTS.values()), context_length=100_000)


@pytest.fixture(scope="session")
def scripted_path(scripted_model: tuple[Path, list[int]]) -> Path:
    return scripted_model[0]


@pytest.fixture(scope="session")
def scripted(home: Path, scripted_model: tuple[Path, list[int]]) -> Iterator[Scripted]:
    path, starts = scripted_model
    prompts = {name: [start] for name, start in zip(SCRIPTS, starts, strict=True)}
    with ServerProcess(path, "--served-model-name", "scripted", home=home) as server:
        yield Scripted(server, prompts)


@pytest.fixture(scope="session")
def tiny_server(home: Path) -> Iterator[ServerProcess]:
    """A random model with a context of 128 tokens; its answers depend on every parameter."""
    template = {"tokenizer.chat_template": STRICT_TEMPLATE}
    model = write_tiny_model(home / "tiny.gguf", formats="Q8_0", metadata=template)
    with ServerProcess(model, "--served-model-name", "tiny", home=home) as server:
        yield server


@pytest.fixture
def scripted_client(scripted: Scripted) -> Iterator[httpx.Client]:
    with scripted.server.client() as client:
        yield client


@pytest.fixture
def tiny_client(tiny_server: ServerProcess) -> Iterator[httpx.Client]:
    with tiny_server.client() as client:
        yield client
