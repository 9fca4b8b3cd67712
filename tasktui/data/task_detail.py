"""Values and changes of a task as text."""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any

from textual.content import Content

from runner.queries.audit import AuditRecord
from runner.queries.task.timeline import format_entry
from runner.text import formatting
from runner.text.redact import differences
from runner.text.times import format_moment
from tasktui.render.render import block, content, line

TITLE = "bold strong"


FOLDED_LINES, FOLDED_CHARACTERS = 16, 2_000
"""Limits of a folded payload, so that the sections behind it stay visible."""


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
