import hashlib
import socket

import pytest

from hotloop.errors import DownloadError
from hotloop.weights import hub
from hotloop.weights.catalog import HubSource
from hotloop.weights.reference import HubReference
from hotloop.weights.transfer import SourceUnavailableError
from unit.weights.hub_fakes import TINY

SOURCE = HubSource("maker/tiny-GGUF", "tiny-q4_1.gguf")
DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def _setting(machine) -> None:
    pass


def test_download_is_verified_against_the_hub_s_checksum(hub_server, recorder, tmp_path) -> None:
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert (tmp_path / "x.gguf").read_bytes() == TINY
    assert recorder.steps[-1] == (len(TINY), len(TINY))
    assert any("no checksum is pinned" in note for note in recorder.notes)
    hub_server.declared["maker/tiny-GGUF/main/tiny-q4_1.gguf"] = "0" * 64
    with pytest.raises(DownloadError, match="SHA-256"):
        hub.download(SOURCE, tmp_path / "y.gguf", recorder, DEADLINE_S)
    assert not (tmp_path / "y.gguf").exists()


def test_pinned_checksum_wins_over_the_hub_s(hub_server, recorder, tmp_path) -> None:
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    pinned = HubSource(SOURCE.repo, SOURCE.file, sha256=hashlib.sha256(TINY).hexdigest())
    hub.download(pinned, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert recorder.notes == []
    with pytest.raises(DownloadError, match="expected 111"):
        hub.download(HubSource(SOURCE.repo, SOURCE.file, sha256="1" * 64), tmp_path / "y.gguf", recorder, DEADLINE_S)


def test_token_goes_to_the_hub_only(hub_server, recorder, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert hub_server.downloads[-1] == ("/content/maker/tiny-GGUF/main/tiny-q4_1.gguf", None)
    hub_server.content_url = None
    hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert hub_server.downloads[-1][1] == "Bearer secret"


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, "GatedRepo"), "gates it: accept the terms.*HF_TOKEN"),
        ((401, "GatedRepo"), "gates it"),
        ((404, "RepoNotFound"), "no such repository"),
        ((404, "RevisionNotFound"), "no such revision"),
        ((404, "EntryNotFound"), "no such file"),
        ((503, ""), "answered with an error"),
    ],
)
def test_refusals_say_what_to_do(hub_server, recorder, tmp_path, refusal, message) -> None:
    hub_server.refusal = refusal
    with pytest.raises(SourceUnavailableError, match=f"hf:maker/tiny-GGUF/tiny-q4_1.gguf: .*{message}"):
        hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)


def test_broken_connection(hub_server, recorder, tmp_path) -> None:
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    hub_server.cut_at = 1000
    with pytest.raises(SourceUnavailableError, match="pull again"):
        hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert list(tmp_path.glob("x*")) == []


def test_no_hub_at_all(monkeypatch, recorder, tmp_path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(SourceUnavailableError, match=r"cannot be reached .*check the network"):
            hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)


def test_hub_that_never_answers_is_given_up_at_the_deadline(monkeypatch, recorder, tmp_path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the connection stands, no answer comes
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(SourceUnavailableError, match=r"(did not answer within 0\.3 s|cannot be reached)"):
            hub.download(SOURCE, tmp_path / "x.gguf", recorder, 0.3)


def test_file_of_a_repository_is_chosen(hub_server) -> None:
    for file in ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "README.md"):
        hub_server.add("a/b", file, b"")
    assert hub.find_file(HubReference("a/b"), DEADLINE_S) == HubSource("a/b", "m-Q4_K_M.gguf")
    assert hub.find_file(HubReference("a/b", "x.gguf", "v1"), DEADLINE_S) == HubSource("a/b", "x.gguf", "v1")


def test_a_choice_that_is_not_obvious_is_left_to_the_user(hub_server) -> None:
    hub_server.add("a/b", "m-IQ2_M.gguf", b"")
    hub_server.add("a/b", "m-IQ3_M.gguf", b"")
    hub_server.add("a/none", "model.safetensors", b"")
    with pytest.raises(DownloadError, match=r"(?s)name one of its 2 files:.*hf:a/b/m-IQ3_M.gguf"):
        hub.find_file(HubReference("a/b"), DEADLINE_S)
    with pytest.raises(DownloadError, match="holds no GGUF file"):
        hub.find_file(HubReference("a/none"), DEADLINE_S)
