import pytest

from hotloop.weights.catalog import DEFAULT_MODEL, CatalogEntry, catalog, entry_for, parse_catalog

ENTRY = {
    "file": "x.gguf",
    "bytes": 4,
    "sha256": "0" * 64,
    "architecture": "llama",
    "parameters": 1,
    "quantization": "Q8_0",
    "licence": "MIT",
    "chat": False,
    "hub": {"repo": "a/b", "file": "x.gguf"},
}


def test_development_models_have_both_sources_and_pinned_bytes() -> None:
    for name in ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"):
        entry = catalog()[name]
        assert entry.bytes is not None
        assert entry.sha256 is not None
        assert entry.pypi is not None
    assert DEFAULT_MODEL in catalog()


def test_names_and_files_are_unique_and_lower_case() -> None:
    names = list(catalog())
    assert names == [name.lower() for name in names]
    assert len({entry.file for entry in catalog().values()}) == len(names)


def test_sizes_fit_the_parameters_and_the_quantization() -> None:
    bits_per_weight = {
        "Q4_1": (5.0, 6.0),
        "Q4_K_M": (4.6, 8.2),
        "Q8_0": (8.4, 8.7),
    }  # small models: large heads
    for entry in catalog().values():
        low, high = bits_per_weight[entry.quantization]
        assert low < entry.size_bytes * 8 / entry.parameters < high, entry.name


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "abc"},
        {"sha256": None},
        {"approximate_bytes": 4},
        {"bytes": None, "sha256": None},
        {"file": "../x.gguf"},
        {"hub": {"repo": "a/../b", "file": "x.gguf"}},
        {"hub": {"repo": "a/b", "file": "x.bin"}},
        {"pypi": {"packages": ["unpinned"], "member": "x"}},
        {"pypi": {"packages": ["a==1 --index-url=x"], "member": "x"}},
        {"parameters": 0},
        {"unknown_key": 1},
    ],
)
def test_a_wrong_entry_is_refused(change: dict[str, object]) -> None:
    assert isinstance(parse_catalog({"x": ENTRY})["x"], CatalogEntry)
    with pytest.raises((AssertionError, TypeError)):
        parse_catalog({"x": {**ENTRY, **change}})


def test_entry_for_names_files_and_hub_references() -> None:
    entry = catalog()["qwen2.5-coder-0.5b"]
    assert entry_for("Qwen2.5-Coder-0.5B") is entry
    assert entry_for("/some/where/" + entry.file) is entry
    assert entry_for(f"hf:{entry.hub.repo}/{entry.hub.file}") is entry
    assert entry_for("other.gguf") is None
