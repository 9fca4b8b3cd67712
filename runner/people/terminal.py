"""The gate in front of the terminal: text from a database, a file or a person made harmless; and signs of states."""

import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

from runner.task import Shown

LONGEST_TEXT = 64 * 1024
"""Characters that are shown of a text when nobody asks for fewer."""

CUT = "…"
"""Stands at the end of a text that goes on."""

MOST_MARKS = 4
"""Combining marks shown on one character; more would climb over the neighbouring lines."""

SIGNS: Mapping[Shown, str] = MappingProxyType(
    {
        Shown.READY: "○",
        Shown.SCHEDULED: "◷",
        Shown.RETRYING: "↻",
        Shown.BLOCKED: "◌",
        Shown.RUNNING: "▷",
        Shown.LOST: "?",
        Shown.SUCCEEDED: "✔",
        Shown.DEAD: "✖",
        Shown.CANCELLED: "⊘",
    }
)
"""One narrow sign for each state, always shown beside its word: never the sign or a colour alone."""

_PICTURES = {code: chr(0x2400 + code) for code in range(32)} | {127: "\u2421"}
# Letters by their category that show nothing, or as much as a blank does.
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
_JOINER = "\u034f"
_TAB = "    "


def clean(text: str, limit: int = LONGEST_TEXT, *, newlines: bool = False) -> str:
    r"""Make a text safe to print: nothing in it can move the cursor, change colours, or hide what stands beside it.

    Control characters become their pictures (ESC is `␛`); what reorders, is invisible or unassigned becomes its escape
    (`\u202e`); blanks of all kinds become blanks; combining marks are limited; a long text is cut.

    Args:
        text: anything.
        limit: characters to show at most, at least 1.
        newlines: keep line breaks and widen tabs, for a text that has the lines to itself.

    Returns:
        Printable characters only, and line breaks if they are kept. Cleaning it again changes nothing.
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
    """The first line of a text that is not empty, safe to print and cut."""
    return clean(next((line.strip() for line in text.splitlines() if line.strip()), ""), limit)


def state_text(state: Shown) -> str:
    """A state as people see it: sign and word."""
    return f"{SIGNS[state]} {state}"


def counted(number: int, noun: str) -> str:
    """So many of something: `1 task`, `2,000 tasks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
    if character.isprintable() and character not in _BLANK_LETTERS and character != _JOINER:
        return character
    return character.encode("unicode_escape").decode()
