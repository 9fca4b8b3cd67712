"""The story of a task in lines: facts, error, what happened in the order of time, payload, next runs."""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any

from textual.content import Content

from runner.people import cells
from runner.people.redaction import decoded, differences, masked
from runner.people.times import format_moment
from runner.store import observe
from runner.store.observe import Audited, Story
from tasktui.draw.render import block, content, line, state

TITLE = "bold underline"


FOLDED_LINES, FOLDED_CHARACTERS = 16, 2_000
"""What is shown of a long payload, so that the errors behind it stay in sight."""


def told(story: Story, zone: tzinfo, *, reveal: bool = False, unfold: bool = False) -> Iterator[Content]:
    """Tell a story in lines.

    Args:
        story: everything about one task.
        zone: in which times are shown.
        reveal: show secrets.
        unfold: show all of what is long.
    """
    for name, value in observe.particulars(story, zone):
        style = state(story.task.shown).style if name == "state" else ""
        yield content((f"{name:>13}  ", "dim"), (line(value), style))
    for title, lines in story.family.sections():
        yield from _titled(title, "\n".join(lines))
    if story.error:
        yield from _titled("error", block(masked(story.error, reveal=reveal)))
    yield from _happened(story, zone, reveal=reveal)
    for name in ("payload", "checkpoint", "result"):
        value = decoded(getattr(story, name), reveal=reveal)
        if value is not None:
            text = pretty(value)
            yield from _titled(name, text if unfold else folded(text))
    if story.attempts and (trace := story.attempts[-1].traceback):
        yield from _titled("traceback of the last failure", block(masked(trace, reveal=reveal)))
    if story.next_runs:
        runs = "\n".join(cells.exact(run, story.at, zone) for run in story.next_runs)
        yield from _titled("next runs, if every attempt fails at once", runs)


def pretty(value: Any) -> str:
    """Decoded JSON over several lines, safe to show."""
    return block(json.dumps(value, indent=2, ensure_ascii=False))


def folded(text: str) -> str:
    """The beginning of a long text, and how much there is behind it."""
    kept = "\n".join(text.split("\n")[:FOLDED_LINES])[:FOLDED_CHARACTERS]
    return text if kept == text else f"{kept}\n… and {len(text) - len(kept):,} more characters, f unfolds them"


def change(entry: Audited, at: datetime, zone: tzinfo, *, reveal: bool = False) -> Iterator[Content]:
    """What an operator did and when, and from what to what."""
    when = f"{format_moment(entry.at, zone)}, {cells.distance(entry.at, at)}" if entry.at else cells.NOTHING
    yield content((when, "dim"))
    yield content(f"{'':15}", line(observe.entry_told(entry)))
    for difference in differences(entry.before, entry.after, reveal=reveal, zone=zone):
        yield content((f"{'':15}{line(difference)}", "dim"))


def _titled(title: str, text: str) -> Iterator[Content]:
    yield content((f"\n{title}", TITLE))
    yield content(text)


def _happened(story: Story, zone: tzinfo, *, reveal: bool) -> Iterator[Content]:
    yield content(("\ntimeline", TITLE))
    for event in observe.timeline(story, reveal=reveal, zone=zone):
        when = cells.distance(event.at, story.at) if event.at else ""
        yield content((f"{when:>13}  ", "dim"), line(event.text))
        style = "red" if event.kind == "attempt" else "dim"
        yield from (content((f"{'':15}{line(detail)}", style)) for detail in event.details)
