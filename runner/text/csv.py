"""CSV that spreadsheets read as plain values, never as formulas."""

import csv
import io
from collections.abc import Iterable, Sequence

from runner.text.sanitize import clean

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of texts that a spreadsheet would execute."""


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table as CSV.

    Args:
        titles: the column titles.
        rows: the values; None becomes an empty cell, and text is sanitized and gets a leading apostrophe if it starts
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
