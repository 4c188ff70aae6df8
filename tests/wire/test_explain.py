"""Each refusal of msgspec becomes a 400 that names the place."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from plumbline.contract.wire.explain import explain


def test_a_path_that_leads_nowhere_is_still_named() -> None:
    error = explain(dict, {"a": [1]}, "Expected `int`, got `str` - at `$.a[5].b`")

    assert (error.param, error.code) == ("a[5].b", "invalid_type")


def test_a_map_of_closed_strings_names_the_supported_ones() -> None:
    class Root(msgspec.Struct):
        moods: dict[str, Literal["calm", "storm"]]

    document = {"moods": {"today": "calm", "later": "fog"}}
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, Root)
    error = explain(Root, document, str(caught.value))

    assert (
        error.message == "Invalid value for 'moods.later': 'fog'. Supported values are: 'calm' and 'storm'."
    )


def test_an_unknown_validation_message_is_a_400() -> None:
    error = explain(dict, {}, "Something else - at `$.a[0].b`")

    assert (error.status, error.param, error.message) == (400, "a[0].b", "Invalid request: Something else.")
