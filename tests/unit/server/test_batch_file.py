"""Batch files: lines in, lines out, and what an interrupted run leaves."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.server.batch_file import BatchLine, BatchOutput, count_lines, read_batch
from open_files import no_file_left_open


def line(custom_id: Any = "a", **fields: Any) -> str:
    body = {"model": "m", "prompt": "hi"}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body, **fields})


def read(tmp_path: Path, text: str) -> list[BatchLine]:
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    lines = list(read_batch(path))
    assert count_lines(path) == len(lines)
    return lines


def test_good_lines(tmp_path: Path) -> None:
    lines = read(tmp_path, line("a") + "\n\n  \n" + line("b"))
    assert [(entry.number, entry.key, entry.error) for entry in lines] == [(1, "a", None), (4, "b", None)]
    assert lines[0].body is not None
    assert lines[0].body.prompts == ["hi"]


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("{", 1, "not valid JSON"),
        ("\xff\xfe", 1, "not valid JSON"),
        ("[" * 100_000, 1, "not valid JSON"),
        ("5", 1, "not a JSON object"),
        (line(None), 1, "custom_id is None"),
        (line(7), 1, "custom_id is 7"),
        (line(""), 1, "custom_id is ''"),
        (line(extra=1), "a", "unknown field 'extra'"),
        (line(method="GET"), "a", "method is 'GET'"),
        (line(url="/v1/embeddings"), "a", "url is '/v1/embeddings'"),
        (line(body=None), "a", "body is None"),
        (line(body={"prompt": "x", "tempreature": 1}), "a", "did you mean 'temperature'"),
    ],
)
def test_bad_lines_have_their_error(tmp_path: Path, text: str, key: Any, message: str) -> None:
    bad, good = read(tmp_path, text + "\n" + line("good"))
    assert (bad.number, bad.key, bad.body) == (1, key, None)
    assert message in (bad.error or "")
    assert (good.key, good.error) == ("good", None)


def test_a_custom_id_given_twice(tmp_path: Path) -> None:
    first, second = read(tmp_path, line("a") + "\n" + line("a"))
    assert (first.key, first.error) == ("a", None)
    assert second.key == 2
    assert second.error == "custom_id 'a' is also that of line 1"


def answered(path: Path) -> list[Any]:
    with BatchOutput(path) as output:
        return sorted(output.done, key=str)


def test_every_prefix_of_an_output_is_repaired(tmp_path: Path) -> None:
    """Cut anywhere: whole lines stay, the torn one goes, and what is written next is readable."""
    path = tmp_path / "out.jsonl"
    lines = [BatchLine(i, key, "", None, None) for i, key in enumerate(["a", 2, "ü\n\"", "\ud800"], start=1)]
    with BatchOutput(path) as output:
        assert output.done == set()
        for entry in lines:
            if isinstance(entry.key, int):
                output.write_error(entry, "bad")
            else:
                output.write_answer(entry, "r", {"text": "é\u2028\nx"})
    whole = path.read_bytes()
    assert answered(path) == sorted([entry.key for entry in lines], key=str)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")
        with BatchOutput(path) as output:
            assert output.done == {entry.key for entry in lines[:complete]}
            output.write_answer(BatchLine(9, "new", "", None, None), "r", {})
        assert [json.loads(text)["custom_id"] for text in path.read_bytes().splitlines()][-1] == "new"
        assert len(path.read_bytes().splitlines()) == complete + 1


@pytest.mark.parametrize("text", ["my notes\nare precious\n", "my notes, without an end of line", '{"id": "mine"', "[1]"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=r"line 1 of .*notes.txt is no answer"):
        BatchOutput(path)
    assert path.read_text() == text


def test_a_full_disk_is_named_and_a_restart_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    first, second = (BatchLine(i, key, "", None, None) for i, key in enumerate("ab", start=1))
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:-50])

    with BatchOutput(path) as output:
        output.write_error(first, "bad")
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(HotloopError, match=r"cannot write .*out.jsonl: No space left"):
            output.write_error(second, "bad")
        monkeypatch.undo()
    assert answered(path) == ["a"]


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out.jsonl" if kind != "device" else Path("/dev/null")
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(InvalidRequestError, match="no regular file"):
        BatchOutput(path)


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with BatchOutput(path), pytest.raises(InvalidRequestError, match="another process"):
        BatchOutput(path)
    with no_file_left_open():
        BatchOutput(path).__exit__(None, None, None)


@given(st.binary(max_size=60))
def test_any_bytes_are_lines_with_errors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("batch") / "in.jsonl"
    path.write_bytes(data)
    assert all(entry.error for entry in read_batch(path))
