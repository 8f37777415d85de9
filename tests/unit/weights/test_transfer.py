import hashlib
import shutil
from collections import namedtuple

import pytest

from hotloop.errors import DownloadError
from hotloop.weights.transfer import SourceUnavailableError, WrongBytesError, atomic_file, resumable_file

DATA = b"some bytes" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


def leftovers(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_complete_file_takes_its_name(tmp_path) -> None:
    target = tmp_path / "deep" / "x.gguf"
    with atomic_file(target, len(DATA), SHA256) as partial:
        partial.write(DATA[:100])
        partial.write(DATA[100:])
        assert not target.exists()
        assert partial.size == len(DATA)
    assert target.read_bytes() == DATA
    assert leftovers(target.parent) == ["x.gguf"]


@pytest.mark.parametrize(
    ("size", "sha256", "error", "message"),
    [
        (len(DATA) + 1, SHA256, SourceUnavailableError, "10,000 of 10,001 bytes"),
        (len(DATA), "0" * 64, DownloadError, f"SHA-256 is {SHA256}, expected 000"),
        (None, "0" * 64, DownloadError, "nothing was kept"),
    ],
)
def test_wrong_bytes_leave_nothing(tmp_path, size, sha256, error, message) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"the old one")
    with pytest.raises(error, match=message), atomic_file(target, size, sha256) as partial:
        partial.write(DATA)
    assert target.read_bytes() == b"the old one"
    assert leftovers(tmp_path) == ["x.gguf"]


def test_more_bytes_than_expected_stop_at_once(tmp_path) -> None:
    with pytest.raises(DownloadError, match="more bytes arrive than the 10 expected"):  # noqa: SIM117
        with atomic_file(tmp_path / "x", 10, None) as partial:
            partial.write(DATA)
    assert leftovers(tmp_path) == []


def test_interrupt_leaves_nothing(tmp_path) -> None:
    def interrupted() -> None:
        with atomic_file(tmp_path / "x", None, None) as partial:
            partial.write(DATA)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert leftovers(tmp_path) == []


def test_what_a_killed_process_left_is_overwritten(tmp_path) -> None:
    (tmp_path / "x.partial").write_bytes(b"?" * 99_999)
    with atomic_file(tmp_path / "x", len(DATA), SHA256) as partial:
        partial.write(DATA)
    assert leftovers(tmp_path) == ["x"]


def test_disk_too_small_is_said_before_the_first_byte(tmp_path, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12 - 10**9, 10**9))
    with (
        pytest.raises(DownloadError, match=r"5\.00 GB needed, 1\.00 GB free.*HOTLOOP_HOME"),
        atomic_file(tmp_path / "x", 5 * 10**9, None),
    ):
        raise AssertionError("began to write")


def test_disk_that_fills_up_on_the_way(tmp_path) -> None:
    (tmp_path / "x.partial").symlink_to("/dev/full")  # every write to it fails with ENOSPC
    with (
        pytest.raises(DownloadError, match="is full: free some"),
        atomic_file(tmp_path / "x", None, None) as partial,
    ):
        partial.write(DATA * 100)
    assert leftovers(tmp_path) == []


def test_folder_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="HOTLOOP_HOME"), atomic_file(tmp_path / "file" / "x", None, None):
        pass


def interrupt(target, data, identity, error=KeyboardInterrupt, digest=SHA256) -> None:
    def write() -> None:
        with resumable_file(target, len(DATA), digest, identity) as partial:
            partial.write(data)
            raise error("stop")

    with pytest.raises(error):
        write()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SourceUnavailableError])
def test_an_interrupted_file_goes_on(tmp_path, error) -> None:
    target = tmp_path / "x.gguf"
    interrupt(target, DATA[:3000], "tag", error)
    assert leftovers(tmp_path) == ["x.gguf.partial", "x.gguf.partial.json"]
    with resumable_file(target, len(DATA), SHA256, "tag") as partial:
        assert partial.size == partial.resumed_bytes == 3000
        partial.write(DATA[3000:])
    assert target.read_bytes() == DATA
    assert leftovers(tmp_path) == ["x.gguf"]


@pytest.mark.parametrize(
    ("begun", "continued"),
    [
        (("tag", DATA[:3000]), "other"),
        ((None, DATA[:3000]), "tag"),
        (("tag", DATA[:3000]), None),
        (("tag", b""), "tag"),
    ],
)
def test_bytes_of_another_content_are_not_continued(tmp_path, begun, continued) -> None:
    target = tmp_path / "x.gguf"
    interrupt(target, begun[1], begun[0])
    with resumable_file(target, len(DATA), SHA256, continued) as partial:
        assert partial.size == 0
        partial.write(DATA)
    assert leftovers(tmp_path) == ["x.gguf"]


def test_wrong_bytes_and_other_errors_leave_nothing_to_continue(tmp_path) -> None:
    target = tmp_path / "x.gguf"
    interrupt(target, DATA[:3000], "tag", RuntimeError)
    assert leftovers(tmp_path) == []
    with pytest.raises(WrongBytesError, match="SHA-256"), resumable_file(target, len(DATA), "0" * 64, "tag") as partial:
        partial.write(DATA)
    assert leftovers(tmp_path) == []


def test_a_restart_forgets_what_was_there(tmp_path) -> None:
    target = tmp_path / "x.gguf"
    interrupt(target, b"?" * 3000, "tag")
    with resumable_file(target, len(DATA), SHA256, "tag") as partial:
        partial.restart()
        assert partial.size == partial.resumed_bytes == 0
        partial.write(DATA)
    assert target.read_bytes() == DATA


def test_only_the_rest_needs_space(tmp_path, monkeypatch) -> None:
    target = tmp_path / "x.gguf"
    interrupt(target, DATA[:9000], "tag")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, (64 << 20) + 1000))
    with resumable_file(target, len(DATA), SHA256, "tag") as partial:
        partial.write(DATA[9000:])
    with pytest.raises(DownloadError, match="not enough disk space"), resumable_file(tmp_path / "y", 1001, None, "tag"):
        pass
