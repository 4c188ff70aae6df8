# ruff: noqa: E501 - a table reads best with one case a line
"""Structured output over HTTP: under every field name and in both modes, answers match or the request is refused."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema_rs
import pytest
from support.laws import EXPLORED, FIRST_SEED
from support.models import scripted, served, tiny_engine
from support.servers.asgi import Server, serving

from plumbline.engines.constraints.grammar import CompilersBusyError

USER = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sizes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["colour", "sizes"],
    "additionalProperties": False,
}  # fmt: skip
LARK = 'start: word (" " word){0,3}\nword: /[a-c]{1,4}/'
GBNF = 'root ::= word (" " word){0,3} # words\nword ::= [\\u0061-c]{1,4}'
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "a=", "schema": {"enum": [17, 18]}, "end": ";"}],
    "triggers": ["a"],
}
NEW_TAGS = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["a"],
        "tags": [
            {"begin": "a=", "content": {"type": "json_schema", "json_schema": {"enum": [17, 18]}}, "end": ";"}
        ],
    },
}
TAGGED = {"seed": 3, "temperature": 1.0}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": USER, "max_tokens": 200},
    "completions": {"prompt": "hello", "max_tokens": 200},
    "responses": {"input": "hello", "max_output_tokens": 200},
}


def is_valid(text: str) -> bool:
    return jsonschema_rs.is_valid(SCHEMA, json.loads(text))


def is_word(text: str) -> bool:
    return re.fullmatch(r"[a-c]{1,4}( [a-c]{1,4}){0,3}", text) is not None


def is_tagged(text: str) -> bool:
    """Each `a` begins a tag; the tokens of a random model contain some."""
    return re.fullmatch(r"([^a]|a=1[78];)*(a(=(1([78];?)?)?)?)?", text, re.DOTALL) is not None


FORMATS: list[tuple[str, dict[str, Any], Any]] = [
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}}, is_valid),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}, is_valid),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}}}, is_valid),
    ("chat", {"response_format": {"type": "json_object", "schema": SCHEMA}}, is_valid),
    ("responses", {"text": {"format": {"type": "json_object", "schema": SCHEMA}}}, is_valid),
    *((api, {"structured_outputs": {"json": SCHEMA}}, is_valid) for api in PATHS),
    *((api, {"structured_outputs": {"regex": "[ab]{3}/\n?x"}}, lambda text: re.fullmatch("[ab]{3}/\n?x", text)) for api in PATHS),
    *((api, {"structured_outputs": {"choice": ["yes", "no <|im_end|> no", "</think>"]}}, lambda text: text in ("yes", "no <|im_end|> no", "</think>")) for api in PATHS),
    *((api, {"structured_outputs": {"grammar": LARK}}, is_word) for api in PATHS),
    *((api, {"structured_outputs": {"grammar": GBNF}}, is_word) for api in PATHS),
    *((api, {field: GBNF}, is_word) for api in PATHS for field in ("grammar", "ebnf")),
    *((api, {"json_schema": schema}, is_valid) for api in PATHS for schema in (SCHEMA, json.dumps(SCHEMA))),
    *((api, {"regex": "[ab]{3}", "grammar": ""}, lambda text: re.fullmatch("[ab]{3}", text)) for api in PATHS),
    *((api, {"structured_outputs": {"structural_tag": TAGS}, **TAGGED}, is_tagged) for api in PATHS),
    *((api, {"structural_tag": tags, **TAGGED}, is_tagged) for api in ("chat", "completions") for tags in (TAGS, json.dumps(TAGS), NEW_TAGS)),
    *((api, {"guided_json": json.dumps(SCHEMA)}, is_valid) for api in ("chat", "completions")),
    *((api, {"guided_regex": "[ab]{3}"}, lambda text: re.fullmatch("[ab]{3}", text)) for api in ("chat", "completions")),
    *((api, {"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")) for api in ("chat", "completions")),
    *((api, {"guided_grammar": LARK}, is_word) for api in ("chat", "completions")),
]  # fmt: skip


def text_of(api: str, body: Any) -> tuple[str, str]:
    """Return the text of a non-streaming answer, and why it ended."""
    match api:
        case "chat":
            return body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]
        case "completions":
            return body["choices"][0]["text"], body["choices"][0]["finish_reason"]
        case _:
            return body["output"][0]["content"][0]["text"], body["status"]


def streamed_text(api: str, chunks: list[Any]) -> str:
    match api:
        case "chat":
            return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        case "completions":
            return "".join(c["choices"][0]["text"] for c in chunks if c["choices"])
        case _:
            return "".join(c["delta"] for c in chunks if c["type"] == "response.output_text.delta")


def run(scenario: Any, engine: Any = None) -> None:
    async def main() -> None:
        async with serving(served(tiny_engine() if engine is None else engine)) as server:
            await scenario(server)

    asyncio.run(main())


@pytest.mark.sampled
def test_every_field_name_is_enforced_in_both_modes() -> None:
    """SO-01, SO-02, SO-09: a random model at temperature 1 matches the format, and the stream joins to the same text."""

    async def check(server: Server, seed: int, api: str, changes: Any, matches: Any) -> None:
        body = {"model": "test-model", "temperature": 1, "seed": seed, **BODIES[api], **changes}
        answer, stream = await asyncio.gather(
            server.post(PATHS[api], body), server.post(PATHS[api], {**body, "stream": True})
        )
        assert answer.status == 200, answer.body
        text, reason = text_of(api, answer.json)
        assert reason in ("stop", "completed"), (api, changes, text)
        assert matches(text), (api, changes, text)
        chunks = [event.json for event in stream.events if event.data != "[DONE]"]
        assert streamed_text(api, chunks) == text

    async def scenario(server: Server) -> None:
        for seed in range(FIRST_SEED, FIRST_SEED + max(1, EXPLORED // 400)):
            for start in range(0, len(FORMATS), 8):
                await asyncio.gather(*(check(server, seed, *each) for each in FORMATS[start : start + 8]))

    run(scenario, tiny_engine(batch_invariant=True))


def test_a_trigger_begins_a_tag() -> None:
    """A bias makes the model write triggers; what follows is forced."""

    async def scenario(server: Server) -> None:
        [token] = (await server.post("/tokenize", {"prompt": "a"})).json["tokens"]
        for stream in (False, True):
            body = {**BODIES["completions"], "model": "test-model", "structural_tag": TAGS, "stream": stream}
            answer = await server.post(PATHS["completions"], {**body, "logit_bias": {str(token): 100}})
            assert answer.status == 200, answer.body
            if stream:
                text = streamed_text("completions", [e.json for e in answer.events if e.data != "[DONE]"])
            else:
                text, _ = text_of("completions", answer.json)
            assert re.match(r"(a=1[78];){10}", text)
            assert is_tagged(text)

    run(scenario)


def test_a_cut_answer_is_a_length() -> None:
    """SO-05."""

    async def scenario(server: Server) -> None:
        body = {
            "model": "test-model",
            **BODIES["chat"],
            "response_format": {"type": "json_object"},
            "max_tokens": 1,
        }
        answer = (await server.post(PATHS["chat"], body)).json
        assert answer["choices"][0]["finish_reason"] == "length"

    run(scenario)


BAD: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}}}, "response_format", "invalid_json_schema"),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}}, "response_format", "invalid_json_schema"),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}}, "response_format.json_schema.schema", "missing_required_parameter"),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "s", "strict": True, "schema": {**SCHEMA, "uniqueItems": True}}}}, "text.format.schema", "invalid_json_schema"),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"$ref": "http://a/b"}}}}, "text.format.schema", "invalid_json_schema"),
    ("completions", {"structured_outputs": {"json": {"type": "integer", "minimum": 3, "maximum": 2}}}, "structured_outputs.json", "invalid_json_schema"),
    ("completions", {"guided_json": "{"}, "guided_json", "invalid_value"),
    ("completions", {"guided_json": "[]"}, "guided_json", "invalid_type"),
    ("chat", {"guided_regex": "(a"}, "guided_regex", "invalid_value"),
    ("chat", {"guided_regex": "(?=a)b"}, "guided_regex", "invalid_value"),
    ("chat", {"guided_grammar": "start: other"}, "guided_grammar", "invalid_value"),
    ("chat", {"guided_grammar": "begin: /a/"}, "guided_grammar", "invalid_value"),
    ("chat", {"guided_grammar": "start: a\na: a"}, "guided_grammar", "invalid_value"),
    ("responses", {"structured_outputs": {}}, "structured_outputs", "invalid_value"),
    ("responses", {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "invalid_value"),
    ("responses", {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}, "structured_outputs.regex", "invalid_value"),
    ("chat", {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
    ("chat", {"grammar": "root ::= other"}, "grammar", "invalid_value"),
    ("chat", {"grammar": "start: /a/"}, "grammar", "invalid_value"),
    ("completions", {"ebnf": "root ::= (" * 3000}, "ebnf", "invalid_value"),
    ("responses", {"grammar": "root ::= a\n" + "a ::= b\n" * 501}, "grammar", "invalid_value"),
    ("responses", {"json_schema": "{"}, "json_schema", "invalid_value"),
    ("completions", {"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "json_schema", "invalid_json_schema"),
    ("chat", {"regex": "(a"}, "regex", "invalid_value"),
    ("chat", {"regex": "a", "json_schema": {}}, "regex", "invalid_value"),
    ("chat", {"structural_tag": {"structures": [{"begin": "b", "schema": {}, "end": ""}], "triggers": ["a"]}}, "structural_tag.structures[0].begin", "invalid_value"),
    ("chat", {"structural_tag": {"structures": [], "triggers": ["a"]}}, "structural_tag.structures", "invalid_value"),
    ("completions", {"structural_tag": {"format": {"type": "sequence"}}}, "structural_tag.format", "invalid_value"),
    ("chat", {"guided_regex": "a", "allowed_token_ids": [5]}, "allowed_token_ids", "invalid_value"),
]  # fmt: skip


def test_a_bad_constraint_is_refused_and_the_next_request_is_served() -> None:
    """SO-03: a 400 that names the field and the reason, before a stream begins."""

    async def scenario(server: Server) -> None:
        for api, changes, param, code in BAD:
            for stream in (False, True):
                body = {"model": "test-model", **BODIES[api], **changes, "stream": stream}
                answer = await server.post(PATHS[api], body)
                assert answer.status == 400, (changes, answer.body)
                error = answer.json["error"]
                assert (error["param"], error["code"]) == (param, code), (changes, error)
                assert len(error["message"]) < 700
                assert "%json" not in error["message"]
        api, changes, matches = FORMATS[0]
        answer = await server.post(PATHS[api], {"model": "test-model", **BODIES[api], **changes})
        assert answer.status == 200
        assert matches(text_of(api, answer.json)[0])

    run(scenario)


def test_an_engine_without_grammars_refuses() -> None:
    """Without a grammar the answer would be free text, and the client could not notice."""

    async def scenario(server: Server) -> None:
        for api, changes, _ in FORMATS:
            answer = await server.post(PATHS[api], {"model": "test-model", **BODIES[api], **changes})
            assert answer.status == 400
            assert "scripted" in answer.json["error"]["message"]

    run(scenario, scripted())


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_grammar_that_waits_too_long_for_its_compiler_is_a_429(
    api: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-05: nothing is wrong with the request, so that a client may send it again."""

    async def compile_nothing(grammar: str, client: str) -> Any:
        raise CompilersBusyError("Too many are being compiled.")

    engine: Any = tiny_engine()
    monkeypatch.setattr(engine.admission.grammars, "compile", compile_nothing)

    async def scenario(server: Server) -> None:
        changes = {"structured_outputs": {"json": SCHEMA}, "stream": stream}
        answer = await server.post(PATHS[api], {"model": "test-model", **BODIES[api], **changes})
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        assert int(answer.header("retry-after") or 0) >= 1

    run(scenario, engine)


