"""The story of a task in lines: facts, payload, error, attempts as evidence, next runs, what operators did."""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any

from textual.content import Content

from runner.people import cells
from runner.people.redaction import decoded, differences, masked
from runner.people.times import format_age
from runner.store import observe
from runner.store.observe import Attempt, Audited, Story
from runner.task import State
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
    yield from _evidence(story, reveal=reveal)
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
    if story.audit:
        yield content(("\nwhat operators did", TITLE))
        for entry in story.audit:
            yield from change(entry, story.at, reveal=reveal)


def pretty(value: Any) -> str:
    """Decoded JSON over several lines, safe to show."""
    return block(json.dumps(value, indent=2, ensure_ascii=False))


def folded(text: str) -> str:
    """The beginning of a long text, and how much there is behind it."""
    kept = "\n".join(text.split("\n")[:FOLDED_LINES])[:FOLDED_CHARACTERS]
    return text if kept == text else f"{kept}\n… and {len(text) - len(kept):,} more characters, f unfolds them"


def change(entry: Audited, at: datetime, *, reveal: bool = False) -> Iterator[Content]:
    """What an operator did, and from what to what."""
    why = f": {line(entry.reason)}" if entry.reason else ""
    undone = f" (takes back {entry.undo_of})" if entry.undo_of else ""
    login = f" (login {line(entry.login)})" if entry.login not in (None, entry.operator) else ""
    together = f", together with others as {line(entry.batch)}" if entry.batch else ""
    who = f"{line(entry.verb)}{undone} by {line(entry.operator)}@{line(entry.host)}{login}{together}{why}"
    yield content((f"{cells.distance(entry.at, at):>13}  ", "dim"), who)
    for difference in differences(entry.before, entry.after, reveal=reveal):
        yield content((f"{'':15}{line(difference)}", "dim"))


def _titled(title: str, text: str) -> Iterator[Content]:
    yield content((f"\n{title}", TITLE))
    yield content(text)


def _evidence(story: Story, *, reveal: bool) -> Iterator[Content]:
    running = story.task.state is State.RUNNING
    if story.attempts or running:
        title = "attempts that failed, and the one under way" if story.attempts else "attempt under way"
        yield content((f"\n{title if running else 'attempts that failed'}", TITLE))
    for attempt in story.attempts:
        yield content((f"{attempt.attempt:>5}  ", "bold"), _attempt(attempt, story.at))
        error = masked(f"{attempt.error_type}: {attempt.message}", reveal=reveal)
        yield content((f"{'':7}{line(error)}", "red"))
    if running:
        where = f"runner {line(story.task.runner_id)} on {line(story.task.host)}"
        yield content(
            (f"{story.task.attempt:>5}  ", "bold"), f"for {cells.since(story.task.claimed_at, story.at)}, {where}"
        )


def _attempt(attempt: Attempt, at: datetime) -> str:
    next_in = f", next in {format_age(attempt.delay)}" if attempt.delay is not None else ""
    where = f"runner {line(attempt.runner_id)} on {line(attempt.host)}"
    took = f"{cells.distance(attempt.ended_at, at)}, took {cells.duration(attempt.duration)}"
    return f"{took}, {where}, led to {line(attempt.verb)}{next_in}"
