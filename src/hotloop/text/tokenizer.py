"""Text to token ids and back, from a model file's metadata, with the ids of Hugging Face's tokenizers."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import tokenizers
import tokenizers.models

from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.text import byte_level, sentencepiece
from hotloop.text.detokenizer import Detokenizer
from hotloop.text.vocabulary import TokenType, Vocabulary, read_vocabulary

# Normalization to NFC may compose several characters into one, but never more than two for each byte of UTF-8.
_MAX_DECOMPOSED_CHARS_PER_BYTE = 2
# Longer texts are encoded without Python's lock, so that other threads go on; it takes a thread pool of the library.
_LONG_TEXT = 4096
_SPECIAL_TYPES = frozenset((TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED))


class ModelWithVocabulary(Protocol):
    """The part of a model file that a tokenizer is made of."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


class Tokenizer:
    """Encodes and decodes text; immutable, and safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary.compact()
        self._types = self._vocabulary.token_types.tobytes()
        self._is_sentencepiece = vocabulary.model == "llama"
        self._max_token_len = self._longest(vocabulary)
        family = sentencepiece if self._is_sentencepiece else byte_level
        self._literal = self._pipeline(family.build(vocabulary), parse_special=False)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Rebuild the tokenizer from the `tokenizer.*` keys of a model file.

        Raises ModelFileError naming the key that is missing, malformed or not implemented.
        """
        return cls(read_vocabulary(metadata))

    @classmethod
    def of_model(cls, model: ModelWithVocabulary) -> "Tokenizer":
        """As `from_metadata`; errors name the file, too."""
        try:
            return cls.from_metadata(model.metadata)
        except ModelFileError as error:
            raise ModelFileError(f"{model.path}: {error}") from error

    def _pipeline(self, pipeline: tokenizers.Tokenizer, *, parse_special: bool) -> tokenizers.Tokenizer:
        control = self._vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        user_defined = self._vocabulary.of_type(TokenType.USER_DEFINED)
        if parse_special:
            pipeline.add_special_tokens([self._added(i, special=True) for i in control])
        pipeline.add_tokens([self._added(i, special=False) for i in user_defined])
        return pipeline

    def _added(self, token_id: int, *, special: bool) -> tokenizers.AddedToken:
        vocabulary = self._vocabulary
        return tokenizers.AddedToken(
            vocabulary.tokens[token_id],
            special=special,
            lstrip=token_id in vocabulary.lstrip_token_ids,
            rstrip=token_id in vocabulary.rstrip_token_ids,
            normalized=token_id in vocabulary.normalized_token_ids,
        )

    @cached_property
    def _parsing(self) -> tokenizers.Tokenizer:
        return self._pipeline(self._twin(), parse_special=True)

    @cached_property
    def _continuing(self) -> tokenizers.Tokenizer:
        if self._vocabulary.space_prefix != "first":
            return self._literal
        twin = self._twin()
        twin.pre_tokenizer = sentencepiece.without_prefix()
        return self._pipeline(twin, parse_special=False)

    def _twin(self) -> tokenizers.Tokenizer:
        """Shares the vocabulary and merges of the literal pipeline; the added tokens are its own."""
        twin = tokenizers.Tokenizer(self._literal.model)
        twin.normalizer = self._literal.normalizer
        twin.pre_tokenizer = self._literal.pre_tokenizer
        return twin

    @cached_property
    def _control_finder(self) -> tokenizers.Tokenizer:
        # Knows no text at all, only the added tokens.
        finder = tokenizers.Tokenizer(tokenizers.models.BPE())
        if self._vocabulary.normalized_token_ids:
            finder.normalizer = self._literal.normalizer
        return self._pipeline(finder, parse_special=True)

    @cached_property
    def _found_ids(self) -> dict[int, int]:
        """Token id by the id that the finder gives it."""
        added = self._control_finder.get_added_tokens_decoder()
        return {i: found for i, token in added.items() if (found := self.token_id(token.content)) is not None}

    @property
    def vocab_size(self) -> int:
        return len(self._types)

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """The one EOS of the metadata, which chat templates know as eos_token."""
        return self._vocabulary.eos_token_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends an answer: the metadata's EOS, EOT and EOM, and known end-of-turn texts."""
        return self._vocabulary.eos_token_ids

    @property
    def add_bos(self) -> bool:
        return self._vocabulary.add_bos

    @property
    def chat_template(self) -> str | None:
        return self._vocabulary.chat_template

    @property
    def adds_leading_space(self) -> bool:
        """Whether encoding puts a space before the text, which decoding from the start takes away again."""
        return self._is_sentencepiece and self._vocabulary.add_space_prefix

    def _longest(self, vocabulary: Vocabulary) -> int:
        """No token stands for more input than this: characters of a SentencePiece token, bytes of a byte-level one."""
        longest = max(map(len, vocabulary.tokens))  # the text of a byte-level token has one character for each byte
        if self._is_sentencepiece:
            return longest + bool(vocabulary.normalized_token_ids)  # which may take a space before them
        added = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)  # plain UTF-8
        return max([longest, *(len(vocabulary.tokens[i].encode("utf-8", "replace")) for i in added)])

    def min_num_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, found without encoding it.

        Characters that the vocabulary cannot express have no token, but count here all the same.
        """
        if self._vocabulary.rstrip_token_ids or self._vocabulary.lstrip_token_ids:
            text = "".join(text.split())  # tokens may take any number of blanks
        if self._is_sentencepiece:
            size = len(text)
        elif self._literal.normalizer is not None:
            size = -(-len(text) // _MAX_DECOMPOSED_CHARS_PER_BYTE)
        else:
            size = len(text.encode("utf-8", "replace"))
        return -(-size // self._max_token_len)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`; BOS is added where the metadata says so, and never doubled.

        parse_special: control-token texts become control tokens instead of staying literal text.
        Raises InvalidRequestError for text that is not valid Unicode.
        """
        _check_unicode(text)
        pipeline = self._parsing if parse_special else self._literal
        ids: list[int] = _encode(pipeline, text).ids
        return self.with_special(ids) if add_special else ids

    def encode_after_control(self, text: str) -> list[int]:
        """Token ids of literal `text` that stands after a control token, where some vocabularies put no space before it.

        Raises InvalidRequestError for text that is not valid Unicode.
        """
        _check_unicode(text)
        ids: list[int] = _encode(self._continuing, text).ids
        return ids

    def find_control(self, text: str) -> list[tuple[int, int, int]]:
        """(start, end, token id) of each control-token text, as parsing would find them.

        Raises InvalidRequestError for text that is not valid Unicode.
        """
        _check_unicode(text)
        found = _encode(self._control_finder, text)
        spans = []
        for found_id, (start, end) in zip(found.ids, found.offsets, strict=True):
            token_id = self._found_ids[found_id]
            if self.is_special(token_id):
                spans.append((start, end, token_id))
        return spans

    def with_special(self, ids: list[int]) -> list[int]:
        """The ids with the BOS (and EOS) that the metadata asks for, unless they are there already."""
        bos, eos = self.bos_token_id, self.eos_token_id
        start = [bos] if self.add_bos and bos is not None else list(self._vocabulary.prefix_token_ids)
        if ids[: len(start)] != start:
            ids = [*start, *ids]
        if self._vocabulary.add_eos and eos is not None and ids[-1:] != [eos]:
            ids = [*ids, eos]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of the ids; invalid UTF-8 becomes one U+FFFD per maximal subpart."""
        text = self.detokenizer(skip_special=skip_special)
        return "".join(map(text.push, ids)) + text.flush()

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """What makes a text of ids from its beginning."""
        return Detokenizer(self, skip_special_tokens=skip_special, strip_leading_space=self.adds_leading_space)

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes a token contributes to the text.

        Raises InvalidRequestError for an id outside the vocabulary.
        """
        kind = self._type(token_id)
        text = self._vocabulary.tokens[token_id]
        if kind == TokenType.UNUSED:
            return b""
        if self._is_sentencepiece:
            return sentencepiece.token_bytes(text, kind)
        return byte_level.token_bytes(text) if kind == TokenType.NORMAL else text.encode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether a token steers the model and is no part of the text."""
        return self._type(token_id) in _SPECIAL_TYPES

    def token_id(self, text: str) -> int | None:
        """The id of the token whose vocabulary entry is exactly `text`."""
        # The model's own vocabulary: added tokens are looked up by text in it as well, and the lowest id of a text is there.
        token_id: int | None = self._literal.model.token_to_id(text)
        return token_id

    def _type(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._types):
            raise InvalidRequestError(f"token id {token_id} is outside the vocabulary of {len(self._types)}")
        return self._types[token_id]


def _encode(pipeline: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    try:
        if len(text) < _LONG_TEXT:
            return pipeline.encode(text, add_special_tokens=False)
        return pipeline.encode_batch([text], add_special_tokens=False)[0]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the library, which exports no such name
            raise
        raise InvalidRequestError(f"the model's vocabulary contradicts itself on this text: {error}") from None


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidRequestError(
            f"the text holds a lone surrogate U+{code:04X} at character {error.start}; send valid Unicode"
        ) from None
