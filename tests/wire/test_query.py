"""Query parameters are read strictly."""

from __future__ import annotations

import pytest

from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.query import Query


def test_absent_query_parameters_have_the_default() -> None:
    query = Query({"a": ["1"], "n": ["-5"], "big": ["9" * 30], "t": ["true"], "f": ["false"]})

    assert (query.text("b"), query.text("b", default="x"), query.text("a")) == (None, "x", "1")
    assert (query.integer("b"), query.integer("b", default=3), query.integer("n")) == (None, 3, -5)
    assert (query.boolean("b", default=True), query.boolean("t"), query.boolean("f")) == (True, True, False)
    with pytest.raises(ApiError, match="expected an integer"):
        query.integer("big")
