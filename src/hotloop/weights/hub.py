"""The model hub as a source: metadata through huggingface_hub (endpoint, token, offline switch), bytes here.

Streaming them here hashes the file while it arrives and leaves one copy on disk, in hotloop's folder.
"""

import os
import string
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

from hotloop.errors import DownloadError
from hotloop.weights.catalog import HubSource
from hotloop.weights.model_folder import needed_files
from hotloop.weights.receive import receive, refusal
from hotloop.weights.reference import HubReference, choose_file, stays_inside
from hotloop.weights.transfer import Reporter, SourceUnavailableError, WrongBytesError, resumable_file

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

T = TypeVar("T")

_CHECK_NETWORK = "check the network (proxy: HTTPS_PROXY, mirror: HF_ENDPOINT)"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: its size, and the name of its content (SHA-256, or git's of small files)."""

    name: str
    bytes: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class HubFolder:
    """What of a repository makes a model folder, as of one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def find(reference: HubReference, deadline_s: float) -> HubSource | HubFolder:
    """What a hub reference means: a GGUF file, or where the repository holds none, its safetensors folder.

    Raises DownloadError when the repository cannot be read, or it is not obvious what of it is meant.
    """
    revision = reference.revision or "main"
    if reference.file is not None:
        return HubSource(reference.repo, reference.file, revision)
    from huggingface_hub import HfApi

    info = _ask(
        lambda: HfApi(_endpoint()).model_info(reference.repo, revision=revision, files_metadata=True),
        str(reference),
        deadline_s,
    )
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or () if stays_inside(sibling.rfilename)}
    if (file := choose_file(list(siblings))) is not None:
        return HubSource(reference.repo, file, revision)
    gguf = sorted(f for f in siblings if f.endswith(".gguf"))
    if gguf:
        listing = "".join(f"\n  hf:{reference.repo}/{f}" for f in gguf[:40])
        raise DownloadError(f"{reference}: name one of its {len(gguf)} files:{listing}")
    names = needed_files(siblings)
    if not names:
        raise DownloadError(
            f"{reference}: the repository holds neither a GGUF file nor config.json with safetensors; "
            "look for one whose name ends in -GGUF"
        )
    files = (siblings[name] for name in names)
    return HubFolder(
        reference.repo,
        info.sha or revision,
        tuple(HubFile(f.rfilename, f.size or 0, f.lfs.sha256 if f.lfs else f.blob_id) for f in files),
    )


def download(
    source: HubSource, target: Path, reporter: Reporter, deadline_s: float, *, announce: bool = True
) -> str | None:
    """Fetch one hub file into target, verified against the pinned SHA-256 or else what the hub declares; the commit that it is
    of, where the hub says it.

    What an earlier try left is continued, unless the hub has another file by now.
    deadline_s bounds the wait for the hub's first answer (name lookup, connection and headers together).
    announce: say where the checksum comes from.

    Raises SourceUnavailableError (offline, gated, not found, broken off) and DownloadError (disk, checksum).
    """
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    url = hf_hub_url(source.repo, source.file, revision=source.revision, endpoint=_endpoint())
    name = f"hf:{source.repo}/{source.file}"

    def ask() -> "tuple[str | None, HfFileMetadata]":
        token = get_token()  # may ask the hub too, to renew it
        return token, get_hf_file_metadata(url, token=token, timeout=deadline_s)

    token, metadata = _ask(ask, name, deadline_s)
    declared = _declared_digest(metadata)
    if source.sha256 is None and announce:
        reporter.note(
            "no checksum is pinned for this file; it is checked against the one the hub declares"
            if declared
            else "neither the catalog nor the hub states a checksum for this file; only its size is checked"
        )
    location = quote(metadata.location, safe=string.punctuation)  # as urllib does with redirections
    if urlsplit(location).scheme not in ("http", "https"):
        raise SourceUnavailableError(f"{name}: the hub says that the file lies at {location!r:.100}, which is no place for one")
    request = urllib.request.Request(location)
    if token and urlsplit(location).netloc == urlsplit(url).netloc:
        # Unredirected: the token must not travel on to the content network's host.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    while True:
        resumed_bytes = 0
        try:
            with resumable_file(target, metadata.size, source.sha256 or declared, metadata.etag) as partial:
                if resumed_bytes := partial.resumed_bytes:
                    reporter.note(f"{name}: going on after {resumed_bytes / 1e6:,.0f} MB")
                receive(request, name, partial, metadata.size, reporter)
                resumed_bytes = partial.resumed_bytes
            return metadata.commit_hash
        except WrongBytesError:
            if not resumed_bytes:
                raise
            reporter.note(f"{name}: what an earlier try left was no part of it; fetching all of it")


def _endpoint() -> str | None:
    """The mirror that HF_ENDPOINT names now; huggingface_hub itself reads it once, at import."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _declared_digest(metadata: "HfFileMetadata") -> str | None:
    """Large files carry their SHA-256 as entity tag, small ones their name in git, which is of their size too."""
    etag = metadata.etag
    lengths = (64,) if metadata.size is None else (40, 64)
    return etag if etag is not None and len(etag) in lengths and set(etag) <= set("0123456789abcdef") else None


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
        (TimeoutError, f"the hub did not answer within {deadline_s:g} s: {_CHECK_NETWORK}"),
    )
    try:
        return _within(question, deadline_s)
    except Exception as error:
        reason = next((text for kind, text in refusals if isinstance(error, kind)), None)
        response = getattr(error, "response", None)
        if reason is None and isinstance(error, HfHubHTTPError) and response is not None:
            reason = refusal(response.status_code, response.headers.get("Retry-After"))
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
