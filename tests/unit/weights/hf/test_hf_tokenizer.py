"""tokenizer.json and its companions as metadata: the same ids as the model file's, and what is not known is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.text.chat_template import ChatTemplate, encode_chat
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import write_gguf
from hotloop.weights.hf.tokenizer import tokenizer_metadata
from hotloop.weights.hf.tokenizer_json import is_byte_token
from nasty_corpus import nasty_corpus
from tokenizer_folders import (
    BYTE_LEVEL,
    BYTES,
    FLAGS,
    GPT2,
    byte_level_json,
    metaspace,
    sentencepiece_json,
    small_vocabulary,
    spm_merges,
    with_added,
    words,
    write_folder,
)


def spm_metadata(prefix: bool) -> dict[str, Any]:
    metadata = {f"tokenizer.ggml.{key}": value for key, value in small_vocabulary("small_spm").items()}
    return {**metadata, "tokenizer.ggml.add_space_prefix": prefix}


def assert_same_ids(ours: Tokenizer, theirs: Tokenizer) -> None:
    for text in nasty_corpus():
        for parse_special in (False, True):
            expected = theirs.encode(text, parse_special=parse_special)
            assert ours.encode(text, parse_special=parse_special) == expected, repr(text)


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_a_byte_level_folder_gives_the_ids_of_the_model_file(tmp_path: Path, pre: str) -> None:
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    metadata = tokenizer_metadata(write_folder(tmp_path, BYTE_LEVEL[pre], tokenizer_config=config))
    expected = {f"tokenizer.ggml.{key}": value for key, value in small_vocabulary("small_bpe").items()}
    assert metadata["tokenizer.ggml.pre"] == pre
    for key in ("tokens", "merges", "bos_token_id", "eos_token_id", "add_bos_token", "token_type"):
        assert np.array_equal(metadata[f"tokenizer.ggml.{key}"], expected[f"tokenizer.ggml.{key}"]), key
    theirs = Tokenizer.from_metadata({**expected, "tokenizer.ggml.pre": pre})
    assert_same_ids(Tokenizer.from_metadata(metadata), theirs)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_sentencepiece_folder_gives_the_ids_of_the_model_file(tmp_path: Path, prefix: bool) -> None:
    folder = write_folder(
        tmp_path,
        sentencepiece_json(prefix=prefix, merges=spm_merges()),
        tokenizer_config={"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True},
    )
    metadata = tokenizer_metadata(folder)
    assert metadata["tokenizer.ggml.model"] == "llama"
    assert metadata["tokenizer.ggml.tokens"] == small_vocabulary("small_spm")["tokens"]
    assert metadata["tokenizer.ggml.token_type"].tolist() == small_vocabulary("small_spm")["token_type"]
    assert_same_ids(Tokenizer.from_metadata(metadata), Tokenizer.from_metadata(spm_metadata(prefix)))


def test_a_space_before_texts_that_begin_with_none(tmp_path: Path) -> None:  # as transformers saves Llama 2's
    definition = sentencepiece_json(
        prefix=False, merges=spm_merges(), normalizer=None, pre_tokenizer=metaspace("always")
    )
    ours = Tokenizer.from_metadata(tokenizer_metadata(write_folder(tmp_path, definition)))
    oracle = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in nasty_corpus():
        expected = oracle.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False, parse_special=True) == expected, repr(text)
    assert ours.encode(" the", add_special=False) == ours.encode("the", add_special=False)


@pytest.mark.parametrize("family", ["byte level", "byte level, whole words", "sentencepiece"])
def test_a_vocabulary_without_merges_has_bytes_or_characters(tmp_path: Path, family: str) -> None:
    if family == "sentencepiece":
        definition = sentencepiece_json(prefix=True, merges=[])
        vocab, added = definition["model"]["vocab"], [t for t in definition["added_tokens"] if t["special"]]
        kept = {text for text in vocab if len(text) == 1 or is_byte_token(text)} | {token["content"] for token in added}
        definition["model"]["vocab"] = {text: i for text, i in vocab.items() if text in kept}
        definition["added_tokens"] = added
    elif family == "byte level":
        definition = byte_level_json(merges=[])
    else:
        definition = byte_level_json(words(r"\p{N}{1,3}"), ignore_merges=True, merges=[])
    oracle = tokenizers.Tokenizer.from_file(str(write_folder(tmp_path, definition) / "tokenizer.json"))
    metadata = tokenizer_metadata(tmp_path)
    write_gguf(tmp_path / "model.gguf", metadata, {})
    with GGUFFile.open(tmp_path / "model.gguf") as written:
        of_file = Tokenizer.from_metadata(written.metadata)
    ours = Tokenizer.from_metadata(metadata)
    for text in nasty_corpus():
        expected = oracle.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False, parse_special=True) == expected, repr(text)
        assert of_file.encode(text, add_special=False, parse_special=True) == expected, repr(text)


def test_tokens_of_one_score(tmp_path: Path) -> None:
    """User-defined ones that the folder has as learned: their merges are mixed, longest parts first."""
    definition = sentencepiece_json(prefix=False, merges=spm_merges())
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["special"]]
    ours = Tokenizer.from_metadata(tokenizer_metadata(write_folder(tmp_path, definition)))
    oracle = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in nasty_corpus():
        expected = oracle.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False, parse_special=True) == expected, repr(text)


def test_a_space_before_the_first_text_only(tmp_path: Path) -> None:  # as Mistral's folders have it
    definition = sentencepiece_json(
        prefix=False, merges=spm_merges(), normalizer=None, pre_tokenizer=metaspace("first")
    )
    metadata = tokenizer_metadata(write_folder(tmp_path, definition, tokenizer_config={"bos_token": "<s>"}))
    first = Tokenizer.from_metadata(metadata)
    always, never = (Tokenizer.from_metadata(spm_metadata(prefix)) for prefix in (True, False))
    end = never.encode("<end_of_turn>", add_special=False, parse_special=True)
    start = always.encode("the", add_special=False)
    assert start != never.encode("the", add_special=False)
    assert first.encode("the<end_of_turn>the", add_special=False, parse_special=True) == [
        *start,
        *end,
        *never.encode("the", add_special=False),
    ]
    assert first.adds_leading_space
    template = ChatTemplate("{{ messages[0].content }}<end_of_turn>the", bos_token="", eos_token="")
    chat = encode_chat(first, template, [{"role": "user", "content": "the"}])
    assert chat == [*start, *end, *never.encode("the", add_special=False)]


def test_tokens_that_take_the_blanks_beside_them(tmp_path: Path) -> None:  # as Phi-3's folders have them
    definition = byte_level_json()
    definition["added_tokens"][1]["rstrip"] = True  # <|im_start|>
    definition["added_tokens"][2]["lstrip"] = True  # <|im_end|>
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(write_folder(tmp_path, definition)))
    plain = tokenizer.encode("hi")
    assert tokenizer.encode("<|im_start|> \n hi \n<|im_end|>", parse_special=True) == [1, *plain, 2]
    template = ChatTemplate("<|im_start|>\n{{ messages[0].content }}\n<|im_end|>", bos_token="", eos_token="")
    assert encode_chat(tokenizer, template, [{"role": "user", "content": " hi"}]) == [1, *plain, 2]
    blanks = "<|im_start|>" + " " * 10_000
    assert tokenizer.min_num_tokens(blanks) <= len(tokenizer.encode(blanks, parse_special=True)) == 1


def test_tokens_that_take_each_other_are_no_crash(tmp_path: Path) -> None:
    definition = byte_level_json()
    for token_id, text, flags in ((502, "\n", {"lstrip": True}), (503, "\n\n12A", {"lstrip": True, "rstrip": True})):
        definition["added_tokens"].append({"id": token_id, "content": text, "special": True, **FLAGS, **flags})
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(write_folder(tmp_path, definition)))
    assert 503 in tokenizer.encode("\n\n12A \nx", parse_special=True)
    with pytest.raises(InvalidRequestError, match="vocabulary contradicts itself on this text"):
        tokenizer.encode("\n\n12A\n\n", parse_special=True)


def test_the_model_decides_how_many_tokens_there_are(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_json())  # 502 tokens, the last two are added ones
    larger = tokenizer_metadata(folder, 510)
    assert larger["tokenizer.ggml.tokens"][500:] == [
        "<tool_call>",
        "</tool_call>",
        *(f"[PAD{i}]" for i in range(502, 510)),
    ]
    assert larger["tokenizer.ggml.token_type"][502:].tolist() == [5] * 8
    assert tokenizer_metadata(folder, 501)["tokenizer.ggml.tokens"][-1] == "<tool_call>"
    with pytest.raises(ModelFileError, match=r"10 tokens beyond the 490 of the model, first '.+' \(id 490\)"):
        tokenizer_metadata(folder, 490)


def test_every_end_of_the_configurations_ends(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        byte_level_json(),
        tokenizer_config={"eos_token": "<|im_end|>"},
        generation_config={"eos_token_id": [2, 7, 8, 9]},
        config={"eos_token_id": 10, "bos_token_id": 1},
    )
    metadata = tokenizer_metadata(folder)
    ends = [metadata[f"tokenizer.ggml.{key}_token_id"] for key in ("eos", "eot", "eom")]
    assert ends == [2, 7, 8]
    assert Tokenizer.from_metadata(metadata).eos_token_ids == {0, 2, 7, 8, 9, 10}
    assert metadata["tokenizer.ggml.bos_token_id"] == 1
    assert not metadata["tokenizer.ggml.add_bos_token"]


@pytest.mark.parametrize(
    ("config", "processor", "expected"),
    [
        ({"bos_token": "<|im_start|>"}, None, False),
        ({"bos_token": "<|im_start|>", "add_bos_token": True}, None, True),
        ({"bos_token": "<|im_start|>"}, "<|im_start|>", True),
        ({"bos_token": "<|im_start|>", "add_bos_token": False}, "<|im_start|>", False),
        ({"bos_token": "<|im_start|>"}, "<|endoftext|>", False),
        ({"bos_token": None, "add_bos_token": True}, None, False),
    ],
)
def test_bos_is_added_as_configured(
    tmp_path: Path, config: dict[str, Any], processor: str | None, expected: bool
) -> None:
    definition = byte_level_json()
    if processor:
        parts = [{"SpecialToken": {"id": processor, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        template = {"type": "TemplateProcessing", "single": parts}
        definition["post_processor"] = {"type": "Sequence", "processors": [BYTES, template]}
    metadata = tokenizer_metadata(write_folder(tmp_path, definition, tokenizer_config=config))
    assert metadata["tokenizer.ggml.add_bos_token"] is expected
    tokenizer = Tokenizer.from_metadata(metadata)
    assert (tokenizer.encode("a")[0] == 1) is expected
    assert tokenizer.encode("<|im_start|>a", parse_special=True).count(1) == 1


def test_texts_may_begin_with_other_tokens_than_bos(tmp_path: Path) -> None:  # as GLM 4's folders have it
    definition = byte_level_json()
    special = [{"SpecialToken": {"id": text, "type_id": 0}} for text in ("<|im_start|>", "<|im_end|>")]
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*special, {"Sequence": {"id": "A", "type_id": 0}}],
    }
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    metadata = tokenizer_metadata(write_folder(tmp_path, definition, tokenizer_config=config))
    assert not metadata["tokenizer.ggml.add_bos_token"]
    tokenizer = Tokenizer.from_metadata(metadata)
    plain = tokenizer.encode("a", add_special=False)
    assert tokenizer.encode("a") == tokenizer.encode("<|im_start|><|im_end|>a", parse_special=True) == [1, 2, *plain]


def test_texts_that_look_like_control_tokens_are_such(tmp_path: Path) -> None:  # known fault B97
    definition = byte_level_json()
    for token_id, text in ((502, "<|fim_prefix|>"), (503, "<\uff5cUser\uff5c>"), (504, "<think>"), (505, "<end>")):
        definition["added_tokens"].append({"id": token_id, "content": text, "special": False, **FLAGS})
    metadata = tokenizer_metadata(write_folder(tmp_path, definition, special_tokens_map={"pad_token": "<end>"}))
    assert metadata["tokenizer.ggml.token_type"][502:].tolist() == [3, 3, 4, 3]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert not {502, 503, 505} & set(tokenizer.encode("<|fim_prefix|><\uff5cUser\uff5c><end>"))
    assert 504 in tokenizer.encode("<think>")


def test_added_tokens_of_the_configuration(tmp_path: Path) -> None:
    decoder = {
        "2": {"content": "<|im_end|>", "special": True, "rstrip": True},
        "502": {"content": "<more>", "special": True},
        "503": {"content": "<tool_call>", "special": True},  # the file has it as 500
        "1": {"content": "<other>", "special": True},  # the file has another text there
    }
    metadata = tokenizer_metadata(
        write_folder(tmp_path, byte_level_json(), tokenizer_config={"added_tokens_decoder": decoder})
    )
    assert metadata["tokenizer.ggml.tokens"][500:] == ["<tool_call>", "</tool_call>", "<more>"]
    assert metadata["tokenizer.ggml.tokens"][1] == "<|im_start|>"
    assert metadata["hotloop.tokenizer.rstrip_token_ids"].tolist() == [2]


def test_the_chat_template_is_found(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = write_folder(tmp_path, byte_level_json(), chat_template={"chat_template": "J"})
    key = "tokenizer.chat_template"
    assert tokenizer_metadata(folder)[key] == "J"
    write_folder(folder, None, tokenizer_config={"chat_template": [*several, {"name": {"an": "object"}}, 7]})
    assert tokenizer_metadata(folder)[key] == "D"
    (folder / "chat_template.jinja").write_text("F")
    assert tokenizer_metadata(folder)[key] == "F"


def around(before: str | None = None, after: str | None = None) -> dict[str, Any]:
    """A post-processor that puts tokens before and after every text."""
    first, last = ([{"SpecialToken": {"id": text, "type_id": 0}}] if text else [] for text in (before, after))
    return {"type": "TemplateProcessing", "single": [*first, {"Sequence": {"id": "A", "type_id": 0}}, *last]}


@pytest.mark.parametrize("kind", ["BertProcessing", "RobertaProcessing"])
def test_tokens_around_a_text_in_the_older_form(tmp_path: Path, kind: str) -> None:
    definition = byte_level_json()
    definition["post_processor"] = {"type": kind, "sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    folder = write_folder(tmp_path, definition, tokenizer_config=config)
    ids = Tokenizer.from_metadata(tokenizer_metadata(folder)).encode("a")
    assert ids == tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a").ids


BROKEN: dict[str, tuple[Any, str]] = {
    "no json": ("{", "tokenizer.json: is not valid JSON"),
    "not an object": ("[]", "must hold a JSON object"),
    "deep": ('{"a":' * 200_000, "nested too deeply|not valid JSON"),
    "a number of 10,000 digits": ('{"a": ' + "9" * 10_000 + "}", "not valid JSON"),
    "half of a character": ('{"model": {"vocab": {"\\ud83d": 1}}}', "not valid JSON .*surrogates not allowed"),
    "half of a character in bytes": (b'{"a": "\xed\xa0\x80"}', "not valid JSON"),
    "no model": ({}, "its model is None"),
    "another model": ({"model": {"type": "Unigram"}}, "its model is 'Unigram'; hotloop reads BPE"),
    "dropout": (byte_level_json(dropout=0.1), "model.dropout is 0.1"),
    "suffix": (byte_level_json(end_of_word_suffix="</w>"), "model.end_of_word_suffix is '</w>'"),
    "vocab a list": (byte_level_json(vocab=[1]), r"model.vocab must be .*not \[1\]"),
    "id a text": (byte_level_json(vocab={"a": "1"}), r"model.vocab\['a'\] must be a token id, not '1'"),
    "id negative": (byte_level_json(vocab={"a": -1}), "must be a token id, not -1"),
    "id huge": (byte_level_json(vocab={"a": 2**40}), "must be a token id"),
    "id twice": (byte_level_json(vocab={"a": 1, "b": 1}), "gives id 1 to 'a' and 'b'"),
    "no merges": (byte_level_json(merges=None), "model.merges must be a list, not None"),
    "no merges for what is made by some": (
        sentencepiece_json(prefix=False, merges=[]),
        "its merges follow from no scores",
    ),
    "merge of three": (byte_level_json(merges=["a b c"]), r"model.merges\[0\] must be two tokens"),
    "merge of numbers": (byte_level_json(merges=[[1, 2]]), r"model.merges\[0\] must be two tokens"),
    "merge with a space": (byte_level_json(merges=[["a ", "b"]]), "holds a space"),
    "an added token without id": (
        {**byte_level_json(), "added_tokens": [{"content": "x"}]},
        r"added_tokens\[0\] needs",
    ),
    "an added number": ({**byte_level_json(), "added_tokens": [7]}, r"added_tokens\[0\] must be an object"),
    "added tokens a text": ({**byte_level_json(), "added_tokens": "x"}, "added_tokens must be a list"),
    "an added token in the place of another": (
        {**byte_level_json(), "added_tokens": [{"id": 300, "content": "<new>", **FLAGS}]},
        "id 300 is both '.+' and the added token '<new>'",
    ),
    "two added tokens of one id": (
        {**byte_level_json(), "added_tokens": [{"id": 600, "content": text, **FLAGS} for text in ("<a>", "<b>")]},
        "id 600 is both '<a>' and the added token '<b>'",
    ),
    "an added token of two ids": (
        {**byte_level_json(), "added_tokens": [{"id": token_id, "content": "<a>", **FLAGS} for token_id in (600, 601)]},
        "the added token '<a>' has the ids 600 and 601",
    ),
    "an unknown post-processor": ({**byte_level_json(), "post_processor": {"type": "New"}}, "none that hotloop has: .*New"),
    "a space in an added token": (
        with_added(sentencepiece_json(prefix=False, merges=spm_merges()), "a b"),
        r"the added token 'a b' \(id 9000\) holds a space",
    ),
    "two templates": (
        {**byte_level_json(), "post_processor": {"type": "Sequence", "processors": [around("<s>"), around("<s>")]}},
        "none that hotloop has: .*TemplateProcessing",
    ),
    "a template without a text": (
        {**byte_level_json(), "post_processor": {"type": "TemplateProcessing", "single": []}},
        "none that hotloop has",
    ),
    "a prefix of no token": ({**byte_level_json(), "post_processor": around("<s>")}, "puts '<s>' beside every text"),
    "a suffix that is no end": (
        {**byte_level_json(), "post_processor": around(after="<|im_start|>")},
        "puts '<|im_start|>' beside every text",
    ),
    "whole words": (
        {**byte_level_json(), "added_tokens": [{"id": 1, "content": "x", **FLAGS, "single_word": True}]},
        "single_word, which hotloop does not implement",
    ),
    "unknown words": (
        byte_level_json({"type": "Whitespace"}),
        r"none that hotloop has: .*Whitespace.*known are .*gpt-2",
    ),
    "unknown regex": (byte_level_json(words(r"\p{N}{1,2}")), r"none that hotloop has.*\{1,2\}"),
    "unknown digits": (byte_level_json({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, GPT2]}), "none that"),
    "a normalizer": ({**byte_level_json(), "normalizer": {"type": "Lowercase"}}, "none that hotloop has.*Lowercase"),
    "merges ignored": (byte_level_json(ignore_merges=True), "none that hotloop has"),
    "merges of no scores": (
        sentencepiece_json(prefix=False, merges=spm_merges()[:-200]),
        "its merges follow from no scores",
    ),
    "the unknown token an object": (
        {
            **sentencepiece_json(prefix=False, merges=spm_merges()),
            "model": {**sentencepiece_json(prefix=False, merges=spm_merges())["model"], "unk_token": {"a": 1}},
        },
        r"model.unk_token must be a text, not \{'a': 1\}",
    ),
    "a merge of no token": (sentencepiece_json(prefix=False, merges=[("t", "\u00fc")]), "makes no token"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_malformed_or_unknown_is_refused(tmp_path: Path, name: str) -> None:
    definition, message = BROKEN[name]
    with pytest.raises(ModelFileError, match=message) as error:
        tokenizer_metadata(write_folder(tmp_path, definition))
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("companions", "message"),
    [
        ({"tokenizer_config": "nonsense"}, "tokenizer_config.json: is not valid JSON"),
        ({"tokenizer_config": {"chat_template": 5}}, "chat_template must be a text, not 5"),
        ({"tokenizer_config": {"added_tokens_decoder": [1]}}, "added_tokens_decoder must be an object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "y"}}}}, r"added_tokens\[0\] needs an id"),
        ({"generation_config": {"eos_token_id": "2"}}, "generation_config.json: eos_token_id must be .*, not '2'"),
        ({"config": {"eos_token_id": [2, 2.0]}}, r"config.json: eos_token_id must be a token id or a list .*\[2, 2.0\]"),
        ({"config": {"bos_token_id": True}}, "bos_token_id must be .*, not True"),
        ({"generation_config": {"eos_token_id": [2, 600]}}, "eos_token_id 600 is outside the vocabulary of 502"),
    ],
)
def test_malformed_companions_are_refused(tmp_path: Path, companions: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        tokenizer_metadata(write_folder(tmp_path, byte_level_json(), **companions))


def test_files_over_the_limit_are_not_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_json())
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(1 << 40)  # a hole: next to nothing on the disk
    with pytest.raises(ModelFileError, match="has more than 67108864 bytes"):
        tokenizer_metadata(folder)
    write_folder(folder, byte_level_json())
    with (folder / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelFileError, match="has more than 1048576 bytes"):
        tokenizer_metadata(folder)


def test_a_folder_without_a_tokenizer_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"there is no tokenizer\.json; transformers writes a .*: AutoTokenizer"):
        tokenizer_metadata(tmp_path)
