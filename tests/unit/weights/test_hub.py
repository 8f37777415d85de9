import hashlib
import socket
from dataclasses import replace

import pytest

from hotloop.errors import DownloadError
from hotloop.weights import hub
from hotloop.weights.catalog import HubSource
from hotloop.weights.reference import HubReference
from hotloop.weights.transfer import SourceUnavailableError
from unit.weights.hub_fakes import TINY, HubHandler

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
        ((401, ""), "wants to know who asks"),
        ((403, ""), "refuses this file to you"),
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
    with pytest.raises(SourceUnavailableError, match="pull again, it goes on where it ended"):
        hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert not (tmp_path / "x.gguf").exists()
    assert (tmp_path / "x.gguf.partial").stat().st_size == 5000  # five times it was taken up again
    hub_server.cut_at = None
    hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert hub_server.ranges == [None, *(f"bytes={n}-" for n in (1000, 2000, 3000, 4000, 5000))]
    assert (tmp_path / "x.gguf").read_bytes() == TINY
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["x.gguf"]
    assert any("going on after" in note for note in recorder.notes)


def begin(hub_server, recorder, target, cut_at=4000) -> None:
    """A try that breaks off after one answer."""
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    hub_server.cut_at, hub_server.cuts = cut_at, 1
    hub_server.content_refusal, hub_server.answers_before_refusal = 503, 1
    with pytest.raises(SourceUnavailableError, match=r"error \(503\)"):
        hub.download(SOURCE, target, recorder, DEADLINE_S)
    assert target.with_name("x.gguf.partial").stat().st_size == cut_at
    hub_server.content_refusal = None
    hub_server.ranges.clear()


def test_a_file_that_changed_upstream_is_fetched_anew(hub_server, recorder, tmp_path) -> None:
    target = tmp_path / "x.gguf"
    begin(hub_server, recorder, target)
    changed = TINY[::-1]
    hub_server.add(SOURCE.repo, SOURCE.file, changed)
    hub.download(SOURCE, target, recorder, DEADLINE_S)
    assert hub_server.ranges == [None]
    assert target.read_bytes() == changed


def test_a_server_without_ranges_sends_all_of_it(hub_server, recorder, tmp_path) -> None:
    target = tmp_path / "x.gguf"
    begin(hub_server, recorder, target)
    hub_server.takes_ranges = False
    hub.download(SOURCE, target, recorder, DEADLINE_S)
    assert hub_server.ranges == ["bytes=4000-"]
    assert target.read_bytes() == TINY


def test_bytes_that_are_no_part_of_it_are_dropped(hub_server, recorder, tmp_path) -> None:
    target = tmp_path / "x.gguf"
    begin(hub_server, recorder, target)
    (tmp_path / "x.gguf.partial").write_bytes(b"?" * 3000)  # a disk that lost what was written last
    hub.download(SOURCE, target, recorder, DEADLINE_S)
    assert hub_server.ranges == ["bytes=3000-", None]
    assert target.read_bytes() == TINY
    assert any("was no part of it" in note for note in recorder.notes)


@pytest.mark.parametrize(("size", "ranges"), [(len(TINY), []), (len(TINY) + 1, [None])])
def test_a_partial_file_that_is_complete_or_too_long(hub_server, recorder, tmp_path, size, ranges) -> None:
    target = tmp_path / "x.gguf"
    begin(hub_server, recorder, target)
    (tmp_path / "x.gguf.partial").write_bytes((TINY + b"?")[:size])  # killed before it took its name
    hub.download(SOURCE, target, recorder, DEADLINE_S)
    assert hub_server.ranges == ranges
    assert target.read_bytes() == TINY


def test_a_range_that_the_server_does_not_have(hub_server, recorder, tmp_path, monkeypatch) -> None:
    target = tmp_path / "x.gguf"
    begin(hub_server, recorder, target)
    monkeypatch.setattr(HubHandler, "range_error", True)
    hub.download(SOURCE, target, recorder, DEADLINE_S)
    assert hub_server.ranges == ["bytes=4000-", None]
    assert target.read_bytes() == TINY


def test_small_files_are_checked_by_their_name_in_git(hub_server, recorder, tmp_path) -> None:
    config = HubSource("a/b", "config.json")
    hub_server.add("a/b", "config.json", b"{}")
    hub.download(config, tmp_path / "config.json", recorder, DEADLINE_S)
    hub_server.declared["a/b/main/config.json"] = "0" * 40
    with pytest.raises(DownloadError, match="git blob name is 9e26dfeeb6e641a33dae4961196235bdb965b21b, expected 000"):
        hub.download(config, tmp_path / "other.json", recorder, DEADLINE_S)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["config.json"]


def hub_says(monkeypatch, **facts) -> None:
    """The hub's answers about files have these facts instead of true ones."""
    ask = hub._ask

    def otherwise(*args):
        token, metadata = ask(*args)
        return token, replace(metadata, **facts)

    monkeypatch.setattr(hub, "_ask", otherwise)


