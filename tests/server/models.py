"""The models of the servers that the tests of a session share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scripted_model import Script
from server.serving import ServerProcess
from tiny_tokenizer import CHAT_TEMPLATE

# What the scripted model says after a prompt of one token (or a chat: the first). The EOS token follows each.
SCRIPTS: Mapping[str, Script] = {
    "chat": ("Hello", " world", "!"),
    "stops": ("ABC", "DEF", "G", "HI", "JK"),
    "held back": ("UNO", " DUE", " TRE", "\nAA", "BB"),
    "split characters": ("a ", b"\xf0", b"\x9f", b"\x98", b"\x8a", b"\xe4\xbd", b"\xa0", " ", b"\xc4", b"\x8f", "!"),
    "broken characters": (b"\xff", "ok", b"\xf0", " hello", b"\xe4", b"\xbd"),
    "words": tuple(f" word{i}" for i in range(40)),
}

# Of the tiny model: it refuses what many templates do.
STRICT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{% if not loop.first and (message['role'] == 'system' or message['role'] == loop.previtem['role']) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}{{ note }}"
) + CHAT_TEMPLATE


class Scripted(NamedTuple):
    """prompts: the token ids that a script follows, by its name."""

    server: ServerProcess
    prompts: Mapping[str, list[int]]
