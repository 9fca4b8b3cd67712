"""exports: a summary for programs and spreadsheets."""

from dataclasses import fields

from runner.people.spreadsheet import csv_text
from runner.store.observe.reports import Flow
from runner.store.observe.summary import Line, Summary

DIGITS = 6
"""Behind the point."""


def as_document(summary: Summary) -> dict[str, object]:
    """A summary for JSON: shares from 0 to 1, durations in seconds."""
    times = {"since": summary.since, "until": summary.until, "at": summary.at}
    return {**times, "by": summary.by, "total": _figures(summary.total), "lines": [*map(_figures, summary.lines)]}


def as_csv(summary: Summary) -> str:
    """A summary as comma-separated values, without the line that sums up the others."""
    return csv_text([*_figures(summary.total)], [[*_figures(line).values()] for line in summary.lines])


def _figures(line: Line) -> dict[str, object]:
    counts = {field.name: getattr(line.flow, field.name) for field in fields(Flow)}
    rates = {"success": line.flow.success_rate, "first": line.first, "second": line.second}
    numbers = {**rates, "p50": line.p50, "p95": line.p95}
    rounded = {name: None if number is None else round(number, DIGITS) for name, number in numbers.items()}
    return {"name": line.name, **counts, "submitted": line.submitted.number, **rounded}
