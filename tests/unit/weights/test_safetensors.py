"""The safetensors reader: what it takes, and every way in which a file may lie (known fault B91)."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from hotloop.errors import ModelFileError, ModelNotFoundError
from hotloop.weights.safetensors import MAX_HEADER_BYTES, SafetensorsFile
from tiny_folders import stored, write_raw_safetensors, write_safetensors

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = {"b": stored("F32", VALUES), "a": stored("BF16", VALUES), "ids": ("I32", (2,), bytes(8)), "s": ("F16", (), b"12")}
    return write_safetensors(tmp_path / "m.safetensors", tensors)


def test_reads_what_was_written(path: Path) -> None:
    file = SafetensorsFile.open(path)
    assert list(file.tensors) == ["b", "a", "ids", "s"]  # in the order of their bytes
    b = file.tensors["b"]
    assert (b.dtype, b.shape, b.nbytes, b.row_bytes) == ("F32", (3, 4), 48, 16)
    np.testing.assert_array_equal(b.read().view("<f4").reshape(3, 4), VALUES)
    np.testing.assert_array_equal(b.read_rows(1, 3).view("<f4").reshape(2, 4), VALUES[1:])
    assert path.read_bytes()[b.offset : b.offset + b.nbytes] == VALUES.tobytes()
    assert file.tensors["s"].read().tobytes() == b"12"
    assert file.nbytes == path.stat().st_size
    file.close()
    with pytest.raises(ValueError, match="closed"):
        b.read()


def test_the_published_library_writes_what_we_read(tmp_path: Path) -> None:
    save_file({"x": VALUES, "y": VALUES.astype(np.float16)}, tmp_path / "m.safetensors", {"format": "pt"})
    file = SafetensorsFile.open(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(file.tensors["x"].read().view("<f4").reshape(3, 4), VALUES)
    assert file.tensors["y"].dtype == "F16"


@pytest.mark.parametrize("cut", [1, 8, 60, 1000])
def test_a_truncated_file_names_what_is_missing(path: Path, cut: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - cut, 0)])
    missing = f"{cut} bytes are missing" if cut < 80 else "cannot hold a safetensors header"
    with pytest.raises(ModelFileError, match=missing) as raised:
        SafetensorsFile.open(path)
    assert str(path) in str(raised.value)


def test_a_header_that_is_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ModelFileError, match=r"the header has \d+ bytes, of which \d+ are missing"):
        SafetensorsFile.open(path)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"\xff\xfe{}", "no valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"[" * 100_000, "nested too deeply|no valid JSON"),
        (b'{"a": ' * 100_000, "nested too deeply|no valid JSON"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "no valid JSON"),
        (b'{"a": {"dtype": "F32", "dtype": "F32"}}', "'dtype' appears twice"),
        (json.dumps({"a": entry()})[:-1].encode() + b', "a": {}}', "'a' appears twice"),
        ({"__metadata__": {"a": 1}, "a": entry()}, "__metadata__ must map"),
        ({"__metadata__": [], "a": entry()}, "__metadata__ must map"),
        ({"a": 1}, "must have dtype, shape and data_offsets"),
        ({"a": entry() | {"extra": 1}}, "must have dtype, shape and data_offsets"),
        ({"a": entry(dtype="F31")}, "unknown dtype 'F31'"),
        ({"a": entry(dtype=7)}, "unknown dtype 7"),
        ({"a": entry(shape=2)}, "shape must be"),
        ({"a": entry(shape=[2.0])}, "shape must be"),
        ({"a": entry(shape=[True, 2])}, "shape must be"),
        ({"a": entry(shape=[-2, -1])}, "shape must be"),
        ({"a": entry(shape=[2**63])}, "shape must be"),
        ({"a": entry(shape=[1] * 9)}, "shape must be"),
        ({"a": entry(shape=[2**31, 2**31, 2**31])}, "takes 3.96140812571322e[+]28 bytes"),
        ({"a": entry(shape=[2**33, 2**31])}, "takes 73786976294838206464 bytes|takes 7.378"),
        ({"a": entry(shape=[3])}, "takes 12 bytes, but its data_offsets say 8"),
        ({"a": entry(dtype="F4", shape=[3])}, "takes 1.5 bytes"),
        ({"a": entry(offsets=[0])}, "data_offsets must be"),
        ({"a": entry(offsets=[8, 0])}, "data_offsets must be"),
        ({"a": entry(offsets=[-8, 0])}, "data_offsets must be"),
        ({"a": entry(offsets=["0", "8"])}, "data_offsets must be"),
        ({"a": entry(offsets=[2**62, 2**62 + 8])}, "belong to no tensor"),
        ({"a": entry(), "b": entry()}, "'a' and 'b' overlap"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, "'a' and 'b' overlap"),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, "4 bytes before tensor 'b' belong to no tensor"),
        ({"a": entry(offsets=[8, 16])}, "8 bytes before tensor 'a' belong to no tensor"),
        ({"a": entry(shape=[1], offsets=[0, 4])}, "28 bytes after the last tensor"),
        ({}, "32 bytes after the last tensor"),
        ({"a": entry(), "b": entry(shape=[100], offsets=[8, 408])}, "376 bytes are missing, from tensor 'b' on"),
        ({f"t{i}": entry(shape=[0], offsets=[0, 0]) for i in range(65537)}, "lists 65537 tensors"),
    ],
)
def test_a_hostile_header_is_refused_by_name(tmp_path: Path, header: bytes | dict[str, Any], message: str) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = write_raw_safetensors(tmp_path / "bad.safetensors", raw, bytes(32))
    with pytest.raises(ModelFileError, match=message) as raised:
        SafetensorsFile.open(path)
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**62, 2**64 - 1])
def test_a_header_length_is_believed_only_so_far(tmp_path: Path, length: int) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(ModelFileError, match=f"its header would have {length} bytes"):
        SafetensorsFile.open(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.safetensors"):
        SafetensorsFile.open(tmp_path / "nowhere.safetensors")
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        with pytest.raises(ModelFileError, match="not a regular file"):
            SafetensorsFile.open(tmp_path / name)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_holds_its_tensors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("st") / "m.safetensors"
    write_safetensors(path, {"a": stored("F32", VALUES), "b": stored("F16", VALUES)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from(b'\x00\xff0129{}[]",: ea-'))
    path.write_bytes(content[: data.draw(st.integers(len(content) - 40, len(content)))])
    try:
        file = SafetensorsFile.open(path)
    except ModelFileError:
        return
    for tensor in file.tensors.values():
        assert len(tensor.read()) == tensor.nbytes
