"""A restarted engine must go on with the weights that an answer was begun with: any file of the model may have changed."""

import os
import shutil
from pathlib import Path

import pytest

from hotloop.weights.identity import model_identity
from tiny_folders import write_tiny_folder

PARTS = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
FILES = ["config.json", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"]


def later(path: Path) -> None:
    """As if written in place a second later: a file system may count time in seconds."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


@pytest.mark.parametrize("name", FILES)
def test_any_file_of_a_folder(tmp_path: Path, name: str) -> None:
    folder = write_tiny_folder(tmp_path / "f", num_shards=2)
    identity = model_identity(folder)
    assert identity == model_identity(folder)
    later(folder / name)
    changed = model_identity(folder)
    assert changed != identity
    shutil.copy2(folder / name, tmp_path / "copy")
    (tmp_path / "copy").rename(folder / name)
    assert model_identity(folder) != changed
    (folder / name).unlink()
    assert model_identity(folder) != changed


def test_a_file_that_comes_into_a_folder(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "f")
    identity = model_identity(folder)
    for name in ("README.md", "out.gguf", ".out.gguf.17.partial", ".hotloop-pull.json"):
        (folder / name).write_text("{}")
    assert model_identity(folder) == identity
    for name in ("chat_template.jinja", "merges.txt"):
        (folder / name).write_text("")
        assert model_identity(folder) != identity
        identity = model_identity(folder)


@pytest.mark.parametrize("opened", PARTS)
@pytest.mark.parametrize("name", PARTS)
def test_any_part_of_a_split_model(tmp_path: Path, opened: str, name: str) -> None:
    for part in PARTS:
        (tmp_path / part).write_bytes(b"x")
    identity = model_identity(tmp_path / opened)
    later(tmp_path / name)
    changed = model_identity(tmp_path / opened)
    assert changed != identity
    (tmp_path / name).unlink()
    assert model_identity(tmp_path / opened) != changed
