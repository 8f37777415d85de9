"""A model that says what it is told, as a complete GGUF file: every token has one successor, whatever came before it.

Embeddings are rows of a Hadamard matrix, all layers add zero, and a token's logit is 30 where it is the last token's successor
and 0 elsewhere. So greedy decoding follows the script exactly, and sampling at temperature 1 all but certainly.

ASCII goes on with the next character ("abc" with "defg..."), "~" with a space, for ever. A script's pieces are tokens of their
own, and the EOS token follows the last. A chat's prompt ends with a newline, which the first script follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.weights.gguf_writer import WritableValue
from tiny_models import write_tiny_model
from tiny_tokenizer import byte_alphabet, tokenizer_metadata

_HIDDEN_SIZE = 512  # at least the vocabulary: all embeddings are orthogonal to each other
_LOGIT = 30.0
_NUM_BASE_TOKENS = 267  # of the tiny tokenizer: bytes, merges, control tokens
EOS_ID = _NUM_BASE_TOKENS - 1

_NORMAL, _USER_DEFINED = 1, 4
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # text finds these, as in the vocabularies of such models

Script = Sequence[str | bytes]


def write_scripted_model(
    path: Path,
    scripts: Sequence[Script],
    *,
    context_length: int = 2048,
    metadata: Mapping[str, WritableValue | None] | None = None,
) -> list[int]:
    """Write the model and return for each script the token id that starts it (its text is ">"). metadata: keys more."""
    pieces = [piece for script in scripts for piece in (">", *script)]
    starts, successors = _successors(scripts)
    embeddings = _hadamard(_HIDDEN_SIZE)[: len(successors)]
    head = np.zeros_like(embeddings)
    for token_id, successor in enumerate(successors):
        head[successor] += embeddings[token_id] * (_LOGIT / _HIDDEN_SIZE)
    sizes: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 32, "intermediate_size": 32}
    tensors = {
        "token_embd.weight": embeddings,
        "output.weight": head,
        "output_norm.weight": np.ones(_HIDDEN_SIZE, np.float32),
        "blk.0.attn_output.weight": np.zeros((_HIDDEN_SIZE, sizes["head_dim"]), np.float32),
        "blk.0.ffn_down.weight": np.zeros((_HIDDEN_SIZE, sizes["intermediate_size"]), np.float32),
    }
    write_tiny_model(
        path,
        metadata={**_tokenizer(pieces), **(metadata or {})},
        tensors={name: ("F32", values.shape, values.tobytes()) for name, values in tensors.items()},
        hidden_size=_HIDDEN_SIZE,
        vocab_size=len(successors),
        context_length=context_length,
        **sizes,
    )
    return starts


def _successors(scripts: Sequence[Script]) -> tuple[list[int], list[int]]:
    """The id that starts each script, and each token's successor."""
    successors = [ord("a")] * _NUM_BASE_TOKENS
    for byte in range(127):
        successors[byte] = byte + 1 if byte != ord("~") else ord(" ")
    starts = []
    for script in scripts:
        starts.append(len(successors))
        successors += range(starts[-1] + 1, starts[-1] + 1 + len(script))
        successors.append(EOS_ID)
    successors[ord("\n")] = starts[0] + 1
    return starts, successors


def _tokenizer(pieces: Sequence[str | bytes]) -> dict[str, WritableValue | None]:
    """The tiny tokenizer's keys, and the pieces as ordinary tokens that no text but that of tags is ever encoded to."""
    characters = byte_alphabet()
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    texts = ["".join(characters[byte] for byte in piece) for piece in raw]
    metadata = tokenizer_metadata(_NUM_BASE_TOKENS)
    piece_types = [_USER_DEFINED if piece in _TAGS else _NORMAL for piece in pieces]
    types = np.concatenate([np.asarray(metadata["tokenizer.ggml.token_type"]), np.array(piece_types, np.int32)])
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return {**metadata, "tokenizer.ggml.tokens": tokens + texts, "tokenizer.ggml.token_type": types}


def _hadamard(size: int) -> NDArray[np.float32]:
    """Sylvester's matrix, float32 [size, size]: rows of +-1, orthogonal to each other; size: a power of 2."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
