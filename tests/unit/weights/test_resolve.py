import shutil

import pytest

from hotloop.errors import ModelNotFoundError
from hotloop.weights import cache
from hotloop.weights.discover import discover
from hotloop.weights.resolve import NotPulledError, locate, resolve
from unit.weights.hub_fakes import TINY


@pytest.fixture(autouse=True)
def _setting(machine, tiny_catalog) -> None:
    pass


def test_own_file_first(machine) -> None:
    machine.models.mkdir(parents=True)
    path = machine.models / "Tiny.Q4_1.gguf"
    path.write_bytes(TINY)
    assert resolve("tiny") == path
    assert resolve("TINY") == path


def test_path(tmp_path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(TINY)
    assert resolve(str(path)) == path
    with pytest.raises(ModelNotFoundError, match="no such file"):
        resolve(str(tmp_path / "y.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"folder: name a .gguf file in it \(x.gguf\)"):
        resolve(str(tmp_path))


def test_catalog_name_finds_the_hub_s_file_in_the_hugging_face_cache(machine) -> None:
    link = machine.add_hugging_face("maker/tiny-GGUF", "tiny-q4_1.gguf", TINY)
    assert resolve("tiny") == link


def test_catalog_name_finds_the_same_bytes_under_any_name(machine, monkeypatch) -> None:
    machine.add_hugging_face("other/repo", "changed.gguf", TINY[:-1] + b"?")  # same size, other bytes
    machine.add_hugging_face("other/repo", "longer.gguf", TINY + b"?")
    assert locate("tiny") is None
    link = machine.add_hugging_face("other/repo", "renamed.gguf", TINY)
    hashed = []
    compute = cache.file_sha256
    monkeypatch.setattr(cache, "file_sha256", lambda path: hashed.append(path.name) or compute(path))
    assert resolve("tiny") == link
    assert resolve("tiny") == link
    assert hashed == ["c1-renamed.gguf"]  # the size ruled out the longer one; the changed one was remembered


def test_hub_reference(machine) -> None:
    with pytest.raises(NotPulledError, match="hotloop pull hf:a/b"):
        resolve("hf:a/b")
    old = machine.add_hugging_face("a/b", "m-Q4_K_M.gguf", TINY, commit="c0", ref="v1")
    assert resolve("hf:a/b") == old  # the only copy here
    new = machine.add_hugging_face("a/b", "m-Q4_K_M.gguf", TINY + b"new", commit="c1")
    machine.add_hugging_face("a/b", "m-Q8_0.gguf", TINY, commit="c1")
    assert resolve("hf:a/b") == new
    assert resolve("hf:a/b/m-Q8_0.gguf") == new.with_name("m-Q8_0.gguf")
    assert resolve("hf:a/b@v1") == old
    assert resolve("hf:a/b@c0/m-Q4_K_M.gguf") == old
    with pytest.raises(NotPulledError):
        resolve("hf:a/b@v2")


def test_split_hub_model_needs_every_part(machine) -> None:
    first = machine.add_hugging_face("a/b", "x-00001-of-00002.gguf", TINY)
    assert locate("hf:a/b/x-00001-of-00002.gguf") is None
    machine.add_hugging_face("a/b", "x-00002-of-00002.gguf", TINY)
    assert locate("hf:a/b") == first


def test_everything_listed_resolves_to_its_path(machine, tmp_path) -> None:
    machine.add_hugging_face("a/b", "sub/x.gguf", TINY)
    machine.add_hugging_face("a/c", "x.gguf", TINY + b"0", commit="k", ref="v7")
    machine.llama_cpp.mkdir(parents=True)
    (machine.llama_cpp / "y.gguf").write_bytes(TINY + b"1")
    (machine.models / "q" / "r").mkdir(parents=True)
    (machine.models / "q" / "r" / "z.gguf").write_bytes(TINY + b"2")
    found = discover()
    assert len(found) == 4
    assert [resolve(model.model) for model in found] == [model.path for model in found]
    shutil.rmtree(machine.hugging_face)
    assert len(discover()) == 2


@pytest.mark.parametrize(("model", "near"), [("tinny", "tiny"), ("hub_only", "hub-only"), ("ub-onl", "hub-only")])
def test_unknown_name_names_near_ones_and_the_command(model, near) -> None:
    with pytest.raises(ModelNotFoundError, match=f"did you mean {near}.*hotloop pull {near}") as caught:
        resolve(model)
    assert not isinstance(caught.value, NotPulledError)


@pytest.mark.parametrize("model", ["", "zzzz", "ollama:nothing", "a\nb", "a\0b", "why? " * 2000, "~nobody-here/x"])
def test_unknown_and_nothing_near(model) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve(model)


def test_known_but_not_here_names_the_command() -> None:
    with pytest.raises(NotPulledError, match="`hotloop pull tiny` fetches it"):
        resolve("tiny")


def test_an_ollama_model_that_is_not_here_is_named(machine) -> None:
    with pytest.raises(ModelNotFoundError, match="ollama:llama3 is not in Ollama's store"):
        resolve("ollama:llama3")


def test_a_folder_that_may_not_be_read_is_said_to_be_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # as for others than root
    with pytest.raises(ModelNotFoundError, match="is a folder that you may not read"):
        resolve(str(tmp_path))
