"""Tokenizers against goldens made by Hugging Face's pipelines (tools/make_tokenizer_goldens.py)."""

import base64
import json
import threading
import time
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.text.detokenizer import Detokenizer
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import write_gguf
from nasty_corpus import nasty_corpus

GOLDEN = Path(__file__).parents[2] / "golden"
BYTE_LEVEL = (
    "gpt-2",
    "smollm",
    "llama-bpe",
    "qwen2",
    "dbrx",
    "tekken",
    "gpt-4o",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-v3",
)


def small_metadata(name: str, **changes: Any) -> dict[str, Any]:
    """Metadata of a small vocabulary; a change to None removes the key."""
    metadata = json.loads((GOLDEN / f"tokenizer_{name}_vocabulary.json").read_text())
    for key in ("token_type", "scores"):
        if f"tokenizer.ggml.{key}" in metadata:
            metadata[f"tokenizer.ggml.{key}"] = np.asarray(metadata[f"tokenizer.ggml.{key}"])
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


@cache
def small_bpe(pre: str = "gpt-2") -> Tokenizer:
    return Tokenizer.from_metadata(small_metadata("small_bpe", pre=pre))


@cache
def small_spm(add_space_prefix: bool = False) -> Tokenizer:
    return Tokenizer.from_metadata(small_metadata("small_spm", add_space_prefix=add_space_prefix))


def assert_golden(tokenizer: Tokenizer, name: str) -> None:
    golden = json.loads((GOLDEN / f"tokenizer_{name}.json").read_text())
    corpus = nasty_corpus()
    for index, expected in golden["parsed_ids"].items():
        text = corpus[int(index)]
        assert tokenizer.encode(text, add_special=False, parse_special=True) == expected, repr(text)
    for parse_special, key in ((False, "literal_crc32"), (True, "parsed_crc32")):
        hashes = np.frombuffer(base64.b64decode(golden[key]), "<u4")
        assert len(hashes) == len(corpus) == 2000
        for text, expected_hash in zip(corpus, hashes.tolist(), strict=True):
            ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
            assert zlib.crc32(np.asarray(ids, "<u4").tobytes()) == expected_hash, repr(text)


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_byte_level_ids_equal_hugging_face(pre: str) -> None:  # known fault B94
    assert_golden(small_bpe(pre), f"small_bpe_{pre}")


@pytest.mark.parametrize(("prefix", "name"), [(False, "small_spm_plain"), (True, "small_spm_prefix")])
def test_sentencepiece_ids_equal_hugging_face(prefix: bool, name: str) -> None:  # known fault B94
    assert_golden(small_spm(prefix), name)


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("model", "golden"),
    [("smollm2-135m", "smollm2"), ("qwen2.5-coder-1.5b", "qwen2.5"), ("gemma3-270m", "gemma3")],
)
def test_real_ids_equal_hugging_face(
    model_path: Callable[[str], Path], model: str, golden: str
) -> None:  # known fault B94
    assert_golden(Tokenizer.from_metadata(GGUFFile.open(model_path(model)).metadata), golden)


@pytest.mark.parametrize("tokenizer", [*map(small_bpe, ("gpt-2", "smollm", "llama-bpe")), small_spm()])
def test_decoding_gives_the_text_back(tokenizer: Tokenizer) -> None:  # known fault B18
    for text in nasty_corpus():
        literal = tokenizer.encode(text, add_special=False)
        expected = text.replace("▁", " ") if tokenizer is small_spm() else text
        assert tokenizer.decode(literal) == expected
        assert b"".join(map(tokenizer.token_bytes, literal)).decode() == expected
        parsed = tokenizer.encode(text, add_special=False, parse_special=True)
        assert tokenizer.decode(parsed, skip_special=False) == expected


