"""Small files of a Hugging Face folder, which may be hostile: bounded in size; JSON is nothing but an object at the top."""

import json
from pathlib import Path
from typing import Any

from hotloop.errors import ModelFileError

MAX_CONFIG_BYTES = 4 << 20
"""Most bytes of a configuration; published ones with thousands of added tokens have about 1 MB."""


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """All bytes of a file. Raises ModelFileError naming the file: unreadable, or larger than max_bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise ModelFileError(f"{path}: has more than {max_bytes} bytes, the limit for this file")
    return data


def read_json(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a file. Raises ModelFileError as `read_bounded`, and for what is no JSON object."""
    data = read_bounded(path, max_bytes)
    try:
        value = json.loads(data.decode("utf-8-sig"))
        if b"\\ud" in data.lower():  # halves of characters, which may lack the other half
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ModelFileError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # also of UTF-8, and of numbers with thousands of digits
        raise ModelFileError(f"{path}: is not valid JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: must hold a JSON object, not {value!r:.60}")
    return value


def read_optional_json(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """As `read_json`; an empty object where there is no such file."""
    return read_json(path, max_bytes) if path.is_file() else {}
