"""Hugging Face folders for tests: the small vocabularies of the goldens as tokenizer.json files with their companions."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.text import sentencepiece

GOLDEN = Path(__file__).parent / "golden"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {**GPT2, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}


def small_vocabulary(name: str) -> dict[str, Any]:
    """Metadata of a small vocabulary, as the file of goldens has it."""
    metadata: dict[str, Any] = json.loads((GOLDEN / f"tokenizer_{name}_vocabulary.json").read_text())
    return {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}


def words(digits: str, behavior: str = "Isolated") -> dict[str, Any]:
    """The pre-tokenizer of Llama 3 and its kin."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": behavior == "Removed"}
    return {"type": "Sequence", "pretokenizers": [split, BYTES]}


def byte_level_json(pre_tokenizer: dict[str, Any] = GPT2, **model: Any) -> dict[str, Any]:
    """A tokenizer.json of the small byte-level vocabulary."""
    vocabulary = small_vocabulary("small_bpe")
    added = [i for i, kind in enumerate(vocabulary["token_type"]) if kind in (CONTROL, USER_DEFINED)]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": vocabulary["tokens"][i], "special": vocabulary["token_type"][i] == CONTROL, **FLAGS}
            for i in added
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "model": {
            "type": "BPE",
            "vocab": {
                text: i
                for i, (text, kind) in enumerate(zip(vocabulary["tokens"], vocabulary["token_type"], strict=True))
                if kind != USER_DEFINED
            },
            "merges": vocabulary["merges"],
            **model,
        },
    }


def sentencepiece_json(*, prefix: bool, merges: list[tuple[str, str]], **parts: Any) -> dict[str, Any]:
    """A tokenizer.json of the small SentencePiece vocabulary with these merges."""
    vocabulary = small_vocabulary("small_spm")
    types = vocabulary["token_type"]
    tokens = [
        t.replace(" ", SPACE) if k == USER_DEFINED else t for t, k in zip(vocabulary["tokens"], types, strict=True)
    ]
    return {
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": kind != USER_DEFINED, **FLAGS}
            for i, kind in enumerate(types)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]} if prefix else REPLACE,
        "pre_tokenizer": None,
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": [list(merge) for merge in merges],
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
        **parts,
    }


def write_folder(folder: Path, tokenizer: dict[str, Any] | None, **companions: Any) -> Path:
    """Write tokenizer.json and NAME.json for each companion; text and bytes are written as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in {"tokenizer": tokenizer, **companions}.items():
        if value is not None:
            text = value if isinstance(value, str | bytes) else json.dumps(value)
            (folder / f"{name}.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


BYTE_LEVEL: dict[str, dict[str, Any]] = {
    "gpt-2": byte_level_json(GPT2),
    "smollm": byte_level_json({"type": "Sequence", "pretokenizers": [DIGITS, GPT2]}),
    "llama-bpe": byte_level_json(words(r"\p{N}{1,3}"), ignore_merges=True),
    "dbrx": byte_level_json(words(r"\p{N}{1,3}", "Removed")),
    "qwen2": {**byte_level_json(words(r"\p{N}")), "normalizer": {"type": "Sequence", "normalizers": [NFC]}},
}


def spm_merges() -> list[tuple[str, str]]:
    vocabulary = small_vocabulary("small_spm")
    types = np.asarray(vocabulary["token_type"])
    tokens = [
        t.replace(" ", SPACE) if k == USER_DEFINED else t for t, k in zip(vocabulary["tokens"], types, strict=True)
    ]
    scores = np.where(types == USER_DEFINED, 0.0, np.asarray(vocabulary["scores"]))
    return sentencepiece.merges_by_score(tokens, scores, np.isin(types, (1, 4)))


def with_added(definition: dict[str, Any], text: str, token_id: int = 9000, **flags: Any) -> dict[str, Any]:
    added = {"id": token_id, "content": text, **FLAGS, **flags}
    return {**definition, "added_tokens": [*definition["added_tokens"], added]}


def metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
