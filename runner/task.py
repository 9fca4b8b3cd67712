"""Task, State and MOVES: what a task is, and every way in which it may change."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias


class State(StrEnum):
    """Where a task is in its life. The first three are live, the last three final."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """True when the task has ended and stands in the history."""
        return self in FINAL


LIVE = (State.WAITING, State.BLOCKED, State.RUNNING)
FINAL = (State.SUCCEEDED, State.DEAD, State.CANCELLED)


class Shown(StrEnum):
    """What people see: a stored state, or one that follows from it and the time."""

    READY = "ready"
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    BLOCKED = State.BLOCKED.value
    RUNNING = State.RUNNING.value
    LOST = "lost"
    SUCCEEDED = State.SUCCEEDED.value
    DEAD = State.DEAD.value
    CANCELLED = State.CANCELLED.value


class Move(NamedTuple):
    """A legal transition: from any of `sources` to `target`; None stands for "no row"."""

    sources: tuple[State | None, ...]
    target: State


MOVES: dict[str, Move] = {
    "submit": Move((None,), State.WAITING),
    "block": Move((None,), State.BLOCKED),
    "claim": Move((State.WAITING,), State.RUNNING),
    "succeed": Move((State.RUNNING,), State.SUCCEEDED),
    "retry": Move((State.RUNNING,), State.WAITING),
    "bury": Move((State.RUNNING,), State.DEAD),
    "snooze": Move((State.RUNNING,), State.WAITING),
    "release": Move((State.RUNNING,), State.WAITING),
    "rescue": Move((State.RUNNING,), State.WAITING),
    "cancel": Move((State.WAITING, State.BLOCKED, State.RUNNING), State.CANCELLED),
    "requeue": Move((State.DEAD, State.CANCELLED), State.WAITING),
    "unblock": Move((State.BLOCKED,), State.WAITING),
    "restore": Move((State.CANCELLED,), State.WAITING),
    "rebury": Move((State.WAITING,), State.DEAD),
    "reblock": Move((State.WAITING, State.CANCELLED), State.BLOCKED),
}
"""Every legal transition by its verb. Whatever changes a state takes source and target from here."""


class Priority:
    """The bounds of a priority: 9 goes first, 1 is what a task gets that asks for nothing."""

    LOWEST, HIGHEST, DEFAULT = 1, 9, 1


class Claimed(NamedTuple):
    """A task as a claim hands it to its runner: what executing it needs, and nothing else."""

    id: int
    queue: str
    handler: str
    key: str | None
    payload: str
    """JSON text, as it was submitted."""
    priority: int
    run_at: object
    """The database's own form of the time; with `id` it marks the place in the lane."""
    attempt: int
    """This attempt's number, from 1."""
    max_attempts: int
    fence: int
    timeout: float | None
    """Seconds; None stands for the handler's."""
    rescues: int
    checkpoint: str | None
    submitted: float | None = None
    """The minute in which it was submitted, counted from 1970; None where no time stands in the row."""
    parents: str | None = None
    """How the tasks that it waited for have ended, as JSON text; None when it waited for none."""


BUCKETS = 1_000
"""A task's bucket is a number from 0 to one less than this."""


class Scope(StrEnum):
    """How long a unique key is held by the task that was submitted with it."""

    FOREVER = "forever"
    UNTIL_FINISHED = "until finished"
    FOR_A_TIME = "for a time"


class OnDuplicate(StrEnum):
    """What becomes of a task whose unique key is held by another."""

    SKIP = "skip"
    """Nothing: the other one's id is the answer."""
    REPLACE = "replace"
    """While the other one waits it takes over the new values; when it runs or has ended, nothing."""
    ERROR = "error"
    """It is refused, and the batch that it stands in with it."""


class Unique(NamedTuple):
    """What makes a task the only one of its handler.

    Args:
        key: that no other task of the handler may hold at the same time.
        scope: how long this task will hold it.
        seconds: the length of time of Scope.FOR_A_TIME, from the submit; None for the other scopes.
        on_duplicate: what to do when another task holds it; a task of the same batch counts.
    """

    key: str
    scope: Scope = Scope.UNTIL_FINISHED
    seconds: float | None = None
    on_duplicate: OnDuplicate = OnDuplicate.SKIP


OnFailure: TypeAlias = Literal["wait", "cancel", "run"]
"""What a parent that is dead or cancelled means for a task that waits for it.

"wait": it goes on waiting, until the parent is run again and succeeds, or an operator lets it go; "cancel": it is
cancelled too; "run": it runs anyway."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A task that is submitted together with the one that waits for it, before which it stands.

    Args:
        place: its place among them, from 0.
    """

    place: int


class After(NamedTuple):
    """That a task waits until another one has ended.

    Args:
        parent: the other's id; or its handler's name and its business key, which stand for the task that was submitted
            last with them, and may be submitted later than the one that waits; or a sibling.
        on_failure: what it means when the other one is dead or cancelled.
    """

    parent: int | tuple[str, str] | Sibling
    on_failure: OnFailure = "wait"


class NewTask(NamedTuple):
    """A task to submit; None leaves a value to the table's or the handler's default.

    Args:
        handler: the handler's name.
        payload: its arguments, a JSON object as text.
        queue: the lane that people name, pause and limit.
        key: a business key to search for.
        priority: 1 to 9, 9 goes first.
        run_at: not before this time.
        delay: seconds from now, on the database's clock; not together with run_at.
        max_attempts: how often it may be tried, at least 1.
        retry: the retry plan as text.
        timeout: seconds that an attempt may take.
        tags: a JSON array of texts, as text.
        trace: a W3C traceparent.
        submitted_by: who or what submitted it.
        bucket: a number from 0 to BUCKETS - 1; one at random when None.
        unique: what makes it the only one of its handler; None when nothing does.
        after: the tasks that it waits for; None when it waits for none.
    """

    handler: str
    payload: str = "{}"
    queue: str | None = None
    key: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    max_attempts: int | None = None
    retry: str | None = None
    timeout: float | None = None
    tags: str | None = None
    trace: str | None = None
    submitted_by: str | None = None
    bucket: int | None = None
    unique: Unique | None = None
    after: tuple[After, ...] | None = None

    @property
    def independent(self) -> bool:
        """True when submitting it asks for no other task: it is one statement, and waits for nobody's transaction."""
        return self.unique is None and self.after is None


class Receipt(NamedTuple):
    """What became of submitted tasks.

    Args:
        ids: one for each task, in their order; of a duplicate the id of the task that was there already.
        duplicates: the places, from 0, of those that were duplicates: no task was made of them.
        replaced: those of the duplicates whose values the task that was there has taken.
    """

    ids: list[int]
    duplicates: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()
