"""What commands print: one JSON document, or tables that fit the terminal."""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.people.redaction import redacted
from runner.people.terminal import clean

# What a terminal could take for a command, or show as nothing, and what is no text at all: JSON has escapes for them.
_UNSAFE = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)


LONGEST_CELL = 200


class Column(NamedTuple):
    """One column of a table.

    Args:
        title: above it.
        right: numbers and ages stand to the right.
        whole: never cut, whatever the width of the terminal.
    """

    title: str
    right: bool = False
    whole: bool = False


def print_json(document: Any, *, reveal: bool = False) -> None:
    """Print one JSON document: times in UTC, lengths of time in seconds, nothing in it that a terminal would obey.

    Args:
        document: JSON values, mappings, sequences, data classes, named tuples, times and enumerations.
        reveal: leave secrets in; else they are masked, wherever they stand.
    """
    text = json.dumps(redacted(plain(document), reveal=reveal), ensure_ascii=False, indent=2)
    print(_UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text))


def plain(value: Any) -> Any:
    """Turn a read model into what JSON knows; names of fields stay what they are."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    match value:
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case float() if not math.isfinite(value):
            return None
    return str(value) if isinstance(value, Path) else value


def console(*, errors: bool = False) -> Console:
    """The way to the terminal; it takes no markup, and colours only where they are wanted (NO_COLOR, a terminal)."""
    return Console(file=sys.stderr if errors else sys.stdout, markup=False, emoji=False, highlight=False)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as wide as the terminal at most; every cell is made safe to print.

    Args:
        columns: their titles and sides.
        rows: one text for each column.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, right, whole in columns:
        table.add_column(
            Text(title),
            justify="right" if right else "left",
            no_wrap=whole,  # those that may wrap are made narrower first; their cells are then cut instead
        )
    for row in rows:
        table.add_row(*(Text(clean(cell, LONGEST_CELL), no_wrap=True, overflow="ellipsis") for cell in row))
    console().print(table)


def print_line(text: str, style: str = "") -> None:
    """Print a line, made safe; the terminal breaks it where it is too long."""
    console().print(Text(clean(text), style=style), soft_wrap=True)


def print_title(text: str) -> None:
    """Print what stands above a part of the output, with a blank line before it."""
    print_line("")
    print_line(text, style="bold")


def print_block(text: str, indent: str = "  ") -> None:
    """Print a text of several lines, made safe and moved to the right."""
    for line in clean(text, newlines=True).rstrip("\n").split("\n"):
        console().print(Text(indent + line), soft_wrap=True)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, one a line, the values below each other."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        print_line(f"{name:<{width}}  {value}")
