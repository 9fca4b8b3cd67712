"""Headers: their bounds, and their tolerant reading."""

from collections.abc import Mapping
from typing import Any

import pytest

from runner.errors import InvalidTask
from runner.model.headers import HEADERS_LIMIT, LONGEST_HEADER_NAME, MOST_HEADERS, read_headers, require_headers

FITTING: list[Mapping[str, str]] = [
    {},
    {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    {str(number): "" for number in range(MOST_HEADERS)},
    {"a" * LONGEST_HEADER_NAME: "späti ☃"},
    {"a": "x" * (HEADERS_LIMIT - len('{"a": ""}'))},
]

WRONG: dict[str, tuple[Any, str]] = {
    "no mapping": ("a=1", "expected a mapping of texts"),
    "too many": ({str(number): "" for number in range(MOST_HEADERS + 1)}, "at most 32 headers"),
    "no name": ({"": "1"}, "the name of a header has"),
    "a name too long": ({"a" * (LONGEST_HEADER_NAME + 1): "1"}, "the name of a header has 1 to 100"),
    "a name with a space": ({"a b": "1"}, "the name of a header has"),
    "a name that is no text": ({1: "1"}, "the name of a header has"),
    "a number": ({"a": 1}, "expected text for a, got int"),
    "two lines": ({"a": "1\r\nb: 2"}, "a contains unprintable characters"),
    "NUL": ({"a": "\0"}, "the character NUL"),
    "half a pair": ({"a": "\ud800"}, "half of a surrogate pair"),
    "too large": ({"a": "x" * HEADERS_LIMIT}, "8,201 bytes as JSON, and 8,192 are allowed"),
}


@pytest.mark.parametrize("headers", FITTING, ids=["none", "a trace", "many", "a long name", "a long value"])
def test_headers_within_the_bounds_are_accepted(headers: Mapping[str, str]) -> None:
    require_headers("headers", headers)


@pytest.mark.parametrize("name", WRONG)
def test_headers_beyond_the_bounds_are_refused_with_the_reason(name: str) -> None:
    headers, why = WRONG[name]
    with pytest.raises(InvalidTask, match=why):
        require_headers("headers", headers)


@pytest.mark.parametrize(
    ("text", "headers"),
    [(None, {}), ("{}", {}), ('{"a": "1", "b": 2, "c": null}', {"a": "1"}), ("[1]", {}), ("nonsense", {})],
)
def test_headers_of_any_row_are_read_and_cannot_be_changed(text: str | None, headers: Mapping[str, str]) -> None:
    read: Any = read_headers(text)
    assert read == headers
    with pytest.raises(TypeError):
        read["a"] = "2"
