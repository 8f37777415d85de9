import pytest

from hotloop.errors import ModelNotFoundError
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
    assert remove("hf:a/b/s-00001-of-00002.gguf") == 2 * len(TINY)
    assert everything(machine) == ["a", "a/b", "a/b/m-Q8_0.gguf"]
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
