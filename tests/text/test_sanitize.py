"""Text from any source is made safe before it reaches a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runner.model.task import Shown
from runner.text.formatting import SIGNS, state
from runner.text.sanitize import MOST_MARKS, clean, count_noun, one_line

HOSTILE = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "eight-bit CSI": "\x9b31m",
    "cursor": "a\rb\bc",
    "reordered": "\u202egnp.exe",
    "isolated": "\u2066x\u2069",
    "invisible": "a\u200bb\ufeffc\u2060d",
    "tags": "\U000e0041\U000e007f",
    "soft hyphen": "a\u00adb",
    "separators": "a\u2028b\u2029c",
    "blank letters": "\u3164\u115f\uffa0\u2800",
    "surrogate": "\ud800",
    "private": "\ue000\U0010fffd",
    "NUL": "a\0b",
    "DEL": "a\x7fb",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_control_and_invisible_characters_are_removed(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert cleaned != text
    assert clean(cleaned) == cleaned


@given(st.text(), st.booleans())
def test_the_result_is_printable_and_cleaning_is_idempotent(text: str, newlines: bool) -> None:
    cleaned = clean(text, newlines=newlines)
    allowed = cleaned.replace("\n", "") if newlines else cleaned
    marks = [character for character in allowed if unicodedata.category(character).startswith("M")]
    assert all(character.isprintable() or character in marks for character in allowed)
    assert clean(cleaned, newlines=newlines) == cleaned


@given(st.text(), st.integers(1, 50))
def test_no_text_is_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(clean(text, limit)) <= limit


@pytest.mark.parametrize("text", ["", "plain", "Größe 5 µm", "日本語", "наявність", "👍", "a\u0301"])
def test_ordinary_text_of_any_language_is_unchanged(text: str) -> None:
    assert clean(text) == text


def test_escape_is_shown_as_a_symbol() -> None:
    assert clean("\x1b[0m") == "␛[0m"


def test_combining_marks_cannot_cover_other_lines() -> None:
    assert clean("e" + "\u0301" * 500) == "e" + "\u0301" * MOST_MARKS


def test_lines_are_kept_only_on_request() -> None:
    assert clean("a\r\n\tb", newlines=True) == "a\n    b"
    assert clean("a\nb") == "a␊b"


def test_a_cut_text_ends_with_an_ellipsis() -> None:
    assert clean("abcdef", 4) == "abc…"


def test_one_line_is_the_first_nonempty_line() -> None:
    assert one_line("\n  \n Traceback:\n more") == "Traceback:"
    assert one_line("") == ""


def test_every_state_has_a_distinct_symbol_one_cell_wide() -> None:
    assert set(SIGNS) == set(Shown)
    assert len(set(SIGNS.values())) == len(Shown)
    assert {cell_len(sign) for sign in SIGNS.values()} == {1}
    assert state(Shown.DEAD) == f"{SIGNS[Shown.DEAD]} {Shown.DEAD}"


@pytest.mark.parametrize(("number", "text"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (2_000, "2,000 tasks")])
def test_a_count_of_one_is_singular(number: int, text: str) -> None:
    assert count_noun(number, "task") == text


def test_a_symbol_has_one_form_whatever_picture_the_text_asks_for() -> None:
    """Terminals draw the same symbol in one cell or in two if a selector follows it."""
    assert clean("\u2714\ufe0f done, \u2764\ufe0e") == "\u2714 done, \u2764"
