"""The tokenizer of a Hugging Face folder in the terms of a model file: the `tokenizer.*` keys of GGUF metadata.

They are those that llama.cpp's converter writes, so that a file written with them works elsewhere. What GGUF has no
key for has one of hotloop's own (`hotloop.tokenizer.*`), which others ignore.
"""

from pathlib import Path

import numpy as np

from hotloop.errors import ModelFileError
from hotloop.weights.hf.companions import Companions
from hotloop.weights.hf.pieces import CONTROL, MAX_TOKENS, NORMAL, UNUSED, USER_DEFINED, AddedToken, Pieces
from hotloop.weights.hf.pre_tokenizer import SPACE
from hotloop.weights.hf.sentencepiece_model import read_sentencepiece_model
from hotloop.weights.hf.tokenizer_json import how_to_get_one, read_tokenizer_json
from hotloop.weights.hf.vocabulary_files import VOCAB, read_vocabulary_files
from hotloop.weights.model_file import MetadataValue

GGML, OWN = "tokenizer.ggml.", "hotloop.tokenizer."

_ADDED_SCORE = -1000.0
# Texts that look like control tokens are such, also where a folder calls them text (Qwen's <|fim_prefix|>, Gemma's
# <unused7>): nobody may forge them by typing.
_CONTROL_LOOKS = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
_CONTROL_TEXTS = frozenset(("<pad>", "<mask>", "<2mass>", "[@BOS@]"))


def tokenizer_metadata(folder: Path, vocab_size: int | None = None) -> dict[str, MetadataValue]:
    """The `tokenizer.*` keys of the model in a folder, from tokenizer.json, tokenizer.model or vocab.json, the first that is
    there, and their companions.

    vocab_size: rows of the model's embedding, where they are known: ids that the tokenizer lacks are unused tokens, and
    added tokens beyond are left out.

    Raises ModelFileError naming the file and what is wrong with it, or not implemented.
    """
    json_path, model_path = folder / "tokenizer.json", folder / "tokenizer.model"
    companions = Companions(folder)
    if json_path.is_file():
        pieces = read_tokenizer_json(json_path)
    elif model_path.is_file():
        pieces = read_sentencepiece_model(model_path)
    elif (folder / VOCAB).is_file():
        pieces = read_vocabulary_files(folder, companions)
    else:
        raise ModelFileError(f"{folder}: there is no tokenizer.json; {how_to_get_one(folder)}")
    added = _added_tokens(pieces, companions)
    tokens, types, scores = _tokens(pieces, added, companions.named_texts(), vocab_size, folder)
    metadata: dict[str, MetadataValue] = {
        GGML + "model": pieces.model,
        GGML + "pre": pieces.pre,
        GGML + "tokens": tokens,
        GGML + "token_type": types,
    }
    if pieces.model == "llama":
        metadata[GGML + "scores"] = scores
        metadata[GGML + "add_space_prefix"] = pieces.space_prefix != "never"
        if pieces.space_prefix in ("unless_space", "first"):
            metadata[OWN + "space_prefix"] = pieces.space_prefix
    else:
        metadata[GGML + "merges"] = pieces.merges
        if pieces.space_prefix != "never":
            metadata[GGML + "add_space_prefix"] = True
    for flag in ("lstrip", "rstrip", "normalized"):
        ids = [i for i, token in added.items() if getattr(token, flag) and i < len(tokens)]
        if flag == "normalized":
            ids = [i for i in ids if _may_be_normalized(pieces, added[i], types[i])]
        if ids:
            metadata[f"{OWN}{flag}_token_ids"] = np.asarray(sorted(ids), np.int32)
    metadata |= _special_tokens(pieces, companions, tokens, folder)
    if (template := companions.chat_template()) is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata


def _added_tokens(pieces: Pieces, companions: Companions) -> dict[int, AddedToken]:
    """Added tokens by id: those of the tokenizer file, as the configuration has them, and more of the configuration."""
    added = {token.token_id: token for token in pieces.added}
    texts = set(pieces.texts.values()) | {token.text for token in added.values()}
    for token in companions.added_tokens():
        known = added[token.token_id].text if token.token_id in added else pieces.texts.get(token.token_id)
        # Of a text that the tokenizer file has under another id, the file is right.
        if token.text == known or (known is None and token.text not in texts):
            added[token.token_id] = token
    return added


