"""claim facts: the data that the conditions of a claim read about a task, and the explanations that they return."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from runner.db.schema import Tables


class CommonCause(NamedTuple):
    """A cause, without the details of one task: tasks with equal ones have the same cause.

    Args:
        phrase: the cause as a phrase; values from the database in it are safe to print.
        command: the shell command that lifts it for all of them; FILTER in it is the filter of these tasks. Empty if no
            command does.
        terms: terms that restrict FILTER to the tasks with this cause.
    """

    phrase: str
    command: str = ""
    terms: str = ""


class Explanation(NamedTuple):
    """Why a condition keeps a task from running.

    Args:
        kind: a name for programs, such as due or paused.
        text: a sentence; values from the database in it are safe to print.
        advice: the next step; empty if there is none.
        view: where to see more: one task by its id, or the audit log of an object.
        common: the cause without the details of the task; None for the text.
    """

    kind: str
    text: str
    advice: str = ""
    view: tuple[Literal["task", "audit"], str] | None = None
    common: CommonCause | None = None


class RemedyStep(NamedTuple):
    """One change an operator can make.

    Args:
        kind: a name for programs: unblock, attempts, due, resume, limit, runner, slots, threads or priority.
        text: the condition, as the continuation of "if".
        command: the shell command that makes the change.
    """

    kind: str
    text: str
    command: str


class _Task(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def run_at(self) -> datetime | None: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int | None: ...
    @property
    def rescues(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def handler(self) -> str: ...
    @property
    def shown(self) -> str: ...
    @property
    def tenant(self) -> str | None: ...


class _Pause(Protocol):
    @property
    def since(self) -> datetime | None: ...
    @property
    def until(self) -> datetime | None: ...
    @property
    def by(self) -> str | None: ...
    @property
    def why(self) -> str | None: ...


class _Entry(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def pause(self) -> _Pause | None: ...


class ClaimFacts(Protocol):
    """The facts about a live task that explanations use."""

    @property
    def task(self) -> _Task:
        """The task."""

    @property
    def at(self) -> datetime:
        """The database's time."""

    @property
    def predecessor(self) -> _Task | None:
        """The live task whose turn it is, of those with its order key; None if it is its own turn."""

    @property
    def refused(self) -> Collection[str]:
        """The names of the conditions whose SQL about the task is not true."""

    @property
    def later(self) -> bool:
        """True if its due time is in the future."""

    @property
    def queue(self) -> _Entry | None:
        """The registry entry of its queue; None if there is none."""

    @property
    def handler(self) -> _Entry | None:
        """The registry entry of its handler; None if there is none."""

    @property
    def limits(self) -> Sequence[object]:
        """The limits of its queue and of its handler, each a runner.policy.limits.LimitUsage."""


class ClaimScope(NamedTuple):
    """The other names that the SQL of a condition may use.

    Args:
        holds: the names of the lane columns that are true if this claim has locked the limits of the lane's queue, and
            of its handler; None for a claim that locks none.
        selection: the names of the conditions of the runner's selection; see runner.policy.selection.
        by_tenant: True for a walk along the index `tenant`.
    """

    tables: Tables
    holds: tuple[str, str] | None = None
    selection: tuple[str, ...] = ()
    by_tenant: bool = False
