"""SentencePiece vocabularies: greedy merging by score, expressed as BPE merges, with byte fallback.

A model file carries a score per token and no merges. SentencePiece joins the adjacent pair whose
concatenation scores highest, leftmost first; BPE does the same when every way to write a token as two tokens
is a merge and the merges are ranked by score. Between merges of equal score the longer left part ranks first,
then the longer right part, then the lower token id, as in Hugging Face's conversion, whose ids are wanted.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from hotloop.errors import ModelFileError
from hotloop.text.vocabulary import PREFIX, TokenType, Vocabulary

SPACE = "\u2581"  # stands for a space in every token text

# User-defined tokens (runs of blanks, mark-up) come before every learned one, whatever score the file gives.
_USER_DEFINED_SCORE = 0.0
# Where Hugging Face's Metaspace puts a space, by what the metadata calls it.
_PREPEND_SCHEMES: Mapping[str | None, str] = {"unless_space": "always", "first": "first"}
_HASH_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64


def token_bytes(text: str, kind: int) -> bytes:
    """Bytes of a token of text: a byte token is that byte, any other its text with real spaces."""
    if kind == TokenType.BYTE:
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE, " ").encode("utf-8", "replace")


def build(vocabulary: Vocabulary) -> Tokenizer:
    """A `tokenizers` pipeline with the ids of the vocabulary, without added tokens.

    Raises ModelFileError for a vocabulary without scores, or with malformed byte tokens.
    """
    tokens = vocabulary.tokens
    if not vocabulary.scores.size:
        raise ModelFileError(f"{PREFIX}scores is missing; a SentencePiece vocabulary needs it")
    malformed = [i for i in vocabulary.of_type(TokenType.BYTE) if not _is_byte_token(tokens[i])]
    if malformed:
        raise ModelFileError(
            f"{PREFIX}tokens[{malformed[0]}] is {tokens[malformed[0]]!r:.60}, not a byte like '<0x0A>'"
        )
    user_defined = vocabulary.token_types == TokenType.USER_DEFINED
    scores = np.where(user_defined, _USER_DEFINED_SCORE, vocabulary.scores)
    # Control and byte tokens never come out of text, not even out of their own spelling.
    mergeable = np.isin(vocabulary.token_types, (TokenType.NORMAL, TokenType.USER_DEFINED))
    prepends = vocabulary.add_space_prefix and vocabulary.space_prefix not in _PREPEND_SCHEMES
    if prepends:
        mergeable[list(vocabulary.normalized_token_ids)] = False  # found after a space, or not at all
    unknown = vocabulary.unknown_token_id
    try:
        model = BPE(
            vocabulary.ids,
            merges_by_score(tokens, scores, mergeable),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:  # the library raises bare exceptions of several types
        raise ModelFileError(f"{PREFIX}tokens cannot be used: {error}") from error
    pipeline = Tokenizer(model)
    if vocabulary.space_prefix in _PREPEND_SCHEMES:
        pipeline.pre_tokenizer = _spaces(_PREPEND_SCHEMES[vocabulary.space_prefix])
        return pipeline
    replace = normalizers.Replace(" ", SPACE)
    pipeline.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prepends else replace
    return pipeline


def without_prefix() -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of text that is not the first, of a vocabulary that puts a space before the first only."""
    return _spaces("never")


def _spaces(prepend_scheme: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Metaspace(SPACE, prepend_scheme=prepend_scheme, split=False)


def merges_by_score(
    tokens: Sequence[str], scores: NDArray[np.float64], mergeable: NDArray[np.bool_]
) -> list[tuple[str, str]]:
    """Every way to write a mergeable token as two tokens, best merge first.

    tokens: vocab_size texts. scores: float64 [vocab_size], higher merges earlier.
    mergeable: bool [vocab_size].
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    parent, left, right = _splits(tokens, lengths)
    wanted = mergeable[parent]
    parent, left, right = parent[wanted], left[wanted], right[wanted]
    rank = np.lexsort((-lengths[right], -lengths[left], -scores[parent]))  # stable: then by token id
    return [(tokens[a], tokens[b]) for a, b in zip(left[rank].tolist(), right[rank].tolist(), strict=True)]


def _splits(
    tokens: Sequence[str], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Ids (token, left part, right part) of all splits whose two parts are tokens; int64 [num_splits] each.

    A large vocabulary has millions of split points, so parts are looked up by a polynomial hash modulo 2**64.
    An accidental collision is out of the question, and a forged one gives a pair that BPE refuses.
    """
    codes = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), np.uint32)
    token_of = np.repeat(np.arange(len(tokens)), lengths)
    ends = np.cumsum(lengths)
    offset = np.arange(len(codes)) - np.repeat(ends - lengths, lengths)  # of a character within its token
    powers, inverse_powers = (_powers(base, int(lengths.max())) for base in (_HASH_BASE, pow(_HASH_BASE, -1, 2**64)))

    # Hashes of token[:k + 1] and token[k + 1:] at every character k: differences of one running sum.
    running = np.concatenate(([np.uint64(0)], np.cumsum(_mix(codes) * powers[offset], dtype=np.uint64)))
    whole = running[ends] - running[ends - lengths]
    head = running[1:] - running[ends - lengths][token_of]
    tail = (whole[token_of] - head) * inverse_powers[offset + 1]

    split = np.flatnonzero(offset + 1 < lengths[token_of])
    order = np.argsort(whole, kind="stable")
    hashes = whole[order]
    # A bitmap over the top bits drops nearly all parts that are no tokens before the costlier search.
    shift = np.uint64(64 - 24)
    present = np.zeros(1 << 24, np.bool_)
    present[_mix(hashes) >> shift] = True
    split = split[present[_mix(head[split]) >> shift]]
    split = split[present[_mix(tail[split]) >> shift]]
    left, right = (np.minimum(np.searchsorted(hashes, h[split]), len(hashes) - 1) for h in (head, tail))
    found = (hashes[left] == head[split]) & (hashes[right] == tail[split])
    return token_of[split[found]], order[left[found]], order[right[found]]


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """base**0 .. base**count modulo 2**64, uint64 [count + 1]."""
    factors = np.full(count + 1, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mix(values: NDArray[np.unsignedinteger]) -> NDArray[np.uint64]:
    """A bijective scramble of 64-bit values whose high bits depend on all input bits."""
    mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    return mixed * np.uint64(0xD6E8FEB86659FD93)


def _is_byte_token(text: str) -> bool:
    return len(text) == 6 and text[:3] == "<0x" and text[5] == ">" and all(c in "0123456789ABCDEF" for c in text[3:5])
