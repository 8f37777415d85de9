"""Servers that the tests of a session share, each a process of its own with an engine process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from scripted_model import Script, write_scripted_model
from server.serving import ServerProcess
from tiny_models import write_tiny_model
from tiny_tokenizer import CHAT_TEMPLATE

# What the scripted model says after a prompt of one token (or a chat: the first). The EOS token follows each.
SCRIPTS: Mapping[str, Script] = {
    "chat": ("Hello", " world", "!"),
    "stops": ("ABC", "DEF", "G", "HI", "JK"),
    "held back": ("UNO", " DUE", " TRE", "\nAA", "BB"),
    "split characters": ("a ", b"\xf0", b"\x9f", b"\x98", b"\x8a", b"\xe4\xbd", b"\xa0", " ", b"\xc4", b"\x8f", "!"),
    "broken characters": (b"\xff", "ok", b"\xf0", " hello", b"\xe4", b"\xbd"),
    "words": tuple(f" word{i}" for i in range(40)),
}


# Of the tiny model: it refuses what many templates do.
STRICT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{% if not loop.first and (message['role'] == 'system' or message['role'] == loop.previtem['role']) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
) + CHAT_TEMPLATE


class Scripted(NamedTuple):
    """prompts: the token ids that a script follows, by its name."""

    server: ServerProcess
    prompts: Mapping[str, list[int]]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def scripted_model(home: Path) -> tuple[Path, list[int]]:
    """The file, and the token that starts each script."""
    path = home / "scripted.gguf"
    return path, write_scripted_model(path, list(SCRIPTS.values()), context_length=40_000)


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
