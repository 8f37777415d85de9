"""The vocabulary of a SentencePiece model file (tokenizer.model), for folders without a tokenizer.json.

The file is a protocol buffer, a ModelProto. Read are: pieces (1: piece 1, score 2, type 3), trainer_spec (2: model_type 3,
bos_id 41, eos_id 42) and normalizer_spec (3: add_dummy_prefix 3, remove_extra_whitespaces 4).
Source: sentencepiece_model.proto of the SentencePiece project.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from hotloop.errors import ModelFileError
from hotloop.weights.hf.json_files import read_bounded
from hotloop.weights.hf.pieces import MAX_TOKENS, AddedToken, Pieces
from hotloop.weights.hf.pre_tokenizer import SpacePrefix

_MAX_BYTES = 32 << 20
_BPE = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Types of pieces have the numbers that they have in GGUF files.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


def read_sentencepiece_model(path: Path) -> Pieces:
    """The vocabulary in a file.

    Raises ModelFileError for a file that is damaged, or of another kind than BPE.
    """
    data = memoryview(read_bounded(path, _MAX_BYTES))
    try:
        return _pieces(data, path)
    except (ValueError, IndexError, struct.error) as error:
        raise ModelFileError(f"{path}: is no SentencePiece model, or damaged ({error}); download it again") from None


def _pieces(data: memoryview, path: Path) -> Pieces:
    texts: dict[int, str] = {}
    scores: dict[int, float] = {}
    types: dict[int, int] = {}
    added = []
    trainer: dict[int, int] = {}
    normalizer: dict[int, int] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            token_id = len(texts)
            text, score, kind = _piece(value)
            texts[token_id], scores[token_id] = text, score
            if kind != _NORMAL:
                types[token_id] = kind
            if kind in (_CONTROL, _USER_DEFINED):
                added.append(AddedToken(token_id, text, special=kind == _CONTROL))
        elif number == 2 and isinstance(value, memoryview):
            trainer = {n: v for n, v in _fields(value) if isinstance(v, int)}
        elif number == 3 and isinstance(value, memoryview):
            normalizer = {n: v for n, v in _fields(value) if isinstance(v, int)}
    if not 0 < len(texts) <= MAX_TOKENS:
        raise ValueError(f"{len(texts)} pieces")
    if trainer.get(3, 1) != _BPE:
        raise ModelFileError(f"{path}: a SentencePiece model of another type than BPE. Use a GGUF file of this model")
    if normalizer.get(4, 1):
        raise ModelFileError(f"{path}: it removes extra spaces, which hotloop does not. Use a GGUF file of this model")
    unknown = next((i for i, kind in types.items() if kind == _UNKNOWN), None)
    prefix: SpacePrefix = "always" if normalizer.get(3, 1) else "never"
    bos, eos = (trainer.get(number, default) for number, default in ((41, 1), (42, 2)))
    return Pieces(
        "llama",
        texts,
        types,
        added,
        prefix,
        scores=scores,
        unknown_token_id=unknown,
        bos_token_id=bos if bos in texts else None,  # a model without one has a negative number there
        eos_token_id=eos if eos in texts else None,
    )


def _piece(data: memoryview) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, _NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            text = bytes(value).decode()
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    return text, score, kind


def _fields(data: memoryview) -> Iterator[tuple[int, int | float | memoryview]]:
    """Number and value of each field of a message."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        value: int | float | memoryview
        if kind == _VARINT:
            value, position = _varint(data, position)
        elif kind == _BYTES:
            size, position = _varint(data, position)
            if size > len(data) - position:
                raise ValueError("it ends inside of a field")
            value, position = data[position : position + size], position + size
        elif kind in (_FIXED32, _FIXED64):
            code, size = ("<f", 4) if kind == _FIXED32 else ("<d", 8)
            (value,) = struct.unpack_from(code, data, position)
            position += size
        else:
            raise ValueError(f"a field of wire type {kind}")
        yield number, value


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number of more than 64 bits")
