"""What a tokenizer file says about its vocabulary, whichever kind of file it is."""

from dataclasses import dataclass, field
from typing import Literal

from hotloop.weights.hf.pre_tokenizer import SpacePrefix

# `tokenizer.ggml.token_type`: what a token is for.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

MAX_TOKENS = 1 << 22

Around = tuple[list[str], list[str]]
"""Texts of the tokens before and after every text."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in text before anything else is."""

    token_id: int
    text: str
    special: bool  # steers the model, and is no text
    lstrip: bool = False  # takes the blanks before it
    rstrip: bool = False  # takes the blanks after it
    normalized: bool = False  # is found in what the normalizer makes of a text, as what it makes of the token


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary: learned tokens, and added ones (which may be among the learned)."""

    model: Literal["gpt2", "llama"]  # byte-level BPE, SentencePiece
    texts: dict[int, str]
    types: dict[int, int]  # of the learned tokens that are not NORMAL
    added: list[AddedToken]
    space_prefix: SpacePrefix
    pre: str = "default"  # pre-tokenizer of a byte-level vocabulary
    merges: list[str] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)
    unknown_token_id: int | None = None
    same_normalizer: bool = False  # hotloop's own is the file's, and what it does has no part elsewhere
    around: Around | None = None  # None where the file does not say
    bos_token_id: int | None = None  # where the file itself says so
    eos_token_id: int | None = None
