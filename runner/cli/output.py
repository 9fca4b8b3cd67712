"""Output of commands: one JSON document, or tables that fit the terminal."""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.cli.capture import CAPTURE
from runner.text.columns import Column, cells
from runner.text.document import plain
from runner.text.sanitize import clean

T = TypeVar("T")

MAX_CELL, MAX_PIPED_CELL = 200, 10_000
"""Characters of a cell, on a terminal and in a pipe."""

PIPE_WIDTH = 1_000_000
"""Columns of a table in a pipe or a file: wide enough for whole cells, which grep and awk then find."""


def print_table(columns: Iterable[Column[T]], rows: Iterable[T]) -> None:
    """Print a table of sanitized cells.

    On a terminal the table is at most as wide as the terminal. In a pipe or a file the cells are whole, unless COLUMNS
    is set.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = list(columns)
    for column in columns:
        # Rich narrows the columns that are not fixed first; their cells are then truncated.
        table.add_column(Text(column.title), justify="right" if column.right else "left", no_wrap=column.fixed)
    output = console()
    most = MAX_PIPED_CELL if widen_pipe(output) else MAX_CELL
    for row in rows:
        table.add_row(*(_cell(*each, most) for each in zip(columns, cells(columns, row), strict=True)))
    output.print(table)


def _cell(column: Column[Any], text: str, most: int) -> Text:
    if column.wraps:
        return Text(clean(text, MAX_PIPED_CELL), overflow="fold")
    return Text(clean(text, most), no_wrap=True, overflow="ellipsis")


def widen_pipe(output: Console) -> bool:
    """Widen a console that writes to a pipe or a file, so that it cuts no cell; False for a terminal."""
    is_pipe = not output.is_terminal and "COLUMNS" not in os.environ
    if is_pipe:
        output.width = PIPE_WIDTH
    return is_pipe


def print_title(text: str) -> None:
    """Print a heading after a blank line."""
    print_line("")
    print_line(text, style="bold")


def print_block(text: str, indent: str = "  ") -> None:
    """Print a sanitized text of several lines, indented."""
    for line in clean(text, newlines=True).rstrip("\n").split("\n"):
        console().print(Text(f"{indent}{line}".rstrip(" ")), soft_wrap=True)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print one name and value per line, with the values aligned."""
    rows = list(pairs)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print_line(f"{name:<{width}}  {value}")


NO_MATCH = "No tasks match."


_UNSAFE = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)


def print_json(document: object, *, reveal: bool = False) -> None:
    """Print a read model as one JSON document, without characters that affect a terminal.

    Args:
        document: an instance of a class in DOCUMENTS of the command.
        reveal: include secrets instead of masking them.
    """
    if (capture := CAPTURE.get()) is not None:
        note_model(document)
        capture.documents.append(plain(document, reveal=reveal))
        return
    # A terminal without UTF-8 would get other characters than those of the document.
    escapes = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(plain(document, reveal=reveal), ensure_ascii=escapes, indent=2)
    print(_UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text))


def print_answer(document: object, line: str, *, json: bool) -> None:
    """Print a result: its JSON document, or its line."""
    print_json(document) if json else print_line(line)


def note_model(model: object) -> None:
    """Keep the read model of an output, for the totals over shards."""
    if (capture := CAPTURE.get()) is not None:
        capture.models.append(model)


def print_text(text: str) -> None:
    """Print a text that is safe for a terminal, such as SQL or CSV."""
    capture = CAPTURE.get()
    print(text, end="", file=None if capture is None else capture.text)


class OutputConsole(Console):
    """A console that reports a reader that has gone away like any other error; Rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error, which `exit_code_of` knows."""
        raise BrokenPipeError


def console(*, errors: bool = False) -> Console:
    """A console without markup. It uses colours only on a terminal, and none with NO_COLOR."""
    plain_text: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    own = OutputConsole(file=sys.stderr if errors else sys.stdout, **plain_text)
    capture = CAPTURE.get()
    if errors or capture is None or capture.text is None:
        return own
    # As on standard output, which receives the text later.
    colors: Any = own.color_system
    return OutputConsole(
        file=capture.text, width=own.width, force_terminal=own.is_terminal, color_system=colors, **plain_text
    )


def print_line(text: str, style: str = "") -> None:
    """Print a sanitized line; the terminal wraps it."""
    console().print(Text(clean(text).rstrip(" "), style=style), soft_wrap=True)


@contextmanager
def progress(descriptor: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar for the reading of a file, if standard error is a terminal.

    Args:
        descriptor: the file or pipe.

    Yields:
        A function that updates the bar.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import Progress

    status = os.fstat(descriptor)
    regular = stat.S_ISREG(status.st_mode)
    with Progress(console=console(errors=True), transient=True) as bar:
        bar_task = bar.add_task("submitting", total=status.st_size if regular else None)
        yield lambda: bar.update(bar_task, completed=os.lseek(descriptor, 0, os.SEEK_CUR) if regular else 0)