def test_a_small_file_whose_size_the_hub_does_not_say(hub_server, recorder, tmp_path, monkeypatch) -> None:
    hub_server.add("a/b", "config.json", b"{}")
    hub_says(monkeypatch, size=None)
    hub.download(HubSource("a/b", "config.json"), tmp_path / "config.json", recorder, DEADLINE_S)
    assert (tmp_path / "config.json").read_bytes() == b"{}"
    assert any("neither the catalog nor the hub states a checksum" in note for note in recorder.notes)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "lies at 'file:///etc/passwd', which is no place for one"),
        ("ftp://x/y", "which is no place for one"),
        ("http://localhost:9/\u00fc b", "stopped sending the file .*refused"),
    ],
)
def test_where_the_hub_says_that_a_file_lies(hub_server, recorder, tmp_path, monkeypatch, location, message) -> None:
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    hub_says(monkeypatch, location=location)
    with pytest.raises(SourceUnavailableError, match=message):
        hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert hub_server.downloads == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "wants to know who asks: `hf auth login`"),
        (403, "refuses this file to you"),
        (404, "is not there any more"),
        (429, "too many requests from here: wait some minutes"),
        (500, "answered with an error \\(500\\): try again later"),
    ],
)
def test_refusals_of_the_bytes_say_what_to_do(hub_server, recorder, tmp_path, monkeypatch, status, message) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    hub_server.content_refusal = status
    with pytest.raises(SourceUnavailableError, match=message) as error:
        hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    assert "secret" not in f"{error.value} {recorder.notes}"


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


def test_too_many_requests_say_how_long_to_wait(hub_server, monkeypatch, recorder, tmp_path) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub_server.refusal, hub_server.retry_after = (429, ""), "7"
    with pytest.raises(SourceUnavailableError, match="too many requests from here: wait 7 s"):
        hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)


def test_offline(hub_server, monkeypatch, recorder, tmp_path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub_server.add(SOURCE.repo, SOURCE.file, TINY)
    with pytest.raises(SourceUnavailableError, match="HF_HUB_OFFLINE is set: unset it to download"):
        hub.download(SOURCE, tmp_path / "x.gguf", recorder, DEADLINE_S)
    with pytest.raises(SourceUnavailableError, match="HF_HUB_OFFLINE is set"):
        hub.find(HubReference("a/b"), DEADLINE_S)
    assert hub_server.downloads == []


def test_file_of_a_repository_is_chosen(hub_server) -> None:
    for file in ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "README.md"):
        hub_server.add("a/b", file, b"")
    assert hub.find(HubReference("a/b"), DEADLINE_S) == HubSource("a/b", "m-Q4_K_M.gguf")
    assert hub.find(HubReference("a/b", "x.gguf", "v1"), DEADLINE_S) == HubSource("a/b", "x.gguf", "v1")


@pytest.mark.parametrize("name", ["../../../evil.gguf", "/tmp/evil.gguf", "a\\b.gguf", "a/../../evil.gguf", "a\0b.gguf"])
def test_files_whose_names_lead_elsewhere_are_none(hub_server, name) -> None:
    hub_server.add("a/b", name, b"")
    with pytest.raises(DownloadError, match="holds neither a GGUF file nor"):
        hub.find(HubReference("a/b"), DEADLINE_S)
    hub_server.add("a/b", "m.gguf", b"")
    assert hub.find(HubReference("a/b"), DEADLINE_S) == HubSource("a/b", "m.gguf")


def test_a_choice_that_is_not_obvious_is_left_to_the_user(hub_server) -> None:
    hub_server.add("a/b", "m-IQ2_M.gguf", b"")
    hub_server.add("a/b", "m-IQ3_M.gguf", b"")
    hub_server.add("a/none", "model.safetensors", b"")  # and no config.json
    with pytest.raises(DownloadError, match=r"(?s)name one of its 2 files:.*hf:a/b/m-IQ3_M.gguf"):
        hub.find(HubReference("a/b"), DEADLINE_S)
    with pytest.raises(DownloadError, match=r"holds neither a GGUF file nor config\.json"):
        hub.find(HubReference("a/none"), DEADLINE_S)


def test_a_folder_of_a_repository(hub_server) -> None:
    for name in ("config.json", "tokenizer.json", "README.md", "model.safetensors", "onnx/model.onnx"):
        hub_server.add("a/b", name, name.encode())
    hub_server.add("a/b", "consolidated.safetensors", b"")
    found = hub.find(HubReference("a/b"), DEADLINE_S)
    assert isinstance(found, hub.HubFolder)
    assert found.commit == "c1"
    assert [file.name for file in found.files] == ["config.json", "tokenizer.json", "model.safetensors"]
    assert found.bytes == len("config.jsontokenizer.jsonmodel.safetensors")
    with pytest.raises(SourceUnavailableError, match="no such revision"):
        hub.find(HubReference("a/b", None, "v9"), DEADLINE_S)


@pytest.mark.parametrize("newer", ["tokenizer.json", "tokenizer.model", None])
def test_an_older_vocabulary_comes_where_there_is_no_newer_one(hub_server, newer: str | None) -> None:
    for name in ("config.json", "vocab.json", "merges.txt", "model.safetensors", *([] if newer is None else [newer])):
        hub_server.add("a/b", name, name.encode())
    found = hub.find(HubReference("a/b"), DEADLINE_S)
    assert isinstance(found, hub.HubFolder)
    vocabulary = ["vocab.json", "merges.txt"] if newer is None else [newer]
    assert [file.name for file in found.files] == ["config.json", *vocabulary, "model.safetensors"]
