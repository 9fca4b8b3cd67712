"""Exporting: writing a report into a file of the operator's."""

import json
from datetime import datetime
from pathlib import Path

from runner.errors import InvalidInput
from runner.store.observe import Summary
from runner.store.observe.exports import as_csv, as_document


def usual_name(summary: Summary) -> str:
    """The name of the file that is offered, with times in UTC: whoever gets it may live elsewhere."""
    return f"report-by-{summary.by}-{summary.since:%Y%m%d-%H%MZ}-{summary.until:%Y%m%d-%H%MZ}.csv"


def export(summary: Summary, name: str) -> Path:
    """Write a report.

    Args:
        summary: the report.
        name: of the file, which must not exist; .json or .csv at its end says how to write it.

    Returns:
        The whole path.

    Raises:
        InvalidInput: it cannot be written, or is there already.
    """
    path = Path(name).expanduser()
    match path.suffix.lower():
        case ".json":
            text = json.dumps(as_document(summary), indent=2, default=_plain) + "\n"
        case ".csv":
            text = as_csv(summary)
        case _:
            raise InvalidInput(why=f"end the name with .csv or .json, not {path.suffix or name!r}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(why=f"{name} cannot be written: {why}") from None
    return path.resolve()


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
