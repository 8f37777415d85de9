"""The bytes of a file over HTTP, continued where an earlier try ended."""

import http.client
import urllib.request
from urllib.error import HTTPError

from hotloop.weights.transfer import PartialFile, Reporter, SourceUnavailableError

_CHUNK_BYTES = 1 << 20
_STALL_S = 30.0  # no byte for this long: the connection is taken for dead
_MAX_BREAKS = 5  # of the connection, each after some bytes, before it is left to the user
_RANGE_NOT_SATISFIABLE = 416


class _BrokenOffError(Exception):
    """The network, not the disk."""


def receive(
    request: urllib.request.Request, name: str, partial: PartialFile, total_bytes: int | None, reporter: Reporter
) -> None:
    """Fetch what partial lacks; a connection that breaks off is taken up again as long as bytes arrive.

    name: of the file, for messages.
    Raises SourceUnavailableError: refused, or broken off for good; what has arrived stays in partial.
    """
    for breaks in range(_MAX_BREAKS):
        before = partial.size
        try:
            return _fetch(request, name, partial, total_bytes, reporter)
        except HTTPError as error:
            raise SourceUnavailableError(f"{name}: {refusal(error.code, error.headers.get('Retry-After'))}") from error
        except _BrokenOffError as error:
            if partial.size <= before or breaks == _MAX_BREAKS - 1:
                raise SourceUnavailableError(
                    f"{name}: the hub stopped sending the file ({error}): pull again, it goes on where it ended"
                ) from error
            reporter.note(f"{name}: the connection broke off after {partial.size / 1e6:,.0f} MB; going on")


def refusal(status: int, retry_after: str | None = None) -> str:
    """What a status of the hub means, and what to do."""
    match status:
        case 401:
            return "the hub wants to know who asks: `hf auth login` (or set HF_TOKEN to a valid token)"
        case 403:
            return "the hub refuses this file to you: accept its terms on its page, or use a token that may read it"
        case 404 | 410:
            return "it is not there any more: check the spelling and the revision"
        case 429:
            wait = f"{retry_after} s" if retry_after and retry_after.isdecimal() else "some minutes"
            return f"the hub has had too many requests from here: wait {wait}, or log in (`hf auth login`)"
    return f"the hub answered with an error ({status}): try again later"


def _fetch(
    request: urllib.request.Request, name: str, partial: PartialFile, total_bytes: int | None, reporter: Reporter
) -> None:
    if partial.size and partial.size == total_bytes:
        return  # all of it was there, but for its name
    request.remove_header("Range")
    if partial.size:
        request.add_header("Range", f"bytes={partial.size}-")
    try:
        response = urllib.request.urlopen(request, timeout=_STALL_S)
    except HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE or not partial.size:
            raise
        partial.restart()
        return _fetch(request, name, partial, total_bytes, reporter)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(str(error)) from error
    with response:
        begins = response.headers.get("Content-Range", "").startswith(f"bytes {partial.size}-")
        if partial.size and not (response.status == http.client.PARTIAL_CONTENT and begins):
            partial.restart()  # the server sends all of it again
        read = 0
        while chunk := _read(response):
            partial.write(chunk)
            read += len(chunk)
            reporter.progress(partial.size, total_bytes)
        announced = response.headers.get("Content-Length")
        if announced is not None and announced.isdecimal() and read < int(announced):
            raise _BrokenOffError(f"{read:,} of {int(announced):,} bytes came")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(str(error)) from error
