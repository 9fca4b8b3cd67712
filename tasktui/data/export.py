"""Exports a report to a file."""

import json
from datetime import datetime
from pathlib import Path

from runner.errors import InvalidInput
from runner.queries.summary import Summary, as_csv, as_document


def usual_name(summary: Summary) -> str:
    """The suggested file name, with times in UTC because the reader may live in another time zone."""
    return f"report-by-{summary.by}-{summary.since:%Y%m%d-%H%MZ}-{summary.until:%Y%m%d-%H%MZ}.csv"


def export(summary: Summary, name: str) -> Path:
    """Write a report to a new file.

    Args:
        summary: the report.
        name: path of the file; the suffix .json or .csv selects the format.

    Returns:
        The absolute path.

    Raises:
        InvalidInput: the file exists, cannot be written, or has another suffix.
    """
    path = Path(name).expanduser()
    match path.suffix.lower():
        case ".json":
            text = json.dumps(as_document(summary), indent=2, default=_plain) + "\n"
        case ".csv":
            text = as_csv(summary)
        case _:
            raise InvalidInput(why=f"the file name must end with .csv or .json, not {path.suffix or name!r}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(why=f"cannot write {name}: {why}") from None
    return path.resolve()


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
