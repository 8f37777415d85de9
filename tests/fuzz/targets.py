"""What is fuzzed: headers of GGUF and safetensors files, and chat templates."""

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
from hotloop.quant.formats import WEIGHT_FORMATS
from hotloop.text import template_limits
from hotloop.text.chat_template import ChatTemplate
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import write_gguf
from hotloop.weights.safetensors import SafetensorsFile

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
        Target("templates", _make_template, _read_template, case_limit_s=10.0),
    )
}
