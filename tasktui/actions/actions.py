"""The actions of the console. Key bindings, footers, help, the palette and the read-only guard derive from ACTIONS.

An action on tasks also has the builder of its operation and its command-line options here. The dialogs of all actions
are in tasktui.actions.dialogs.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from runner.errors import InvalidInput
from runner.model.duration import parse_duration, parse_spread
from runner.operations.results import Actor
from tasktui.actions.action import Action, ActionTarget

if TYPE_CHECKING:
    from runner.operations.bulk import Operation

EVERY = "all"
"""Answer that removes all dependencies of a task."""

MOST_DIGITS = 19
"""Digits of an integer that both databases can store."""


def retry(by: Actor, answer: str) -> "Operation":
    """Build a retry, spread over a duration."""
    from runner.operations.retry import retry_now

    return partial(retry_now, by=by, spread=parse_spread(answer))


def retry_options(answer: str) -> Sequence[object]:
    """The options of a retry."""
    return ("--spread", answer) if answer not in ("", "0", "0s") else ()


def terminate(by: Actor, _answer: str) -> "Operation":
    """Build a termination."""
    from runner.operations.terminate import terminate as apply_terminate

    return partial(apply_terminate, by=by)


def delay(by: Actor, answer: str) -> "Operation":
    """Build a delay by a duration."""
    from runner.operations.delay import delay as apply_delay

    return partial(apply_delay, seconds=parse_duration(answer).total_seconds(), by=by)


def delay_options(answer: str) -> Sequence[object]:
    """The options of a delay."""
    return ("--by", answer)


def unblock(by: Actor, answer: str) -> "Operation":
    """Build an unblock of one dependency or of all."""
    from runner.operations.unblock import unblock as apply_unblock

    return partial(apply_unblock, by=by, dependency_id=_dependency_id(answer))


def unblock_options(answer: str) -> Sequence[object]:
    """The options of an unblock."""
    return ("--dependency", answer) if answer not in ("", EVERY) else ()


def signal(by: Actor, answer: str) -> "Operation":
    """Build a signal: its name, and after it a payload as JSON."""
    from runner.operations.signal import signal as apply_signal

    name, _, payload = answer.strip().partition(" ")
    return partial(apply_signal, name=name, payload=payload.strip() or None, by=by)


def signal_options(answer: str) -> Sequence[object]:
    """The arguments of a signal."""
    name, _, payload = answer.strip().partition(" ")
    return (name, payload.strip()) if payload.strip() else (name,)


def rewind(by: Actor, answer: str) -> "Operation":
    """Build a rewind to a checkpoint or to a step."""
    from runner.operations.rewind import forget_steps
    from runner.operations.rewind import rewind as apply_rewind

    name = answer.strip()
    if not name:
        raise InvalidInput(why="name a checkpoint or a step; the task screen lists them")
    target = rewind_target(name)
    if isinstance(target, str):
        return partial(forget_steps, name=target, by=by)
    return partial(apply_rewind, number=target, by=by)


def rewind_options(answer: str) -> Sequence[object]:
    """The options of a rewind."""
    target = rewind_target(answer)
    option = "--step" if isinstance(target, str) else "--to"
    return (f"{option}={target}",) if str(target).startswith("-") else (option, target)


STEP = "step:"
"""The prefix of the name of a step that is a number, or that begins with it."""


def rewind_target(answer: str) -> int | str:
    """The number of a checkpoint, or the name of a step."""
    name = answer.strip()
    if name.isdecimal() and len(name) < MOST_DIGITS:
        return int(name)
    rest = name.removeprefix(STEP)
    return rest.strip() if rest.strip().isdecimal() or rest.startswith(STEP) else name


def _dependency_id(answer: str) -> int | None:
    """Parse a dependency id; None for all dependencies."""
    if answer in ("", EVERY):
        return None
    if not (answer.isdecimal() and len(answer) < MOST_DIGITS):
        raise InvalidInput(why=f"{answer[:30]!r} is not a dependency id; enter an id from the task screen, or {EVERY}")
    return int(answer)


ACTIONS = {
    action.name: action
    for action in (
        Action(
            "retry",
            "R",
            "Retry",
            ActionTarget.TASKS,
            "Spread over",
            "0s",
            verb="retry_now",
            operation=retry,
            options=retry_options,
        ),
        Action("terminate", "T", "Terminate", ActionTarget.TASKS, verb="terminate", operation=terminate),
        Action(
            "delay",
            "D",
            "Delay",
            ActionTarget.TASKS,
            "Delay by",
            "10m",
            required=True,
            verb="delay",
            operation=delay,
            options=delay_options,
        ),
        Action(
            "unblock",
            "U",
            "Unblock",
            ActionTarget.TASKS,
            "Dependency",
            EVERY,
            in_footer=False,
            verb="unblock",
            operation=unblock,
            options=unblock_options,
        ),
        Action("edit", "E", "Edit", ActionTarget.TASKS, verb="edit"),
        Action(
            "rewind",
            "W",
            "Rewind",
            ActionTarget.TASK,
            "Continue from",
            "1",
            required=True,
            in_footer=False,
            verb="rewind",
            operation=rewind,
            options=rewind_options,
        ),
        Action(
            "signal",
            "I",
            "Signal",
            ActionTarget.TASKS,
            "Name, payload",
            "approved",
            required=True,
            in_footer=False,
            verb="signal",
            operation=signal,
            options=signal_options,
        ),
        Action("copy", "N", "New copy", ActionTarget.TASK, in_footer=False),
        Action("submit", "A", "Submit a task", ActionTarget.HANDLER, in_footer=False),
        Action("stack", "V", "Stack", ActionTarget.TASK, in_footer=False),
        Action("pause", "P", "Pause", ActionTarget.QUEUE, "Pause for", "30m", required=True),
        Action(
            "pause --handler",
            "H",
            "Pause handler",
            ActionTarget.HANDLER,
            "Pause for",
            "30m",
            required=True,
            in_footer=False,
        ),
        Action(
            "limit queue",
            "M",
            "Limit",
            ActionTarget.QUEUE,
            "Limits",
            "concurrency=5 per-tenant=none rate=none",
            required=True,
        ),
        Action(
            "limit handler",
            "K",
            "Limit handler",
            ActionTarget.HANDLER,
            "Limits",
            "concurrency=5 per-tenant=none rate=none",
            required=True,
            in_footer=False,
        ),
        Action(
            "breaker", "C", "Breaker", ActionTarget.HANDLER, "First probe after", "10m", required=True, in_footer=False
        ),
        Action("drain", "L", "Drain", ActionTarget.RUNNER),
        Action("resize", "S", "Resize", ActionTarget.RUNNER, "New size", "concurrency=100 threads=10", required=True),
        Action("schedules add", "A", "Add", ActionTarget.SCHEDULE, in_footer=False),
        Action("schedules run", "N", "Run now", ActionTarget.SCHEDULE),
        Action("schedules pause", "P", "Pause", ActionTarget.SCHEDULE, "Pause for", "30m", required=True),
        Action("schedules edit", "E", "Edit", ActionTarget.SCHEDULE),
        Action("schedules delete", "X", "Delete", ActionTarget.SCHEDULE, in_footer=False),
        Action(
            "alerts silence", "Q", "Silence", ActionTarget.ALERT, "Silence for", "2h", required=True, in_footer=False
        ),
        Action("undo ENTRY", "Z", "Undo", ActionTarget.SCHEDULE, in_footer=False),
        Action("undo", "Z", "Undo", ActionTarget.ENTRY),
        Action("undo --group", "B", "Undo group", ActionTarget.ENTRY, in_footer=False),
    )
}
"""Every action by name."""

OF_THE_TASK = {name for name, action in ACTIONS.items() if action.verb}
"""Commands whose keys act on the task under the cursor."""
