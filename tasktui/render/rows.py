"""Rows: lines of styled text with a known width, the parts of every panel."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TypeAlias

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from runner.model.task import Shown
from runner.text.formatting import SIGNS
from tasktui.render.render import fitted, line
from tasktui.render.theme import current, key_sign, style

Part: TypeAlias = tuple[str, str]
"""A sanitized text and the specification of its style, see `Palette`."""

Row: TypeAlias = Sequence[Part]
"""The parts of one line, from left to right."""

BLANK: Row = ()


def width_of(row: Row) -> int:
    """The cells that a row takes."""
    return sum(cell_len(text) for text, _ in row)


def fit(row: Row, width: int) -> list[Part]:
    """Cut a row, with a sign at the cut, or fill it with blanks."""
    parts: list[Part] = []
    room = width
    for index, (text, spec) in enumerate(row):
        length = cell_len(text)
        rest = any(later.strip() for later, _ in row[index + 1 :])
        if length > room or (length == room and rest):
            blank = not rest and cell_len(text.rstrip()) <= room
            parts.append((fitted(text.rstrip() if blank else f"{text} ", room), spec))
            return parts
        parts.append((text, spec))
        room -= length
    return [*parts, (" " * room, "")] if room else parts


def wrapped(row: Row, width: int) -> list[Row]:
    """A sentence in as many rows as it needs; each begins as far inside as the first.

    It is broken between words, and a word that has no room in a row of its own at its end.
    """
    inside = " " * (len(row[0][0]) - len(row[0][0].lstrip())) if row else ""
    rows: list[list[Part]] = [[]]
    for text, spec in row:
        words = re.findall(r"\s*\S+|\s+$", text)
        for word in chain.from_iterable(chop_cells(word, max(2, width - len(inside))) for word in words):
            if rows[-1] and width_of([*rows[-1], (word.rstrip(), spec)]) > width and word.strip():
                rows.append([(inside + word.strip(), spec)])
            else:
                rows[-1].append((word, spec))
    return list(rows)


CLAUSE = re.compile("[;:,] ")
"""The end of a clause of a sentence."""


def collapsed(text: str, room: int) -> str:
    """Leave out the last clauses of a text that has no room, with a sign; the last one left may be cut."""
    if cell_len(text) <= room:
        return text
    cut = fitted(text, max(1, room)).removesuffix("…")
    ends_at = [each.start() for each in CLAUSE.finditer(cut)]
    kept = cut[: ends_at[-1]] if ends_at and 5 * ends_at[-1] > 4 * room else cut
    return f"{kept.rstrip()}…"


def faded(parts: Row) -> list[Part]:
    """The same texts without colour: the slots of a runner that may no longer run them."""
    return [(text, "faint") for text, _ in parts]


def ends(left: Row, right: Row, width: int) -> list[Part]:
    """A row with a text at both ends; the left one is cut to fit."""
    right_width = width_of(right)
    if right_width >= width:
        return fit(right, width)
    return [*fit(left, width - right_width), *right]


def beside(left: Sequence[Row], right: Sequence[Row], width: int, gap: int = 2) -> list[Row]:
    """Two panels next to each other.

    Args:
        width: cells of the left panel.
        gap: blanks between them.
    """
    pairs = zip_longest(left, right, fillvalue=BLANK)
    return [[*fit(one, width), (" " * gap, ""), *other] for one, other in pairs]


def inset(rows: Iterable[Row]) -> list[Row]:
    """Rows that begin below the text of the title of their section."""
    return [[("  ", ""), *row] for row in rows]


def rule(title: Row, width: int, right: Row = ()) -> list[Part]:
    """A title in a line, with the key figure of its section at the right end."""
    used = width_of(title) + 3
    figure: list[Part] = [(" ", ""), *right, (" ─", "line")] if right else []
    if used + width_of(figure) + 1 > width:
        figure = []
    dashes = max(0, width - used - width_of(figure))
    return fit([("─ ", "line"), *title, (" " + "─" * dashes, "line"), *figure], width)


def heading(text: str) -> Part:
    """The title of a section."""
    return (text, "bold strong")


def opening(key: str, screen: str) -> list[Part]:
    """The key that opens a screen, at the end of a section; the verb keeps the key of a screen from being a count."""
    return [(key, "bold accent"), (f" opens {screen}", "muted")]


def cap(key: str, label: str, *, locked: bool = False) -> list[Part]:
    """A key cap with its label."""
    key = key_sign(key)
    if locked:
        return [(f" {key} ", "faint"), (f"{label} ", "faint")]
    return [(f" {key} ", "bold accent on cap"), (f" {label} ", "muted")]


def badge(text: str, role: str) -> Part:
    """A badge; in brackets if the theme has no ground for it."""
    spec = f"bold {role}_text on {role}"
    return (f" {text} ", spec) if current().colours.get(role, "default") != "default" else (f"[{text}]", spec)


def pill(shown: Shown, word: str = "") -> Part:
    """A state with its sign and word on its tint."""
    text = f" {SIGNS[shown]} {word or shown} "
    return (text, f"bold {shown} on tint_{shown}")


def state(shown: Shown) -> Part:
    """A state with its sign and word."""
    strong = "bold " if shown in (Shown.DEAD, Shown.LOST) else ""
    return (f"{SIGNS[shown]} {shown}", f"{strong}{shown}")


def handler(name: str, width: int, spec: str = "text") -> list[Part]:
    """A handler name: its module is muted, its function is not."""
    text = fitted(line(name), width)
    module, dot, function = text.rpartition(".")
    return [(module + dot, "muted"), (function, spec)] if dot else [(text, spec)]


def strip_of(row: Row, width: int, base: Style) -> Strip:
    """Turn a row into the cells of a line."""
    segments: list[Segment] = []
    for text, spec in fit(row, width):
        if text:
            segments.append(Segment(text, base + style(spec) if spec else base))
    return Strip(segments, width)


def plain(rows: Iterable[Row]) -> str:
    """The text of rows without styles."""
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)


def silent_shards(silent: Mapping[str, str], width: int) -> list[Row]:
    """A row for each shard without an answer, with its error."""
    texts = [f"{name} is unknown: {error}" for name, error in silent.items()]
    return [fit([("  ◌ ", "bold lost"), (line(text, 300), "text")], width) for text in texts]
