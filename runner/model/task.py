"""Tasks: their states, the moves between states, and their records."""

import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar

from runner.model.headers import read_headers, require_headers, write_headers

LAST_ID = 2**63 - 1
"""The largest id that a database stores."""

R_co = TypeVar("R_co", covariant=True)
"""The type of the result of a task."""


class Described(StrEnum):
    """Words that carry a description each."""

    description: str
    """The meaning of the word."""

    def __new__(cls, value: str, description: str = "") -> Self:
        """Make a member that compares equal to its value and carries its description."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member


class State(Described):
    """The stored state of a task. The first three are live, the last three final."""

    WAITING = "waiting", "The task runs once its time has come and a runner has a free slot."
    BLOCKED = "blocked", "The task waits for other tasks to finish."
    RUNNING = "running", "A runner has claimed the task and holds a lease on it."
    SUCCEEDED = "succeeded", "The handler finished, and its result is stored."
    DEAD = "dead", "The task failed for good: its attempts are used up, or its handler gave up."
    CANCELLED = "cancelled", "An operator terminated the task, a task that it depends on failed, or it expired."

    @property
    def final(self) -> bool:
        """True if the task has finished and is in the history."""
        return self in FINAL


LIVE = (State.WAITING, State.BLOCKED, State.RUNNING)
FINAL = (State.SUCCEEDED, State.DEAD, State.CANCELLED)


MOST_ATTEMPTS = 1_000_000_000
HIGHEST_FENCE = 1_000_000_000_000_000_000
"""Highest values of the counts of a task (`attempt`, `rescues`, `releases`, `interruptions`), and of `fence` and
`version`. Checks of the table refuse higher ones, and only a foreign client can come near them."""


class Shown(Described):
    """The displayed state of a task: a stored state, or one derived from it and the database's clock."""

    READY = "ready", "Waiting and due: the next free runner claims it."
    SCHEDULED = "scheduled", "Waiting for its time to come; never attempted yet."
    RETRYING = "retrying", "Waiting for its next attempt after an earlier one."
    BLOCKED = State.BLOCKED.value, State.BLOCKED.description
    RUNNING = State.RUNNING.value, State.RUNNING.description
    LOST = "lost", "Running on a runner whose lease has expired; another runner rescues it."
    SUCCEEDED = State.SUCCEEDED.value, State.SUCCEEDED.description
    DEAD = State.DEAD.value, State.DEAD.description
    CANCELLED = State.CANCELLED.value, State.CANCELLED.description


NEW = timedelta(hours=1)
"""A dead task is new for so long, and then part of the old stock."""


def is_new(ended_at: datetime | None, at: datetime) -> bool:
    """True if a task or an attempt ended in the last hour."""
    return ended_at is not None and at - ended_at <= NEW


class Move(NamedTuple):
    """A legal transition from any of `sources` to `target`.

    Args:
        sources: states that the move starts from; None for a task that does not exist yet.
        target: state after the move.
        description: the event that causes the move, in one sentence.
    """

    sources: tuple[State | None, ...]
    target: State
    description: str


# An attempt counts from its claim on, because a runner that dies writes nothing; `snooze`, `release` and `interrupt`
# take it back. An operator does not end a running task: the operation is a request, and its runner makes the move
# `cancel` when the handler has ended, unless the task has succeeded by then.
MOVES: dict[str, Move] = {
    "submit": Move((None,), State.WAITING, "An application submits the task."),
    "block": Move(
        (None,), State.BLOCKED, "An application submits the task, and a task that it depends on is unfinished."
    ),
    "claim": Move((State.WAITING,), State.RUNNING, "A runner claims the task; the attempt and the fence go up."),
    "succeed": Move((State.RUNNING,), State.SUCCEEDED, "The handler returned a result."),
    "retry": Move((State.RUNNING,), State.WAITING, "The attempt failed; the retry plan sets the time of the next one."),
    "die": Move((State.RUNNING,), State.DEAD, "The attempt failed and was the last one, or the handler gave up."),
    "snooze": Move((State.RUNNING,), State.WAITING, "The handler postponed the task; the attempt does not count."),
    "release": Move(
        (State.RUNNING,), State.WAITING, "The runner returned the task before executing it; the attempt does not count."
    ),
    "interrupt": Move(
        (State.RUNNING,),
        State.WAITING,
        "The runner stopped before the handler ended, or lost the database; the attempt does not count.",
    ),
    "rescue": Move(
        (State.RUNNING,),
        State.WAITING,
        "The lease of the task's runner expired; the attempt counts if the task had started.",
    ),
    "cancel": Move(
        (State.WAITING, State.BLOCKED, State.RUNNING),
        State.CANCELLED,
        "An operator terminated the task or undid its retry, a task that it depends on failed, or it expired.",
    ),
    "requeue": Move((State.DEAD, State.CANCELLED), State.WAITING, "An operator runs the finished task again."),
    "unblock": Move((State.BLOCKED,), State.WAITING, "The last dependency finished, or an operator removed it."),
    "restore": Move((State.CANCELLED,), State.WAITING, "An operator undid a termination."),
    "undo_retry": Move((State.WAITING,), State.DEAD, "An operator undid a retry of a dead task."),
    "reblock": Move(
        (State.WAITING, State.CANCELLED),
        State.BLOCKED,
        "An operator undid an unblock or the end of a blocked task, the task before it in its order key failed, or its "
        "handler called a task.",
    ),
}
"""Every legal transition by its verb. All code that changes a state takes the source and the target from here."""


