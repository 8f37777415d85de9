"""Byte-level BPE: the pre-tokenizers by the name a model file gives them, and the byte alphabet."""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from hotloop.errors import ModelFileError
from hotloop.text.vocabulary import PREFIX, TokenType, Vocabulary

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How one family of byte-level vocabularies cuts text into words before the merges."""

    pre_tokenizer: Callable[[bool], PreTokenizer]  # argument: put a space before the first word
    normalize_nfc: bool = False
    ignore_merges: bool = False  # a word that is itself a token is taken whole


def _gpt2(add_prefix_space: bool) -> PreTokenizer:
    return ByteLevel(add_prefix_space=add_prefix_space, use_regex=True)


def _smollm(add_prefix_space: bool) -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _gpt2(add_prefix_space)])


def _by_pattern(digits: str) -> Callable[[bool], PreTokenizer]:
    pattern = "|".join((_CONTRACTIONS, _WORD, digits, _PUNCTUATION, _SPACES))

    def build(add_prefix_space: bool) -> PreTokenizer:
        split = Split(Regex(pattern), behavior="isolated")
        return Sequence([split, ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)])

    return build


_LLAMA3 = _Scheme(_by_pattern(r"\p{N}{1,3}"), ignore_merges=True)
_SCHEMES = {
    "gpt-2": _Scheme(_gpt2),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Scheme(_by_pattern(r"\p{N}"), normalize_nfc=True),
    "smollm": _Scheme(_smollm),
}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for code points from 256 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


def token_bytes(text: str) -> bytes:
    """Bytes of a byte-level token; a text outside the byte alphabet (an added token) is plain UTF-8."""
    try:
        return bytes(map(_BYTE_OF_CHAR.__getitem__, text))
    except KeyError:
        return text.encode("utf-8", "replace")


def build(vocabulary: Vocabulary) -> Tokenizer:
    """A `tokenizers` pipeline with the ids of the vocabulary, without added tokens.

    Raises ModelFileError for an unknown pre-tokenizer or merges that do not fit the vocabulary.
    """
    scheme = _SCHEMES.get(vocabulary.pre or "")
    if scheme is None:
        known = ", ".join(sorted(_SCHEMES))
        raise ModelFileError(f"{PREFIX}pre is {vocabulary.pre!r:.60}, an unknown pre-tokenizer; hotloop knows {known}")
    if not vocabulary.merges:
        raise ModelFileError(f"{PREFIX}merges is missing or empty; a byte-level vocabulary needs it")
    # Control tokens never come out of text, not even out of their own spelling.
    control = {vocabulary.tokens[i] for i in vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)}
    pairs = (merge.partition(" ") for merge in vocabulary.merges)
    merges = [(left, right) for left, _, right in pairs if left + right not in control]
    try:
        model = BPE(vocabulary.ids, merges, ignore_merges=scheme.ignore_merges)
    except Exception as error:  # the library raises bare exceptions of several types
        raise ModelFileError(f"{PREFIX}merges does not fit the vocabulary: {error}") from error
    pipeline = Tokenizer(model)
    if scheme.normalize_nfc:
        pipeline.normalizer = normalizers.NFC()
    pipeline.pre_tokenizer = scheme.pre_tokenizer(vocabulary.add_space_prefix)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline
