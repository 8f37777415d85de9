import json

import pytest

from hotloop.errors import ModelNotFoundError
from hotloop.weights.model_folder import NOTE
from hotloop.weights.pull import pull
from hotloop.weights.remove import remove
from hotloop.weights.resolve import locate
from unit.weights.hub_fakes import TINY


@pytest.fixture(autouse=True)
def _setting(machine, tiny_catalog) -> None:
    pass


def everything(machine) -> list[str]:
    return sorted(p.relative_to(machine.models).as_posix() for p in machine.models.rglob("*"))


def test_a_catalog_entry_and_what_is_unfinished_of_it(machine) -> None:
    machine.models.mkdir(parents=True)
    for name in ("Tiny.Q4_1.gguf", "Tiny.Q4_1.gguf.partial", "Tiny.Q4_1.gguf.partial.json", "Other.gguf"):
        (machine.models / name).write_bytes(TINY[::-1])
    assert remove("TINY") == 3 * len(TINY)
    assert everything(machine) == ["Other.gguf"]
    with pytest.raises(ModelNotFoundError, match="tiny is not on this machine"):
        remove("tiny")
    assert remove(str(machine.models / "Other.gguf")) == len(TINY)
    assert everything(machine) == []


def test_files_of_a_repository(machine, hub_server) -> None:
    for name in ("m-Q8_0.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf"):
        hub_server.add("a/b", name, TINY)
    pull("hf:a/b/m-Q8_0.gguf")
    pull("hf:a/b/s-00001-of-00002.gguf")
    with pytest.raises(ModelNotFoundError, match=r"(?s)name one of the 2 files.*\n  hf:a/b/s-00001-of-00002.gguf"):
        remove("hf:a/b")
    assert remove("hf:a/b/s-00001-of-00002.gguf") == 2 * (len(TINY) + len(f"{len(TINY)} c1"))  # and the marks of both
    assert everything(machine) == ["a", "a/b", "a/b/.m-Q8_0.gguf.pulled", "a/b/m-Q8_0.gguf"]
    remove("hf:a/b")
    assert everything(machine) == []


def test_a_folder_and_one_that_was_begun(machine, hub_server) -> None:
    for name in ("config.json", "model.safetensors"):
        hub_server.add("a/b", name, b"{}")
        hub_server.add("a/b", name, b"{}", revision="v1")
    pull("hf:a/b")
    (machine.models / "a" / "b@v1").mkdir()
    (machine.models / "a" / "b@v1" / "model.safetensors.partial").write_bytes(b"x")
    assert remove("hf:a/b@v1") == 1
    assert locate("hf:a/b") is not None
    remove("hf:a/b")
    assert everything(machine) == []


def test_what_others_have_is_left_alone(machine, tmp_path) -> None:
    link = machine.add_hugging_face("a/b", "m.gguf", TINY)
    own = tmp_path / "mine.gguf"
    own.write_bytes(TINY)
    with pytest.raises(ModelNotFoundError, match=r"hf:a/b is in the Hugging Face cache .*delete it there"):
        remove("hf:a/b")
    with pytest.raises(ModelNotFoundError, match="no file that hotloop has pulled"):
        remove(str(own))
    machine.models.mkdir(parents=True)
    (tmp_path / "hotloop" / "other").write_bytes(TINY)
    with pytest.raises(ModelNotFoundError, match="no file that hotloop has pulled"):
        remove(str(machine.models / ".." / "other"))
    assert link.exists()
    assert own.exists()


def test_a_link_goes_and_what_it_points_to_stays(machine, tmp_path) -> None:
    real = tmp_path / "real.gguf"
    real.write_bytes(TINY)
    machine.models.mkdir(parents=True)
    (machine.models / "Tiny.Q4_1.gguf").symlink_to(real)
    remove("tiny")
    assert everything(machine) == []
    assert real.exists()