DEFAULT_QUEUE = "default"
"""The queue of a task without another one."""


class Priority:
    """The bounds of a priority: 9 runs first, 1 is the default."""

    LOWEST, HIGHEST, DEFAULT = 1, 9, 1


class Claimed(NamedTuple):
    """A claimed task, with the columns that its execution needs."""

    id: int
    queue: str
    handler: str
    key: str | None
    payload: str | None
    """JSON text as submitted; None if it exceeds the limit of the runner."""
    priority: int
    run_at: object
    """Its due time as runner.db.types.PositionTime. With `id` it is the task's position in its lane."""
    attempt: int
    """Number of this attempt, from 1."""
    max_attempts: int
    fence: int
    timeout: float | None
    """Seconds; None for the handler's timeout."""
    rescues: int
    parents: str | None = None
    """Outcomes of the tasks that it depended on, as JSON text; None without dependencies."""
    oversize: int | None = None
    """Size in bytes of a payload that exceeds the limit of the runner."""
    expires_in: float | None = None
    """Seconds from the claim after which the task may not start; None if it does not expire."""
    claimed_at: object = None
    """The time of the claim as PositionTime."""
    hosts: str = ""
    """The hosts that may take it; empty for all."""
    address: str | None = None
    """The address of its row after the claim, on PostgreSQL; None after a change of the row."""
    headers: str | None = None
    """Its headers as JSON text; None without any."""
    has_order_key: bool = False
    tenant: str | None = None
    tags: str | None = None
    """Its tags as JSON text; None without any."""

    @property
    def late(self) -> float | None:
        """Seconds from the due time to the claim, by the database's clock; None if a plain insert's time is odd."""
        try:
            if isinstance(self.run_at, int):
                return (self.claimed_at - self.run_at) / 1_000_000  # type: ignore[operator]
            claimed_at, run_at = self.claimed_at, self.run_at
            return (datetime.fromisoformat(claimed_at) - datetime.fromisoformat(run_at)).total_seconds()  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None


BUCKETS = 1_000
"""The bucket of a task is 0 to BUCKETS - 1."""


class Scope(StrEnum):
    """How long a task holds its unique key."""

    FOREVER = "forever"
    UNTIL_STARTED = "until started"
    UNTIL_FINISHED = "until finished"
    FOR_A_TIME = "for a time"


class OnDuplicate(StrEnum):
    """How a submit treats a task whose unique key another task holds."""

    SKIP = "skip"
    """Submit nothing and return the id of the other task."""
    REPLACE = "replace"
    """Give the new values to the other task if it has not started; otherwise do nothing."""
    ERROR = "error"
    """Reject the task and all tasks of the same submit."""


class UniqueKey(NamedTuple):
    """A unique key, and how it deduplicates tasks of one handler.

    Args:
        text: the unique key.
        scope: how long this task holds the key.
        seconds: duration for Scope.FOR_A_TIME, from the submit; None for the other scopes.
        on_duplicate: how to treat the task if another one holds the key, in the database or in the same submit.
        longest: seconds from the submit of a waiting task up to which replacements may move its due time; None for no
            limit.
    """

    text: str
    scope: Scope = Scope.UNTIL_FINISHED
    seconds: float | None = None
    on_duplicate: OnDuplicate = OnDuplicate.SKIP
    longest: float | None = None