ENDLESS = {"const": -9223372036854775807}
"""llguidance recurses over it until the process ends."""
EXACT = ("response_format", "json", "guided_json")
"""Here the number is written into a grammar that llguidance does not read as a number."""
WAYS_IN: dict[str, dict[str, Any]] = {
    "response_format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": ENDLESS}}
    },
    "json": {"structured_outputs": {"json": ENDLESS}},
    "Lark": {"structured_outputs": {"grammar": f"start: %json {json.dumps(ENDLESS)}"}},
    "nested Lark": {"structured_outputs": {"grammar": f"start: a\na: %lark {{\nstart: %json {json.dumps(ENDLESS)}\n}}"}},
    "guided_json": {"guided_json": {"type": "array", "items": ENDLESS}},
    "tool": {
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "strict": True, "parameters": {
                    "type": "object", "properties": {"a": ENDLESS}, "required": ["a"], "additionalProperties": False,
                }},
            }
        ],
        "tool_choice": "required",
    },
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_schema_that_ends_its_process_is_not_given_to_it(way: str) -> None:
    async def scenario(server: Server) -> None:
        for _ in range(2):
            body = {"model": "test-model", **BODIES["chat"], **WAYS_IN[way]}
            answer = await server.post(PATHS["chat"], body)
            if way in EXACT:
                text = answer.json["choices"][0]["message"]["content"]
                assert (
                    set(json.loads(text)) <= {ENDLESS["const"]}
                    if text.startswith("[")
                    else json.loads(text) == ENDLESS["const"]
                )
            else:
                assert answer.status == 400, answer.error
        body = {"model": "test-model", **BODIES["chat"], "guided_json": SCHEMA}
        assert (await server.post(PATHS["chat"], body)).status == 200

    run(scenario)


