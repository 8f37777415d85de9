"""The vocabulary of a tokenizer.json: a BPE model of one of the two families that GGUF files know."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotloop.errors import ModelFileError
from hotloop.weights.hf.json_files import read_json
from hotloop.weights.hf.pieces import BYTE, MAX_TOKENS, UNKNOWN, AddedToken, Pieces
from hotloop.weights.hf.post_processor import texts_around
from hotloop.weights.hf.pre_tokenizer import ByteLevelPipeline, SpacePrefix, recognize

MAX_TOKENIZER_BYTES = 64 << 20
"""Most bytes of a tokenizer.json; those of vocabularies of 262,144 tokens have 33 MB."""
_MAX_TEXT_CHARS = 1 << 16
_MAX_SPLITS = 1000
_ADDED_FLAGS = ("special", "lstrip", "rstrip", "single_word")


def read_tokenizer_json(path: Path) -> Pieces:
    """The vocabulary in a file. Raises as `read_definition`."""
    return read_definition(read_json(path, MAX_TOKENIZER_BYTES), path)


def read_definition(definition: Mapping[str, Any], path: Path) -> Pieces:
    """The vocabulary that a tokenizer.json defines. path: the file, for messages.

    Raises ModelFileError naming the entry that is malformed, or not implemented.
    """
    model = definition.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else model
        raise ModelFileError(f"{path}: its model is {kind!r:.60}; hotloop reads BPE. Use a GGUF file of this model")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ModelFileError(f"{path}: model.{name} is {model[name]!r:.60}; hotloop implements it only empty")
    pipeline = recognize(definition, str(path))
    texts = _vocabulary(model.get("vocab"), path)
    ids = {text: token_id for token_id, text in texts.items()}
    merges = _merges(model.get("merges"), path)
    added = read_added_tokens(definition.get("added_tokens") or [], path)
    _check_added(added, texts, ids, path)
    around = texts_around(definition.get("post_processor"), path)
    if isinstance(pipeline, ByteLevelPipeline):
        prefix: SpacePrefix = "always" if pipeline.add_space_prefix else "never"
        joined = [f"{left} {right}" for left, right in merges]
        if odd := next((pair for pair in merges if " " in pair[0] + pair[1]), None):
            raise ModelFileError(f"{path}: the merge {odd!r:.80} holds a space, which no byte-level token does")
        if odd := next(((a, b) for a, b in merges if not (a in ids and b in ids and a + b in ids)), None):
            raise ModelFileError(
                f"{path}: the merge {odd!r:.80} joins or makes no tokens of the vocabulary; take both from one release"
            )
        return Pieces("gpt2", texts, {}, added, prefix, pipeline.pre, joined, same_normalizer=True, around=around)
    if not model.get("byte_fallback"):
        raise ModelFileError(f"{path}: a SentencePiece vocabulary without byte_fallback; hotloop needs it")
    unk_token = model.get("unk_token")
    if not isinstance(unk_token, str | None):
        raise ModelFileError(f"{path}: model.unk_token must be a text, not {unk_token!r:.60}")
    unknown = None if unk_token is None else ids.get(unk_token)
    types = {i: BYTE for text, i in ids.items() if is_byte_token(text)}
    if unknown is not None:
        types[unknown] = UNKNOWN
    not_learned = {token.token_id for token in added} | set(types)
    scores = _scores(merges, ids, not_learned, path)
    return Pieces(
        "llama",
        texts,
        types,
        added,
        pipeline.space_prefix,
        scores=scores,
        unknown_token_id=unknown,
        same_normalizer=pipeline.same_normalizer,
        around=around,
    )


def how_to_get_one(folder: Path) -> str:
    """For messages about a folder without a tokenizer.json."""
    call = f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    return f"transformers writes a tokenizer.json: {call}"


def read_added_tokens(entries: object, where: Path) -> list[AddedToken]:
    """The added tokens of a list of entries with id, content and flags.

    Raises ModelFileError naming the entry.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ModelFileError(f"{where}: added_tokens must be a list, not {entries!r:.60}")
    return [_added(entry, f"{where}: added_tokens[{i}]") for i, entry in enumerate(entries)]


def _check_added(added: list[AddedToken], texts: Mapping[int, str], ids: Mapping[str, int], path: Path) -> None:
    """Every id has one text, and every text one id: what contradicts that would take another token's place."""
    texts, ids = dict(texts), dict(ids)
    for token in added:
        text, token_id = texts.setdefault(token.token_id, token.text), ids.setdefault(token.text, token.token_id)
        if text != token.text:
            raise ModelFileError(f"{path}: id {token.token_id} is both {text!r:.60} and the added token {token.text!r:.60}")
        if token_id != token.token_id:
            raise ModelFileError(f"{path}: the added token {token.text!r:.60} has the ids {token_id} and {token.token_id}")


