"""Protocol between a server and its HTTP executors, as typed messages."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from runner.model.duration import LONGEST

MOST_BYTES = 16 << 20
"""Maximum size of a request in bytes."""

MOST_TASKS = 1_000
"""Maximum number of tasks in one request."""

LONGEST_WAIT = 60.0
"""Maximum seconds for which a pull waits."""

Id: TypeAlias = Annotated[int, Field(ge=1, lt=1 << 63)]
ExecutorName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,100}$")]
Reason: TypeAlias = Annotated[str, Field(max_length=16_384)]
Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, lt=LONGEST.total_seconds(), allow_inf_nan=False)]


class WireMessage(BaseModel):
    """A part of the protocol; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class AttemptKey(WireMessage):
    """An attempt of a task."""

    shard: Annotated[str, Field(max_length=200, description="the database of the task; empty if there is only one")] = (
        ""
    )
    id: Id
    fence: Annotated[int, Field(ge=1, lt=1 << 63, description="number of the claim: a settle with an older one fails")]

    @property
    def claim(self) -> tuple[str, int, int]:
        """Shard, task id and fence."""
        return self.shard, self.id, self.fence


class PullRequest(WireMessage):
    """Ask for tasks."""

    executor: Annotated[ExecutorName, Field(description="name of this executor process, which no other one has")]
    handlers: Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=1_000)]
    free: Annotated[int, Field(ge=0, le=MOST_TASKS, description="number of tasks that it can start now")]
    wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT, description="seconds to wait for the first task")] = 20.0


class PulledTask(AttemptKey):
    """A task that the executor has now."""

    handler: str
    queue: str
    payload: dict[str, Any]
    key: str | None
    priority: int
    attempt: Annotated[int, Field(description="number of this attempt, from 1")]
    max_attempts: int
    timeout: Annotated[float | None, Field(description="seconds allowed for the attempt; null for no limit")]
    headers: dict[str, str]
    checkpoint: Annotated[JsonValue, Field(description="state of the last checkpoint; null without one")]


class PullReply(WireMessage):
    """Tasks for an executor, and its duties."""

    tasks: list[PulledTask]
    lease: Annotated[float, Field(description="seconds after which a task without a heartbeat is lost")]
    heartbeat: Annotated[float, Field(description="seconds between two heartbeats")]
    draining: Annotated[bool, Field(description="true if the server stops: pull from another one")]


class ExecutorError(WireMessage):
    """The error of a failed attempt."""

    type: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.$]{0,199}$")]
    message: Annotated[str, Field(max_length=65_536)] = ""
    traceback: Annotated[str, Field(max_length=1_048_576)] = ""


class Succeed(AttemptKey):
    """The handler returned."""

    outcome: Literal["succeed"]
    result: JsonValue = None
    why: Annotated[Reason, Field(description="why the result was not kept, without the result; else empty")] = ""


class RetryLater(AttemptKey):
    """The attempt failed, and the retry plan of the task applies."""

    outcome: Literal["retry"]
    delay: Annotated[Seconds | None, Field(description="seconds until the next attempt; null for the plan")] = None
    why: Reason = ""
    error: ExecutorError | None = None


class Die(AttemptKey):
    """The attempt failed, and no other one follows."""

    outcome: Literal["die"]
    why: Reason = ""
    error: ExecutorError | None = None


class SnoozeTask(AttemptKey):
    """Run the task again later; this attempt does not count."""

    outcome: Literal["snooze"]
    delay: Seconds
    why: Reason = ""


class HandBack(AttemptKey):
    """The handler did not start; this attempt does not count."""

    outcome: Literal["release"]
    why: Reason = ""


class Stopped(AttemptKey):
    """The handler ended because a reply listed the attempt in `stop`."""

    outcome: Literal["stopped"]


Ending: TypeAlias = Annotated[
    Succeed | RetryLater | Die | SnoozeTask | HandBack | Stopped, Field(discriminator="outcome")
]


class SettleRequest(WireMessage):
    """Report the ends of attempts."""

    executor: ExecutorName
    endings: Annotated[list[Ending], Field(min_length=1, max_length=MOST_TASKS)]


class EndingReply(AttemptKey):
    """The answer to one ending."""

    status: Annotated[
        Literal["settled", "refused", "pending"],
        Field(description="settled: it is written. refused: it changed nothing. pending: send it again"),
    ]
    move: Annotated[str, Field(description="move of the task, such as succeed, retry or die; empty if refused")] = ""
    why: str = ""


class SettleReply(WireMessage):
    """The answers, in the order of the request."""

    endings: list[EndingReply]


class LeaseRequest(WireMessage):
    """Renew the leases of the tasks that an executor runs."""

    executor: ExecutorName
    tasks: Annotated[list[AttemptKey], Field(max_length=10 * MOST_TASKS)]


class StopRequest(AttemptKey):
    """An attempt that has to end."""

    terminated: Annotated[bool, Field(description="true if an operator terminated the task")]


class LeaseReply(WireMessage):
    """The state of the tasks of an executor."""

    stop: Annotated[list[StopRequest], Field(description="end their handlers, then settle them")]
    lost: Annotated[list[AttemptKey], Field(description="end their handlers: a settle would be refused")]


class ProgressNote(AttemptKey):
    """The progress of an attempt."""

    done: Amount
    total: Amount | None = None
    unit: Annotated[str, Field(max_length=40)] = ""


class ProgressRequest(WireMessage):
    """Report progress."""

    executor: ExecutorName
    progress: Annotated[list[ProgressNote], Field(min_length=1, max_length=MOST_TASKS)]


class LineNote(AttemptKey):
    """A line of the log of an attempt."""

    level: Annotated[int, Field(ge=0, le=50, description="10 debug, 20 info, 30 warning, 40 error, 50 critical")] = 20
    text: Reason


class LogRequest(WireMessage):
    """Add lines to the logs of attempts."""

    executor: ExecutorName
    lines: Annotated[list[LineNote], Field(min_length=1, max_length=MOST_TASKS)]


class CheckpointRequest(AttemptKey):
    """Store a checkpoint: the next attempt receives its state."""

    executor: ExecutorName
    state: JsonValue


class NoteReply(WireMessage):
    """The answer to progress, lines or a checkpoint."""

    lost: Annotated[list[AttemptKey], Field(description="attempts that the executor has lost: nothing was stored")]


class Problem(WireMessage):
    """An error."""

    error: str