def test_space_prefix_is_added_and_taken_away() -> None:  # known fault B38
    tokenizer = small_spm(True)
    assert tokenizer.adds_leading_space
    for text in ("hello", " hello", "the world\n\n"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(ids, skip_special=False) == f"<s> {text}"


@pytest.mark.parametrize("tokenizer", [small_bpe(), small_spm(), small_spm(True)])
@given(data=st.data())
def test_incremental_text_equals_the_full_decoding_of_every_prefix(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:  # known fault B38
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    detokenizer = Detokenizer(tokenizer, strip_leading_space=tokenizer.adds_leading_space)
    seen = ""
    for end, token_id in enumerate(ids, start=1):
        seen += detokenizer.push(token_id)
        assert tokenizer.decode(ids[:end]).startswith(seen)
    assert seen + detokenizer.flush() == tokenizer.decode(ids)


@pytest.mark.real_model
@given(data=st.data())
def test_incremental_text_of_a_real_vocabulary(real_smollm: Tokenizer, data: st.DataObject) -> None:  # known fault B38
    ids = data.draw(st.lists(st.integers(0, real_smollm.vocab_size - 1), max_size=12))
    detokenizer = Detokenizer(real_smollm)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == real_smollm.decode(ids)


@pytest.fixture(scope="session")
def real_smollm(model_path: Callable[[str], Path]) -> Tokenizer:
    return Tokenizer.from_metadata(GGUFFile.open(model_path("smollm2-135m")).metadata)


# --- special tokens ---


def test_control_texts_stay_literal_unless_parsing_is_asked_for() -> None:  # known fault B97
    tokenizer = small_bpe()
    control = tokenizer.token_id("<|im_end|>")
    assert control == 2
    assert control not in tokenizer.encode("a<|im_end|>b")
    assert tokenizer.encode("a<|im_end|>b", parse_special=True).count(control) == 1
    # User-defined tokens are text: they are found in both modes.
    user_defined = tokenizer.token_id("<tool_call>")
    assert user_defined in tokenizer.encode("a<tool_call>b")
    assert not tokenizer.is_special(user_defined or 0)
    assert tokenizer.is_special(control)


@pytest.mark.parametrize("tokenizer", [small_bpe(), small_spm(), small_spm(True)])
def test_no_literal_text_becomes_a_control_token(tokenizer: Tokenizer) -> None:  # known fault B97
    for text in nasty_corpus():
        assert not any(map(tokenizer.is_special, tokenizer.encode(text, add_special=False))), repr(text)


def test_merges_that_would_make_a_control_token_are_left_out() -> None:
    metadata = small_metadata("small_bpe")
    metadata["tokenizer.ggml.tokens"] += ["<-", "<->"]
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], [1, 3])
    metadata["tokenizer.ggml.merges"] += ["< -", "<- >"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("<->")[0] == 502
    assert 503 not in tokenizer.encode("<->")
    assert tokenizer.encode("<->", parse_special=True) == [503]


@pytest.mark.parametrize("pre", ["llama-bpe", "tekken"])
def test_control_tokens_that_are_words_are_not_found_whole(pre: str) -> None:
    """Vocabularies that take a word without its merges if it is a token."""
    metadata = small_metadata("small_bpe", pre=pre)
    words = ["Assistant", "sistant", "\u0120User", "...", "\u010a\u010a", "\u00c3\u012b"]  # the last: É
    metadata["tokenizer.ggml.tokens"] += words
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], [3] * len(words))
    tokenizer = Tokenizer.from_metadata(metadata)
    for text in ("Assistant", "sistant", "a User", "...", "x\n\n", "\u00c9", "the Assistant User...\n\nAssistant"):
        ids = tokenizer.encode(text, add_special=False)
        assert not any(map(tokenizer.is_special, ids)), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("Assistant", parse_special=True) == [502]


def test_bos_is_added_as_the_metadata_says_and_never_doubled() -> None:
    assert small_bpe().encode("a")[:1] != [1]
    tokenizer = small_spm()
    assert tokenizer.add_bos
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("a")[0] == 1
    assert 1 not in tokenizer.encode("a", add_special=False)
    assert tokenizer.encode("<s>a", parse_special=True).count(1) == 1
    assert tokenizer.encode("<s><s>a", parse_special=True)[:3].count(1) == 2
    with_bos = Tokenizer.from_metadata(small_metadata("small_bpe", add_bos_token=True))
    assert with_bos.encode("a") == [1, *small_bpe().encode("a")]
    # Without the key, the family's convention holds.
    assert Tokenizer.from_metadata(small_metadata("small_spm", add_bos_token=None)).add_bos
    assert not Tokenizer.from_metadata(small_metadata("small_bpe", add_bos_token=None)).add_bos