OnFailure: TypeAlias = Literal["wait", "cancel", "run"]
"""The effect of a dead or cancelled parent on the task that waits for it.

"wait": the task stays blocked until the parent is retried and succeeds, or an operator unblocks the task.
"cancel": the task is cancelled too. "run": the task runs anyway."""


@dataclass(frozen=True, slots=True)
class BatchMember:
    """A parent in the same submit; it precedes the task that depends on it.

    Args:
        position: index of the parent in the submit.
    """

    position: int


class DependsOn(NamedTuple):
    """A dependency on another task.

    Args:
        parent: the parent's id; or its handler and key, which mean the latest task submitted with them, now or later;
            or a BatchMember of the same submit. In `@handler(after=...)`, a handler or its name.
        on_failure: effect of a dead or cancelled parent.
    """

    parent: object
    on_failure: OnFailure = "wait"


class OrderKey(NamedTuple):
    """An order key: tasks with the same one run one at a time, in the order of submit.

    Args:
        text: the order key.
        on_failure: effect of a dead or cancelled predecessor.
    """

    text: str
    on_failure: OnFailure = "wait"


class NewWorkflow(NamedTuple):
    """A workflow to submit with its tasks, in place of its id.

    Args:
        name: its name; None without one.
        of: id of a running task, whose dependents then wait for the new tasks too. Without a name, its workflow takes
            them.
    """

    name: str | None = None
    of: int | None = None


class NewTask(NamedTuple):
    """A task to submit. None leaves a value to the table's or the handler's default.

    Args:
        handler: name of the handler.
        payload: arguments, as the text of a JSON object.
        queue: name of the queue.
        key: business key to search by.
        priority: 1 to 9; 9 runs first.
        run_at: earliest time of execution.
        delay: seconds from now by the database's clock; excludes run_at.
        expires: seconds from the due time after which no attempt starts.
        expires_at: time after which no attempt starts, instead of `expires`.
        max_attempts: maximum number of attempts, at least 1.
        retry: retry plan as text.
        timeout: seconds allowed for one attempt.
        tags: JSON array of strings, as text.
        headers: texts by name that travel with the task, as a JSON object.
        submitted_by: name of the submitter.
        bucket: 0 to BUCKETS - 1; None for a random one.
        tenant: customer, account or host that it belongs to, for limits per tenant.
        hosts: names of the hosts that may take it, sorted, with commas between them; empty for all.
        hosts_for: seconds from the due time after which any host may take it.
        route: text that chooses its shard; None for the shard of the task that submits it.
        unique_key: unique key; None without deduplication.
        after: dependencies; None without any.
        order_key: order key; None for a task that runs in any order.
        workflow: id of its workflow; a NewWorkflow for all tasks of a submit that creates it; None without one.
    """

    handler: str
    payload: str = "{}"
    queue: str | None = None
    key: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: float | None = None
    expires: float | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    retry: str | None = None
    timeout: float | None = None
    tags: str | None = None
    headers: str | None = None
    submitted_by: str | None = None
    bucket: int | None = None
    tenant: str | None = None
    hosts: str | None = None
    hosts_for: float | None = None
    route: str | None = None
    unique_key: UniqueKey | None = None
    after: tuple[DependsOn, ...] | None = None
    order_key: OrderKey | None = None
    workflow: int | NewWorkflow | None = None

    def with_headers(self, headers: Mapping[str, str]) -> "NewTask":
        """Return the task with more headers, for a function around submits.

        Raises:
            InvalidTask: a name or a value is not valid, or there are too many.
        """
        both = {**read_headers(self.headers), **headers}
        require_headers("headers", both)
        return self._replace(headers=write_headers(both))


class PreparedTask(NewTask, Generic[R_co]):
    """A task to submit whose handler returns R_co. Only type checkers know the difference."""

    __slots__ = ()


class SubmitResult(NamedTuple):
    """The result of a submit.

    Args:
        ids: one id per submitted task, in order; for a duplicate, the id of the existing task.
        duplicates: indexes of the duplicates, which created no task.
        replaced: indexes of the duplicates whose values replaced those of the existing task.
        workflow: id of the workflow that the submit created; None without one.
    """

    ids: list[int]
    duplicates: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()
    workflow: int | None = None


CURRENT_TASK: contextvars.ContextVar[Claimed | None] = contextvars.ContextVar("runner_task", default=None)
"""The task that the current context executes; threads of a runner and asyncio.to_thread inherit it."""