def test_what_pulls_did_not_put_into_their_folders_stays(machine, hub_server) -> None:
    for name in ("config.json", "model.safetensors"):
        hub_server.add("a/b", name, b"{}")
    folder = pull("hf:a/b")
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("mine")
    (folder / "mine.gguf").write_bytes(TINY)
    remove("hf:a/b")
    assert everything(machine) == ["a", "a/b", "a/b/mine.gguf", "a/b/notes", "a/b/notes/mine.txt"]
    (folder / "config.json.partial").write_bytes(b"x")
    assert remove("hf:a/b") == 1
    rest = ["a", "a/b", "a/b/mine.gguf", "a/b/notes", "a/b/notes/mine.txt"]
    assert everything(machine) == rest
    with pytest.raises(ModelNotFoundError, match=r"no pull says that it put these files there; name .*\n  hf:a/b/mine.gguf$"):
        remove("hf:a/b")
    assert everything(machine) == rest
    assert remove("hf:a/b/mine.gguf") == len(TINY)  # named itself, it goes whoever put it there
    assert everything(machine) == ["a", "a/b", "a/b/notes", "a/b/notes/mine.txt"]


def test_a_file_of_ones_own_stays_beside_a_pulled_one_and_in_its_place(machine, hub_server) -> None:
    hub_server.add("a/b", "m-Q4_0.gguf", TINY)
    pulled = pull("hf:a/b")
    mine = pulled.with_name("mine.gguf")
    mine.write_bytes(TINY)
    remove("hf:a/b")
    assert everything(machine) == ["a", "a/b", "a/b/mine.gguf"]
    mine.unlink()
    pull("hf:a/b")
    pulled.write_bytes(TINY + b"mine")
    with pytest.raises(ModelNotFoundError, match="no pull says that it put these files there"):
        remove("hf:a/b")
    assert pulled.exists()


def test_a_note_that_names_files_elsewhere_is_no_pulls(machine, hub_server) -> None:
    for name in ("config.json", "model.safetensors"):
        hub_server.add("a/b", name, b"{}")
    folder = pull("hf:a/b")
    note = json.loads((folder / NOTE).read_text())
    victim = machine.models / "victim"
    victim.write_text("mine")
    (folder / NOTE).write_text(json.dumps({**note, "files": {**note["files"], "../../victim": [4, None]}}))
    with pytest.raises(ModelNotFoundError, match="is no file that hotloop has pulled"):
        remove("hf:a/b")
    (folder / "config.json").unlink()
    pull("hf:a/b")
    assert victim.read_text() == "mine"
    remove("hf:a/b")
    assert everything(machine) == ["victim"]


@pytest.mark.parametrize("by_path", [False, True])
def test_a_model_folder_that_no_pull_has_made_stays(machine, by_path) -> None:
    folder = machine.models / "a" / "b"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(b"{}")
    with pytest.raises(ModelNotFoundError, match="is no file that hotloop has pulled"):
        remove(str(folder) if by_path else "hf:a/b")
    assert len(list(folder.iterdir())) == 2


def test_a_folder_behind_a_link_stays(machine, hub_server, tmp_path) -> None:
    for name in ("config.json", "model.safetensors"):
        hub_server.add("a/b", name, b"{}")
    folder = pull("hf:a/b").rename(tmp_path / "elsewhere")
    (machine.models / "a" / "b").symlink_to(folder)
    with pytest.raises(ModelNotFoundError, match="is no file that hotloop has pulled"):
        remove("hf:a/b")
    assert (folder / "config.json").exists()


def test_all_parts_of_a_split_model_go_by_path_too(machine) -> None:
    machine.models.mkdir(parents=True)
    for part in (1, 2):
        (machine.models / f"m-0000{part}-of-00002.gguf").write_bytes(TINY)
    assert remove(str(machine.models / "m-00001-of-00002.gguf")) == 2 * len(TINY)
    assert everything(machine) == []


@pytest.mark.parametrize("model", ["hf:a/" + "b" * 300, "hf:" + "a" * 199 + "/" + "b" * 199, "./" + "m" * 300, "m" * 300])
def test_a_name_too_long_for_a_file(model) -> None:
    with pytest.raises(ModelNotFoundError):
        remove(model)
