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
def scripted_path(home: Path) -> Path:
    return home / "scripted.gguf"


@pytest.fixture(scope="session")
def script_prompts(scripted_path: Path) -> Mapping[str, list[int]]:
    starts = write_scripted_model(scripted_path, list(SCRIPTS.values()), context_length=40_000)
    return {name: [start] for name, start in zip(SCRIPTS, starts, strict=True)}


@pytest.fixture(scope="session")
def scripted(home: Path, scripted_path: Path, script_prompts: Mapping[str, list[int]]) -> Iterator[Scripted]:
    with ServerProcess(scripted_path, "--served-model-name", "scripted", home=home) as server:
        yield Scripted(server, script_prompts)


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
