"""The model hub as a source: metadata through huggingface_hub (endpoint, token, offline switch), bytes here.

Streaming them here hashes the file while it arrives and leaves one copy on disk, in hotloop's folder.
"""

import http.client
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from hotloop.errors import DownloadError
from hotloop.weights.catalog import HubSource
from hotloop.weights.reference import HubReference, choose_file
from hotloop.weights.transfer import Reporter, SourceUnavailableError, atomic_file

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
_STALL_S = 30.0  # no byte for this long: the connection is taken for dead
_CHECK_NETWORK = "check the network (proxy: HTTPS_PROXY, mirror: HF_ENDPOINT)"


def find_file(reference: HubReference, deadline_s: float) -> HubSource:
    """The file that a hub reference means; asks the hub for the repository's files where it names none.

    Raises DownloadError when the repository cannot be read or no file of it is the obvious one.
    """
    revision = reference.revision or "main"
    if reference.file is not None:
        return HubSource(reference.repo, reference.file, revision)
    from huggingface_hub import HfApi

    files = _ask(
        lambda: HfApi(_endpoint()).list_repo_files(reference.repo, revision=revision),
        str(reference),
        deadline_s,
    )
    file = choose_file(files)
    if file is None:
        gguf = sorted(f for f in files if f.endswith(".gguf"))
        listing = "".join(f"\n  hf:{reference.repo}/{f}" for f in gguf[:40])
        raise DownloadError(
            f"{reference}: name one of its {len(gguf)} files:{listing}"
            if gguf
            else f"{reference}: the repository holds no GGUF file; look for one whose name ends in -GGUF"
        )
    return HubSource(reference.repo, file, revision)


def download(source: HubSource, target: Path, reporter: Reporter, deadline_s: float) -> None:
    """Fetch one hub file into target, verified against the pinned SHA-256 or else the one the hub declares.

    deadline_s bounds the wait for the hub's first answer (name lookup, connection and headers together).

    Raises SourceUnavailableError (offline, gated, not found, broken off) and DownloadError (disk, checksum).
    """
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    url = hf_hub_url(source.repo, source.file, revision=source.revision, endpoint=_endpoint())
    name = f"hf:{source.repo}/{source.file}"

    def ask() -> "tuple[str | None, HfFileMetadata]":
        token = get_token()  # may ask the hub too, to renew it
        return token, get_hf_file_metadata(url, token=token, timeout=deadline_s)

    token, metadata = _ask(ask, name, deadline_s)
    declared = _declared_sha256(metadata)
    if source.sha256 is None:
        reporter.note(
            "no checksum is pinned for this file; it is checked against the one the hub declares"
            if declared
            else "neither the catalog nor the hub states a checksum for this file; only its size is checked"
        )
    request = urllib.request.Request(metadata.location)
    if token and urlsplit(metadata.location).netloc == urlsplit(url).netloc:
        # Unredirected: the token must not travel on to the content network's host.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with atomic_file(target, metadata.size, source.sha256 or declared) as partial:
        for chunk in _body(request, name):
            partial.write(chunk)
            reporter.progress(partial.size, metadata.size)


def _body(request: urllib.request.Request, name: str) -> Iterator[bytes]:
    """The response's bytes in chunks; network trouble becomes a SourceUnavailableError."""
    try:
        with urllib.request.urlopen(request, timeout=_STALL_S) as response:
            while chunk := response.read(_CHUNK_BYTES):
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise SourceUnavailableError(f"{name}: the hub stopped sending the file ({error}): pull again") from error


def _endpoint() -> str | None:
    """The mirror that HF_ENDPOINT names now; huggingface_hub itself reads it once, at import."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _declared_sha256(metadata: "HfFileMetadata") -> str | None:
    """Large files carry their SHA-256 as entity tag; small ones a git hash of 40 digits."""
    etag = metadata.etag
    return etag if etag is not None and len(etag) == 64 and set(etag) <= set("0123456789abcdef") else None


def _ask(question: Callable[[], T], name: str, deadline_s: float) -> T:
    """The hub's answer, or its refusal as a SourceUnavailableError that says what to do."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    refusals: tuple[tuple[type[Exception], str], ...] = (
        (
            GatedRepoError,
            "its owner gates it: accept the terms on its page, then `hf auth login` (or set HF_TOKEN)",
        ),
        (RevisionNotFoundError, "no such revision: leave out @revision for the newest one"),
        (
            RepositoryNotFoundError,
            "no such repository, or a private one: check the spelling, or `hf auth login`",
        ),
        (EntryNotFoundError, "no such file: leave out the file's name to have one chosen"),
        (HFValidationError, "not a valid repository name: write hf:owner/repo"),
        (OfflineModeIsEnabled, "HF_HUB_OFFLINE is set: unset it to download"),
        (HfHubHTTPError, "the hub answered with an error: try again later"),
        (TimeoutError, f"the hub did not answer within {deadline_s:g} s: {_CHECK_NETWORK}"),
    )
    try:
        return _within(question, deadline_s)
    except Exception as error:
        reason = next((text for kind, text in refusals if isinstance(error, kind)), None)
        if reason is None:  # connection errors of whichever HTTP library this huggingface_hub uses
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            reason = f"the hub cannot be reached ({first_line}): {_CHECK_NETWORK}"
        raise SourceUnavailableError(f"{name}: {reason}") from error


def _within(question: Callable[[], T], deadline_s: float) -> T:
    """question(), or TimeoutError after deadline_s: name lookups and dead addresses keep no HTTP time-out."""
    answers: Queue[tuple[T | None, BaseException | None]] = Queue()

    def run() -> None:
        try:
            answers.put((question(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        answer, error = answers.get(timeout=deadline_s)
    except Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
