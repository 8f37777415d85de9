"""tokenizer.model files, written here field by field: the ids of the model file's vocabulary, and damage refused."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.errors import ModelFileError
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.hf.sentencepiece_model import read_sentencepiece_model
from hotloop.weights.hf.tokenizer import tokenizer_metadata
from nasty_corpus import nasty_corpus
from tokenizer_folders import SPACE, USER_DEFINED, small_vocabulary, write_folder


def varint(value: int) -> bytes:
    value %= 1 << 64
    groups = [value & 0x7F]
    while value := value >> 7:
        groups[-1] |= 0x80
        groups.append(value & 0x7F)
    return bytes(groups)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def piece(text: str, score: float, kind: int) -> bytes:
    fields = block(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
    return block(1, fields + (number(3, kind) if kind != 1 else b""))


def model(*, model_type: int = 2, prefix: bool = True, strip: bool = False, bos: int = 1) -> bytes:
    """The small vocabulary as SentencePiece writes it."""
    vocabulary = small_vocabulary("small_spm")
    pieces = zip(vocabulary["tokens"], vocabulary["scores"], vocabulary["token_type"], strict=True)
    data = b"".join(piece(t.replace(" ", SPACE) if k == USER_DEFINED else t, s, k) for t, s, k in pieces)
    trainer = block(1, b"corpus.txt") + number(3, model_type) + number(41, bos) + number(42, 2)
    normalizer = block(1, b"identity") + number(3, prefix) + number(4, strip)
    return data + block(2, trainer) + block(3, normalizer) + block(5, b"")


@pytest.mark.parametrize("prefix", [False, True])
def test_ids_are_those_of_the_model_file(tmp_path: Path, prefix: bool) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model(prefix=prefix))
    metadata = tokenizer_metadata(tmp_path)
    expected = {f"tokenizer.ggml.{key}": value for key, value in small_vocabulary("small_spm").items()}
    for key in ("tokens", "bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token"):
        assert metadata[f"tokenizer.ggml.{key}"] == expected[f"tokenizer.ggml.{key}"], key
    assert metadata["tokenizer.ggml.token_type"].tolist() == expected["tokenizer.ggml.token_type"]
    ours = Tokenizer.from_metadata(metadata)
    theirs = Tokenizer.from_metadata({**expected, "tokenizer.ggml.add_space_prefix": prefix})
    for text in nasty_corpus():
        for parse_special in (False, True):
            assert ours.encode(text, parse_special=parse_special) == theirs.encode(text, parse_special=parse_special)


def test_added_tokens_in_a_file_of_their_own(tmp_path: Path) -> None:  # as folders had them before added_tokens_decoder
    (tmp_path / "tokenizer.model").write_bytes(model())
    num_tokens = len(small_vocabulary("small_spm")["tokens"])
    added = {"<|im_start|>": num_tokens, "<end>": num_tokens + 1, "<tool>": num_tokens + 2, "<s>": num_tokens + 3}
    special = {"additional_special_tokens": ["<end>", {"an": "object"}]}
    write_folder(tmp_path, None, added_tokens=added, special_tokens_map=special)
    metadata = tokenizer_metadata(tmp_path)
    assert metadata["tokenizer.ggml.tokens"][num_tokens:] == ["<|im_start|>", "<end>", "<tool>"]  # <s> is there already
    assert metadata["tokenizer.ggml.token_type"][num_tokens:].tolist() == [3, 3, USER_DEFINED]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert num_tokens in tokenizer.encode("a<|im_start|>b", parse_special=True)
    assert num_tokens + 2 in tokenizer.encode("a<tool>b")
    write_folder(tmp_path, None, tokenizer_config={"added_tokens_decoder": {}})  # which says that there are none
    assert len(tokenizer_metadata(tmp_path)["tokenizer.ggml.tokens"]) == num_tokens
    write_folder(tmp_path, None, tokenizer_config={}, added_tokens={"<a>": "1"})
    with pytest.raises(ModelFileError, match=r"added_tokens.json: added_tokens\[0\] needs an id"):
        tokenizer_metadata(tmp_path)


def test_a_model_without_bos(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model(bos=-1))
    metadata = tokenizer_metadata(tmp_path)
    assert "tokenizer.ggml.bos_token_id" not in metadata
    assert not metadata["tokenizer.ggml.add_bos_token"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 pieces"),
        (b"\xff" * 20, "more than 64 bits"),
        (model()[:-3], "damaged"),
        (model()[:1000], "ends inside of a field"),
        (varint(1 << 3 | 2) + varint(1 << 60), "ends inside of a field"),
        (varint(1 << 3 | 3), "wire type 3"),
        (block(1, block(1, b"\xff\xfe")), "damaged"),
        (model(model_type=1), "of another type than BPE"),
        (model(strip=True), "removes extra spaces"),
    ],
)
def test_damaged_and_other_models_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=message):
        read_sentencepiece_model(path)


@given(data=st.data())
@settings(max_examples=100)
def test_no_damage_gives_another_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    damaged = bytearray(model())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "tokenizer.model"
    path.write_bytes(damaged)
    with contextlib.suppress(ModelFileError):
        Tokenizer.from_metadata(tokenizer_metadata(path.parent))
