import threading
from pathlib import Path

import pytest

from hotloop.errors import DownloadError
from hotloop.weights import cache


def test_home_is_the_environment_s_or_the_platform_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path))
    assert cache.models_dir() == tmp_path / "models"
    monkeypatch.delenv("HOTLOOP_HOME")
    assert cache.home().name == "hotloop"


@pytest.mark.usefixtures("machine")
def test_a_lock_keeps_the_second_out_until_the_first_is_done() -> None:
    waiting, order = threading.Event(), []

    def second() -> None:
        with cache.lock("hf:a/b", waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with cache.lock("hf:a/b"):
        thread.start()
        assert waiting.wait(timeout=60)
        with cache.lock("other"):  # another model is not held up
            order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]


def test_an_unwritable_home_names_the_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="HOTLOOP_HOME"), cache.lock("x"):
        pass


@pytest.mark.usefixtures("machine")
def test_a_checksum_is_computed_once_and_again_after_a_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = cache.remembered_sha256(path)
    assert first == cache.file_sha256(path)
    monkeypatch.setattr(cache, "file_sha256", lambda _: "computed again")
    assert cache.remembered_sha256(path) == first
    path.write_bytes(b"other bytes")
    assert cache.remembered_sha256(path) == "computed again"


@pytest.mark.usefixtures("machine")
def test_a_damaged_checksum_memory_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    store = cache.home() / "checksums.json"
    store.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"%s": 3}' % path):  # noqa: UP031 (braces)
        store.write_text(text)
        assert cache.remembered_sha256(path) == cache.file_sha256(path)