def _added(entry: object, where: str) -> AddedToken:
    if not isinstance(entry, dict):
        raise ModelFileError(f"{where} must be an object, not {entry!r:.60}")
    token_id, text = entry.get("id"), entry.get("content")
    if not _is_token_id(token_id) or not isinstance(text, str) or not 0 < len(text) <= _MAX_TEXT_CHARS:
        raise ModelFileError(f"{where} needs an id and a content, not {token_id!r:.60} and {text!r:.60}")
    flags = {name: entry.get(name) or False for name in _ADDED_FLAGS}
    flags["normalized"] = not flags["special"] if entry.get("normalized") is None else entry["normalized"]
    if odd := next((name for name, value in flags.items() if not isinstance(value, bool)), None):
        raise ModelFileError(f"{where}: {odd} must be true or false, not {flags[odd]!r:.60}")
    if flags.pop("single_word"):
        raise ModelFileError(f"{where} ({text!r:.60}) is single_word, which hotloop does not implement")
    assert isinstance(token_id, int)
    return AddedToken(token_id, text, **flags)


def _vocabulary(vocab: object, path: Path) -> dict[int, str]:
    if not isinstance(vocab, dict) or not vocab:
        raise ModelFileError(f"{path}: model.vocab must be a non-empty object, not {vocab!r:.60}")
    texts: dict[int, str] = {}
    for text, token_id in vocab.items():
        if not _is_token_id(token_id):
            raise ModelFileError(f"{path}: model.vocab[{text!r:.60}] must be a token id, not {token_id!r:.60}")
        if token_id in texts:
            raise ModelFileError(f"{path}: model.vocab gives id {token_id} to {texts[token_id]!r:.60} and {text!r:.60}")
        texts[token_id] = text
    return texts


def _merges(merges: object, path: Path) -> list[tuple[str, str]]:
    """Each merge as its two parts; older files write them as one text with a space between. None: tokens are single bytes."""
    if not isinstance(merges, list):
        raise ModelFileError(f"{path}: model.merges must be a list, not {merges!r:.60}")
    pairs = []
    for i, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        match parts:
            case [str(left), str(right)]:
                pairs.append((left, right))
            case _:
                raise ModelFileError(f"{path}: model.merges[{i}] must be two tokens, not {merge!r:.80}")
    return pairs


def _scores(
    merges: list[tuple[str, str]], ids: Mapping[str, int], not_learned: set[int], path: Path
) -> dict[int, float]:
    """Scores whose order is that of the merges, as SentencePiece joins: best-scored token first.

    That says the same only where every way to write a token as two is a merge, and those of a token stand together, as in
    files converted from SentencePiece models. Tokens whose merges are mixed have one score, under which longer parts come
    first (see text/sentencepiece.py).
    """
    made = []
    for left, right in merges:
        token_id = ids.get(left + right)
        if token_id is None:
            raise ModelFileError(f"{path}: the merge {(left, right)!r:.80} makes no token of the vocabulary")
        made.append(token_id)
    last = {token_id: i for i, token_id in enumerate(made)}
    scores: dict[int, float] = {}
    score, end, lengths = 0.0, -1, (0, 0)
    for i, ((left, right), token_id) in enumerate(zip(merges, made, strict=True)):
        if token_id in not_learned:
            continue  # found in text before anything is merged
        if i > end:
            score, end, first = score - 1, last[token_id], token_id
        elif token_id != first and lengths < (len(left), len(right)):
            raise _no_scores(left + right, path)
        end, lengths = max(end, last[token_id]), (len(left), len(right))
        scores[token_id] = score
    num_merges = Counter(made)
    for text, token_id in ids.items():
        splits = range(1, min(len(text), _MAX_SPLITS))
        if (
            token_id not in not_learned
            and sum(text[:k] in ids and text[k:] in ids for k in splits) != num_merges[token_id]
        ):
            raise _no_scores(text, path)
    return {i: scores.get(i, score - 1) for i in ids.values()}


def _no_scores(text: str, path: Path) -> ModelFileError:
    return ModelFileError(
        f"{path}: its merges follow from no scores of a SentencePiece model (see the token {text!r:.60}), as GGUF and "
        "hotloop need them. Use a GGUF file of this model"
    )


def is_byte_token(text: str) -> bool:
    """Whether a token stands for one byte: <0x00> .. <0xFF>."""
    return len(text) == 6 and text[:3] == "<0x" and text[5] == ">" and all(c in "0123456789ABCDEF" for c in text[3:5])


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKENS
