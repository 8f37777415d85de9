"""What a model file says about its vocabulary: one plain, validated value for both tokenizer families."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.text.token_texts import TokenTexts

PREFIX = "tokenizer.ggml."
OWN_PREFIX = "hotloop.tokenizer."  # what GGUF has no key for

# Texts that end a turn or a document in published chat formats. Files often name only one of them in their
# metadata. "</s>" is absent on purpose: in Gemma's vocabulary it is the HTML tag.
_END_TEXTS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<eos>",
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Pre-tokenizers whose vocabularies begin texts with BOS where the file does not say.
_BOS_PRE = ("llama-bpe", "llama3", "llama-v3", "tekken")
# What texts begin with instead of BOS, by pre-tokenizer; GGUF has no key for it.
_PREFIX_TEXTS = {pre: ("[gMASK]", "<sop>") for pre in ("glm4", "chatglm-bpe")}
# Texts of Phi-3's added tokens that leave the blanks after them alone; GGUF has no key for it.
_PHI3_KEEPS_BLANKS = ("<unk>", "<s>", "<|endoftext|>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`: what a token is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary and its flags as the metadata states them, checked for consistency."""

    model: str  # "gpt2" (byte-level BPE) or "llama" (SentencePiece)
    pre: str | None  # name of the pre-tokenizer of a byte-level vocabulary
    tokens: Sequence[str]  # text of each token id; several ids may share a text
    ids: dict[str, int]  # the lowest id of each text
    token_types: NDArray[np.integer[Any]]  # TokenType of each token id
    merges: list[str]
    scores: NDArray[np.float64]  # of each token id; empty where the file has none
    bos_token_id: int | None
    eos_token_id: int | None
    eos_token_ids: frozenset[int]  # all that end an answer
    unknown_token_id: int | None
    add_bos: bool
    prefix_token_ids: tuple[int, ...]  # what texts begin with where it is not BOS
    add_eos: bool
    add_space_prefix: bool
    space_prefix: (
        str | None
    )  # "unless_space", "first": not before texts that begin with one, nor but the first of a prompt
    lstrip_token_ids: frozenset[int]  # added tokens that take the blanks before them
    rstrip_token_ids: frozenset[int]  # and after them
    normalized_token_ids: frozenset[int]  # added tokens that are found in the normalized text
    chat_template: str | None

    def of_type(self, *types: TokenType) -> list[int]:
        """Token ids of the given types, ascending."""
        ids: list[int] = np.flatnonzero(np.isin(self.token_types, types)).tolist()
        return ids

    def compact(self) -> "Vocabulary":
        """This, without what only the builders of pipelines need (ids, merges, scores), in a tenth of the memory."""
        # A type outside a byte is unknown to everyone and behaves like text.
        types = np.clip(self.token_types, 0, 255).astype(np.uint8)
        return replace(self, tokens=TokenTexts(self.tokens), token_types=types, ids={}, merges=[], scores=np.empty(0))


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read and check the `tokenizer.*` keys of a model file's metadata.

    Raises ModelFileError naming the key.
    """
    model = _text(metadata, PREFIX + "model", required=True)
    if model not in ("gpt2", "llama"):
        raise ModelFileError(
            f"{PREFIX}model is {model!r:.60}; hotloop reads 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)"
        )
    tokens = _list(metadata, PREFIX + "tokens")
    if not tokens:
        raise ModelFileError(f"{PREFIX}tokens is missing or empty; the file carries no vocabulary")
    if model == "gpt2" and metadata.get(PREFIX + "merges") is None:
        raise ModelFileError(f"{PREFIX}merges is missing; a byte-level vocabulary needs it, if only an empty one")
    vocab_size = len(tokens)
    token_types = _numbers(metadata, PREFIX + "token_type", vocab_size).astype(np.int64)
    if not token_types.size:
        token_types = np.full(vocab_size, TokenType.NORMAL, np.int64)
    if model == "llama":
        # Files store the spaces of user-defined tokens as spaces, and those of all other tokens as U+2581.
        tokens = list(tokens)
        for i in np.flatnonzero(token_types == TokenType.USER_DEFINED):
            tokens[i] = tokens[i].replace(" ", "\u2581")
    # The lowest id of a repeated text wins, so build backwards.
    ids = dict(zip(reversed(tokens), range(vocab_size - 1, -1, -1), strict=True))
    pre = _text(metadata, PREFIX + "pre")
    eos_ids = {_token_id(metadata, PREFIX + key, vocab_size) for key in _END_KEYS}
    eos_ids |= _token_ids(metadata, OWN_PREFIX + "eos_token_ids", vocab_size)
    ends = (TokenType.CONTROL, TokenType.USER_DEFINED)
    eos_ids |= {ids[text] for text in _END_TEXTS if text in ids and token_types[ids[text]] in ends}
    eos_token_id = _token_id(metadata, PREFIX + "eos_token_id", vocab_size)
    bos_token_id = _token_id(metadata, PREFIX + "bos_token_id", vocab_size)
    bos_by_default = model == "llama" or pre in _BOS_PRE
    add_bos = _flag(metadata, PREFIX + "add_bos_token", default=bos_by_default)
    if add_bos and bos_token_id is None:
        raise ModelFileError(f"{PREFIX}add_bos_token is true but {PREFIX}bos_token_id is missing")
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        ids=ids,
        token_types=token_types,
        merges=_list(metadata, PREFIX + "merges"),
        scores=_numbers(metadata, PREFIX + "scores", vocab_size).astype(np.float64),
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        eos_token_ids=frozenset(i for i in eos_ids if i is not None),
        unknown_token_id=_token_id(metadata, PREFIX + "unknown_token_id", vocab_size),
        add_bos=add_bos,
        prefix_token_ids=() if add_bos else _prefix(metadata, pre, ids),
        add_eos=_flag(metadata, PREFIX + "add_eos_token", default=False),
        add_space_prefix=_flag(metadata, PREFIX + "add_space_prefix", default=model == "llama"),
        space_prefix=_text(metadata, OWN_PREFIX + "space_prefix"),
        lstrip_token_ids=_token_ids(metadata, OWN_PREFIX + "lstrip_token_ids", vocab_size),
        rstrip_token_ids=_rstrip_token_ids(metadata, tokens, token_types),
        normalized_token_ids=_token_ids(metadata, OWN_PREFIX + "normalized_token_ids", vocab_size),
        chat_template=_text(metadata, "tokenizer.chat_template"),
    )


def _prefix(metadata: Mapping[str, Any], pre: str | None, ids: Mapping[str, int]) -> tuple[int, ...]:
    stated = metadata.get(OWN_PREFIX + "prefix_token_ids")
    if stated is not None:
        _token_ids(metadata, OWN_PREFIX + "prefix_token_ids", len(metadata[PREFIX + "tokens"]))
        return tuple(np.asarray(stated).tolist())
    texts = _PREFIX_TEXTS.get(pre or "", ())
    return tuple(ids[text] for text in texts) if all(text in ids for text in texts) else ()


def _rstrip_token_ids(
    metadata: Mapping[str, Any], tokens: Sequence[str], token_types: NDArray[np.integer[Any]]
) -> frozenset[int]:
    stated = _token_ids(metadata, OWN_PREFIX + "rstrip_token_ids", len(tokens))
    if stated or metadata.get("general.architecture") != "phi3" or metadata.get(PREFIX + "model") != "llama":
        return stated
    added = np.isin(token_types, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED))
    return frozenset(i for i in np.flatnonzero(added).tolist() if tokens[i] not in _PHI3_KEEPS_BLANKS)


def _text(metadata: Mapping[str, Any], key: str, *, required: bool = False) -> str | None:
    value = metadata.get(key)
    if value is None and not required:
        return None
    if not isinstance(value, str):
        raise ModelFileError(f"{key} must be a string, not {value!r:.60}")
    return value


def _flag(metadata: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = metadata.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelFileError(f"{key} must be true or false, not {value!r:.60}")
    return value


def _list(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ModelFileError(f"{key} must be an array of strings, not {value!r:.60}")
    return value


def _numbers(metadata: Mapping[str, Any], key: str, vocab_size: int) -> NDArray[Any]:
    value = metadata.get(key)
    if value is None:
        return np.empty(0)
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf" or numbers.shape != (vocab_size,):
        raise ModelFileError(f"{key} must be an array of {vocab_size} numbers, one for each token")
    if not np.isfinite(numbers).all():
        raise ModelFileError(f"{key} holds a value that is no number, for token {np.argmin(np.isfinite(numbers))}")
    return numbers


def _token_id(metadata: Mapping[str, Any], key: str, vocab_size: int) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelFileError(f"{key} must be a token id, not {value!r:.60}")
    if not 0 <= value < vocab_size:
        raise ModelFileError(f"{key} is {value}, outside the vocabulary of {vocab_size}")
    return value


def _token_ids(metadata: Mapping[str, Any], key: str, vocab_size: int) -> frozenset[int]:
    value = metadata.get(key)
    if value is None:
        return frozenset()
    ids = np.asarray(value)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (ids.size and not 0 <= ids.min() <= ids.max() < vocab_size):
        raise ModelFileError(f"{key} must be token ids of the vocabulary of {vocab_size}, not {value!r:.60}")
    return frozenset(ids.tolist())
