import json
from pathlib import Path

import pytest

from hotloop.weights.discover import FoundModel, discover
from hotloop.weights.resolve import resolve

GGUF = b"GGUF" + b"\0" * 60


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def by_model() -> dict[str, FoundModel]:
    return {found.model: found for found in discover()}


@pytest.mark.usefixtures("machine")
def test_an_empty_machine_has_no_models() -> None:
    assert discover() == []


def test_hugging_face_cache(machine) -> None:
    old = machine.add_hugging_face("a/b", "x.gguf", GGUF + b"old", commit="c0", ref="old")
    new = machine.add_hugging_face("a/b", "x.gguf", GGUF, commit="c1")
    machine.add_hugging_face("a/b", "config.json", b"{}", commit="c1")
    machine.add_hugging_face("a/b", "mmproj-x.gguf", GGUF + b"mm", commit="c1")
    (new.parent / "broken.gguf").symlink_to("nowhere")
    assert by_model() == {
        "hf:a/b/x.gguf": FoundModel("hf:a/b/x.gguf", new, 64, "Hugging Face cache"),
        "hf:a/b@c0/x.gguf": FoundModel("hf:a/b@c0/x.gguf", old, 67, "Hugging Face cache"),
    }


@pytest.mark.parametrize(
    "name",
    ["x.gguf", "mine/x.gguf", "My models/x y/z.gguf", "-a/b/x.gguf", "a/b@v1--x/y.gguf", "a/b/x\ny.gguf", "hf:a/b/x.gguf"],
)
def test_files_of_ones_own_have_names_that_mean_them(machine, name) -> None:
    path = write(machine.models / name, GGUF)
    assert list(by_model()) == [str(path)]
    assert resolve(str(path)) == path


def test_a_folder_of_ones_own_has_a_name_that_means_it(machine) -> None:
    for name in ("config.json", "model.safetensors"):
        write(machine.models / "My models" / "mine" / name, b"{}")
    (name,) = by_model()
    assert resolve(name) == machine.models / "My models" / "mine"


@pytest.mark.parametrize(
    ("variable", "below"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_hugging_face_cache_elsewhere(machine, monkeypatch, tmp_path, variable, below) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    write(tmp_path / "elsewhere" / below / "models--a--b" / "snapshots" / "c" / "x.gguf", GGUF)
    assert list(by_model()) == ["hf:a/b/x.gguf"]


def test_split_model_is_one_entry_with_all_its_bytes_and_needs_all_parts(machine) -> None:
    machine.add_hugging_face("a/b", "x-00001-of-00002.gguf", GGUF)
    assert discover() == []
    machine.add_hugging_face("a/b", "x-00002-of-00002.gguf", GGUF)
    (found,) = discover()
    assert (found.model, found.bytes) == ("hf:a/b/x-00001-of-00002.gguf", 128)


def test_ollama_store(machine) -> None:
    digest = "ab" * 32
    write(machine.ollama / "blobs" / f"sha256-{digest}", GGUF)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 64}
    other = {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64}
    manifests = machine.ollama / "manifests"
    good = json.dumps({"layers": [other, layer]}).encode()
    write(manifests / "registry.example" / "library" / "llama3.2" / "1b", good)
    write(manifests / "registry.example" / "someone" / "tuned" / "latest", good)
    write(manifests / "hub.example" / "owner" / "repo" / "Q4_K_M", good)
    write(manifests / "registry.example" / "library" / "broken" / "latest", b"{")
    write(manifests / "registry.example" / "library" / "odd" / "latest", b"[1]")
    evil = json.dumps({"layers": [{**layer, "digest": "sha256:../../../../etc/passwd"}]}).encode()
    write(manifests / "registry.example" / "library" / "evil" / "latest", evil)
    # One blob under three names is one file.
    assert [(found.model, found.where) for found in discover()] == [("ollama:hub.example/owner/repo:Q4_K_M", "Ollama")]
    from hotloop.weights.discover import scan_ollama

    assert {found.model for found in scan_ollama()} == {
        "ollama:llama3.2:1b",
        "ollama:someone/tuned:latest",
        "ollama:hub.example/owner/repo:Q4_K_M",
    }


def test_llama_cpp_cache_and_files_that_are_no_models(machine, monkeypatch, tmp_path) -> None:
    path = write(machine.llama_cpp / "ggml-org_x_y.gguf", GGUF)
    write(machine.llama_cpp / "half.gguf.downloadInProgress", GGUF)
    write(machine.llama_cpp / "page.gguf", b"<html>")
    assert discover() == [FoundModel(str(path), path, 64, "llama.cpp cache")]
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "other"))
    assert discover() == []


def test_own_models_by_the_name_to_use(machine, tiny_catalog) -> None:
    write(machine.models / "Tiny.Q4_1.gguf", GGUF)
    write(machine.models / "a" / "b@v1" / "sub" / "x.gguf", GGUF)
    loose = write(machine.models / "loose.gguf", GGUF)
    write(machine.models / "Tiny.gguf.partial", GGUF)
    assert set(by_model()) == {"tiny", "hf:a/b@v1/sub/x.gguf", str(loose)}


def test_folders_in_the_hugging_face_cache(machine) -> None:
    """Language models with all their shards; of other models the cache is full too."""
    config = b'{"architectures": ["LlamaForCausalLM"]}'
    path = machine.add_hugging_face("a/b", "config.json", config).parent
    machine.add_hugging_face("a/b", "model-00001-of-00002.safetensors", b"1234")
    machine.add_hugging_face("a/b", "README.md", b"long")
    assert discover() == []
    machine.add_hugging_face("a/b", "model-00002-of-00002.safetensors", b"56")
    machine.add_hugging_face("a/bert", "config.json", b'{"architectures": ["BertModel"]}')
    machine.add_hugging_face("a/bert", "model.safetensors", b"1")
    machine.add_hugging_face("a/broken", "config.json", b"[" * 100_000)
    machine.add_hugging_face("a/broken", "model.safetensors", b"1")
    assert discover() == [FoundModel("hf:a/b", path, len(config) + 6, "Hugging Face cache")]
    assert resolve("hf:a/b") == path
    old = machine.add_hugging_face("a/b", "config.json", config, commit="c0", ref="old").parent
    machine.add_hugging_face("a/b", "model.safetensors", b"1", commit="c0", ref="old")
    assert {found.model: found.path for found in discover()} == {"hf:a/b": path, "hf:a/b@c0": old}
    assert resolve("hf:a/b@c0") == resolve("hf:a/b@old") == old
