"""One task in lines: fields, error, timeline, payload, next runs."""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any

from textual.content import Content

from runner.queries.audit import AuditRecord
from runner.queries.task.detail import TaskDetail, task_fields
from runner.queries.task.notes import checkpoint_lines, log_line
from runner.queries.task.timeline import format_entry, timeline
from runner.text import formatting
from runner.text.redact import decode, differences, mask
from runner.text.times import format_moment
from tasktui.render.render import block, content, line, state

TITLE = "bold strong"


FOLDED_LINES, FOLDED_CHARACTERS = 16, 2_000
"""Limits of a folded payload, so that the sections behind it stay visible."""


def detail_lines(detail: TaskDetail, zone: tzinfo, *, reveal: bool = False, unfold: bool = False) -> Iterator[Content]:
    """Render a task.

    Args:
        detail: everything about the task.
        zone: time zone of the displayed times.
        reveal: show secrets.
        unfold: show long values completely.
    """
    for name, value in task_fields(detail, zone):
        style = state(detail.task.shown).style if name == "state" else ""
        yield content((f"{name:>13}  ", "muted"), (line(value), style))
    for title, lines in detail.dependencies.sections():
        yield from _section(title, "\n".join(lines))
    if detail.error:
        yield from _section("error", block(mask(detail.error, reveal=reveal)))
    yield from _timeline(detail, zone, reveal=reveal)
    if detail.checkpoints:
        yield from _section("checkpoints", "\n".join(checkpoint_lines(detail.checkpoints, detail.at, reveal=reveal)))
    if detail.log:
        yield from _section("last log lines", "\n".join(log_line(row, zone, reveal=reveal) for row in detail.log))
    for name in ("payload", "result"):
        value = decode(getattr(detail, name), reveal=reveal)
        if value is not None:
            text = pretty(value)
            yield from _section(name, text if unfold else folded(text))
    if detail.attempts and (trace := detail.attempts[-1].traceback):
        yield from _section("traceback of the last failure", block(mask(trace, reveal=reveal)))
    if detail.next_runs:
        runs = "\n".join(formatting.exact(run, detail.at, zone) for run in detail.next_runs)
        yield from _section("next runs, if every attempt fails immediately", runs)


def pretty(value: Any) -> str:
    """Format decoded JSON over several lines, sanitized."""
    return block(json.dumps(value, indent=2, ensure_ascii=False))


def folded(text: str) -> str:
    """Truncate a long text, with the number of omitted characters."""
    start = "\n".join(text.split("\n")[:FOLDED_LINES])[:FOLDED_CHARACTERS]
    return text if start == text else f"{start}\n… {len(text) - len(start):,} more characters (press f)"


def change(entry: AuditRecord, at: datetime, zone: tzinfo, *, reveal: bool = False) -> Iterator[Content]:
    """An audit entry: who did what and when, and the changed values."""
    when = f"{format_moment(entry.at, zone)}, {formatting.distance(entry.at, at)}" if entry.at else formatting.NOTHING
    yield content((when, "muted"))
    yield content(f"{'':15}", line(format_entry(entry)))
    for difference in differences(entry.before, entry.after, reveal=reveal, zone=zone):
        yield content((f"{'':15}{line(difference)}", "muted"))


def _section(title: str, text: str) -> Iterator[Content]:
    yield content((f"\n{title}", TITLE))
    yield content(text)


def _timeline(detail: TaskDetail, zone: tzinfo, *, reveal: bool) -> Iterator[Content]:
    yield content(("\ntimeline", TITLE))
    for event in timeline(detail, reveal=reveal, zone=zone):
        when = formatting.distance(event.at, detail.at) if event.at else ""
        yield content((f"{when:>13}  ", "muted"), line(event.text))
        style = "dead" if event.kind == "attempt" else "muted"
        yield from (content((f"{'':15}{line(part)}", style)) for part in event.details)