def _tokens(
    pieces: Pieces, added: dict[int, AddedToken], named: set[str], vocab_size: int | None, folder: Path
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Text, int32 type and float32 score of each token id."""
    size = vocab_size if vocab_size is not None else max([*pieces.texts, *added]) + 1
    if size > MAX_TOKENS:
        raise ModelFileError(f"{folder}: a vocabulary of {size} tokens; hotloop reads {MAX_TOKENS} at most")
    if beyond := [i for i in pieces.texts if i >= size and i not in added]:
        raise ModelFileError(
            f"{folder}: the tokenizer has {len(beyond)} tokens beyond the {size} of the model, first "
            f"{pieces.texts[min(beyond)]!r:.60} (id {min(beyond)}); take tokenizer and model from one release"
        )
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = np.full(size, UNUSED, np.int32)
    scores = np.full(size, _ADDED_SCORE, np.float32)
    for i, text in pieces.texts.items():
        if i < size:
            tokens[i], types[i] = text, pieces.types.get(i, NORMAL)
            scores[i] = pieces.scores.get(i, _ADDED_SCORE)
    for i, token in added.items():
        if i >= size:
            continue
        tokens[i] = token.text
        if pieces.types.get(i, NORMAL) in (NORMAL, CONTROL, USER_DEFINED):
            is_control = token.special or token.text in named or _looks_like_control(token.text)
            types[i] = CONTROL if is_control else USER_DEFINED
            if pieces.model == "llama" and not is_control:
                if " " in token.text:
                    raise ModelFileError(
                        f"{folder}: the added token {token.text!r:.60} (id {i}) holds a space, which hotloop cannot tell from "
                        f"the {SPACE!r} of its vocabulary. Use a GGUF file of this model"
                    )
                tokens[i] = token.text.replace(SPACE, " ")  # as files store the spaces of user-defined tokens
        scores[i] = _ADDED_SCORE
    ids = {text: i for i, text in pieces.texts.items()}
    for text in named & ids.keys():
        if ids[text] < size and types[ids[text]] == NORMAL:
            types[ids[text]] = CONTROL
    return tokens, types, scores


def _may_be_normalized(pieces: Pieces, token: AddedToken, kind: int) -> bool:
    """Whether a normalized token is found so, and not as it is written.

    Where the normalizer puts a space before texts, it does so before the token: it is found after a space only. Templates have
    none before control tokens; and what is not found then must not come out of the vocabulary instead.
    """
    if pieces.space_prefix != "always" or pieces.model == "gpt2":
        return pieces.same_normalizer
    learned = token.token_id in pieces.texts or len(token.text) == 1
    return pieces.same_normalizer and kind == USER_DEFINED and not learned


def _looks_like_control(text: str) -> bool:
    return text in _CONTROL_TEXTS or any(text.startswith(a) and text.endswith(b) for a, b in _CONTROL_LOOKS)


def _special_tokens(
    pieces: Pieces, companions: Companions, tokens: list[str], folder: Path
) -> dict[str, MetadataValue]:
    """Keys of the tokens with a part to play. Every end token of the folder's configurations is an end token."""
    ids = {text: i for i, text in reversed(list(enumerate(tokens)))}

    def named(name: str) -> int | None:
        text = companions.token_text(name)
        return ids.get(text) if text is not None else None

    metadata: dict[str, MetadataValue] = {}
    chosen = {name: named(name) for name in ("bos", "eos", "unk", "pad")}
    configured = {name: companions.token_ids(name) for name in ("bos", "eos", "pad")}
    for name, stated in configured.items():
        if outside := [i for i in stated if i >= len(tokens)]:
            raise ModelFileError(
                f"{folder}: the configuration's {name}_token_id {outside[0]} is outside the vocabulary of {len(tokens)}"
            )
        if chosen[name] is None and stated:
            chosen[name] = stated[0]
    for name, of_file in (("bos", pieces.bos_token_id), ("eos", pieces.eos_token_id)):
        if chosen[name] is None and of_file is not None and of_file < len(tokens):
            chosen[name] = of_file
    if pieces.unknown_token_id is not None:
        chosen["unk"] = pieces.unknown_token_id
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (token_id := chosen[name]) is not None:
            metadata[f"{GGML}{key}_token_id"] = token_id
    ends = [i for i in configured["eos"] if i != chosen["eos"]]
    metadata |= {f"{GGML}{key}_token_id": i for key, i in zip(("eot", "eom"), ends, strict=False)}
    if len(ends) > 2:
        metadata[OWN + "eos_token_ids"] = np.asarray(configured["eos"], np.int32)
    before, after = pieces.around or ([], [])
    for name, texts in (("bos", before), ("eos", after)):
        token_id = chosen[name]
        adds = companions.adds(name)
        if adds is None:
            adds = name == "bos" if pieces.around is None else texts == [None if token_id is None else tokens[token_id]]
        metadata[f"{GGML}add_{name}_token"] = adds and token_id is not None
    odd = [text for text in before if text not in ids]
    if odd or (after and [ids.get(text) for text in after] != [chosen["eos"]]):
        raise ModelFileError(
            f"{folder / 'tokenizer.json'}: its post_processor puts {(odd or after)[0]!r:.60} beside every text; hotloop puts "
            f"tokens of the vocabulary before it, and the end token behind it"
        )
    prefix = [ids[text] for text in before]
    if prefix and prefix != [chosen["bos"]]:
        metadata[OWN + "prefix_token_ids"] = np.asarray(prefix, np.int32)
    return metadata
