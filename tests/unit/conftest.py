"""A machine of its own for tests that look for, find or fetch model files."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "LLAMA_CACHE")


@dataclass(frozen=True, slots=True)
class Machine:
    """Folders of a machine without any model."""

    home: Path
    hotloop: Path
    hugging_face: Path
    ollama: Path
    llama_cpp: Path
    wheels: Path

    @property
    def models(self) -> Path:
        return self.hotloop / "models"

    def add_hugging_face(self, repo: str, file: str, data: bytes, commit: str = "c1", ref: str = "main") -> Path:
        """A file as the Hugging Face libraries lay it down: a blob, a link to it in a snapshot, a ref."""
        folder = self.hugging_face / ("models--" + repo.replace("/", "--"))
        blob = write(folder / "blobs" / f"{commit}-{file.replace('/', '-')}", data)
        link = folder / "snapshots" / commit / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
        write(folder / "refs" / ref, commit.encode())
        return link

    def add_wheel(self, package: str, version: str, members: dict[str, bytes]) -> Path:
        """A wheel in the folder that stands for the package index."""
        name = package.replace("-", "_")
        info = f"{name}-{version}.dist-info"
        path = self.wheels / f"{name}-{version}-py3-none-any.whl"
        path.parent.mkdir(parents=True, exist_ok=True)
        files = {
            **members,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": b"",
        }
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in files.items():
                archive.writestr(member, data)
        return path


def write(path: Path, data: bytes) -> Path:
    """Write a file, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A home without models, caches or tokens, and a package index that is a local folder."""
    home = tmp_path / "home"
    made = Machine(
        home=home,
        hotloop=tmp_path / "hotloop",
        hugging_face=home / ".cache" / "huggingface" / "hub",
        ollama=tmp_path / "ollama",
        llama_cpp=home / ".cache" / "llama.cpp",
        wheels=tmp_path / "wheels",
    )
    made.wheels.mkdir()
    for variable in (*_VARIABLES, "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HOTLOOP_HOME", str(made.hotloop))
    monkeypatch.setenv("OLLAMA_MODELS", str(made.ollama))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(home / "token"))
    return made
