"""The model's sampling values are those of requests that set none, and a request beats each of them.

The laws hold for every key of `general.sampling.*` and every field of a generation config that is a sampling value.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from gguf.constants import Keys
from hypothesis import given
from hypothesis import strategies as st

from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.port.engine import SamplingParams
from plumbline.server.protocols.common.sampling.defaults import (
    GGUF_KEYS,
    Defaults,
    defaults_of_config,
    defaults_of_gguf,
    replaced,
)
from plumbline.server.protocols.common.sampling.parameters import read_sampling
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.messages.reader import read_message

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "temp": st.sampled_from([0.0, 0.25, 0.5, 1.5]),
    "top_k": st.sampled_from([-1, 0, 1, 20, 40]),
    "top_p": st.sampled_from([0.5, 0.75, 1.0]),
    "min_p": st.sampled_from([0.0, 0.25]),
    "penalty_repeat": st.sampled_from([1.0, 1.25]),
    "penalty_last_n": st.sampled_from([-1, 0, 64]),
    "xtc_probability": st.sampled_from([0.0, 0.5]),
    "xtc_threshold": st.sampled_from([0.125, 0.25]),
    "mirostat": st.sampled_from([0, 1, 2]),
    "mirostat_tau": st.sampled_from([4.0, 5.0]),
    "mirostat_eta": st.sampled_from([0.125, 0.25]),
}
FIELDS = {
    "temp": "temperature", "penalty_repeat": "repetition_penalty", "penalty_last_n": "repeat_last_n",
} | {name: name for name in VALUES if name not in ("temp", "penalty_repeat", "penalty_last_n")}  # fmt: skip


def sampling(defaults: Defaults, **fields: Any) -> SamplingParams:
    body = {"model": "m", "prompt": "x", "seed": 1, **fields}
    request = msgspec.convert(body, CreateCompletionRequest)
    return read_sampling(request, defaults, max_tokens=5, max_tokens_param="max_tokens", logprobs=None)


NONE = Defaults()


def test_every_key_of_the_format_is_known() -> None:
    """A key that a later release of the gguf package has must be added here."""
    keys = {value for name, value in vars(Keys.General).items() if name.startswith("SAMPLING_")}
    assert keys == {GGUF_KEYS + name for name in (*VALUES, "sequence")}


@given(keys=st.fixed_dictionaries({}, optional=VALUES))
def test_a_file_gives_what_a_request_with_its_values_gets(keys: dict[str, Any]) -> None:
    if keys.get("penalty_repeat", 1.0) == 1.0:
        keys.pop("penalty_last_n", None)
    defaults = defaults_of_gguf({GGUF_KEYS + name: value for name, value in keys.items()})
    assert not defaults.ignored
    assert sampling(defaults) == sampling(NONE, **{FIELDS[name]: value for name, value in keys.items()})


def test_a_window_without_its_penalty_keeps_requests_in_batches() -> None:
    window = defaults_of_gguf({f"{GGUF_KEYS}penalty_last_n": 64})
    assert sampling(window).chain is None
    penalised = sampling(window, repetition_penalty=1.5).chain
    assert penalised is not None
    assert penalised.repeat_last_n == 64


@given(keys=st.fixed_dictionaries({}, optional=VALUES), other=st.fixed_dictionaries(VALUES))
def test_a_request_beats_every_value_of_a_file(keys: dict[str, Any], other: dict[str, Any]) -> None:
    defaults = defaults_of_gguf({GGUF_KEYS + name: value for name, value in keys.items()})
    fields = {FIELDS[name]: value for name, value in other.items()}
    assert sampling(defaults, **fields) == sampling(NONE, **fields)


@given(config=st.fixed_dictionaries({}, optional={name: VALUES[key] for name, key in {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "penalty_repeat", "typical_p": "top_p",
}.items()}))  # fmt: skip
def test_a_generation_config_gives_what_a_request_with_its_values_gets(config: dict[str, Any]) -> None:
    defaults = defaults_of_config({**config, "do_sample": True, "eos_token_id": None})
    assert sampling(defaults) == sampling(NONE, **config)
    greedy = defaults_of_config({**config, "do_sample": False})
    kept = {name: value for name, value in config.items() if name == "repetition_penalty"}
    assert sampling(greedy) == sampling(NONE, temperature=0.0, **kept)


def test_the_order_of_a_file_is_in_the_words_of_llama_cpp() -> None:
    found = defaults_of_gguf({f"{GGUF_KEYS}sequence": "penalties;top_k;typ_p;temperature;nonsense"})
    assert found.samplers == {"samplers": ["penalties", "top_k", "typ_p", "temperature"]}
    assert found.ignored == (f"{GGUF_KEYS}sequence has 'nonsense'",)
    assert sampling(found, mirostat=2) == sampling(NONE, mirostat=2)
    steered = defaults_of_gguf({f"{GGUF_KEYS}mirostat": 2})
    assert sampling(steered, samplers=["top_k"]) == sampling(NONE, samplers=["top_k"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", math.nan), ("temp", "hot"), ("top_p", 1.5), ("mirostat", 3), ("min_p", True), ("speed", 1)],
)
def test_what_cannot_be_used_is_named(key: str, value: Any) -> None:
    found = defaults_of_gguf({GGUF_KEYS + key: value})
    assert found.set_values == {}
    (words,) = found.ignored
    assert words.startswith(GGUF_KEYS + key)


def test_numbers_are_shown_as_they_were_written() -> None:
    """A file has 32 bits of them."""
    found = defaults_of_gguf({f"{GGUF_KEYS}temp": 0.6000000238418579, f"{GGUF_KEYS}top_k": 20})
    assert found.set_values == {"temperature": 0.6, "top_k": 20}


_OPERATORS = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(0, 1000),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.1, 2),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "max_tokens": st.integers(1, 10**6),
    "xtc_probability": st.floats(0, 1),
    "typical_p": st.floats(1e-6, 1),
    "mirostat": st.integers(0, 2),
}


@given(
    st.fixed_dictionaries(
        {}, optional={name: _OPERATORS[name] for name in _OPERATORS if name != "max_tokens"}
    )
)
def test_the_operators_values_hold_in_every_api_as_if_requests_had_them(values: dict[str, Any]) -> None:
    defaults = replaced(Defaults(vocab_size=2000), values)
    asked = sampling(Defaults(vocab_size=2000), **values)
    message = msgspec.convert(
        {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}, CreateMessageRequest
    )
    assert msgspec.structs.replace(sampling(defaults), seed=None) == msgspec.structs.replace(asked, seed=None)
    found = read_message(message, defaults, Sealer("a secret"), thinks=False).sampling
    assert found == msgspec.structs.replace(asked, seed=None)


@given(st.fixed_dictionaries({}, optional=_OPERATORS), st.fixed_dictionaries({}, optional=_OPERATORS))
def test_the_operator_replaces_what_he_names_and_nothing_else(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    base = replaced(Defaults(vocab_size=9), first)
    found = replaced(base, second)
    assert replaced(Defaults(vocab_size=9), {**first, **second}) == found
    assert replaced(base, {}) == base


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"temprature": 1}, "has no 'temprature'; it has frequency_penalty, "),
        ({"top_p": 2}, "cannot be used: top_p is 2"),
        ({"top_k": 1.5}, r"cannot be used: top_k is 1\.5"),
    ],
)
def test_wrong_values_of_the_operator_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replaced(Defaults(), given)
