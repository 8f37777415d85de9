"""The tokenizer section of the tiny models: every byte has a token, so any text works."""

from __future__ import annotations

import numpy as np

from hotloop.weights.gguf_writer import WritableValue

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_NORMAL, _UNKNOWN, _CONTROL, _UNUSED, _BYTE = 1, 2, 3, 5, 6
_TURNS = ["<|im_start|>", "<|im_end|>"]


def tokenizer_metadata(vocab_size: int, *, sentencepiece: bool = False) -> dict[str, WritableValue]:
    """The `tokenizer.*` keys of a byte-level BPE or SentencePiece vocabulary; `vocab_size` >= 280."""
    return _sentencepiece(vocab_size) if sentencepiece else _byte_level(vocab_size)


def _byte_level(vocab_size: int) -> dict[str, WritableValue]:
    # 0-255 bytes by value, then merges, then control tokens.
    merges = ["Ġ t", "h e", "i n", "Ġ a", "Ġt he", "o n", "r e", "Ġ s"]
    tokens = byte_alphabet() + [merge.replace(" ", "") for merge in merges]
    types = [_NORMAL] * len(tokens) + [_CONTROL] * 3
    tokens += ["<|endoftext|>", *_TURNS]
    bos, eos = len(tokens) - 3, len(tokens) - 1
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        **_padded(tokens, types, vocab_size),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _sentencepiece(vocab_size: int) -> dict[str, WritableValue]:
    # Laid out as gemma's: pad, eos, bos, unk; bytes; pieces, the likelier the earlier.
    pieces = ["▁", "e", "t", "a", "o", "n", "▁t", "he", "▁the"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *_TURNS, *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    types = [_CONTROL] * 3 + [_UNKNOWN] + [_CONTROL] * 2 + [_BYTE] * 256 + [_NORMAL] * len(pieces)
    scores = np.zeros(vocab_size, np.float32)
    scores[262 : 262 + len(pieces)] = -1 - np.arange(len(pieces))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        **_padded(tokens, types, vocab_size),
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def byte_alphabet() -> list[str]:
    """The character that stands for each byte: printable Latin-1 as itself, others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    code_points = {byte: byte for byte in printable} | {byte: 256 + i for i, byte in enumerate(others)}
    return [chr(code_points[byte]) for byte in range(256)]


def _padded(tokens: list[str], types: list[int], vocab_size: int) -> dict[str, WritableValue]:
    missing = vocab_size - len(tokens)
    assert missing >= 0, f"vocab_size {vocab_size} is less than {len(tokens)}"
    return {
        "tokenizer.ggml.tokens": tokens + [f"<unused{i}>" for i in range(missing)],
        "tokenizer.ggml.token_type": np.array(types + [_UNUSED] * missing, np.int32),
    }