def test_texts_of_glm_begin_with_two_tokens() -> None:
    metadata = small_metadata("small_bpe", pre="glm4")
    metadata["tokenizer.ggml.tokens"] += ["[gMASK]", "<sop>"]
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], [3, 3])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a") == [502, 503, *tokenizer.encode("a", add_special=False)]
    assert tokenizer.encode("[gMASK]<sop>a", parse_special=True) == tokenizer.encode("a")
    for stated in ([502, 504], ["a"], [[1]]):
        with pytest.raises(ModelFileError, match="prefix_token_ids must be token ids of the vocabulary of 504"):
            Tokenizer.from_metadata({**metadata, "hotloop.tokenizer.prefix_token_ids": np.asarray(stated)})


def test_eos_is_appended_only_where_the_metadata_asks_for_it() -> None:
    tokenizer = Tokenizer.from_metadata(small_metadata("small_spm", add_eos_token=True))
    assert tokenizer.encode("a") == [*small_spm().encode("a"), 2]
    assert 2 not in small_spm().encode("a")


def test_end_ids_are_the_union_of_keys_and_known_texts() -> None:
    assert small_bpe().eos_token_ids == {0, 2}
    assert small_spm().eos_token_ids == {2, 3}
    assert Tokenizer.from_metadata(small_metadata("small_bpe", eot_token_id=7)).eos_token_ids == {0, 2, 7}


def test_text_after_a_special_token_is_tokenized_as_text_of_its_own() -> None:  # known fault B95
    for tokenizer in (small_bpe("smollm"), small_spm()):
        end = tokenizer.decode([next(iter(tokenizer.eos_token_ids))], skip_special=False)
        for text in ("G", " G", "\n\n", "'s"):
            parsed = tokenizer.encode(end + text, add_special=False, parse_special=True)
            assert parsed[1:] == tokenizer.encode(text, add_special=False)


# --- refusals and limits ---


@pytest.mark.parametrize(("text", "position"), [("\ud800", 0), ("ab\udfffc", 2), ("😀\ud83d", 1)])
def test_lone_surrogates_are_refused_with_their_position(text: str, position: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"at character {position};"):
        small_bpe().encode(text)


@pytest.mark.parametrize("token_id", [-1, 502, 10**9])
def test_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"token id {token_id} is outside the vocabulary of 502"):
        small_bpe().decode([token_id])


def test_the_tokenizer_of_a_model_names_its_file_in_errors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", small_metadata("small_bpe", pre="none"), {})
    with (
        GGUFFile.open(tmp_path / "model.gguf") as model,
        pytest.raises(ModelFileError, match=r"model\.gguf: tokenizer\.ggml\.pre is 'none'"),
    ):
        Tokenizer.of_model(model)


