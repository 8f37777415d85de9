"""What is fuzzed: headers of GGUF and safetensors files, configurations and tokenizers of folders, chat templates."""

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from chat_templates import BOS, CONVERSATIONS, EOS, TEMPLATES
from fuzz.harness import Target
from fuzz.mutations import mutate_bytes, mutate_json, mutate_words
from hotloop.models.registry import ARCHITECTURES, load_model_spec
from hotloop.pre_tokenizers import PRE_TOKENIZERS
from hotloop.quant.formats import WEIGHT_FORMATS
from hotloop.text import template_limits
from hotloop.text.byte_level import byte_alphabet
from hotloop.text.chat_template import ChatTemplate
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import write_gguf
from hotloop.weights.hf.tokenizer import tokenizer_metadata
from hotloop.weights.open_model import open_model
from hotloop.weights.safetensors import SafetensorsFile
from tiny_folders import CLASSES, write_tiny_folder

# --- GGUF ---


@cache
def _gguf_files() -> list[bytes]:
    """Valid files: every kind of value, every format, names and strings of all lengths."""
    metadata = {
        "general.architecture": "llama",
        "general.name": "é" * 40,
        "a.bool": True,
        "a.float": 1.5,
        **{
            f"a.{dtype}": np.asarray(7).astype(dtype)[()]
            for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f8")
        },
        "a.numbers": np.arange(9, dtype=np.float32),
        "a.flags": np.asarray([True, False]),
        "tokenizer.ggml.tokens": ["", "a", "<|x|>", "\u2581the", "x" * 100],
    }
    tensors = {
        name: (name, (2, format.superblock_size * 2), bytes(format.tensor_bytes((2, format.superblock_size * 2))))
        for name, format in WEIGHT_FORMATS.items()
    }
    files = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        for keys, parts, options in (
            (metadata, tensors, {}),
            (metadata, {}, {"version": 2}),
            ({}, dict(list(tensors.items())[:2]), {"alignment": 64}),
            ({}, {}, {}),
        ):
            write_gguf(path, keys, parts, **options)
            files.append(path.read_bytes())
    return files


def _make_gguf(random: Random) -> bytes:
    files = _gguf_files()
    return mutate_bytes(random, random.choice(files), random.choice(files))


def _read_gguf(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        with GGUFFile.open(file.name) as gguf:
            for name in gguf.tensors:
                gguf.read(name)
            gguf.get_str("general.architecture", None)
            gguf.get_strings("tokenizer.ggml.tokens", None)


# --- safetensors ---

_SAFETENSORS: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "model.embed_tokens.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
    "model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [64, 96]},
    "scalar": {"dtype": "F16", "shape": [], "data_offsets": [96, 98]},
    "empty": {"dtype": "I64", "shape": [0, 3], "data_offsets": [98, 98]},
}


def _make_safetensors(random: Random) -> bytes:
    header = json.dumps(mutate_json(random, _SAFETENSORS) if random.randrange(4) else _SAFETENSORS).encode()
    if random.randrange(20) == 0:
        deep = random.choice((10, 1000, 200_000))
        header = random.choice((b"[", b'{"a":')) * deep
    data = len(header).to_bytes(8, "little") + header + bytes(98)
    return data if random.randrange(3) else mutate_bytes(random, data)


def _read_safetensors(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        opened = SafetensorsFile.open(Path(file.name))
        try:
            for tensor in opened.tensors.values():
                tensor.read()
        finally:
            opened.close()


# --- tokenizers of folders ---


@cache
def _tokenizers() -> list[dict[str, Any]]:
    added = [
        {"id": 260 + i, "content": text, "special": i < 2, "rstrip": False}
        for i, text in enumerate(("<s>", "</s>", "<x>"))
    ]
    alphabet = [*byte_alphabet()]
    byte_level = {
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PRE_TOKENIZERS["qwen2"].splits[0]}, "behavior": "Isolated"},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        },
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate([*alphabet, "ab", "abc"])},
            "merges": ["a b", "ab c"],
        },
    }
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    sentencepiece = {
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": True},
            {"id": 261, "content": "</s>", "special": True},
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate(["<unk>", *bytes_, "\u2581", "a", "b", "ab"])},
            "merges": [["a", "b"]],
            "unk_token": "<unk>",
            "byte_fallback": True,
        },
    }
    return [byte_level, sentencepiece]


_COMPANIONS: dict[str, dict[str, Any]] = {
    "tokenizer_config": {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": "x"}],
        "added_tokens_decoder": {"262": {"content": "<x>", "special": True, "lstrip": True}, "265": {"content": "<y>"}},
    },
    "generation_config": {"eos_token_id": [1, 2, 3, 261]},
    "config": {"bos_token_id": 2},
}


def _make_tokenizer(random: Random) -> bytes:
    definition = random.choice(_tokenizers())
    if "normalizers" in definition["normalizer"] or random.randrange(2):
        files = {"tokenizer": definition, **_COMPANIONS}
    else:
        files = {"vocab": definition["model"]["vocab"], "special_tokens_map": {"additional_special_tokens": ["ab"]}}
        files |= _COMPANIONS | {"config": {"model_type": "gpt2"}}
    for name in files:
        if random.randrange(2):
            files[name] = mutate_json(random, files[name])
    return json.dumps(files).encode()


