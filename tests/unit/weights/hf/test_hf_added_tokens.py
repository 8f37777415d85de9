"""Added tokens that are found in what the normalizer makes of a text: as in the `tokenizers` library."""

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers

from hotloop.text.chat_template import ChatTemplate, encode_chat
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import write_gguf
from hotloop.weights.hf.tokenizer import tokenizer_metadata
from tokenizer_folders import (
    BYTE_LEVEL,
    SPACE,
    byte_level_json,
    metaspace,
    sentencepiece_json,
    spm_merges,
    with_added,
    write_folder,
)

ADDED_TEXTS = ("<c>", "<d>", "<c>z", "ab", "bc", "e\u0301", "x\u00e9y", "\u2260z", "\u0958", f"{SPACE}<c>", SPACE * 8, "b", "<")
FRAGMENTS = (*ADDED_TEXTS, " ", "  ", "\n", "\u0301", "\u00e9\u0301", "=\u0338", SPACE, "a", "z", "the", " hi", "<|im_start|>")


def with_normalized(definition: dict[str, Any], random: Random, *, learned: bool, control: bool) -> dict[str, Any]:
    """Further added tokens with any flags; learned, control: whether such tokens may be normalized."""
    definition = copy.deepcopy(definition)
    vocab, added = definition["model"]["vocab"], definition["added_tokens"]
    for token in added:
        token["normalized"] = learned and (control or not token["special"]) and random.random() < 0.3
    next_id = max(*vocab.values(), *(token["id"] for token in added)) + 1
    for text in random.sample(ADDED_TEXTS, 5):
        special, normalized = random.random() < 0.4, random.random() < 0.6
        flags = {"special": special, "normalized": normalized and (control or not special) and (learned or len(text) > 1)}
        flags |= {name: random.random() < 0.15 for name in ("lstrip", "rstrip")}
        if text not in vocab:
            added.append({"id": next_id, "content": text, "single_word": False, **flags})
            next_id += 1
    return definition


@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "replace", "prepend", "unless_space", "first"])
def test_added_tokens_in_normalized_text(tmp_path: Path, name: str) -> None:
    """All but control tokens and learned ones where the normalizer puts a space before every text."""
    definitions = BYTE_LEVEL | {
        "replace": sentencepiece_json(prefix=False, merges=spm_merges()),
        "prepend": sentencepiece_json(prefix=True, merges=spm_merges()),
        "unless_space": sentencepiece_json(
            prefix=False, merges=spm_merges(), normalizer=None, pre_tokenizer=metaspace("always")
        ),
        "first": sentencepiece_json(prefix=False, merges=spm_merges(), normalizer=None, pre_tokenizer=metaspace("first")),
    }
    random = Random(5)
    free = name != "prepend"
    for trial in range(20):
        definition = with_normalized(definitions[name], random, learned=free, control=free)
        ours = Tokenizer.from_metadata(tokenizer_metadata(write_folder(tmp_path / str(trial), definition)))
        oracle = tokenizers.Tokenizer.from_str(json.dumps(definition))
        for _ in range(50):
            text = "".join(random.choices(FRAGMENTS, k=random.randrange(1, 10)))
            expected = oracle.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_special=False, parse_special=True) == expected, repr(text)
            assert ours.min_num_tokens(text) <= len(expected), repr(text)


NEW = "<a token longer than all others of the vocabulary>".replace(" ", "-")


def test_a_normalized_token_takes_the_space_before_it(tmp_path: Path) -> None:
    """As where add_tokens of transformers has given an older Llama tokens: in chats, too."""
    definition = with_added(sentencepiece_json(prefix=True, merges=spm_merges()), NEW, normalized=True)
    metadata = tokenizer_metadata(write_folder(tmp_path, definition))
    write_gguf(tmp_path / "model.gguf", metadata, {})
    with GGUFFile.open(tmp_path / "model.gguf") as written:
        tokenizer = Tokenizer.from_metadata(written.metadata)
    the = tokenizer.encode("the", add_special=False)
    new = tokenizer.token_id(NEW)
    assert tokenizer.encode(f"the {NEW} the{NEW}", add_special=False) != [*the, new, *the, new]
    assert tokenizer.encode(f"the {NEW} the {NEW}", add_special=False) == [*the, new, *the, new]
    many = " ".join([NEW] * 50)
    assert tokenizer.encode(many, add_special=False) == [new] * 50
    assert tokenizer.min_num_tokens(many) <= 50
    template = ChatTemplate("<end_of_turn>{{ messages[0].content }}", bos_token="", eos_token="")
    end = tokenizer.token_id("<end_of_turn>")
    assert encode_chat(tokenizer, template, [{"role": "user", "content": f"{NEW} the"}]) == [end, new, *the]


def test_control_tokens_are_found_where_templates_have_no_space(tmp_path: Path) -> None:
    definition = sentencepiece_json(prefix=True, merges=spm_merges())
    for token in definition["added_tokens"]:
        token["normalized"] = True  # as the first Llama's files say; transformers finds </s> after a space only then
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(write_folder(tmp_path, definition)))
    end = tokenizer.token_id("<end_of_turn>")
    assert end in tokenizer.encode("the<end_of_turn>", parse_special=True)
    assert tokenizer.find_control("the<end_of_turn>") == [(3, 16, end)]


def test_what_says_nothing_is_normalized_unless_special(tmp_path: Path) -> None:
    definition = with_added(byte_level_json(), "<a>", 600, special=False, normalized=None)
    definition = with_added(definition, "<b>", 601, special=True, normalized=None)
    metadata = tokenizer_metadata(write_folder(tmp_path, definition))
    assert metadata["hotloop.tokenizer.normalized_token_ids"].tolist() == [600]
