"""cause: one reason for a task's state, and phrases that the reasons share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Literal, NamedTuple

from runner.policy.claim_facts import CommonCause
from runner.queries.runners import RunnerRow, SlotKind
from runner.text.formatting import age
from runner.text.sanitize import one_line

MOST_NAMED = 4
"""Maximum number of handlers that one sentence lists."""


class RelatedView(NamedTuple):
    """A place that shows more about a cause.

    Args:
        kind: a list of tasks, one task, the runners, or the audit log.
        about: the filter, the task's id, the runner's id or nothing, or the changed object: "queue mail".
    """

    kind: Literal["tasks", "task", "runners", "audit"]
    about: str = ""

    @property
    def command(self) -> str:
        """The shell command that shows it."""
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
    """One reason for a task's state.

    Args:
        kind: a name for programs, such as due, paused, unknown or full.
        text: a sentence; values from the database in it are safe to print.
        advice: the next step; empty if there is none.
        view: where to see more; None if there is nothing more.
        common: the cause without the details of the task; None for the text.
    """

    kind: str
    text: str
    advice: str = ""
    view: RelatedView | None = None
    common: CommonCause | None = None

    @property
    def sentences(self) -> str:
        """The text and the advice."""
        return f"{self.text} {self.advice[:1].upper()}{self.advice[1:]}{'.' if self.advice else ''}".rstrip()


def describe(runner: RunnerRow) -> str:
    """A runner, as a phrase."""
    return f"runner {runner.id} ({one_line(runner.host)}, process {runner.pid})"


def blocked_runner(runner: RunnerRow) -> Cause:
    """The reason why a live runner neither starts nor ends tasks.

    Args:
        runner: a runner with a block.
    """
    duration, culprit = age(runner.blocked_for), one_line(runner.culprit)
    if runner.block is not None and runner.block.locked:
        text = (
            f"R{describe(runner)[1:]} has executed no Python code for {duration}: C code of {culprit} holds "
            "the interpreter lock."
        )
        return Cause("locked", text, 'use executor="process" for this handler', at_runner(runner))
    place = one_line(runner.block.place) if runner.block is not None and runner.block.tasks else ""
    text = (
        f"The event loop of {describe(runner)} has been blocked for {duration} by {culprit}"
        f"{f' at {place}' if place else ''}: a blocking call in an async handler."
    )
    return Cause("stalled", text, 'make it a plain function, or use executor="process"', at_runner(runner))


def at_runner(runner: RunnerRow | None) -> RelatedView:
    """The list of runners at one runner, or at the top without one."""
    return RelatedView("runners", str(runner.id) if runner else "")


def tasks_of(runners: Sequence[RunnerRow]) -> RelatedView:
    """The list of tasks that these runners execute."""
    return RelatedView("tasks", f"state:running runner:{','.join(str(runner.id) for runner in runners)}")


def claimants(runners: Sequence[RunnerRow]) -> str:
    """Runners as the subject of a sentence, with the verb: `Runner 3 (...) claims`, `2 runners claim`."""
    return f"R{describe(runners[0])[1:]} claims" if len(runners) == 1 else f"{len(runners)} runners claim"


def listed(names: Iterable[str]) -> str:
    """The first names of a list, and the number of the others."""
    items = list(names)
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(items[:MOST_NAMED]) + more


def resize(runner_id: int, kind: SlotKind, number: int) -> str:
    """The command that changes the number of slots of one kind."""
    option = "concurrency" if kind == "slots" else kind
    return f"runner resize {runner_id} --{option} {number}"
