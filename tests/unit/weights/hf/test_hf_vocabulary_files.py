"""vocab.json and merges.txt of older folders: the same as a tokenizer.json of the vocabulary, by the tokenizer class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.errors import ModelFileError
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.hf.tokenizer import tokenizer_metadata
from tokenizer_folders import BYTE_LEVEL, small_vocabulary, write_folder

HEAD = "#version: 0.2\n"


def write_older_folder(folder: Path, **companions: Any) -> Path:
    """The small byte-level vocabulary without the two added tokens that vocab.json does not have."""
    vocabulary = small_vocabulary("small_bpe")
    vocab = {text: i for i, text in enumerate(vocabulary["tokens"]) if i < 500}
    write_folder(folder, None, vocab=vocab, **companions)
    (folder / "merges.txt").write_text(HEAD + "\n".join(vocabulary["merges"]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("pre", "companions"),
    [
        ("gpt-2", {"tokenizer_config": {"tokenizer_class": "GPT2Tokenizer"}}),
        ("gpt-2", {"tokenizer_config": {"tokenizer_class": "GPT2TokenizerFast"}, "config": {"model_type": "qwen2"}}),
        ("gpt-2", {"config": {"model_type": "gpt2"}}),
        ("gpt-2", {"config": {"model_type": "starcoder2"}, "tokenizer_config": {"model_max_length": 1024}}),
        ("qwen2", {"config": {"model_type": "llama", "tokenizer_class": "Qwen2Tokenizer"}}),
        ("qwen2", {"config": {"model_type": "qwen3"}}),
    ],
)
def test_an_older_folder_gives_the_ids_of_a_tokenizer_json(tmp_path: Path, pre: str, companions: dict[str, Any]) -> None:
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    added = {"<tool_call>": 500, "</tool_call>": 501}
    companions |= {"tokenizer_config": config | companions.get("tokenizer_config", {}), "added_tokens": added}
    metadata = tokenizer_metadata(write_older_folder(tmp_path / "a", **companions))
    expected = tokenizer_metadata(write_folder(tmp_path / "b", BYTE_LEVEL[pre], **companions))
    assert metadata["tokenizer.ggml.pre"] == pre
    assert metadata.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(metadata[key], value), key


def test_the_class_has_an_end_token_where_the_folder_names_none(tmp_path: Path) -> None:
    for name, bos in (("GPT2Tokenizer", 0), ("Qwen2Tokenizer", None)):
        metadata = tokenizer_metadata(write_older_folder(tmp_path, tokenizer_config={"tokenizer_class": name}))
        assert metadata.get("tokenizer.ggml.bos_token_id") == bos
        assert metadata["tokenizer.ggml.eos_token_id"] == 0
        assert metadata["tokenizer.ggml.token_type"][0] == 3
        assert not metadata["tokenizer.ggml.add_bos_token"]


def test_special_tokens_of_an_older_folder(tmp_path: Path) -> None:
    """Named in either file, with their flags: they are in the vocabulary, and nothing else says that they are special."""
    texts = [small_vocabulary("small_bpe")["tokens"][i] for i in (300, 301, 302, 303, 304)]
    folder = write_older_folder(
        tmp_path,
        tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "additional_special_tokens": texts[:1], "add_prefix_space": True},
        special_tokens_map={
            "pad_token": texts[1],
            "mask_token": {"content": texts[2], "lstrip": True},
            "additional_special_tokens": [texts[3], {"content": texts[4], "rstrip": True}],
        },
    )
    metadata = tokenizer_metadata(folder)
    assert metadata["tokenizer.ggml.token_type"][299:306].tolist() == [1, 3, 3, 3, 3, 3, 1]
    assert metadata["hotloop.tokenizer.lstrip_token_ids"].tolist() == [302]
    assert metadata["hotloop.tokenizer.rstrip_token_ids"].tolist() == [304]
    assert metadata["tokenizer.ggml.add_space_prefix"]
    assert Tokenizer.from_metadata(metadata).encode("hi") == Tokenizer.from_metadata(metadata).encode(" hi")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("merges.txt", None, "there is vocab.json, but no merges.txt; download it"),
        ("merges.txt", b"\xff", "merges.txt: is no UTF-8 text"),
        ("merges.txt", HEAD.encode() + b"a b\n\nc d\n", "merges.txt: line 3 must be two tokens with a space between, not ''"),
        ("merges.txt", b"a b c", "merges.txt: line 1 must be two tokens"),
        ("merges.txt", b"a ", "merges.txt: line 1 must be two tokens"),
        ("merges.txt", b"a zq", "vocab.json: the merge .'a', 'zq'. joins or makes no tokens of the vocabulary"),
        ("vocab.json", b"{}", "vocab.json: model.vocab must be a non-empty object"),
        ("vocab.json", b'{"<|endoftext|>": []}', r"vocab.json: model.vocab\['<.endoftext.>'\] must be a token id"),
        (
            "tokenizer_config.json",
            b'{"tokenizer_class": "BlenderbotTokenizer"}',
            "tokenizer_class is 'BlenderbotTokenizer'; .* hotloop reads GPT2Tokenizer and Qwen2Tokenizer; "
            "transformers writes a tokenizer.json: AutoTokenizer",
        ),
        ("tokenizer_config.json", b"{}", "no tokenizer_class is named; .* hotloop reads GPT2Tokenizer"),
    ],
)
def test_what_is_wrong_with_an_older_folder(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    folder = write_older_folder(tmp_path, tokenizer_config={"tokenizer_class": "GPT2Tokenizer"})
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        tokenizer_metadata(folder)
