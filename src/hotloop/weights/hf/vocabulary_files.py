"""vocab.json and merges.txt, of older folders without a tokenizer.json: in the terms of one.

What the two do not say (normalizer, pre-tokenizer, the usual special tokens) goes by the class that the configuration
names, as where transformers makes a fast tokenizer of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotloop.errors import ModelFileError
from hotloop.pre_tokenizers import PRE_TOKENIZERS
from hotloop.weights.hf.companions import Companions
from hotloop.weights.hf.json_files import read_bounded, read_json
from hotloop.weights.hf.pieces import Pieces
from hotloop.weights.hf.tokenizer_json import MAX_TOKENIZER_BYTES, how_to_get_one, read_definition

VOCAB, MERGES = "vocab.json", "merges.txt"
_HEAD = "#version"  # begins the first line of a file of merges, which is none
_END = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class _Class:
    """pre: name in hotloop.pre_tokenizers. begins: whether <|endoftext|> begins texts, too, where the configuration names no
    token; it ends them always."""

    pre: str
    begins: bool


_CLASSES: Mapping[str, _Class] = {
    "GPT2Tokenizer": _Class("gpt-2", begins=True),
    "Qwen2Tokenizer": _Class("qwen2", begins=False),
}
_OF_MODELS: Mapping[str, str] = {
    "gpt2": "GPT2Tokenizer",
    "starcoder2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}


def read_vocabulary_files(folder: Path, companions: Companions) -> Pieces:
    """The vocabulary in vocab.json and merges.txt.

    Raises ModelFileError naming what is missing or malformed, or a class that is not implemented.
    """
    name = companions.tokenizer_class() or _OF_MODELS.get(companions.model_type() or "")
    kind = _CLASSES.get((name or "").removesuffix("Fast"))
    if kind is None:
        named = f"its tokenizer_class is {name!r:.60}" if name else "no tokenizer_class is named"
        raise ModelFileError(
            f"{folder}: {named}; of folders with {VOCAB} and {MERGES} hotloop reads {' and '.join(_CLASSES)}; "
            f"{how_to_get_one(folder)}"
        )
    if not (folder / MERGES).is_file():
        raise ModelFileError(f"{folder}: there is {VOCAB}, but no {MERGES}; download it, too")
    vocab = read_json(folder / VOCAB, MAX_TOKENIZER_BYTES)
    special = [{"content": _END}, *companions.special_tokens()]
    scheme = PRE_TOKENIZERS[kind.pre]
    splits = [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"} for regex in scheme.splits]
    byte_level = {"type": "ByteLevel", "use_regex": False, "add_prefix_space": companions.adds_prefix_space()}
    definition: dict[str, Any] = {
        "added_tokens": [
            {**token, "id": vocab[token["content"]], "special": True} for token in special if token["content"] in vocab
        ],
        "normalizer": {"type": "NFC"} if scheme.normalize_nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "model": {"vocab": vocab, "merges": _merges(folder / MERGES), "ignore_merges": scheme.ignore_merges},
    }
    pieces = read_definition(definition, folder / VOCAB)
    end = vocab.get(_END)
    return replace(pieces, bos_token_id=end if kind.begins else None, eos_token_id=end)


def _merges(path: Path) -> list[list[str]]:
    """The two parts of each merge, one in a line."""
    try:
        lines = read_bounded(path, MAX_TOKENIZER_BYTES).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is no UTF-8 text ({error}); download it again") from None
    merges = []
    for number, line in enumerate(lines, 1):
        parts = line.removesuffix("\r").split(" ")
        if line.startswith(_HEAD):
            continue
        if len(parts) != 2 or not all(parts):
            raise ModelFileError(f"{path}: line {number} must be two tokens with a space between, not {line!r:.80}")
        merges.append(parts)
    return merges
