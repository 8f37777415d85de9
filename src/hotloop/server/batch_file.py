"""The OpenAI batch format: lines of requests in, lines of answers out, and which of them an earlier run has answered.

A line is identified by its custom_id or, where it has none of its own (broken JSON, a custom_id given twice), by its number.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.server.bodies import Body, parse_body
from hotloop.server.fields import ENDPOINTS
from hotloop.server.responses import error_body

_BEGIN = b'{"id": "batch_req_'  # of every line of the output

LineKey = str | int  # custom_id, or the number of a line that has none of its own


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of the input, read. number: from 1. Either body or error is None."""

    number: int
    key: LineKey
    endpoint: str
    body: Body | None
    error: str | None


def read_batch(path: Path) -> Iterator[BatchLine]:
    """The lines of a batch file in order, blank ones left out. What is wrong with a line becomes its error."""
    numbers: dict[str, int] = {}  # custom_id -> its first line
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield _read_line(number, raw, numbers)


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for raw in file if raw.strip())


def _read_line(number: int, raw: bytes, numbers: dict[str, int]) -> BatchLine:
    key: LineKey = number
    endpoint = ""
    try:
        line = _parsed(raw)
        key = _custom_id(line, number, numbers)
        endpoint, body = _request(line)
    except InvalidRequestError as error:
        return BatchLine(number, key, endpoint, None, str(error))
    return BatchLine(number, key, endpoint, body, None)


def _parsed(raw: bytes) -> Mapping[str, Any]:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the line is not valid JSON ({error})") from None
    if not isinstance(line, dict):
        raise InvalidRequestError("the line is not a JSON object")
    return line


def _custom_id(line: Mapping[str, Any], number: int, numbers: dict[str, int]) -> str:
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidRequestError(f"custom_id is {custom_id!r:.60}; every line needs a text of its own")
    if custom_id in numbers:
        raise InvalidRequestError(f"custom_id {custom_id!r:.200} is also that of line {numbers[custom_id]}")
    numbers[custom_id] = number
    return custom_id


def _request(line: Mapping[str, Any]) -> tuple[str, Body]:
    unknown = line.keys() - {"custom_id", "method", "url", "body"}
    if unknown:
        raise InvalidRequestError(f"unknown field {min(unknown)!r}; a line has custom_id, method, url and body")
    if line.get("method", "POST") != "POST":
        raise InvalidRequestError(f"method is {line['method']!r:.60}; it must be POST")
    for endpoint in ENDPOINTS:
        if line.get("url") == endpoint:
            return endpoint, parse_body(endpoint, line.get("body"), live=False)
    raise InvalidRequestError(f"url is {line.get('url')!r:.60}; it must be one of {', '.join(ENDPOINTS)}")


class BatchOutput:
    """The output file of a batch, appended to line by line; a context manager.

    ``done``: the keys of the lines that it holds already. A last line that was cut off is removed. Every line is one write
    to the file: whatever ends the process, finished lines are whole and there.

    Raises: InvalidRequestError if it is no regular file, another process is writing it or it holds something else than
    answers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists() and not path.is_file():  # a device or a pipe may have no end to read to
            raise InvalidRequestError(f"{path} is no regular file; a restart needs the answers in one, give another output")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.done = self._read_and_repair()
        except BlockingIOError:
            os.close(self._file)
            raise InvalidRequestError(f"{path} is being written by another process; wait for it") from None
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> BatchOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def write_answer(self, line: BatchLine, request_id: str, body: Mapping[str, Any]) -> None:
        self._write(line, {"status_code": 200, "request_id": request_id, "body": body}, None)

    def write_error(self, line: BatchLine, message: str, *, status: int = 400) -> None:
        """status: 400 where the request is at fault, 500 where it ended with an error."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        response = {"status_code": status, "request_id": None, "body": error_body(message, kind=kind)}
        self._write(line, response, {"code": kind, "message": message, "line": line.number})

    def _write(self, line: BatchLine, response: Mapping[str, Any], error: Mapping[str, Any] | None) -> None:
        custom_id = line.key if isinstance(line.key, str) else None
        answer = {
            "id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error,
        }  # fmt: skip
        try:
            data = json.dumps(answer, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except UnicodeEncodeError:  # half a surrogate pair in a custom_id or a prompt: only an escape can hold it
            data = json.dumps(answer, allow_nan=False).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            raise HotloopError(
                f"cannot write {self._path}: {error.strerror}; the answers before are in it: make room and start again"
            ) from None

    def _read_and_repair(self) -> set[LineKey]:
        done: set[LineKey] = set()
        end = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, raw in enumerate(file, start=1):
                key = _answered(raw)
                if key is None and (raw.endswith(b"\n") or not _may_be_cut_off(raw)):
                    raise InvalidRequestError(
                        f"line {number} of {self._path} is no answer of a batch; choose another output file"
                    )
                if key is None:  # cut off in the middle of a write
                    break
                if not raw.endswith(b"\n"):  # whole but for its end
                    os.write(self._file, b"\n")
                    return done | {key}
                done.add(key)
                end += len(raw)
        os.ftruncate(self._file, end)
        return done


def _may_be_cut_off(raw: bytes) -> bool:
    """Whether it is how an answer begins."""
    return _BEGIN.startswith(raw) or raw.startswith(_BEGIN)


def _answered(raw: bytes) -> LineKey | None:
    """The line that an output line answers; None if it is no such line."""
    try:
        answer = json.loads(raw)
        custom_id = answer["custom_id"]
        key = answer["error"]["line"] if custom_id is None else custom_id
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return key if isinstance(key, str | int) else None
