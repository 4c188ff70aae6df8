"""Make the vectors of dialogues: what a chat template gets, and the prompt that it writes.

The templates are our own, in the layouts of public families. The prompts are written by the functions here, which know
the layout and no Jinja, so that no template engine has any part in what is expected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["files"]

Message = dict[str, Any]
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'},
}
_USER: Message = {"role": "user", "content": "Hi"}
_DIALOGUES: list[tuple[str, list[Message], bool]] = [
    ("one message", [_USER], False),
    ("instructions", [{"role": "system", "content": "Be terse."}, _USER], False),
    ("instructions of a developer", [{"role": "developer", "content": "Be terse."}, _USER], False),
    (
        "an earlier turn",
        [_USER, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Again"}],
        False,
    ),
    ("parts", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], False),
    ("several bytes a character", [{"role": "user", "content": "Grüße 東京 🎉"}], False),
    ("white space at the ends", [{"role": "user", "content": "  two\n\nlines \n"}], False),
    ("quotes, braces and tags", [{"role": "user", "content": '{{ "x" }} {% y %} <b>&amp;</b> \'z\''}], False),
    ("a tool", [_USER], True),
    ("instructions and a tool", [{"role": "system", "content": "Be terse."}, _USER], True),
    ("a call and its result", [_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                               {"role": "tool", "tool_call_id": "call_1", "content": "18 °C"}], True),
    ("text with a call", [_USER, {"role": "assistant", "content": "Let me look.", "tool_calls": [_CALL]},
                          {"role": "tool", "tool_call_id": "call_1", "content": '{"t": 18}'}], True),
]  # fmt: skip


def _template_input(messages: list[Message], *, instructions: str) -> list[Message]:
    """Return messages as a template gets them: texts, arguments as objects, no null, one role for instructions."""
    found = []
    for message in messages:
        given = {key: value for key, value in message.items() if value is not None}
        if given["role"] in ("system", "developer"):
            given["role"] = instructions
        if isinstance(given.get("content"), list):
            given["content"] = "".join(part["text"] for part in given["content"])
        given.setdefault("content", "")
        if "tool_calls" in given:
            given["tool_calls"] = [_call(call) for call in given["tool_calls"]]
        found.append(given)
    return found


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = {**call["function"], "arguments": json.loads(call["function"]["arguments"])}
    return {**call, "function": function}


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Layouts: what they write, without Jinja


def _chatml(messages: list[Message], tools: list[Any]) -> str:
    text = ""
    if tools:
        system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
        listed = "".join(f"\n{_compact(tool)}" for tool in tools)
        text = f"<|im_start|>system\n{system}# Tools\n<tools>{listed}\n</tools><|im_end|>\n"
        messages = messages[1:] if messages[0]["role"] == "system" else messages
    for message in messages:
        if message["role"] == "tool":
            body = f"user\n<tool_response>\n{message['content']}\n</tool_response>"
        else:
            body = f"{message['role']}\n{message['content']}"
            for call in message.get("tool_calls", ()):
                function = call["function"]
                line = f'{{"name": "{function["name"]}", "arguments": {_compact(function["arguments"])}}}'
                body += ("\n" if message["content"] else "") + f"<tool_call>\n{line}\n</tool_call>"
        text += f"<|im_start|>{body}<|im_end|>\n"
    return f"{text}<|im_start|>assistant\n"


_CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{%- if message.content %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def _headers(messages: list[Message], tools: list[Any]) -> str:
    text = "<|begin_of_text|>"
    for number, message in enumerate(messages):
        body = message["content"].strip()
        if tools and number == len(messages) - 1 and message["role"] == "user":
            body = (
                "Tools:\n"
                + "".join(f"{json.dumps(tool, indent=4, ensure_ascii=False)}\n\n" for tool in tools)
                + body
            )
        for call in message.get("tool_calls", ()):
            function = call["function"]
            body = f'{{"name": "{function["name"]}", "parameters": {_compact(function["arguments"])}}}'
        role = "ipython" if message["role"] == "tool" else message["role"]
        text += f"<|start_header_id|>{role}<|end_header_id|>\n\n{body}<|eot_id|>"
    return f"{text}<|start_header_id|>assistant<|end_header_id|>\n\n"


_HEADERS = """\
{{- bos_token }}
{%- for message in messages %}
{%- set role = 'ipython' if message['role'] == 'tool' else message['role'] %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- if message.tool_calls is defined and message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ (call.arguments | tojson) ~ '}' }}
{%- else %}
{%- if tools and loop.last and message['role'] == 'user' %}
{{- 'Tools:\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{%- endif %}
{{- message['content'] | trim }}
{%- endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""


def _inst(messages: list[Message], tools: list[Any]) -> str:
    text, system = "<s>", ""
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    for number, message in enumerate(messages):
        match message["role"]:
            case "system":
                system = message["content"] + "\n\n"
            case "user":
                listed = (
                    f"[AVAILABLE_TOOLS] {_compact(tools)}[/AVAILABLE_TOOLS]"
                    if tools and number == last
                    else ""
                )
                text += f"{listed}[INST] {system if number == last else ''}{message['content']}[/INST]"
            case "assistant" if "tool_calls" in message:
                calls = [{**call["function"], "id": call["id"]} for call in message["tool_calls"]]
                text += f"[TOOL_CALLS] {_compact(calls)}</s>"
            case "assistant":
                text += f" {message['content']}</s>"
            case _:
                result = {"content": message["content"], "call_id": message["tool_call_id"]}
                text += f"[TOOL_RESULTS] {_compact(result)}[/TOOL_RESULTS]"
    return text


_INST = """\
{{- bos_token }}
{%- set ns = namespace(system='', last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set ns.system = message.content + '\\n\\n' %}
{%- elif message.role == 'user' %}
{%- if tools and loop.index0 == ns.last %}
{{- '[AVAILABLE_TOOLS] ' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST] ' + (ns.system if loop.index0 == ns.last else '') + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- ', "id": "' + call.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}
{{- ' ' + message.content + eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) }}
{{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}
"""


def _turns(messages: list[Message], tools: list[Any]) -> str:
    prefix = ""
    text = "<bos>"
    if messages[0]["role"] == "system":
        prefix, messages = messages[0]["content"] + "\n\n", messages[1:]
    for number, message in enumerate(messages):
        role = "model" if message["role"] == "assistant" else "user"
        text += f"<start_of_turn>{role}\n{prefix if number == 0 else ''}{message['content'].strip()}<end_of_turn>\n"
    return f"{text}<start_of_turn>model\n"


_TURNS = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
{%- set prefix = messages[0]['content'] + '\\n\\n' %}{%- set turns = messages[1:] %}
{%- else %}
{%- set prefix = '' %}{%- set turns = messages %}
{%- endif %}
{%- for message in turns %}
{%- if message['role'] == 'assistant' %}{%- set role = 'model' %}{%- else %}{%- set role = 'user' %}{%- endif %}
{{- '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
{{- message['content'] | trim }}
{{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""


def _tags(messages: list[Message], tools: list[Any]) -> str:
    text = "".join(f"<|{message['role']}|>\n{message['content']}<|end|>\n" for message in messages)
    return f"{text}<|assistant|>\n"


_TAGS = """\
{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

Write = Callable[[list[Message], list[Any]], str]
_LAYOUTS: list[tuple[str, str, Write, dict[str, str], bool]] = [
    ("chatml", _CHATML, _chatml, {}, True),
    ("headers", _HEADERS, _headers, {"bos_token": "<|begin_of_text|>"}, True),
    ("inst", _INST, _inst, {"bos_token": "<s>", "eos_token": "</s>"}, True),
    ("turns", _TURNS, _turns, {"bos_token": "<bos>"}, False),
    ("tags", _TAGS, _tags, {}, False),
]
"""Name, template, writer, tokens, whether it writes tools and calls."""


def files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the content of each file."""
    for name, template, write, tokens, has_tools in _LAYOUTS:
        cases: list[dict[str, Any]] = []
        for title, messages, with_tools in _DIALOGUES:
            if with_tools and not has_tools:
                continue
            tools = [_TOOL] if with_tools else []
            given = _template_input(messages, instructions="system")
            case = {
                "id": len(cases) + 1,
                "title": title,
                "rules": ["CHAT-13"],
                "request": {"messages": messages, **({"tools": tools} if tools else {})},
                "messages": given,
                "prompt": write(given, tools),
            }
            cases.append({**case, "tools": tools} if tools else case)
        yield (
            name,
            {
                "format": 1,
                "template": template,
                "variables": {**tokens, "add_generation_prompt": True},
                "cases": cases,
            },
        )
