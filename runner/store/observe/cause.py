"""cause: one reason why a task is where it is, and the words that such reasons have in common."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from shlex import quote
from typing import Literal, NamedTuple

from runner.people.cells import distance, reason
from runner.people.terminal import one_line
from runner.people.times import format_moment
from runner.store.observe.runners import RunnerRow

MOST_NAMED = 4
"""Handlers that are named in one sentence."""


class Sight(NamedTuple):
    """Where a cause can be looked at.

    Args:
        kind: a list of tasks, one task, the runners, or the changes that operators made to something.
        about: the filter, the task's number, the runner's number or nothing, or what was changed: "queue mail".
    """

    kind: Literal["tasks", "task", "runners", "audit"]
    about: str = ""

    @property
    def command(self) -> str:
        """What shows it on the command line."""
        match self.kind:
            case "tasks":
                return f"runner tasks {quote(self.about)}"
            case "task":
                return f"runner show {self.about}"
            case "audit":
                return f"runner audit --of {quote(self.about)}"
        return "runner runners"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason.

    Args:
        kind: its name for programs: due, paused, unknown, full and so on.
        text: a sentence; texts from the database within it are safe to show.
        advice: what to do about it; empty where there is nothing to be done.
        sight: where it can be looked at; None where there is no more to be seen.
    """

    kind: str
    text: str
    advice: str = ""
    sight: Sight | None = None


def when(moment: datetime | None, at: datetime, zone: tzinfo) -> str:
    """A time, and how far away it is."""
    return (
        "at a time that cannot be read" if moment is None else f"{distance(moment, at)} ({format_moment(moment, zone)})"
    )


def said(text: str | None) -> str:
    """What somebody wrote, with the end of a sentence."""
    words = reason(text) or "no reason was given"
    return words if words.endswith((".", "!", "?", "…")) else f"{words}."


def runner_of(runner: RunnerRow) -> str:
    """A runner in a sentence."""
    return f"runner {runner.id} ({one_line(runner.host)}, process {runner.pid})"


def seen_at(runner: RunnerRow | None) -> Sight:
    """Where a runner is seen; without one, all of them."""
    return Sight("runners", str(runner.id) if runner else "")


def seen_in_hand(runners: Sequence[RunnerRow]) -> Sight:
    """Where it is seen what runners have in hand."""
    return Sight("tasks", f"state:running runner:{','.join(str(runner.id) for runner in runners)}")


def runners_of(found: Sequence[RunnerRow]) -> str:
    """Runners that take something, at the beginning of a sentence."""
    return f"R{runner_of(found[0])[1:]} takes" if len(found) == 1 else f"{len(found)} runners take"


def named(names: Iterable[str]) -> str:
    """The first of some names."""
    listed = list(names)
    more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    return ", ".join(listed[:MOST_NAMED]) + more