def test_an_unknown_pre_tokenizer_lists_the_known_ones() -> None:  # known fault B94
    for pre in ("default", "nonsense", None):
        with pytest.raises(ModelFileError, match=r"gpt-2, gpt-4o, llama-bpe.*qwen2, .*smollm") as error:
            Tokenizer.from_metadata(small_metadata("small_bpe", pre=pre))
        assert repr(pre) in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("small_bpe", {"model": "bert"}, "model is 'bert'"),
        ("small_bpe", {"model": None}, "tokenizer.ggml.model"),
        ("small_bpe", {"tokens": None}, "tokenizer.ggml.tokens"),
        ("small_bpe", {"tokens": 5}, "tokenizer.ggml.tokens"),
        ("small_bpe", {"merges": None}, "tokenizer.ggml.merges"),
        ("small_bpe", {"merges": ["a"]}, "tokenizer.ggml.merges"),
        ("small_bpe", {"merges": ["nosuch token"]}, "tokenizer.ggml.merges"),
        ("small_bpe", {"token_type": np.ones(3, np.int32)}, "tokenizer.ggml.token_type"),
        ("small_bpe", {"eos_token_id": 502}, "eos_token_id is 502"),
        ("small_bpe", {"bos_token_id": -1}, "bos_token_id is -1"),
        ("small_bpe", {"bos_token_id": "1"}, "bos_token_id must be a token id, not '1'"),
        ("small_bpe", {"eot_token_id": True}, "eot_token_id must be a token id, not True"),
        ("small_spm", {"unknown_token_id": 1.0}, "unknown_token_id must be a token id, not 1.0"),
        ("small_bpe", {"add_bos_token": "false"}, "add_bos_token must be true or false, not 'false'"),
        ("small_bpe", {"add_eos_token": 0}, "add_eos_token must be true or false, not 0"),
        ("small_bpe", {"model": ["gpt2"] * 10_000}, r"model must be a string, not \[.{59}$"),
        ("small_bpe", {"token_type": np.full(502, np.nan)}, "token_type holds a value that is no number, for token 0"),
        ("small_bpe", {"add_bos_token": True, "bos_token_id": None}, "bos_token_id is missing"),
        ("small_spm", {"scores": None}, "tokenizer.ggml.scores"),
        ("small_spm", {"scores": np.zeros(4)}, "tokenizer.ggml.scores"),
        ("small_spm", {"scores": ["a"]}, "tokenizer.ggml.scores"),
        ("small_spm", {"scores": np.full(563, np.nan)}, "scores holds a value that is no number"),
    ],
)
def test_malformed_metadata_is_refused_naming_the_key(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_metadata(small_metadata(name, **changes))


def test_malformed_byte_token_is_refused() -> None:
    metadata = small_metadata("small_spm")
    metadata["tokenizer.ggml.tokens"][4] = "<0xZZ>"
    with pytest.raises(ModelFileError, match=r"tokens\[4\] is '<0xZZ>'"):
        Tokenizer.from_metadata(metadata)


def test_repeated_and_unused_tokens() -> None:
    metadata = small_metadata("small_bpe")
    metadata["tokenizer.ggml.tokens"] += ["a", "[PAD1]"]
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], [1, 5])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a") == small_bpe().encode("a")  # the lowest id of a repeated text
    assert tokenizer.decode([502, 503]) == "a"
    assert tokenizer.is_special(503)


@pytest.mark.parametrize("tokenizer", [small_bpe("qwen2"), small_bpe("smollm"), small_spm(), small_spm(True)])
def test_the_lower_bound_of_the_number_of_tokens_holds(tokenizer: Tokenizer) -> None:  # known fault B108
    for text in (*nasty_corpus(), "e\u0301" * 500, "\u1112\u1161\u11ab" * 500, "a" * 5000, " " * 5000):
        assert tokenizer.min_num_tokens(text) <= len(tokenizer.encode(text, add_special=False))
    assert tokenizer.min_num_tokens("a" * 10**6) > 10**6 // 200


def test_the_lower_bound_counts_bytes_where_tokens_are_bytes() -> None:  # known fault B108
    """Unless a normalizer may leave less of them."""
    plain, normalizing = small_bpe("smollm"), small_bpe("qwen2")
    ascii_ = plain.min_num_tokens("a" * 9600)
    assert ascii_ == 2 * normalizing.min_num_tokens("a" * 9600)
    assert plain.min_num_tokens("\u0378" * 9600) == 2 * ascii_
    assert plain.min_num_tokens("😀" * 9600) == 4 * ascii_
    assert plain.min_num_tokens("") == 0


@pytest.mark.parametrize("tokenizer", [*map(small_bpe, BYTE_LEVEL), small_spm()])
def test_hostile_texts_are_encoded_whole(tokenizer: Tokenizer) -> None:  # known fault B108
    for text in (
        "a" * 50_000,
        " " * 50_000,
        " " * 50_000 + "x",
        " " * 50_000 + "\U0001f600",
        "\n" * 50_000,
        "😀" * 10_000,
        "a1" * 20_000,
        "\u0378" * 20_000,
    ):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_other_threads_run_while_a_long_text_is_encoded() -> None:  # known faults B108, B132
    tokenizer = small_bpe("smollm")
    turns, ended = 0, threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        while not turns:
            time.sleep(0)
        before = turns
        tokenizer.encode("a" * 200_000)
        assert turns - before > 100
    finally:
        ended.set()
        thread.join()
