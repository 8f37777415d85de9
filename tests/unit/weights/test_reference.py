import pytest

from hotloop.errors import ModelNotFoundError
from hotloop.weights.reference import (
    HubReference,
    OllamaReference,
    choose_file,
    parse_reference,
    split_parts,
)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf:Qwen/Qwen3-8B-GGUF", HubReference("Qwen/Qwen3-8B-GGUF")),
        ("hf:a/b@v1.0/sub/x.gguf", HubReference("a/b", "sub/x.gguf", "v1.0")),
        ("ollama:llama3.2", OllamaReference("llama3.2", "latest")),
        ("ollama:user/model:7b-q4", OllamaReference("user/model", "7b-q4")),
        ("smollm2-135m", None),
        ("./hf.gguf", None),
    ],
)
def test_parse(text: str, reference: object) -> None:
    assert parse_reference(text) == reference


@pytest.mark.parametrize(
    "text",
    [
        "hf:",
        "hf:a",
        "hf:a/b/../../x.gguf",
        "hf:a/b//x.gguf",
        "hf:a/b/x.bin",
        "hf:../b",
        "ollama:",
        "ollama:../x",
    ],
)
def test_malformed_references_are_refused_by_name(text: str) -> None:
    with pytest.raises(ModelNotFoundError, match="write "):
        parse_reference(text)


def test_text_of_a_reference_parses_back() -> None:
    for reference in (HubReference("a/b", "c/x.gguf", "r"), HubReference("a/b"), OllamaReference("a/b", "t")):
        assert parse_reference(str(reference)) == reference


def test_choice_among_files() -> None:
    assert choose_file(["README.md", "only.gguf"]) == "only.gguf"
    assert choose_file(["m-Q8_0.gguf", "m-q4_k_m.gguf", "m-f16.gguf"]) == "m-q4_k_m.gguf"
    assert choose_file(["m-Q8_0.gguf", "mmproj-m-Q4_K_M.gguf"]) == "m-Q8_0.gguf"
    assert (
        choose_file(["m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf"]) == "m-Q4_K_M-00001-of-00002.gguf"
    )
    assert choose_file(["m-IQ2_XS.gguf", "m-IQ3_S.gguf"]) is None
    assert choose_file([]) is None


def test_parts_of_a_split_model() -> None:
    assert split_parts("d/m-00002-of-00003.gguf") == [f"d/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert split_parts("m.gguf") == ["m.gguf"]
