"""Tiny models, a hub that is a server on this machine, a reporter that remembers."""

import hashlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from json import dumps
from urllib.parse import unquote

TINY = b"GGUF" + bytes(range(256)) * 40


def entry_table(data: bytes, **changes: object) -> dict[str, object]:
    """A catalog entry's TOML table for a file with these bytes."""
    table: dict[str, object] = {
        "file": "Tiny.Q4_1.gguf",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "architecture": "llama",
        "parameters": 1000,
        "quantization": "Q4_1",
        "licence": "Apache-2.0",
        "chat": True,
        "hub": {"repo": "maker/tiny-GGUF", "file": "tiny-q4_1.gguf"},
        "pypi": {"packages": ["tiny-part1==1.0", "tiny-part2==1.0"], "member": r"data/part\d+\.bin$"},
    }
    table.update(changes)
    return {key: value for key, value in table.items() if value is not None}


@dataclass(slots=True)
class FakeHub:
    """What the server serves and what it saw. Large files are sent by a second host, as the real hub does."""

    url: str = ""
    content_url: str | None = None  # None: the hub itself sends the files
    files: dict[str, bytes] = field(default_factory=dict)  # "owner/repo/revision/file" -> bytes
    declared: dict[str, str] = field(default_factory=dict)  # the entity tag, where it is not the SHA-256
    commit: str = "c1"  # that main is at
    cut_at: int | None = None  # break the connection after so many bytes of an answer
    cuts: int = 10**9  # that often, then no more
    takes_ranges: bool = True
    content_refusal: int | None = None  # status for the bytes of files
    answers_before_refusal: int = 0
    refusal: tuple[int, str] | None = None  # status and X-Error-Code for everything
    retry_after: str | None = None
    downloads: list[tuple[str, str | None]] = field(default_factory=list)  # path, Authorization
    ranges: list[str | None] = field(default_factory=list)  # asked for, of each download

    def add(self, repo: str, file: str, data: bytes, revision: str = "main") -> None:
        self.files[f"{repo}/{revision}/{file}"] = data
        if revision == "main":
            self.files[f"{repo}/{self.commit}/{file}"] = data

    def refuse(self) -> tuple[int, dict[str, str]]:
        assert self.refusal is not None
        status, code = self.refusal
        retry = {"Retry-After": self.retry_after} if self.retry_after else {}
        return status, ({"X-Error-Code": code} if code else {}) | retry


def is_large(file: str) -> bool:
    """Whether the hub keeps a file in its large file store, where it is known by its SHA-256."""
    return file.endswith((".gguf", ".safetensors"))


def git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def digest(file: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if is_large(file) else git_name(data)


class HubHandler(BaseHTTPRequestHandler):
    hub: FakeHub
    range_error = False  # for every range

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        if self.hub.refusal is not None:
            return self._answer(*self.hub.refuse())
        key = self.path.lstrip("/").replace("/resolve/", "/").replace("%2F", "/")
        if key not in self.hub.files:
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        data = self.hub.files[key]
        tag = self.hub.declared.get(key, digest(key, data))
        headers = {"X-Linked-ETag": f'"{tag}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": self.hub.commit}
        if self.hub.content_url is None:
            return self._answer(200, headers)
        return self._answer(302, {**headers, "Location": f"{self.hub.content_url}/content/{key}"})

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            return self._describe()
        if self.path.startswith("/api/"):  # what else huggingface_hub asks
            return self._answer(404, {})
        hub = self.hub
        hub.downloads.append((self.path, self.headers.get("Authorization")))
        wanted = self.headers.get("Range")
        hub.ranges.append(wanted)
        if hub.content_refusal is not None and len(hub.downloads) > hub.answers_before_refusal:
            return self._answer(hub.content_refusal, {})
        data = hub.files[self.path.removeprefix("/content").lstrip("/").replace("/resolve/", "/").replace("%2F", "/")]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and hub.takes_ranges else 0
        if start and (start >= len(data) or self.range_error):
            return self._answer(416, {"Content-Range": f"bytes */{len(data)}"})
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        cut = hub.cut_at if hub.cuts > 0 else None
        hub.cuts -= cut is not None and cut < len(data) - start
        self.wfile.write(data[start:][:cut])

    def _describe(self) -> None:
        if self.hub.refusal is not None:
            return self._answer(*self.hub.refuse())
        owner, repo, *rest = unquote(self.path.split("?")[0]).split("/")[3:]
        revision = "/".join(rest[1:]) or "main"
        prefix = f"{owner}/{repo}/{revision}/"
        files = {key.removeprefix(prefix): data for key, data in self.hub.files.items() if key.startswith(prefix)}
        if not files:
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        siblings = []
        for name, data in files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_name(data)}
            if is_large(name):
                entry["lfs"] = {"sha256": digest(name, data), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        answer = {"id": f"{owner}/{repo}", "sha": self.hub.commit, "siblings": siblings}
        return self._answer(200, {"Content-Type": "application/json"}, dumps(answer).encode())

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@dataclass(slots=True)
class Recorder:
    """A Reporter that keeps what it was told."""

    notes: list[str] = field(default_factory=list)
    steps: list[tuple[int, int | None]] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def progress(self, done_bytes: int, total_bytes: int | None) -> None:
        self.steps.append((done_bytes, total_bytes))
