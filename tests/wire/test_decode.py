"""Decoding accepts what the contract accepts, and names what it refuses."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.contract import CONTRACT
from support.contract import EXAMPLES as SAMPLES
from support.contract_types import TYPES
from support.laws import EXPLORED

from generate import bundle
from plumbline.contract._generated import OPERATIONS
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.items import EasyInputMessage, HostedItem, ItemReferenceParam
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract._generated.tools import HostedTool
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.common.fields import or_default as either

REQUESTS = sorted({op.request for op in OPERATIONS if op.request})
EXAMPLES = [(name, example) for name in REQUESTS for example in SAMPLES[name] if example]
VALIDATORS = {
    name: jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": CONTRACT["components"]}
    )
    for name in REQUESTS
}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
OTHERS: list[Any] = [None, True, 3, 1.5, "text", [], {}, [1], {"a": 1}, "", -1, 10**30]

laws = settings(deadline=None, max_examples=EXPLORED or 60, suppress_health_check=[HealthCheck.too_slow])


def refused(kind: type, body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(kind, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in children:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def dotted(path: tuple[Any, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    return changed


def removed(document: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    return changed


@laws
@given(st.data())
def test_a_request_decodes_exactly_if_the_contract_allows_it(data: st.DataObject) -> None:
    """Any one value of an example is replaced by any other; schema and decoder agree on the result."""
    name, example = data.draw(st.sampled_from(EXAMPLES))
    path = data.draw(st.sampled_from(list(leaves(example))))
    changed = replaced(example, path, data.draw(st.sampled_from(OTHERS)))
    kind = TYPES[name]
    body = json.dumps(changed).encode()
    if VALIDATORS[name].is_valid(changed):
        decode(kind, body)
    else:
        error = refused(kind, body)
        # A changed tag may put the blame on its neighbours; a document beyond parsing has no path.
        assert error.param is None or error.param.startswith(dotted(path[:-1]))


@laws
@given(st.data())
def test_a_request_with_a_field_missing_decodes_exactly_if_the_contract_allows_it(
    data: st.DataObject,
) -> None:
    name, example = data.draw(st.sampled_from(EXAMPLES))
    paths = [p for p in leaves(example) if not isinstance(p[-1], int)]
    path = data.draw(st.sampled_from(paths))
    changed = removed(example, path)
    kind = TYPES[name]
    body = json.dumps(changed).encode()
    if VALIDATORS[name].is_valid(changed):
        decode(kind, body)
    else:
        error = refused(kind, body)
        # An item without the field that identifies its kind is reported as missing its `type`.
        kind_of_it = dotted((*path[:-1], "type"))
        assert error.param in (dotted(path), kind_of_it, None)


@laws
@given(st.data())
def test_every_truncation_of_a_body_is_a_400(data: st.DataObject) -> None:
    name, example = data.draw(st.sampled_from(EXAMPLES))
    body = json.dumps(example).encode()
    cut = data.draw(st.integers(0, len(body) - 1))

    assert refused(TYPES[name], body[:cut]).message.startswith("We could not parse the JSON body")


@laws
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_a_400(body: bytes) -> None:
    for name in REQUESTS:
        with contextlib.suppress(ApiError):
            decode(TYPES[name], body)


BROKEN = {
    "empty": b"",
    "another kind of value": b"[]",
    "a number": b"3",
    "null": b"null",
    "not UTF-8": b'{"model":"\xff"}',
    "not UTF-8 in a field that is skipped": b'{"model":"m","prompt":"x","other":"\xff"}',
    "a lone surrogate": b'{"model":"\\ud800","prompt":"x"}',
    "NaN": b'{"model":"m","prompt":"x","temperature":NaN}',
    "Infinity": b'{"model":"m","prompt":"x","temperature":Infinity}',
    "a number beyond all": b'{"model":"m","prompt":"x","temperature":1e999}',
    "nested too deeply": b'{"model":"m","prompt":' + b"[" * 99_000,
    "broken after a wrong type": b'{"model":3,',
    "more after the end": b'{"model":"m","prompt":"x"} {}',
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_not_one_json_object_cannot_be_parsed(body: bytes) -> None:
    """HTTP-07."""
    error = refused(CreateCompletionRequest, body)

    assert error.message.startswith("We could not parse the JSON body of your request. ")
    assert (error.param, error.code) == (None, None)


SENTENCES = bundle.load(Path(__file__).with_name("sentences.yaml"))
LENGTHS = [
    ({"safety_identifier": "x" * 65}, "safety_identifier", "string too long", "string_above_max_length"),
    ({"metadata": dict.fromkeys(map(str, range(17)), "")}, "metadata", "too long", "object_above_max_length"),
    ({"metadata": {"a": "", "k" * 65: ""}}, "metadata", "key too long", "string_above_max_length"),
    ({"metadata": {"a": "", "b": "v" * 513}}, "metadata.b", "string too long", "string_above_max_length"),
]


@pytest.mark.parametrize("case", SENTENCES, ids=lambda case: f"{case['param']}-{case['code']}")
def test_each_kind_of_mistake_has_the_text_of_openai(case: dict[str, Any]) -> None:
    """ERR-04, ERR-05, ERR-07, ERR-08."""
    error = refused(CreateChatCompletionRequest, {**CHAT, **case["change"]})

    assert (error.param, error.code, error.message) == (case["param"], case["code"], case["message"])


@pytest.mark.parametrize(("change", "param", "words", "code"), LENGTHS)
def test_what_is_too_long_is_named(change: dict[str, Any], param: str, words: str, code: str) -> None:
    """R-16."""
    error = refused(CreateChatCompletionRequest, {**CHAT, **change})

    assert (error.param, error.code) == (param, code)
    assert words in error.message


@pytest.mark.parametrize("kind", [CreateChatCompletionRequest, CreateCompletionRequest])
def test_a_missing_model_has_a_special_text(kind: type) -> None:
    """ERR-06."""
    error = refused(kind, {"messages": CHAT["messages"], "prompt": "x"})

    assert (error.message, error.param, error.code) == ("you must provide a model parameter", None, None)


@pytest.mark.parametrize("prompt", [["a", 1], [1, "a"], [1, [2]], [[1], "a"]])
def test_a_prompt_is_of_one_kind(prompt: list[Any]) -> None:
    """CMP-02."""
    error = refused(CreateCompletionRequest, {"model": "m", "prompt": prompt})

    assert (error.param, error.code) == ("prompt", "invalid_type")


@pytest.mark.parametrize("kind", ["", "\0", "image_url"])
def test_a_part_that_stands_alone_has_a_kind_too(kind: str) -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": [{"type": kind, "text": "x"}]}]}

    assert str(refused(CreateChatCompletionRequest, body).param).startswith("messages[0].content[0]")


@pytest.mark.parametrize("depth", [100, 300, 450, 600, 900, 990, 2000])
def test_any_depth_of_nesting_decodes_or_is_a_400(depth: int) -> None:
    for model in ('"m"', "3", "1.0"):
        body = '{"model":%s,"prompt":"x","other":%s}' % (model, "[" * depth + "]" * depth)  # noqa: UP031
        with contextlib.suppress(ApiError):
            assert decode(CreateCompletionRequest, body.encode()).model == "m"


def test_an_integer_may_have_a_zero_fraction() -> None:
    body = b'{"model":"m","prompt":[1.0,2],"n":2.0,"temperature":1,"logit_bias":{"5":-1e2}}'
    request = decode(CreateCompletionRequest, body)

    assert (request.prompt, request.n, request.temperature) == ([1, 2], 2, 1.0)
    assert request.logit_bias == {"5": -100}


def test_items_may_come_without_a_type() -> None:
    """R-13."""
    items = [{"role": "user", "content": "x"}, {"id": "msg_1"}, {"type": None, "id": "msg_2"}]
    request = decode(CreateResponse, json.dumps({"model": "m", "input": items}).encode())

    assert isinstance(request.input, list)
    assert [type(item) for item in request.input] == [
        EasyInputMessage,
        ItemReferenceParam,
        ItemReferenceParam,
    ]
    error = refused(CreateResponse, {"model": "m", "input": [{"content": "x"}]})
    assert error.param == "input[0].type"
    error = refused(CreateResponse, {"model": "m", "input": [3]})
    assert error.param == "input[0]"


def test_hosted_tools_and_items_are_kept_as_far_as_the_contract_lists_them() -> None:
    """TOOL-15."""
    tool = {"type": "web_search", "filters": {"allowed_domains": ["example.org"]}}
    item = {
        "type": "web_search_call",
        "id": "ws_1",
        "action": {"type": "search", "query": "q"},
        "status": "completed",
    }
    body = {"model": "m", "input": [item], "tools": [{**tool, "novel": 1}]}
    request = decode(CreateResponse, json.dumps(body).encode())

    assert isinstance(request.tools, list)
    assert isinstance(request.tools[0], HostedTool)
    assert isinstance(request.input, list)
    assert isinstance(request.input[0], HostedItem)
    assert json.loads(encode(request))["tools"] == [tool]
    assert json.loads(encode(request))["input"] == [item]


def test_of_duplicate_keys_the_last_wins_and_unknown_fields_are_ignored() -> None:
    request = decode(
        CreateCompletionRequest, b'{"model":"a","model":"b","prompt":"x","client_metadata":{"k":[1]}}'
    )

    assert request.model == "b"


def test_null_and_absent_are_both_not_given() -> None:
    """HTTP-10."""
    request = decode(CreateCompletionRequest, b'{"model":"m","prompt":"x","n":null,"seed":0}')

    assert (either(request.n, 1), either(request.best_of, 1), either(request.seed, 7)) == (1, 1, 0)
    assert request.best_of is msgspec.UNSET
