"""The story of a task in lines: facts, payload, error, attempts as evidence, next runs, what operators did."""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any

from textual.content import Content

from runner.people import cells
from runner.people.redaction import decoded, differences, masked
from runner.people.times import format_age
from runner.store.observe import Attempt, Audited, Story
from tasktui.render import block, content, line, state

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
    shown = state(story.task.shown)
    requested = "   its end has been asked for" if story.task.cancel_requested else ""
    yield content((f"{'state':>13}  ", "dim"), (shown.text, shown.style), (requested, "bold"))
    for name, value in _facts(story, zone):
        yield content((f"{name:>13}  ", "dim"), value)
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


def _facts(story: Story, zone: tzinfo) -> Iterator[tuple[str, str]]:
    task = story.task
    yield "task", f"{task.id}   version {task.version}"
    yield "handler", f"{line(task.handler)}   in queue {line(task.queue)}, priority {task.priority}"
    rescued = f"   rescued {task.rescues} times" if task.rescues else ""
    yield "attempts", f"{cells.tries(task.attempt, task.max_attempts)}{rescued}"
    times = {"run at": task.run_at, "submitted": task.submitted_at, "claimed": task.claimed_at}
    times |= {"deadline": story.deadline_at, "finished": task.finished_at}
    yield from ((name, cells.exact(moment, story.at, zone)) for name, moment in times.items() if moment)
    runner = story.runner
    rest = {
        "key": task.key,
        "unique key": story.unique and story.unique.key,
        "which is": story.unique and story.unique.told(task.id, story.at),
        "parents": story.family.progress,
        "submitted by": story.submitted_by,
        "took": cells.duration(task.duration) if task.duration is not None else None,
        "progress": f"{task.progress:.0%}" if task.progress is not None else None,
        "runner": f"{runner.id} on {runner.host}, silent for {cells.age(runner.silent)}" if runner else task.runner_id,
        "host": None if runner else task.host,
        "retry plan": story.retry,
        "timeout": cells.age(story.timeout) if story.timeout is not None else None,
        "tags": ", ".join(story.tags),
        "bucket": story.bucket,
        "trace": story.trace,
    }
    yield from ((name, line(value)) for name, value in rest.items() if value not in (None, ""))


def _evidence(story: Story, *, reveal: bool) -> Iterator[Content]:
    if story.attempts:
        yield content(("\nattempts that failed", TITLE))
    for attempt in story.attempts:
        yield content((f"{attempt.attempt:>5}  ", "bold"), _attempt(attempt, story.at))
        error = masked(f"{attempt.error_type}: {attempt.message}", reveal=reveal)
        yield content((f"{'':7}{line(error)}", "red"))


def _attempt(attempt: Attempt, at: datetime) -> str:
    next_in = f", next in {format_age(attempt.delay)}" if attempt.delay is not None else ""
    where = f"runner {line(attempt.runner_id)} on {line(attempt.host)}"
    took = f"{cells.distance(attempt.ended_at, at)}, took {cells.duration(attempt.duration)}"
    return f"{took}, {where}, led to {line(attempt.verb)}{next_in}"
