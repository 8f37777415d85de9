"""Byte-level BPE: pipelines from vocabularies, and the byte alphabet."""

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split

from hotloop.errors import ModelFileError
from hotloop.pre_tokenizers import GPT2_WORDS, PRE_TOKENIZERS, PreTokenizer
from hotloop.text.vocabulary import PREFIX, TokenType, Vocabulary

# Spellings with the same matches that take no quadratic time on runs of blanks.
_FASTER = {r"\s+$": r"(?<!\s)\s+$"}


def _pre_tokenizer(scheme: PreTokenizer, add_prefix_space: bool, control: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    *splits, last = scheme.splits
    by_words = last == GPT2_WORDS  # which the byte level cuts by itself
    patterns = splits if by_words else scheme.splits
    steps: list[pre_tokenizers.PreTokenizer] = [
        *(Split(Regex(_FASTER.get(pattern, pattern)), behavior="isolated") for pattern in patterns),
        ByteLevel(add_prefix_space=add_prefix_space, use_regex=by_words),
    ]
    if scheme.ignore_merges and (words := _words_of(control, pre_tokenizers.Sequence(steps))):
        steps.append(Split(Regex(_beginnings(words)), behavior="isolated"))
    return pre_tokenizers.Sequence(steps)


def _words_of(tokens: Iterable[str], cut: pre_tokenizers.PreTokenizer) -> list[str]:
    """Those of several bytes that texts may have as a word, which is then cut no further."""
    texts = [(token, token_bytes(token).decode("utf-8", "ignore")) for token in tokens if len(token) > 1]
    return [token for token, text in texts if token in (word for word, _ in cut.pre_tokenize_str(text))]


def _beginnings(words: Iterable[str]) -> str:
    """A regex of a beginning of each of these words. It cuts them in two, so that none is found, if possible not even in it."""
    known = frozenset(words)
    cuts = []
    for word in known:
        size = next((k for k in range(1, len(word)) if known.isdisjoint((word[:k], word[k:]))), 1)
        cuts.append(re.escape(word[:size]) + "(?=" + re.escape(word[size:]) + r"\z)")
    return r"\A(?:" + "|".join(cuts) + ")"


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for code points from 256 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHAR = byte_alphabet()


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
    scheme = PRE_TOKENIZERS.get(vocabulary.pre or "")
    if scheme is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelFileError(f"{PREFIX}pre is {vocabulary.pre!r:.60}, an unknown pre-tokenizer; hotloop knows {known}")
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
    pipeline.pre_tokenizer = _pre_tokenizer(scheme, vocabulary.add_space_prefix, control)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline
