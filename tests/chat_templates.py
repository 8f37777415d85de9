"""Chat templates of the well-known formats, written for these tests, and conversations to render with them."""

from typing import Any

TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama2": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}\n"
        "    {% set system = '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' %}\n"
        "    {% set turns = messages[1:] %}\n"
        "{% else %}\n    {% set system, turns = '', messages %}\n{% endif %}\n"
        "{% for m in turns %}\n"
        "  {%- if (m.role == 'user') != (loop.index0 is divisibleby(2)) %}\n"
        "    {{- raise_exception('Roles must alternate: user, assistant, user, ...') }}\n"
        "  {%- endif %}\n"
        "  {%- if m.role == 'user' %}[INST] {{ (system if loop.first else '') + m.content | trim }} [/INST]\n"
        "  {%- else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{{ bos_token if not loop.last }}{% endif %}\n"
        "{% endfor %}"
    ),
    "llama3": (
        "{%- for m in messages %}\n"
        "    {%- set text = '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~ '<|eot_id|>' %}\n"
        "    {{- (bos_token if loop.index0 == 0 else '') + text -}}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}\n"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0].role not in ('user', 'assistant') %}\n"
        "  {%- set ns = namespace(prefix=messages[0].content + '\\n\\n', turns=messages[1:]) %}\n"
        "{% else %}\n  {%- set ns = namespace(prefix='', turns=messages) %}\n{% endif %}\n"
        "{%- for m in ns.turns -%}\n"
        "  {{ '<start_of_turn>' ~ {'assistant': 'model'}.get(m.role, m.role) ~ '\\n' ~ ns.prefix -}}\n"
        "  {%- set ns.prefix = '' -%}\n"
        "  {%- if m.content is string -%}{{ m.content | trim }}\n"
        "  {%- elif m.content is iterable -%}\n"
        "    {%- for part in m.content -%}{{ part.text | trim if part.type == 'text' }}{%- endfor -%}\n"
        "  {%- else -%}{{ raise_exception('no such content') }}{%- endif -%}\n"
        "  {{ '<end_of_turn>\\n' }}\n"
        "{%- endfor -%}\n"
        "{{ '<start_of_turn>model\\n' if add_generation_prompt }}"
    ),
    "zephyr": (
        "{% for message in messages %}\n"
        "{% if message['role'] in ['system', 'user', 'assistant'] %}\n"
        "{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token }}\n"
        "{% else %}\n{% continue %}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n"
        "{% endfor %}\n"
    ),
    "phi": (
        "{% for m in messages %}{% if loop.index > 8 %}{% break %}{% endif %}"
        "{% generation %}{% set shown = m.content.strip() %}{{ '<|%s|>' | format(m.role) }}\n"
        "{{ shown }}{% endgeneration %}<|end|>\n"
        "{% endfor %}{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}{{ shown }}"
    ),
    "tools": (
        "{%- macro describe(tool, depth=0) -%}\n"
        "  {%- for key, value in tool.items() | sort -%}\n"
        "    {{ '  ' * depth ~ key }}: {% if value is mapping %}{{ '\\n' ~ describe(value, depth + 1) }}\n"
        "    {%- elif value is string %}{{ value | replace('\\n', ' ') }}{{ '\\n' }}\n"
        "    {%- else %}{{ value | tojson(indent=2) }}{{ '\\n' }}{% endif %}\n"
        "  {%- endfor -%}\n"
        "{%- endmacro -%}\n"
        "{%- if tools %}# Tools\n"
        "{% for tool in tools %}{{ tool | tojson }}\n{{ describe(tool.function) }}{% endfor %}{% endif %}\n"
        "{%- for m in messages %}\n"
        "<|{{ m.role | upper }}|>{% if m.content %}{{ m.content | indent(2) }}{% endif %}\n"
        "  {%- for call in m.tool_calls or [] %}\n"
        "<tool_call>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>\n"
        "  {%- endfor %}\n"
        "{%- endfor %}\n"
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') | length }}"
        "{{ messages | map(attribute='role') | unique | list }}\n"
    ),
    "thinking": (
        "{%- set ns = namespace(last=-1) %}\n"
        "{%- for m in messages[::-1] %}{% if m.role == 'user' and ns.last < 0 %}"
        "{% set ns.last = messages | length - loop.index %}{% endif %}{% endfor %}\n"
        "{%- for m in messages %}\n"
        "  {%- set text = m.content if m.content is string else '' %}\n"
        "  {%- if m.role == 'assistant' and '</think>' in text %}\n"
        "    {%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}\n"
        "    {%- set text = text.split('</think>')[-1].lstrip('\\n') %}\n"
        "    {%- if loop.index0 > ns.last %}{% set text = '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' ~ text %}{% endif %}\n"
        "  {%- endif %}\n"
        "  {{- '<|im_start|>' ~ m.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
}

_USER = {"role": "user", "content": "  What's 2 + 2?\n"}
_SYSTEM = {"role": "system", "content": 'Be brief. Use "quotes" & <b>mark-up</b>, žluťoučký kůň 🐎.'}
_ANSWER = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n4"}
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [1.5, None, True], "ü": "<é>"}}}
    ],
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds\nnumbers; 'a' < \"b\" & c",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    },
}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one": {"messages": [_USER]},
    "system": {"messages": [_SYSTEM, _USER]},
    "turns": {"messages": [_USER, _ANSWER, {"role": "user", "content": ""}, _ANSWER], "add_generation_prompt": False},
    "long": {"messages": [_SYSTEM, *[_USER, _ANSWER] * 6, _USER]},
    "two_users": {"messages": [_USER, _USER]},
    "unknown_role": {"messages": [_USER, {"role": "critic", "content": "hm"}]},
    "tools": {
        "messages": [_USER, _CALL, {"role": "tool", "name": "add", "content": "4"}, _ANSWER, _USER],
        "tools": [_TOOL],
    },
    "variable": {"messages": [_USER], "enable_thinking": False},
}
BOS, EOS = "<s>", "</s>"
