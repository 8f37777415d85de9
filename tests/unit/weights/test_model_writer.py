"""A model written as one GGUF file: all of it or nothing."""

import errno
import fcntl
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.weights import model_writer
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.model_writer import write_model
from hotloop.weights.open_model import open_model
from hotloop.weights.quantized_model import open_quantized
from tiny_folders import write_tiny_folder
from tiny_models import write_tiny_model

Usage = namedtuple("Usage", "total used free")


def test_of_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / os.fsdecode(b"odd\xff"))
    with open_model(folder) as model:
        write_model(model, tmp_path / "out.gguf")
    with GGUFFile.open(tmp_path / "out.gguf") as written:
        assert written.metadata["general.name"] == "odd\ufffd"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    odd = {
        "general.sampling.temp": np.float64(0.1), "some.u64": np.uint64(7), "some.i32": np.int32(-3), "some.u8": np.uint8(200),
        "some.flags": np.array([True, False]), "some.words": [], "general.alignment": 32,
    }  # fmt: skip
    return write_tiny_model(tmp_path / "in.gguf", "llama", formats="BF16", metadata=odd)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_others_read_what_is_written(path: Path, tmp_path: Path) -> None:
    with open_quantized(path, "q4_1") as model:
        nbytes = write_model(model, tmp_path / "out.gguf")
        assert nbytes == (tmp_path / "out.gguf").stat().st_size
        reader, before = gguf.GGUFReader(tmp_path / "out.gguf"), gguf.GGUFReader(path)
        changed = {"general.file_type", "general.quantization_version"}
        assert reader.fields.keys() - changed == before.fields.keys() - {"general.alignment"}
        for key in reader.fields.keys() - changed:
            if not key.startswith("GGUF."):
                assert reader.fields[key].types == before.fields[key].types
                assert reader.fields[key].contents() == before.fields[key].contents()
        assert {key: reader.fields[key].contents() for key in changed} == {
            "general.file_type": 3, "general.quantization_version": 2,
        }  # fmt: skip
        assert [tensor.name for tensor in reader.tensors] == list(model.tensors)
        for tensor in reader.tensors:
            assert tensor.tensor_type.name == model.tensors[tensor.name].format
            assert tuple(reversed(tensor.shape.tolist())) == model.tensors[tensor.name].shape
            np.testing.assert_array_equal(np.asarray(tensor.data).reshape(-1).view(np.uint8), model.read(tensor.name))
    assert left(tmp_path) == {"in.gguf", "out.gguf"}


