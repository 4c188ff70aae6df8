"""The generator turns each shape of schema into what msgspec can decode, and refuses what it cannot distinguish."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from generate import bundle, upstream
from generate.operations import operations, write_routes
from generate.structs import Types

REF = "#/components/schemas/"


def _fields(kind: type) -> tuple[msgspec.inspect.Field, ...]:
    """Return the fields of a struct."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def built(schemas: dict[str, Any], requests: set[str]) -> ModuleType:
    """Return the module that is generated for one family of schemas."""
    module = ModuleType("built_for_a_test")
    sys.modules[module.__name__] = module
    exec(Types({"family": schemas}, requests).modules()["family"], vars(module))
    return module


def tagged(value: Any, **properties: Any) -> dict[str, Any]:
    kind = {"const": value} if isinstance(value, str) else {"enum": value}
    return {
        "type": "object",
        "required": ["type", *properties],
        "properties": {"type": {"type": "string", **kind}, **properties},
    }


def union(*names: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": REF + name} for name in names]}


def test_a_closed_string_in_every_struct_becomes_the_tag() -> None:
    text = {"type": "string"}
    module = built(
        {"A": tagged("a", x=text), "B": tagged(["b1", "b2"], x=text), "U": union("A", "B"), "W": union("U")},
        set(),
    )
    decoded = [msgspec.json.decode(b'{"type":"%s","x":""}' % t, type=module.U) for t in (b"a", b"b1", b"b2")]

    assert [type(value).__name__ for value in decoded] == ["A", "BB1", "BB2"]
    assert all(isinstance(value, module.B) for value in decoded[1:])
    assert msgspec.json.encode(decoded[2]) == b'{"type":"b2","x":""}'


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"A": tagged("a"), "B": {"type": "object", "properties": {"x": {}}}}, "no property distinguishes"),
        ({"A": tagged("same"), "B": tagged("same")}, "do not distinguish"),
    ],
)
def test_indistinguishable_union_types_are_refused(members: dict[str, Any], complaint: str) -> None:
    with pytest.raises(bundle.ContractError, match=complaint):
        Types({"family": {**members, "U": union("A", "B")}}, set())


def test_a_schema_has_one_tag_field() -> None:
    both = {"type": {"const": "a"}, "role": {"const": "a"}}
    other = {"role": {"const": "c"}}
    schemas = {
        "A": {"type": "object", "properties": both},
        "B": tagged("b"),
        "C": {"type": "object", "properties": other},
        "U": union("A", "B"),
        "V": union("A", "C"),
    }
    with pytest.raises(bundle.ContractError, match="distinguished by"):
        Types({"family": schemas}, set())


def test_families_may_not_need_each_other_in_a_circle() -> None:
    a = {"type": "object", "properties": {"b": {"$ref": REF + "B"}}}
    b = {"type": "object", "properties": {"a": {"$ref": REF + "A"}}}
    with pytest.raises(bundle.ContractError, match="in a circle"):
        Types({"one": {"A": a}, "two": {"B": b}}, set()).modules()


def test_names_that_python_keeps_for_itself_get_an_underscore() -> None:
    schema = {"type": "object", "required": ["class"], "properties": {"class": {"type": "string"}, "a-b": {}}}
    module = built({"A": schema}, {"A"})
    value = msgspec.json.decode(b'{"class":"x","a-b":1}', type=module.A)

    assert value.class_ == "x"
    assert msgspec.json.encode(value) == b'{"class":"x","a-b":1}'


def test_an_answer_fills_in_what_has_one_right_value_and_a_request_does_not() -> None:
    schema = {
        "type": "object",
        "required": ["object", "error", "done"],
        "properties": {
            "object": {"type": "string", "const": "thing"},
            "error": {"type": ["string", "null"]},
            "done": {"type": "boolean", "const": True},
            "extra": {"type": "string"},
        },
    }
    answer = built({"A": schema}, set())
    request = built({"A": schema}, {"A"})

    assert msgspec.json.encode(answer.A()) == b'{"object":"thing","error":null,"done":true}'
    with pytest.raises(msgspec.ValidationError, match="missing required field `object`"):
        msgspec.json.decode(b"{}", type=request.A)