def _read_tokenizer(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, value in json.loads(data).items():
            Path(folder, f"{name}.json").write_text(json.dumps(value))
        Path(folder, "merges.txt").write_text("#version: 0.2\na b\nab c\n")
        tokenizer = Tokenizer.from_metadata(tokenizer_metadata(Path(folder), 280))
        ids = tokenizer.encode("abc a\u0301 <s></s><x>", parse_special=True)
        assert all(0 <= i < 280 for i in ids)
        tokenizer.decode(ids)
        tokenizer.find_control("<x> <y></s>")


# --- configurations of folders ---

_CONFIG_VALUES = (0, 1, -1, 2, 64, 10**6, 2**31, 2**63, 1e30, float("inf"), "gelu", "full_attention")


@cache
def _folders() -> list[dict[str, bytes]]:
    folders = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in sorted(CLASSES.keys() & ARCHITECTURES):
            path = write_tiny_folder(Path(folder, architecture), architecture)
            folders.append({file.name: file.read_bytes() for file in sorted(path.iterdir())})
    return folders


def _make_config(random: Random) -> bytes:
    number = random.randrange(len(_folders()))
    config = mutate_json(random, json.loads(_folders()[number]["config.json"]))
    for _ in range(random.randrange(3)):
        key = random.choice(list(config)) if config else "model_type"
        config[key] = random.choice(_CONFIG_VALUES)
    return json.dumps([number, config]).encode()


def _read_config(data: bytes) -> None:
    number, config = json.loads(data)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in _folders()[number].items():
            Path(folder, name).write_bytes(content)
        Path(folder, "config.json").write_text(json.dumps(config))
        with open_model(folder) as model_file:
            load_model_spec(model_file)
            for name in model_file.tensors:
                model_file.read(name)


# --- chat templates ---

_WORD = re.compile(r"\{[{%#]-?|-?[}%#]\}|\w+|'[^'\n]*'|\s+|.", re.DOTALL)
_NASTY = [
    *"""
{{ 'a' * 10**9 }}
{{ [0] * 10**9 }}
{{ 10**10**10 }}
{{ '%09999999d' | format(1) }}
{{ '{:>9999999}'.format(1) }}
{{ ''.__class__.__mro__ }}
{{ cycler.__init__.__globals__ }}
{{ self }}
{{ namespace(a=1) }}
{{ range(10**9) | list }}
{% for i in range(99999) %}
{% for a in messages %}{% for b in messages %}{% for c in range(9999) %}
{% endfor %}
{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}
{% set x = x ~ x %}
{% set ns = namespace(s='ab') %}
{% set ns.s = ns.s * 2 %}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{% block b %}{{ super() }}{% endblock %}
{% raw %}
{% endraw %}
{{ messages | tojson(indent=999) }}
{{ messages | join('x' * 999) }}
{{ 'x' | indent(99999) }}
{{ 'x'.zfill(99999) }}
{{ raise_exception('no') }}
{{ strftime_now('%999999d') }}
{{ messages[0].content.replace('', 'x' * 999) }}
{% break %}
{{ loop }}
{{ messages.append(1) }}
{{ caller() }}
{% generation %}
{% endgeneration %}
{{ 1 / 0 }}
{{ none + 1 }}
{{ ' '.join(messages) }}
{{ messages | sort }}
{{ messages | map('upper') | list }}
{{ messages | batch(0) }}
""".strip().split("\n"),
    "\\",
    "\0",
    "\ud800",
]


@cache
def _words() -> tuple[list[list[str]], list[str]]:
    split = [_WORD.findall(source) for source in TEMPLATES.values()]
    return split, sorted({word for words in split for word in words}) + _NASTY * 3


def _make_template(random: Random) -> bytes:
    split, pool = _words()
    return "".join(mutate_words(random, random.choice(split), pool)).encode("utf-8", "surrogatepass")


def _read_template(data: bytes) -> None:
    source = data.decode("utf-8", "surrogatepass")
    conversations: list[Mapping[str, Any]] = list(CONVERSATIONS.values())
    options = dict(conversations[len(source) % len(conversations)])
    messages = options.pop("messages")
    limits = replace(template_limits.TemplateLimits(), seconds=1.0, steps=30_000)  # of a machine ten times as fast
    original, template_limits.TemplateLimits = template_limits.TemplateLimits, lambda: limits  # type: ignore[misc,assignment]
    try:
        ChatTemplate(source, bos_token=BOS, eos_token=EOS).render(messages, **options)
    finally:
        template_limits.TemplateLimits = original  # type: ignore[misc]


TARGETS = {
    target.name: target
    for target in (
        Target("gguf", _make_gguf, _read_gguf, case_limit_s=2.0),
        Target("safetensors", _make_safetensors, _read_safetensors, case_limit_s=2.0),
        Target("tokenizers", _make_tokenizer, _read_tokenizer, case_limit_s=2.0),
        Target("configs", _make_config, _read_config, case_limit_s=5.0),
        Target("templates", _make_template, _read_template, case_limit_s=10.0),
    )
}
