"""API keys: every path needs one but those of an explicit list."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from hotloop.errors import InvalidRequestError
from hotloop.server.errors import RefusedError, refusal

ENVIRONMENT = "HOTLOOP_API_KEY"
OPEN_PATHS = frozenset({"/health", "/ready"})
ANYBODY = "-"  # whose requests are, where there are no keys

_NO_KEY = refusal(
    RefusedError("give a valid API key of this server: Authorization: Bearer <key>", 401, "invalid_api_key")
)._replace(headers={"www-authenticate": "Bearer"})


class ApiKeys:
    """Keys and the names they go by in logs and in the queue: key-1, key-2, ... in the order given."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in dict.fromkeys(keys)]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def name_of(self, presented: bytes) -> str | None:
        """Takes the same time whichever key it is, or none."""
        digest = _digest(presented)
        found = None
        for number, known in enumerate(self._digests, 1):
            if hmac.compare_digest(digest, known):
                found = f"key-{number}"
        return found


class Auth:
    """ASGI middleware: without a valid key nothing is read and nothing told, not even whether a path exists.

    The key's name goes to ``scope["hotloop.key"]``. Paths are compared as they are: another spelling of an open one is closed.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], *, public_metrics: bool = False) -> None:
        self._app = app
        self._keys = ApiKeys(keys)
        self._open = OPEN_PATHS | {"/metrics"} if public_metrics else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = self._key_of(scope) if self._keys else ANYBODY
            if name is None and scope["path"] not in self._open:
                await _NO_KEY.response()(scope, receive, send)
                return
            scope["hotloop.key"] = name or ANYBODY
        await self._app(scope, receive, send)

    def _key_of(self, scope: Scope) -> str | None:
        for header, value in scope["headers"]:
            if header == b"authorization":
                scheme, _, key = value.partition(b" ")
                return self._keys.name_of(key.strip()) if scheme.lower() == b"bearer" else None
        return None


def load_api_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Keys of the command line, of a file (one a line; blank lines and those that begin with # are skipped) and of
    $HOTLOOP_API_KEY. Raises InvalidRequestError, whose message shows no key."""
    keys = [(f"--api-key number {number}", key) for number, key in enumerate(given, 1)]
    if file is not None:
        keys += _keys_of(file)
    if ENVIRONMENT in os.environ:
        keys.append((f"${ENVIRONMENT}", os.environ[ENVIRONMENT]))
    for where, key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise InvalidRequestError(f"{where} is no API key; it must be printable ASCII without spaces, not empty")
    return tuple(dict.fromkeys(key for _, key in keys))


def _keys_of(file: Path) -> list[tuple[str, str]]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise InvalidRequestError(f"cannot read API keys from {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cannot read API keys from {file}: it is no UTF-8 text") from error
    keys = [
        (f"line {number} of {file}", line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not keys:
        raise InvalidRequestError(f"{file} has no API keys; write one a line, or leave the option out")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