def test_a_struct_with_parts_takes_what_one_with_the_fields_in_place_takes() -> None:
    number = {"type": "integer", "minimum": 0}
    schemas = {
        "Base": {"type": "object", "required": ["a"], "properties": {"a": number, "b": number}},
        "Further": {"type": "object", "properties": {"c": number}},
        "A": {
            "type": "object",
            "allOf": [{"$ref": REF + "Base"}, {"$ref": REF + "Further"}],
            "required": ["d"],
            "properties": {"b": {"maximum": 9}, "d": number},
        },
    }
    module = built(schemas, {"A"})
    in_place = built({"A": bundle.composed(schemas["A"], schemas)}, {"A"})  # type: ignore[arg-type]
    with_parts, without = ({field.name: field for field in _fields(kind)} for kind in (module.A, in_place.A))

    assert issubclass(module.A, module.Base)
    assert not hasattr(module, "Further")
    assert with_parts == without


def test_structs_with_parts_are_distinguished_by_any_of_their_fields() -> None:
    schemas = {
        "Base": {"type": "object", "properties": {"x": {"type": "string"}}},
        "A": {**tagged("a"), "allOf": [{"$ref": REF + "Base"}]},
        "B": {**tagged("b"), "allOf": [{"$ref": REF + "A0"}, {"$ref": REF + "Base"}]},
        "A0": {"type": "object", "properties": {"y": {"type": "string"}}},
        "U": union("A", "B"),
    }
    schemas = {name: schemas[name] for name in ("Base", "A0", "A", "B", "U")}
    module = built(schemas, set())
    decoded = [msgspec.json.decode(b'{"type":"%s","x":"z"}' % t, type=module.U) for t in (b"a", b"b")]

    assert [(type(value).__name__, value.x) for value in decoded] == [("A", "z"), ("B", "z")]


def test_a_part_of_a_request_and_of_an_answer_keeps_the_types_of_each() -> None:
    sole = {"type": "object", "properties": {"x": union("T")}}
    schemas = {
        "T": tagged("t"), "V": tagged("v"), "U": union("T", "V"), "Base": sole,
        "Sent": {"allOf": [{"$ref": REF + "Base"}]}, "Answer": {"allOf": [{"$ref": REF + "Base"}]},
    }  # fmt: skip
    module = built(schemas, {"Sent"})
    in_place = built(
        {**schemas, **{name: bundle.composed(schemas[name], schemas) for name in ("Sent", "Answer")}},
        {"Sent"},
    )
    for name in ("Sent", "Answer"):
        with_parts, without = (
            [(field.name, str(field.type)) for field in _fields(getattr(one, name))]
            for one in (module, in_place)
        )
        assert with_parts == without


def test_nothing_of_a_part_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}}
    whole = {"allOf": [{"$ref": REF + "P"}], "required": ["x"], "properties": {"x": {"maxLength": 3}}}
    monkeypatch.setattr(bundle, "examples", dict)
    monkeypatch.setattr(bundle, "load", lambda path: {"components": {}})
    for schemas, complaint in [
        ({"A": whole}, "no file has it"),
        (
            {"A": whole, "P": {**part, "additionalProperties": False}},
            r"may not have \['additionalProperties'\]",
        ),
        ({"A": whole, "P": part, "B": union("P")}, "nothing else may refer to it"),
    ]:
        monkeypatch.setattr(bundle, "families", lambda schemas=schemas: {"a": schemas})
        with pytest.raises(bundle.ContractError, match=complaint):
            bundle.document()
    monkeypatch.setattr(bundle, "families", lambda: {"a": {"A": whole, "P": part}})

    assert bundle.document()["components"]["schemas"] == {
        "A": {"required": ["x"], "properties": {"x": {"type": "string", "maxLength": 3}}}
    }


def operation(path: str, name: str, where: str = "query") -> dict[str, Any]:
    parameter = {"name": name, "in": where, "schema": {"type": "string"}}
    spec = {"operationId": "op", "parameters": [parameter], "responses": {"200": {"description": ""}}}
    return {"paths": {path: {"get": spec}}}