@pytest.mark.parametrize("count", [1, 5])
def test_all_choices_of_a_request_are_constrained(count: int) -> None:
    async def scenario(server: Server) -> None:
        body = {"model": "test-model", **BODIES["chat"], "n": count, "temperature": 1, "guided_json": SCHEMA}
        answer = (await server.post(PATHS["chat"], body)).json
        assert len(answer["choices"]) == count
        assert all(is_valid(choice["message"]["content"]) for choice in answer["choices"])

    run(scenario)


@pytest.mark.parametrize(
    "outputs",
    [
        {"choice": ["x" * 20_000, "y"]},
        {"json": {"const": "x" * 20_000}},
        {"json": {"type": "object", "properties": {f"field_{i}": {"type": "integer"} for i in range(700)}}},
    ],
)
def test_what_would_take_too_long_to_compile_is_refused_at_once(outputs: dict[str, Any]) -> None:
    async def run() -> Any:
        async with serving(served(tiny_engine())) as server:
            body = {"model": "test-model", "structured_outputs": outputs, **BODIES["chat"]}
            return await server.post(PATHS["chat"], body)

    answer = asyncio.run(run())
    assert answer.status == 400
    assert answer.error["param"].startswith("structured_outputs")


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(
    "outputs",
    [
        {"grammar": 'start: "hello" X\nX: /b/ & /c/'},
        {"grammar": 'start: "hello" y\ny: "a" y'},
        {"regex": "((a{1,9000}){1,9000}){1,9000}b"},
    ],
)
def test_a_grammar_that_fails_during_generation_is_a_400(api: str, outputs: dict[str, Any]) -> None:
    """Some grammars show their defect only during generation. The server answers the next request."""

    async def run() -> tuple[Any, Any]:
        async with serving(served(tiny_engine())) as server:
            body = {"model": "test-model", "structured_outputs": outputs, **BODIES[api]}
            answer = await server.post(PATHS[api], body)
            return answer, await server.post(PATHS[api], {"model": "test-model", **BODIES[api], **SHORT[api]})

    answer, following = asyncio.run(run())
    assert answer.status in (200, 400)
    if answer.status == 400:
        assert "grammar" in answer.error["message"].lower() or "pattern" in answer.error["message"].lower()
    assert following.status == 200


