"""Generate tool calling: invented and everyday schemas, requests, calls, and answers from results."""

import json
from dataclasses import dataclass
from typing import Any

from plumbline_training.texts.families import FAMILIES, value
from plumbline_training.texts.sample import SampleCall
from plumbline_training.texts.words import VERBS, Lexicon, side

JSON_TYPES = {
    "int": "integer",
    "integer": "integer",
    "small": "integer",
    "big": "integer",
    "decimal": "number",
    "bool": "boolean",
}
KINDS = (
    "word",
    "word",
    "phrase",
    "name",
    "city",
    "integer",
    "integer",
    "decimal",
    "bool",
    "enum",
    "code",
    "date",
    "email",
)


@dataclass
class TrainingTool:
    """One tool: its schema as a client sends it, and the words of a request for it."""

    name: str
    about: str
    params: dict[str, str]
    asks: list[str]
    result: list[tuple[str, str]]
    schema: dict[str, Any]


@dataclass
class ToolRequest:
    """A sentence that requests one call, and the call."""

    text: str
    call: SampleCall
    tool: TrainingTool


def _show(v: Any) -> str:
    """Return a value as a user writes it."""
    return str(v).lower() if isinstance(v, bool) else str(v)


def _schema(lx: Lexicon, name: str, about: str, params: dict[str, str], described: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key, kind in params.items():
        base, _, detail = kind.rstrip("?").partition(":")
        prop: dict[str, Any] = {"type": JSON_TYPES.get(base, "string")}
        if described and lx.chance(0.7):
            spoken = key.replace("_", " ")
            prop["description"] = lx.one(("The {p}", "The {p} to use", "The {p}.", "{P}")).format(
                p=spoken, P=spoken.capitalize()
            )
            if lx.chance(0.25):  # an example that the model must not copy
                prop["description"] += lx.one((", for example {v}", ", e.g. {v}", " such as {v}")).format(
                    v=_show(value(lx, kind))
                )
        if base == "enum":
            prop["enum"] = detail.split(",")
        properties[key] = prop
    required = [key for key, kind in params.items() if not kind.endswith("?")]
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required or lx.chance(0.5):
        parameters["required"] = required
    if lx.chance(0.15):
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if lx.chance(0.93):
        function["description"] = about
    function["parameters"] = parameters
    if lx.chance(0.05):
        function["strict"] = True
    return {"type": "function", "function": function}


def everyday(lx: Lexicon) -> TrainingTool:
    """Return a tool of an everyday family; for training only, because its names are in both splits."""
    family = lx.one(FAMILIES)
    name = lx.one(family.names.split())
    result = [(k, v) for k, _, v in (item.partition(":") for item in family.result.split())]
    schema = _schema(lx, name, family.about, family.params, lx.chance(0.4))
    return TrainingTool(name, family.about, family.params, family.asks.split("|"), result, schema)


def _identifier(lx: Lexicon, parts: int) -> str:
    return lx.draw(lambda: "_".join(lx.words(parts, parts, invented=0.35)))


def invented(lx: Lexicon, lean: bool = False) -> TrainingTool:
    """Return an invented tool: verb and nouns for the name, random parameter names and types.

    A `lean` tool is short, so that a prompt can contain several to choose from.
    """
    verb = lx.one(VERBS) if lx.chance(0.96) else lx.pseudo()
    things = lx.words(1, 2, invented=0.3)
    # Unusual schemas are more frequent in training than in use.
    training = lx.split == "train"
    joiner = "_" if lx.chance(0.75 if training else 0.9) else lx.one(("-", ""))
    pieces = [verb, *things] if lx.chance(0.65 if training else 0.8) else [*things, verb]
    name = joiner.join(pieces)
    if side(name) != lx.split:
        return invented(lx, lean)
    if joiner == "" and lx.chance(0.5):
        name = pieces[0] + "".join(p.capitalize() for p in pieces[1:])
    thing = " ".join(things)
    about = lx.one(
        ("{V} the {t}.", "{V} a {t}.", "{V} {t}", "{V} the {t} of the {x}.", "Use this to {v} the {t}.")
    ).format(V=verb.capitalize(), v=verb, t=thing, x=lx.word(0.2))
    params: dict[str, str] = {}
    for _ in range(lx.rng.choices((0, 1, 2, 3, 4), (3, 10, 4, 0, 0) if lean else (9, 30, 35, 22, 10))[0]):
        kind = lx.one(KINDS)
        if kind == "enum":
            kind += ":" + ",".join(lx.words(2, 4, invented=0.3))
        elif kind == "integer" and lx.chance(0.2):
            kind = "int:0-20"
        key = _identifier(lx, 1 if lx.chance(0.75) else 2)
        params[key] = kind + ("?" if lx.chance(0.2) else "")
    result = [
        (
            _identifier(lx, 1 if lx.chance(0.8) else 2),
            lx.one(("word", "integer", "decimal", "name", "code", "city", "phrase")),
        )
        for _ in range(lx.rng.choice((1, 1, 1, 2, 2, 3)))
    ]
    return TrainingTool(
        name,
        about,
        params,
        _asks(lx, name, verb, thing, params),
        result,
        _schema(lx, name, about, params, lx.chance(0.1 if lean else 0.5)),
    )


def _asks(lx: Lexicon, name: str, verb: str, thing: str, params: dict[str, str]) -> list[str]:
    """Return requests that name the tool, and more natural ones with the words of its name."""
    mentioned = [k for k, kind in params.items() if not kind.endswith("?") or lx.chance(0.5)]
    if lx.chance(0.1):
        lx.rng.shuffle(mentioned)
    spoken = {k: k.replace("_", " ") for k in mentioned}
    plain = [f"{spoken[k]} {{{k}}}" for k in mentioned]
    is_form = [f"{spoken[k]} is {{{k}}}" for k in mentioned]
    equal = ", ".join(f"{k}={{{k}}}" for k in mentioned)
    colon = ", ".join(f"{k}: {{{k}}}" for k in mentioned)
    if not mentioned:
        return [
            f"Use {name}.",
            f"Call {name}.",
            f"Use {name} with nothing.",
            f"Call {name} without arguments.",
            f"{name}()",
            f"Please {verb} the {thing}.",
            f"{verb.capitalize()} the {thing}.",
        ]
    listed = " and ".join(plain) if len(plain) < 3 else ", ".join(plain[:-1]) + " and " + plain[-1]
    if len(params) == 1 and lx.chance(0.12):  # the value alone
        slot = f"{{{mentioned[0]}}}"
        return [
            f"{verb.capitalize()} the {thing} for {slot}.",
            f"{verb.capitalize()} the {thing} of {slot}.",
            f"Can you {verb} the {thing} for {slot}?",
            f"{slot}: {verb} the {thing}",
        ]
    return [
        f"Use {name} with {listed}.",
        f"Call {name} with {listed}.",
        f"Call {name} with {equal}.",
        f"{name}({equal})",
        f"Use {name}: {colon}",
        f"Please {verb} the {thing} with {listed}.",
        f"{verb.capitalize()} the {thing} with {listed}.",
        f"{verb.capitalize()} the {thing}, {listed}.",
        f"{verb.capitalize()} {thing} for {listed}.",
        f"I want to {verb} the {thing}. The {' and the '.join(is_form)}.",
        f"Can you {verb} the {thing} with {listed}?",
        f"I need to {verb} the {thing} for {listed}.",
        f"{verb.capitalize()} the {thing} where {' and '.join(is_form)}.",
    ]


def make_tool(lx: Lexicon, lean: bool = False) -> TrainingTool:
    return everyday(lx) if lx.split == "train" and lx.chance(0.2) else invented(lx, lean)


def toolbox(lx: Lexicon, low: int = 1, high: int = 4, short: bool = False) -> list[TrainingTool]:
    """Return tools with distinct names; half of the sets, or all with `short`, consist of lean tools."""
    tools: dict[str, TrainingTool] = {}
    wanted = lx.rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 4)) if high == 4 else lx.rng.randint(low, high)
    lean = short or lx.chance(0.5)
    if lean and low < high < 5:
        wanted = lx.rng.randint(2, high)
    while len(tools) < wanted:
        tool = make_tool(lx, lean)
        tools.setdefault(tool.name, tool)
    return list(tools.values())