def test_a_parameter_is_a_python_name() -> None:
    with pytest.raises(bundle.ContractError, match="not a Python name"):
        write_routes(operations(operation("/x", "a-b")), {})


def test_a_contract_may_not_contradict_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": REF + "Missing"}}}
    monkeypatch.setattr(bundle, "families", lambda: {"a": {"A": schema}, "b": {"A": schema}})
    with pytest.raises(bundle.ContractError, match="another file"):
        bundle.document()
    monkeypatch.setattr(bundle, "families", lambda: {"a": {"A": schema}})
    with pytest.raises(bundle.ContractError, match="examples of"):
        bundle.document()
    monkeypatch.setattr(bundle, "examples", dict)
    with pytest.raises(bundle.ContractError, match="no file has it"):
        bundle.document()


def test_the_digest_keeps_facts_and_drops_prose() -> None:
    named = {"type": "object", "description": "Prose.", "properties": {"description": {"type": "string"}}}
    official = {
        "openapi": "3.1.0",
        "info": {"version": "9"},
        "paths": {
            "/models": {
                "get": {
                    "operationId": "listModels",
                    "summary": "Prose.",
                    "responses": {
                        "200": {"content": {"application/json": {"schema": {"$ref": REF + "List"}}}}
                    },
                }
            },
            "/other?beta=true": {"get": {"operationId": "listModels"}, "parameters": []},
        },
        "components": {"schemas": {"List": named, "Unused": named}},
    }
    facts = upstream.digest(official, "0" * 64)

    assert facts["schemas"] == {"List": {"type": "object", "properties": {"description": {"type": "string"}}}}
    assert list(facts["operations"]) == ["listModels"]
    assert "Prose" not in upstream._dumped(facts)


def test_an_operation_stays_where_it_is() -> None:
    ours = {"paths": {"/v1/x": {"get": {"operationId": "x"}}}, "components": {"schemas": {}}}
    theirs = {"operations": {"x": {"path": "/y", "method": "get"}}, "schemas": {}}
    with pytest.raises(bundle.ContractError, match="elsewhere"):
        upstream.Comparison(theirs, ours).run()


def test_open_and_closed_objects_are_distinguished() -> None:
    ours = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string", "const": "x"}, "c": {}},
    }
    theirs = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "a": {"enum": ["x"], "type": "string"},
            "b": {"type": "string"},
            "c": {"type": "string"},
        },
    }
    comparison = upstream.Comparison({"schemas": {}}, {"components": {"schemas": {}}})
    comparison.schemas("it", ours, theirs)

    assert {"it: unknown fields", "it.a: open", "it.b: closed"} <= comparison.found
    assert not any(line.startswith("it.c") for line in comparison.found)


def test_the_list_of_differences_is_printed_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    official = tmp_path / "official.yaml"
    official.write_text("{openapi: 3.1.0, info: {version: '1'}, paths: {}, components: {schemas: {}}}")
    reviewed = tmp_path / "differences.yaml"
    reviewed.write_text("[{reason: ours, differences: ['*: operation added', 'gone: field +x']}]")
    monkeypatch.setattr(upstream, "UPSTREAM", tmp_path / "upstream.json")
    monkeypatch.setattr(upstream, "DIFFERENCES", reviewed)

    assert upstream.main([str(official)]) == 1
    assert capsys.readouterr().out == "explains nothing: gone: field +x\n"
    reviewed.write_text("[]")
    assert upstream.main([]) == 1
    assert "not explained: listModels: operation added\n" in capsys.readouterr().out


def test_a_union_is_compared_by_the_labels_of_its_types() -> None:
    ours = {
        "components": {"schemas": {"U": union("A", "B"), "A": tagged("a"), "B": tagged("b")}},
        "paths": {},
    }
    theirs = {"schemas": {"U": union("A", "C"), "A": tagged("a", x={}), "C": tagged("c")}, "operations": {}}
    comparison = upstream.Comparison(theirs, ours)
    comparison.schemas("here", {"$ref": REF + "U"}, {"$ref": REF + "U"})

    assert comparison.found == {"here: kind +b", "here: kind -c", "A: field -x"}
