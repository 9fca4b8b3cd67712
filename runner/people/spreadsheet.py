"""Tables for spreadsheets: comma-separated values that a spreadsheet takes for values, and nothing else."""

import csv
import io
from collections.abc import Iterable, Sequence

from runner.people.terminal import clean

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that a spreadsheet would execute."""


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table.

    Args:
        titles: of the columns.
        rows: values; None is left empty, a text is made safe to print, and gets an apostrophe in front if it begins
            like a formula.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    return clean(f"'{value}" if value.startswith(FORMULAS) else value)