def request(lx: Lexicon, tool: TrainingTool, form: str | None = None) -> ToolRequest:
    """Ask for one call of `tool`; arguments come in the order of the schema."""
    form = form or lx.one(tool.asks)
    arguments = {k: value(lx, kind) for k, kind in tool.params.items() if f"{{{k}}}" in form}
    text = form
    for key, v in arguments.items():
        text = text.replace(f"{{{key}}}", _show(v))
    return ToolRequest(text, SampleCall(tool.name, arguments), tool)


def thought_for(requests: list[ToolRequest]) -> str:
    """Return a thought that names the fitting tools and arguments."""
    parts = []
    for r in requests:
        given = " and ".join(f"{k} {_show(v)}" for k, v in r.call.arguments.items())
        parts.append(f"I call {r.call.name}" + (f" with {given}." if given else "."))
    return " ".join(parts)


def parallel(lx: Lexicon, tools: list[TrainingTool]) -> tuple[str, list[ToolRequest]]:
    """Return a message that needs two or three calls: one tool with several values, or several tools."""
    with_params = [t for t in tools if t.params]
    if with_params and (len(tools) == 1 or lx.chance(0.5)):
        tool = lx.one(with_params)
        form = lx.one(tool.asks)
        first = request(lx, tool, form)
        others = [request(lx, tool, form) for _ in range(lx.rng.choice((1, 1, 2)))]
        changed = [k for k in first.call.arguments if isinstance(first.call.arguments[k], str)]
        if changed and lx.chance(0.6):  # "in Paris and in Rome": one argument differs, the rest stays
            key = lx.one(changed)
            shown = [_show(r.call.arguments[key]) for r in (first, *others)]
            if len(set(shown)) == len(shown):
                for r in others:
                    r.call.arguments = {**first.call.arguments, key: r.call.arguments[key]}
                spread = form.replace(f"{{{key}}}", ", ".join(shown[:-1]) + " and " + shown[-1])
                for k, v in first.call.arguments.items():
                    spread = spread.replace(f"{{{k}}}", _show(v))
                return spread, [first, *others]
        requests = [first, *others]
    else:
        chosen = lx.rng.sample(tools, min(len(tools), lx.rng.choice((2, 2, 3))))
        requests = [request(lx, t) for t in chosen]
    return lx.one((" ", "\n", " Then: ", " Also: ", " And: ")).join(r.text for r in requests), requests


def result_for(lx: Lexicon, tool: TrainingTool) -> tuple[str, str, list[str]]:
    """Return a tool result, a sentence that reports it, and the values that the sentence must contain."""
    if lx.chance(0.06):
        error = " ".join(lx.words(2, 4, invented=0.2))
        return json.dumps({"error": error}), f"The tool reported an error: {error}.", [error]
    if lx.chance(0.15):
        v = value(lx, lx.one(("word", "integer", "phrase", "name", "decimal")))
        return _show(v), f"The result is {_show(v)}.", [_show(v)]
    facts = {k: value(lx, kind) for k, kind in tool.result}
    clauses = [f"the {k.replace('_', ' ')} is {_show(v)}" for k, v in facts.items()]
    sentence = clauses[0] if len(clauses) == 1 else ", ".join(clauses[:-1]) + " and " + clauses[-1]
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":") if lx.chance(0.15) else None)
    return text, sentence[0].upper() + sentence[1:] + ".", [_show(v) for v in facts.values()]