SHORT: dict[str, dict[str, Any]] = {"chat": {"max_tokens": 2}, "completions": {"max_tokens": 2}}


MISPLACED: list[tuple[str, dict[str, Any], str, str]] = [
    ("responses", {"response_format": {"type": "json_object"}}, "response_format", "text.format"),
    ("responses", {"guided_regex": "a"}, "guided_regex", "structured_outputs"),
    ("chat", {"text": {"format": {"type": "json_object"}}}, "text.format", "response_format"),
    ("completions", {"response_format": {"type": "json_object"}}, "response_format", "structured_outputs"),
    ("responses", {"max_tokens": 5}, "max_tokens", "max_output_tokens"),
    ("responses", {"reasoning_effort": "low"}, "reasoning_effort", "reasoning.effort"),
    ("responses", {"functions": [{"name": "f"}]}, "functions", "tools"),
    ("chat", {"reasoning": {"effort": "low"}}, "reasoning.effort", "reasoning_effort"),
    ("chat", {"max_output_tokens": 5}, "max_output_tokens", "max_completion_tokens"),
    ("completions", {"max_completion_tokens": 5}, "max_completion_tokens", "max_tokens"),
]  # fmt: skip


ELSEWHERE: list[tuple[str, dict[str, Any]]] = [
    ("responses", {"n": 2}),
    ("responses", {"documents": [{"text": "a"}]}),
    ("responses", {"response_prefix": "Sure"}),
    ("responses", {"continue_final_message": True}),
    ("responses", {"add_generation_prompt": False}),
    ("responses", {"echo": True}),
    ("completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("completions", {"documents": [{"text": "a"}]}),
    ("completions", {"response_prefix": "Sure"}),
    ("completions", {"thinking_token_budget": 5}),
    ("completions", {"reasoning_effort": "low"}),
    ("completions", {"chat_template_kwargs": {"a": 1}}),
]  # fmt: skip
"""Fields of other APIs that this API has under no name."""


async def test_a_field_of_another_api_is_refused_with_the_right_name() -> None:
    """Ignoring it would change the answer without notice. Values without effect, such as null, are ignored."""
    async with serving(served(scripted())) as server:
        for api, extra, param, right in MISPLACED:
            for more in (
                {},
                {"temperature": 1.0, "max_tokens" if api != "responses" else "max_output_tokens": 50.0},
            ):
                answer = await server.post(
                    PATHS[api], {"model": "test-model", **BODIES[api], **extra, **more}
                )
                assert answer.status == 400
                assert (answer.error["param"], answer.error["code"]) == (param, "unsupported_parameter")
                assert f"'{right}'" in answer.error["message"]
        for api, extra in ELSEWHERE:
            answer = await server.post(PATHS[api], {"model": "test-model", **BODIES[api], **extra})
            assert answer.status == 400
            assert answer.error["param"] in extra
        for api, extra in (
            ("responses", {"response_format": None}),
            ("chat", {"text": {"verbosity": "low"}}),
            ("chat", {"text": "format"}),
            ("responses", {"n": 1, "echo": False, "documents": [], "add_generation_prompt": True}),
            ("completions", {"tools": [], "chat_template_kwargs": {}, "reasoning_effort": None}),
        ):
            answer = await server.post(PATHS[api], {"model": "test-model", **BODIES[api], **extra})
            assert answer.status == 200, answer.body


async def test_two_tools_of_one_name_are_refused() -> None:
    """A call of that name would not say which tool it means."""
    function, custom = {"name": "f", "parameters": {}}, {"name": "f"}
    chat_tools = [{"type": "function", "function": function}, {"type": "custom", "custom": custom}]
    flat_tools = [{"type": "function", **function}, {"type": "custom", **custom}]
    async with serving(served(scripted())) as server:
        for api, tools, param in (
            ("chat", chat_tools, "tools[1].custom.name"),
            ("responses", flat_tools, "tools[1].name"),
        ):
            for last in (tools[1], tools[0]):
                body = {
                    "model": "test-model",
                    **BODIES[api],
                    "tools": [tools[0], last],
                    "tool_choice": "none",
                }
                answer = await server.post(PATHS[api], body)
                assert answer.status == 400
                expected = param if last is tools[1] else param.replace("custom", "function")
                assert (answer.error["param"], answer.error["code"]) == (expected, "invalid_value")
