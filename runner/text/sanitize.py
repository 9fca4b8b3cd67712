"""Sanitize text before it reaches a terminal or a spreadsheet."""

import re
import shlex
import traceback
import unicodedata
from collections.abc import Iterable, Sequence

LONGEST_TEXT = 64 * 1024
"""The default limit of `clean`, in characters."""

CUT = "…"
"""The end of a text that was cut."""

MAX_CRASH_FRAMES = 12
"""Frames of a stack in the message of a crash."""

MOST_MARKS = 4
"""Combining marks allowed per character; more would overlap the neighbouring lines."""


_PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}
# Letters and symbols by category that are invisible or look like a blank.
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
_JOINER = "\u034f"
# Terminals disagree on the width of a symbol that asks for its form as a picture.
_PRESENTATIONS = "\ufe0e\ufe0f"
_TAB = "    "


def clean(text: str, limit: int = LONGEST_TEXT, *, newlines: bool = False) -> str:
    r"""Make a text safe to print: it cannot move the cursor, change colours, or hide its neighbours.

    Control characters become their pictures (ESC is `␛`); reordering, invisible and unassigned characters become
    escapes (`\u202e`); all blanks become spaces; combining marks are limited; the choice between the text and the
    picture of a symbol is dropped; a long text is cut.

    Args:
        limit: maximum number of characters to show, at least 1.
        newlines: keep line breaks and widen tabs, for a text with its own lines.

    Returns:
        Printable characters only, plus line breaks if kept. Cleaning it again changes nothing.
    """
    if newlines:
        text = text.replace("\r\n", "\n")
    if len(text) > limit:
        text = text[: limit - 1] + CUT
    if text.isascii() and text.isprintable():
        return text
    shown = "\n".join(map(_line, text.split("\n"))) if newlines else _line(text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}{CUT}"


def one_line(text: str, limit: int = 200) -> str:
    """The first non-empty line of a text, safe to print and cut."""
    return clean(next((line.strip() for line in text.splitlines() if line.strip()), ""), limit)


NUMBER = re.compile(r"\d[\d.,:-]*\d")
"""A number of several digits, a time or a date."""


def before_number(text: str, end: int) -> int:
    """The place of a cut: the end, or the beginning of a number that would lose digits, unless nothing is before it."""
    starts_at = (match.start() for match in NUMBER.finditer(text) if match.start() < end < match.end())
    return next(starts_at, end) or end


def error_text(error: BaseException) -> str:
    """Return the message of an exception, whatever its own `__str__` does: it may even exit."""
    try:
        return str.__str__(str(error))  # without the methods of a subclass of str
    except BaseException:
        return "(message not readable)"


def value_text(value: object) -> str:
    """Return the `repr` of a value, whatever its own `__repr__` does: it may even exit."""
    try:
        return str.__str__(repr(value))
    except BaseException:
        return f"an unreadable value of type {type(value).__name__}"


def shell_word(text: str) -> str:
    """Quote a word for a command line; characters that a terminal does not show are escapes of bash and zsh."""
    if clean(text) == text:
        return shlex.quote(text)
    escaped = (each if clean(each) == each and each not in "\\'" else f"\\U{ord(each):08x}" for each in text)
    return f"$'{''.join(escaped)}'"


def count_noun(number: int, noun: str) -> str:
    """A number with its noun: `1 task`, `2,000 tasks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_names(names: Sequence[str], most: int) -> str:
    """The first names of a list, and the number of the others: `a, b and 2,000 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _line(text: str) -> str:
    marks = 0
    shown: list[str] = []
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category.startswith("M") else 0
        if marks <= MOST_MARKS:
            shown.append(_visible(character, category))
    return "".join(shown)


def _visible(character: str, category: str) -> str:
    if character == "\t":
        return _TAB
    if ord(character) in _PICTURES:
        return _PICTURES[ord(character)]
    if category == "Zs":
        return " "
    if character in _PRESENTATIONS:
        return ""
    if character.isprintable() and character not in _BLANK_LETTERS and character != _JOINER:
        return character
    return character.encode("unicode_escape").decode()


FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of texts that a spreadsheet would execute."""


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table as CSV that spreadsheets read as plain values, never as formulas.

    Args:
        rows: the values; None becomes an empty cell, and text is sanitized and gets a leading apostrophe if it starts
            like a formula.
    """
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    return clean(f"'{value}" if value.startswith(FORMULAS) else value)


def crash_text(error: BaseException | None) -> str:
    """Return the message of a crash of the console: the error type and the stack, without values of variables."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_CRASH_FRAMES:] if error else []
    lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    kind = type(error).__name__
    return clean("\n".join([f"tasktui crashed with an unexpected error: {kind}", *lines]), newlines=True)
