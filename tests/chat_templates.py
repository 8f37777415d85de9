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
    "phi3": (
        "{% for m in messages %}{% if m['role'] in ('system', 'user', 'assistant') and m['content'] %}"
        "{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    "gemma2": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] | trim"
        " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "mistral3": (
        "{%- if messages[0].role == 'system' %}{% set system, turns = messages[0].content, messages[1:] %}\n"
        "{%- else %}{% set turns = messages %}{% endif %}\n"
        "{%- if not tools is defined %}{% set tools = none %}{% endif %}\n"
        "{%- set users = turns | selectattr('role', 'equalto', 'user') | list %}\n"
        "{{- bos_token }}\n"
        "{%- for m in turns %}\n"
        "  {%- if m.role == 'user' %}\n"
        "    {%- if tools is not none and m == users[-1] %}\n"
        "      {{- '[AVAILABLE_TOOLS] [' }}\n"
        '      {%- for tool in tools %}{% set tool = tool.function %}{{- \'{"type": "function", "function": {\' }}\n'
        "        {%- for key, val in tool.items() if key != 'return' %}\n"
        "          {%- if val is string %}{{- '\"' + key + '\": \"' + val + '\"' }}\n"
        "          {%- else %}{{- '\"' + key + '\": ' + val | tojson }}{% endif %}\n"
        "          {%- if not loop.last %}{{- ', ' }}{% endif %}\n"
        "        {%- endfor %}{{- '}}' }}{%- if not loop.last %}{{- ', ' }}{% else %}{{- ']' }}{% endif %}\n"
        "      {%- endfor %}{{- '[/AVAILABLE_TOOLS]' }}\n"
        "    {%- endif %}\n"
        "    {%- if loop.last and system is defined %}{{- '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}\n"
        "    {%- else %}{{- '[INST] ' + m.content + '[/INST]' }}{% endif %}\n"
        "  {%- elif m.tool_calls is defined and m.tool_calls is not none %}\n"
        "    {{- '[TOOL_CALLS] [' }}{%- for call in m.tool_calls %}{{- call.function | tojson }}{% endfor %}"
        "{{- ']' + eos_token }}\n"
        "  {%- elif m.role == 'assistant' %}{{- ' ' + m.content | trim + eos_token }}\n"
        "  {%- elif m.role == 'tool' %}\n"
        "    {%- if m.content is defined and m.content.content is defined %}{% set content = m.content.content %}\n"
        "    {%- else %}{% set content = m.content %}{% endif %}\n"
        "    {{- '[TOOL_RESULTS] {\"content\": ' + content | string + '}[/TOOL_RESULTS]' }}\n"
        "  {%- else %}{{- raise_exception('Only user and assistant roles are supported') }}{% endif %}\n"
        "{%- endfor %}\n"
    ),
    "granite": (
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set turns = messages[1:] %}\n"
        "{%- else %}{%- set system = 'Today is ' + (strftime_now('%B') | length > 0) | string + '.' %}\n"
        "  {%- if tools and documents %}{%- set system = system + ' Tools and documents.' %}\n"
        "  {%- elif tools %}{%- set system = system + ' Tools.' %}\n"
        "  {%- elif enable_thinking is defined and not enable_thinking %}{%- set system = system + ' Fast.' %}{%- endif %}\n"
        "  {%- set turns = messages %}{%- endif %}\n"
        "{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\n' }}\n"
        "{%- if tools %}{{- '<|start_of_role|>available_tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}"
        "{{- '<|end_of_text|>\n' }}{%- endif %}\n"
        "{%- for m in turns %}\n"
        "  {{- '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + (m['content'] or '') + '<|end_of_text|>\n' }}\n"
        "  {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}\n"
        "    {%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}\n"
        "{%- endfor %}"
    ),
    "glm4": (
        "[gMASK]<sop>\n"
        "{%- if tools -%}<|system|>\n# Tools\n{% for tool in tools %}\n{%- if tool.function %}\n\n"
        "## {{ tool.function.name }}\n\n{{ tool.function | tojson(indent=4, ensure_ascii=False) }}\n{%- endif %}{%- endfor %}"
        "{%- endif -%}\n"
        "{%- for m in messages -%}\n"
        "  {%- if m.role == 'user' %}<|user|>\n{{ m.content }}\n"
        "  {%- elif m.role == 'system' %}<|system|>\n{{ m.content }}\n"
        "  {%- elif m.role == 'tool' %}<|observation|>\n{{ m.content }}\n"
        "  {%- elif m.role == 'assistant' %}<|assistant|>\n"
        "    {%- for call in m.tool_calls or [] %}{{ call.function.name }}\n"
        "{{ call.function.arguments | tojson }}{%- endfor %}\n"
        "    {%- set text = (m.content or '').split('</think>') | last %}{{ '\n' + text.strip() if text.strip() else '' }}\n"
        "  {%- endif %}\n"
        "{%- endfor -%}\n"
        "{{- '<|assistant|>' if add_generation_prompt else '' -}}"
    ),
    "smollm3": (
        "{%- set mode = 'off' if enable_thinking is defined and not enable_thinking else '/think' -%}\n"
        "{%- if messages[0].role == 'system' -%}\n"
        "  {%- set custom = messages[0].content.replace('/no_think', '').replace('/think', '').rstrip() -%}{%- endif -%}\n"
        "{{- '<|im_start|>system\\n## Metadata\\nMode: ' + mode + '\\n\\n' -}}\n"
        "{%- if custom -%}{{- custom + '\\n\\n' -}}{%- endif -%}\n"
        "{%- if tools -%}\n"
        "  {%- set ns = namespace(xml='You may call:\\n<tools>\\n') -%}\n"
        "  {%- for tool in tools[:] -%}{%- set ns.xml = ns.xml ~ (tool | string) ~ '\\n' -%}{%- endfor -%}\n"
        "  {{- ns.xml + '</tools>\\n\\n' -}}\n"
        "{%- endif -%}\n"
        "{{- '<|im_end|>\\n' -}}\n"
        "{%- for m in messages -%}\n"
        "  {%- set content = m.content if m.content is string else '' -%}\n"
        "  {%- if m.role == 'user' -%}{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' -}}\n"
        "  {%- elif m.role == 'assistant' -%}{% generation %}\n"
        "    {%- if mode == '/think' -%}{{- '<|im_start|>assistant\\n' + content.lstrip('\\n') + '<|im_end|>\\n' -}}\n"
        "    {%- else -%}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' + content.lstrip('\\n') -}}{%- endif -%}\n"
        "  {% endgeneration %}\n"
        "  {%- elif m.role == 'tool' -%}{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' -}}{%- endif -%}\n"
        "{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
    ),
    "olmo2": (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] in ['system', 'user'] %}"
        "{{ '<|' + m['role'] + '|>\n' + m['content'] + '\n' }}{% elif m['role'] == 'assistant' %}{% if not loop.last %}"
        "{{ '<|assistant|>\n' + m['content'] + eos_token + '\n' }}{% else %}"
        "{{ '<|assistant|>\n' + m['content'] + eos_token }}{% endif %}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
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