def test_in_chunks_as_in_one_piece(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFFile.open(path) as model:
        write_model(model, tmp_path / "whole.gguf")
        monkeypatch.setattr(model_writer, "_CHUNK_BYTES", 300)
        write_model(model, tmp_path / "chunks.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "chunks.gguf").read_bytes()


@pytest.mark.parametrize("links_to_nothing", [False, True])
def test_what_exists_stays_unless_forced(path: Path, tmp_path: Path, *, links_to_nothing: bool) -> None:
    target = tmp_path / "out.gguf"
    if links_to_nothing:
        target.symlink_to("nowhere.gguf")
    else:
        target.write_text("mine")
    with GGUFFile.open(path) as model:
        with pytest.raises(InvalidRequestError, match=r"out\.gguf exists; give another name, or --force"):
            write_model(model, target)
        assert target.is_symlink() if links_to_nothing else target.read_text() == "mine"
        write_model(model, target, overwrite=True)
    assert not target.is_symlink()
    GGUFFile.open(target).close()
    assert left(tmp_path) == {"in.gguf", "out.gguf"}


def test_a_file_that_appears_meanwhile_stays(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.gguf"
    monkeypatch.setattr(os, "fsync", lambda _: target.write_text("theirs"))
    with GGUFFile.open(path) as model, pytest.raises(InvalidRequestError, match="exists since a moment ago"):
        write_model(model, target)
    assert target.read_text() == "theirs"
    assert left(tmp_path) == {"in.gguf", "out.gguf"}


def test_the_name_of_a_part_is_none_for_the_whole(path: Path, tmp_path: Path) -> None:
    with GGUFFile.open(path) as model:
        with pytest.raises(InvalidRequestError, match="the name of one of 2 parts, and the result is one file"):
            write_model(model, tmp_path / "out-00001-of-00002.gguf")
        write_model(model, tmp_path / "out-00001-of-00001.gguf")
    GGUFFile.open(tmp_path / "out-00001-of-00001.gguf").close()


def test_what_a_killed_process_has_left_goes_and_what_is_being_written_stays(path: Path, tmp_path: Path) -> None:
    own = f".out.gguf.{os.getpid()}.partial"  # in a container the next process often has the number of the last
    for name in (own, ".out.gguf.123.partial", ".out.gguf.mine.partial", ".other.gguf.123.partial", ".out.gguf.7.partial"):
        (tmp_path / name).write_bytes(b"x")
    with GGUFFile.open(path) as model, (tmp_path / ".out.gguf.7.partial").open("rb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        write_model(model, tmp_path / "out.gguf")
    rest = {".out.gguf.mine.partial", ".other.gguf.123.partial", ".out.gguf.7.partial"}
    assert left(tmp_path) == {"in.gguf", "out.gguf", *rest}


def test_two_writers_of_one_name_keep_out_of_each_others_way(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    with GGUFFile.open(path) as model, model_writer._partial_file(target, False) as file:
        with pytest.raises(InvalidRequestError, match="cannot be written: File exists"):  # of a process of the same number
            write_model(model, target)
        file.write(b"first")
    assert target.read_bytes() == b"first"


def test_what_is_no_file_is_never_replaced(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "pipe"
    os.mkfifo(target)
    with GGUFFile.open(path) as model, pytest.raises(InvalidRequestError, match="pipe is no regular file"):
        write_model(model, target, overwrite=True)
    assert target.is_fifo()


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_model_itself_is_never_the_target(path: Path, tmp_path: Path, overwrite: bool) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    before = path.read_bytes()
    for target in (path, link):
        with GGUFFile.open(path) as model, pytest.raises(InvalidRequestError, match="is the model itself"):
            write_model(model, target, overwrite=overwrite)
    assert path.read_bytes() == before


def test_places_where_nothing_can_be_written(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFFile.open(path) as model:
        with pytest.raises(InvalidRequestError, match="is a folder"):
            write_model(model, tmp_path)
        with pytest.raises(InvalidRequestError, match="cannot be written: File name too long; choose another place"):
            write_model(model, tmp_path / ("a" * 300))
        with pytest.raises(InvalidRequestError, match=r"there is no folder .*nowhere; make it first"):
            write_model(model, tmp_path / "nowhere" / "out.gguf")

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", refuse)
            with pytest.raises(InvalidRequestError, match="cannot be written: Permission denied; choose another place"):
                write_model(model, tmp_path / "out.gguf")
    assert left(tmp_path) == {"in.gguf"}


def test_a_disk_that_is_too_small(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10, 9, 1_000))
    with GGUFFile.open(path) as model, pytest.raises(InvalidRequestError, match="bytes are needed and 1,000 are free"):
        write_model(model, tmp_path / "out.gguf")
    assert left(tmp_path) == {"in.gguf"}


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InvalidRequestError, "No space left on device; free some"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
        (ModelFileError("a damaged tensor"), ModelFileError, "a damaged tensor"),
    ],
)
def test_what_fails_in_the_middle_leaves_nothing(
    error: BaseException,
    expected: type[BaseException],
    message: str,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with GGUFFile.open(path) as model:
        read_rows = model.read_rows

        def fail_late(name: str, start: int, stop: int) -> Any:
            if name == "output.weight":
                assert any(".partial" in name for name in left(tmp_path))
                raise error
            return read_rows(name, start, stop)

        monkeypatch.setattr(model, "read_rows", fail_late)
        with pytest.raises(expected, match=message):
            write_model(model, tmp_path / "out.gguf")
    assert left(tmp_path) == {"in.gguf"}
