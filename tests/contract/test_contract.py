"""The contract is valid, its differences from the official document are reviewed, and nothing is stale."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest
from openapi_core import OpenAPI
from support.contract import CONTRACT

from generate import __main__ as generator
from generate import bundle, upstream
from generate.__main__ import main, outputs
from plumbline.contract._generated import CONTRACT_DIGEST, OPERATIONS

SCHEMAS = CONTRACT["components"]["schemas"]
SOURCES = [
    path
    for folder in ("src", "kernels", "conformance", "tests", "openapi")
    for path in (bundle.ROOT / folder).rglob("*")
    if path.suffix in (".py", ".yaml", ".md") and "_generated" not in path.parts
]
ERRORS = {"400", "401", "403", "404", "405", "413", "415", "422", "429", "500", "503"}


def nodes(node: Any, path: str = "") -> Any:
    """Yield every object of a document with its path."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            if key != "examples":
                yield from nodes(value, f"{path}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from nodes(value, f"{path}/{index}")


def test_two_independent_readers_accept_the_document() -> None:
    openapi_spec_validator.validate(CONTRACT)
    OpenAPI.from_dict(copy.deepcopy(CONTRACT))


def test_generated_files_match_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().out == ""
    assert bundle.digest(CONTRACT) == CONTRACT_DIGEST


def test_check_names_what_is_stale_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "ROOT", tmp_path)
    monkeypatch.setattr(generator, "SERVER", tmp_path / "server")
    monkeypatch.setattr(generator, "JUDGE", tmp_path / "judge")
    monkeypatch.setattr(generator, "outputs", lambda: {tmp_path / "server" / "types.py": "new"})
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "orphan.py").touch()

    assert main(["--check"]) == 1
    assert capsys.readouterr().out.split("\n") == ["stale: server/types.py", "stale: server/orphan.py", ""]
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert [path.name for path in (tmp_path / "server").iterdir()] == ["types.py"]


@pytest.mark.long
def test_generating_twice_gives_the_same_bytes() -> None:
    assert outputs() == outputs()


def test_every_difference_from_the_official_document_has_a_reason_and_no_reason_is_stale() -> None:
    reviewed = bundle.load(upstream.DIFFERENCES)

    assert upstream.unexplained(upstream.differences(), reviewed) == ([], [])
    assert all(entry["reason"] for entry in reviewed)


def test_a_changed_contract_shows_up_as_a_difference() -> None:
    changed = copy.deepcopy(CONTRACT)
    schemas = changed["components"]["schemas"]
    del schemas["Response"]["properties"]["usage"]
    schemas["CreateChatCompletionRequest"]["properties"]["n"]["maximum"] = 7
    schemas["OutputMessage"]["properties"]["role"]["const"] = "user"
    official = bundle.load(upstream.UPSTREAM)
    before, after = (set(upstream.Comparison(official, doc).run()) for doc in (CONTRACT, changed))

    assert {
        "Response: field -usage",
        "CreateChatCompletionRequest.n: maximum 128 -> 7",
        "OutputMessage.role: value -assistant",
        "OutputMessage.role: value +user",
    } <= after - before


def test_the_digest_of_the_official_document_has_no_prose() -> None:
    facts = upstream.UPSTREAM.read_text("utf-8")

    assert not re.search(r'"(description|summary|title|x-[\w-]+)": "', facts)


def test_a_request_repeats_no_shared_field_unchanged() -> None:
    schemas = {name: schema for members in bundle.families().values() for name, schema in members.items()}
    repeated = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field in schema.get("properties", {})
        for shared in [bundle.composed({**schema, "properties": {}}, schemas)["properties"].get(field)]
        if shared == bundle.composed(schema, schemas)["properties"][field]
    ]

    assert repeated == []


def test_descriptions_are_ours_short_and_everywhere() -> None:
    for name, schema in SCHEMAS.items():
        assert schema.get("description"), name
        assert len(schema["description"]) < 160, name
        for key, value in schema.get("properties", {}).items():
            if key in ("type", "object", "role") or schema.get("x-hosted"):
                continue
            described = value.get("description") or "const" in value
            assert described, f"{name}.{key}"


def test_the_document_keeps_to_31() -> None:
    for path, node in nodes(CONTRACT):
        if path.endswith("/properties"):
            continue
        assert "nullable" not in node, path
        assert "x-oaiMeta" not in node, path
        if "discriminator" in node:
            assert node["discriminator"].get("mapping"), path


@pytest.mark.parametrize(
    "operation", [op for op in OPERATIONS if op.path.startswith("/v1/")], ids=lambda o: o.id
)
def test_every_operation_documents_every_error_with_the_envelope(operation: Any) -> None:
    responses = CONTRACT["paths"][operation.path][operation.method.lower()]["responses"]

    # Messages has an envelope of its own (MSG-11), where 529 stands for 503.
    of_messages = operation.path.startswith("/v1/messages")
    expected = ERRORS - {"422", "503"} | {"529"} if of_messages else ERRORS
    envelope = "/MessageErrorResponse" if of_messages else "/ErrorResponse"
    assert set(responses) >= expected
    for status in expected:
        name = responses[status]["$ref"].rsplit("/")[-1]
        answer = CONTRACT["components"]["responses"][name]
        assert answer["content"]["application/json"]["schema"]["$ref"].endswith(envelope)
        assert "x-request-id" in answer["headers"]


def test_extensions_name_the_servers_that_share_them() -> None:
    extended = [(path, node["x-extension"]) for path, node in nodes(CONTRACT) if "x-extension" in node]

    assert len(extended) > 50
    assert all(peers and all(isinstance(peer, str) for peer in peers) for _, peers in extended)


def test_rules_are_whole_and_unique() -> None:
    rules = bundle.rules()
    operations = {op.id for op in OPERATIONS}

    assert len({rule["id"] for rule in rules}) == len(rules) >= 192
    for rule in rules:
        assert rule["level"] in ("MUST", "MUST NOT", "SHOULD", "MAY"), rule["id"]
        assert rule["sentence"], rule["id"]
        assert rule["source"], rule["id"]
        assert set(rule["operations"]) <= operations, rule["id"]


def test_rules_name_schemas_that_exist_and_differences_once() -> None:
    schemas = CONTRACT["components"]["schemas"]
    fields = [
        (schema, path)
        for rule in bundle.rules()
        for schema, paths in rule.get("fields", {}).items()
        for path in paths
    ]
    compared = [name for rule in bundle.rules() for name in rule.get("compared", ())]

    assert {schema for schema, _ in fields} <= set(schemas)
    assert len(set(fields)) == len(fields) > 40
    assert {schema for schema, path in fields if path == "*"} >= {"Response", "CreateChatCompletionResponse"}
    assert len(set(compared)) == len(compared) > 20
    assert {name.partition("/")[0] for name in compared} == {"diff", "exact"}


def test_rules_have_no_unknown_fields() -> None:
    needed = {"id", "level", "sentence", "source", "operations"}
    known = needed | {"gate", "why", "fields", "compared", "sampled", "unchecked", "clauses"}

    assert all(needed <= set(rule) <= known for rule in bundle.rules())


def test_every_rule_that_is_mentioned_exists() -> None:
    known = {rule["id"] for rule in bundle.rules()}
    families = "|".join(sorted({name.partition("-")[0] for name in known}))
    mention = re.compile(rf"\b(?:{families})-\d\d\b")
    dangling = {
        (str(path.relative_to(bundle.ROOT)), name)
        for path in SOURCES
        for name in mention.findall(path.read_text("utf-8"))
        if name not in known
    }

    assert dangling == set()
