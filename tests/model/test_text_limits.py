"""Text that both databases store."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InvalidTask
from runner.model.text_limits import require_json, require_storable, to_storable

LIMIT = 1_000
anything = st.text(st.characters(exclude_categories=()))
pieces = anything | st.sampled_from(["\0", "\ud800", "\udfff", "\U0001f600", "é"])
long_texts = st.tuples(pieces, st.integers(0, 3_000)).map(lambda parts: parts[0] * parts[1])


def storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


@given(anything | long_texts, st.integers(200, 2_000))
def test_any_text_becomes_storable_within_the_limit(text: str, limit: int) -> None:
    stored = to_storable(text, limit)
    assert storable(stored)
    assert len(stored.encode()) <= limit


@given(anything | long_texts)
def test_storable_text_is_unchanged(text: str) -> None:
    stored = to_storable(text, sys.maxsize)
    assert to_storable(stored, sys.maxsize) == stored
    if storable(text):
        assert stored == text


def test_unstorable_characters_become_visible_escapes() -> None:
    assert to_storable("a\0b\ud800c\udfffé", LIMIT) == "a\\x00b\\ud800c\\udfffé"


def test_a_long_text_keeps_its_start_and_end_and_the_size_of_the_gap() -> None:
    text = "".join(f"line {number}\n" for number in range(1_000))
    stored = to_storable(text, LIMIT)
    beginning, _, end = stored.partition("... [cut: ")
    lost, _, end = end.partition(" more bytes] ...")
    assert text.startswith(beginning)
    assert text.endswith(end)
    assert len(beginning) + int(lost) + len(end) == len(text)
    assert len(beginning) > LIMIT / 3 < len(end)


def test_a_cut_splits_no_character() -> None:
    for shift in range(4):
        stored = to_storable("x" * shift + "\U0001f600" * LIMIT, LIMIT)
        assert "\ufffd" not in stored
        assert set(stored.replace("x", "").partition("... [cut")[0]) == {"\U0001f600"}


@pytest.mark.parametrize("limit", [200, 201, 999, 1_000])
def test_the_limit_itself_is_allowed(limit: int) -> None:
    assert to_storable("x" * limit, limit) == "x" * limit
    assert to_storable("x" * (limit + 1), limit) != "x" * limit


@given(anything)
def test_a_producers_text_is_returned_unchanged_or_rejected(text: str) -> None:
    if storable(text):
        assert require_storable("key", text) is text
    else:
        with pytest.raises(InvalidTask, match="key"):
            require_storable("key", text)


def test_a_producers_text_has_a_limit() -> None:
    assert require_storable("key", "é" * 5, limit=5) == "ééééé"
    with pytest.raises(InvalidTask, match="5 characters"):
        require_storable("key", "é" * 6, limit=5)


@pytest.mark.parametrize("text", ["\0" * 10**6, "\ud800" * 10**6, "x" * 10**6])
def test_the_error_message_is_short(text: str) -> None:
    with pytest.raises(InvalidTask) as refused:
        require_storable("key", text)
    assert len(str(refused.value)) < 1_000
    str(refused.value).encode()


def test_nesting_is_limited_whatever_the_recursion_limit_of_the_application_is() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert require_json("payload", "[" * 400 + "]" * 400)
        with pytest.raises(InvalidTask, match="nested too deeply"):
            require_json("payload", "[" * 600 + "]" * 600)
    finally:
        sys.setrecursionlimit(before)
