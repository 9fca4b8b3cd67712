"""Columns of every table except those of tasks."""

from typing import Any, get_args

import sqlalchemy as sa

from runner.db.schema.task import object_checks, one_of, time_checks
from runner.db.types import BigId, Instant, JsonText, Name, db_now, login
from runner.model.schedule import Overlap, TickOutcome
from runner.model.step import StepKind
from runner.model.task import OnFailure, Scope


def attempt() -> list[sa.Column[Any]]:
    """One row per failed or rescued attempt."""
    return [
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("fence", BigId, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("queue", Name, nullable=False),
        sa.Column("handler", Name, nullable=False),
        sa.Column("started_at", Instant),
        sa.Column("ended_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("runner_id", sa.BigInteger),
        sa.Column("host", sa.Text),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("error_type", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("traceback", sa.Text),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("delay", sa.Float),
        sa.Column("breaks", sa.Boolean),
        sa.Column("rule", sa.Text),
    ]


def minute() -> list[sa.Column[Any]]:
    """Counts per minute, queue and handler."""
    return [
        sa.Column("minute", Instant, primary_key=True),
        sa.Column("queue", Name, primary_key=True),
        sa.Column("handler", Name, primary_key=True),
        # Each runner writes its own rows, and readers add them up, so that writers never wait for each other.
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False),
        # 0 for the runner itself. Transactions of handlers that end at the same time have different numbers.
        sa.Column("part", sa.SmallInteger, primary_key=True, autoincrement=False, server_default="0"),
        # 0 for the counts of outcomes. Other rows are bins of histograms, see runner.policy.histogram.
        sa.Column("bin_ms", sa.Integer, primary_key=True, autoincrement=False, server_default="0"),
        *(sa.Column(name, sa.Integer, nullable=False, server_default="0") for name in MINUTE_COUNTS),
        *(sa.Column(name, kind, nullable=False, server_default="0") for name, kind in MINUTE_TIMES.items()),
    ]


MINUTE_COUNTS = ("submitted", "succeeded", "first_try", "second_try", "retried", "died", "cancelled", "rescued")
"""The counts of outcomes belong to the minute of the settle.

`submitted` is counted when the first run ends, or at a cancel before it, in the minute of the task's submitted_at.

Counting at the submit would make all producers wait for one row, and would miss plain INSERTs. Other tasks are in the
live table with fence 0, or running with fence 1."""

NO_BIN = 0
"""The value of `bin_ms` in the row with the counts of outcomes."""

MINUTE_TIMES: dict[str, Any] = {"runs": sa.Integer, "run_time": sa.Float, "waits": sa.Integer, "wait_time": sa.Float}
"""The numbers and sums, in seconds, of the run times and of the waits in a bin, in the minute of the settle.

A wait lasts from the due time of an attempt to its start. Attempts that were snoozed or released do not count."""


def audit() -> list[sa.Column[Any]]:
    """One row per change by an operator."""
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("task_id", sa.BigInteger, index=True),
        sa.Column("target", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("before", JsonText),
        sa.Column("after", JsonText),
        sa.Column("undo_of", sa.BigInteger),
        # The id that all changes of one operation share.
        sa.Column("change_group", sa.Text),
        # Database login of the client; the roles grant no client the right to write it.
        sa.Column("login", sa.Text, server_default=login()),
    ]


def unique() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """The task that holds a unique key, or held it last."""
    return [
        sa.Column("handler", Name, primary_key=True),
        sa.Column("unique_key", Name, primary_key=True),
        # 0 for a row that was only created to be locked.
        sa.Column("task_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("scope", sa.Text, nullable=False, server_default=Scope.UNTIL_FINISHED.value),
        sa.Column("expires_at", Instant),
        sa.Column("duplicates", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("duplicate_at", Instant),
        one_of("scope", Scope),
        sa.CheckConstraint(f"(scope = '{Scope.FOR_A_TIME.value}') = (expires_at is not null)", name="expires_at"),
    ]


def dependency() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Dependencies: one row per task and parent.

    A row without `satisfied_at` is open, and keeps its task blocked.
    """
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        # The task that waits.
        sa.Column("task_id", sa.BigInteger, nullable=False, index=True),
        # The parent. For a parent named by handler and key: null until it finishes, then the id of the task found.
        sa.Column("parent_id", sa.BigInteger, index=True),
        sa.Column("parent_handler", Name),
        sa.Column("parent_key", sa.Text),
        sa.Column("on_failure", sa.Text, nullable=False, server_default="wait"),
        # True if the parent is the predecessor of the task in its order key.
        sa.Column("in_order", sa.Boolean, nullable=False, server_default=sa.false()),
        # The step of the task that called the parent, which is its child then; null for a parent of its submit.
        sa.Column("step", Name),
        # The parent's last known final state, or GONE; null before. An open row has one if the parent is dead, because
        # it may be retried.
        sa.Column("parent_state", sa.Text),
        # When the dependency stopped blocking its task.
        sa.Column("satisfied_at", Instant),
        # The operator who unblocked it; null if it was resolved automatically.
        sa.Column("satisfied_by", sa.Text),
        one_of("on_failure", get_args(OnFailure)),
        sa.CheckConstraint("parent_id is not null or parent_key is not null", name="parent"),
        sa.CheckConstraint("(parent_handler is null) = (parent_key is null)", name="parent_key"),
    ]


GONE = "gone"
"""`parent_state` of a parent that is neither in the live table nor in the history."""


def workflow() -> list[sa.Column[Any]]:
    """Workflows: the names of groups of tasks, which have the id of their workflow."""
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("name", sa.Text),
        sa.Column("submitted_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("submitted_by", sa.Text),
    ]


def checkpoint() -> list[sa.Column[Any]]:
    """States of tasks that continue in their next attempt; the highest number counts."""
    return [
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.Column("state", JsonText, nullable=False),
    ]


def step() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Steps, calls, sleeps and waits of tasks: later attempts use their results."""
    return [
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("name", Name, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        # Position among the steps of the handler's own asyncio task or thread; null elsewhere.
        sa.Column("number", sa.Integer),
        # The name of the function, or of the handler of a child.
        sa.Column("function", sa.Text),
        # The name of the signal that a wait is for.
        sa.Column("signal", Name),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", sa.Text),
        # The end of a sleep, the timeout of a wait, or the next try of a failed function.
        sa.Column("due_at", Instant),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.Column("done_at", Instant),
        # Seconds that the function took.
        sa.Column("duration", sa.Float),
        sa.Column("result", JsonText),
        one_of("kind", StepKind),
    ]


def signal() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Signals for tasks. Any client may insert one: `INSERT INTO task_signal (task_id, name) VALUES (1, 'paid')`."""
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("payload", JsonText),
        sa.Column("actor", sa.Text),
        sa.Column("sent_at", Instant, nullable=False, server_default=db_now()),
        # When a runner saw it, and started the task if it waited for it.
        sa.Column("noticed_at", Instant),
        # When the wait of the task took it.
        sa.Column("received_at", Instant),
        sa.CheckConstraint("length(name) between 1 and 200", name="name"),
    ]


def progress() -> list[sa.Column[Any]]:
    """The progress of the current or last attempt of a task."""
    return [
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("done", sa.Float, nullable=False),
        sa.Column("total", sa.Float),
        sa.Column("unit", sa.Text),
        # Units per second in this attempt.
        sa.Column("rate", sa.Float),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
    ]


def log() -> list[sa.Column[Any]]:
    """Lines that handlers wrote with `ctx.logger`."""
    return [
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("fence", BigId, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("line", sa.Text, nullable=False),
    ]


def queue() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Queues that were ever paused or limited."""
    return [sa.Column("name", Name, primary_key=True), *_pause(), *_limits()]


def handler() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Known handlers, with their pauses and limits."""
    return [
        sa.Column("name", Name, primary_key=True),
        *_pause(),
        *_limits(),
        # The limits of the handler's code, as JSON; they apply unless an operator has set others.
        sa.Column("declared_limits", JsonText),
        # Its parameters and the defaults of its tasks, for forms; see runner.handlers.parameters.
        sa.Column("signature", JsonText),
        *_breaker(),
        sa.Column("last_seen_at", Instant, nullable=False, server_default=db_now()),
    ]


def runner() -> list[sa.Column[Any]]:
    """Live runner processes."""
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("heartbeat_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("lease_until", Instant, nullable=False),
        # Writes of runners without a gap: proof that the database was available between these times.
        sa.Column("available_since", Instant, nullable=False, server_default=db_now()),
        sa.Column("available_until", Instant, nullable=False, server_default=db_now()),
        sa.Column("handlers", JsonText, nullable=False, server_default="[]"),
        sa.Column("queues", JsonText, nullable=False, server_default="[]"),
        sa.Column("threaded", JsonText, nullable=False, server_default="[]"),
        *(
            sa.Column(name, sa.Integer, nullable=False, server_default="0")
            for name in ("capacity", "threads", "abandoned_threads", "replaced_threads", "processes", "running")
        ),
        sa.Column("in_processes", JsonText, nullable=False, server_default="[]"),
        # Its external executors: by name, their slots and handlers.
        sa.Column("executors", JsonText, nullable=False, server_default="{}"),
        sa.Column("claim_order", sa.Text, nullable=False, server_default="strict"),
        sa.Column("polling", sa.Text, nullable=False, server_default=""),
        sa.Column("slice", sa.Text),
        # Its name among the runners that divide the buckets; null before it has one, and while it drains.
        sa.Column("slice_member", sa.Text),
        # The buckets that it claims from, such as 0-499,700; null for all, empty for none.
        sa.Column("buckets", sa.Text),
        sa.Column("command", sa.Text),
        # Processors in use since the heartbeat before, and resident memory in bytes; null if unknown.
        sa.Column("cpu", sa.Float),
        sa.Column("memory", sa.BigInteger),
        # The reason for the absence of heartbeats, as a LoopBlock; the next heartbeat clears it.
        sa.Column("stall", JsonText),
        # The rows of tasks that this runner could not change, see runner.model.stuck_row; null without any.
        sa.Column("stuck", JsonText),
        # The schedules of its code: fingerprints of their definitions, by id.
        sa.Column("schedules", JsonText, nullable=False, server_default="{}"),
    ]


def ended_runner() -> list[sa.Column[Any]]:
    """Runners that have stopped, or that a rescue removed as lost, with the tasks that were running on them."""
    return [
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("heartbeat_at", Instant, nullable=False),
        sa.Column("ended_at", Instant, nullable=False, server_default=db_now()),
        # True if a rescue removed it, false if it has stopped by itself.
        sa.Column("lost", sa.Boolean, nullable=False),
        sa.Column("tasks", sa.Integer, nullable=False),
    ]


def schedule() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Periodic rules."""
    return [
        sa.Column("id", Name, primary_key=True),
        sa.Column("handler", Name, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("timezone", sa.Text, nullable=False, server_default="UTC"),
        sa.Column("payload", JsonText, nullable=False, server_default="{}"),
        sa.Column("options", JsonText, nullable=False, server_default="{}"),
        sa.Column("misfire", sa.Text, nullable=False, server_default="once"),
        sa.Column("overlap", sa.Text, nullable=False, server_default=Overlap.SKIP.value),
        sa.Column("jitter", sa.Float, nullable=False, server_default="0"),
        sa.Column("broadcast", sa.Boolean, nullable=False, server_default=sa.false()),
        # Null if a runner has to compute it: at first, after an edit with plain SQL, and until a run has ended whose
        # end the next tick depends on. Of a paused schedule: the end of its pause, or null.
        sa.Column("next_at", Instant),
        sa.Column("last_tick", Instant),
        # The task of the last run, or of an unfinished one; null before the first, and if its round was freed.
        sa.Column("last_task_id", sa.BigInteger),
        # The ids of the other unfinished runs, a JSON list: of an earlier tick, of a request, of a broadcast.
        sa.Column("other_task_ids", JsonText),
        # When an operator asked for a run that no runner has submitted yet.
        sa.Column("run_requested_at", Instant),
        *_pause(),
        # The definition in the code of the runners, and that code's module; null for a schedule of an operator.
        sa.Column("declared", JsonText),
        sa.Column("module", sa.Text),
        # Fingerprint of the definition that `declared` replaced: a runner with older code does not bring it back.
        sa.Column("replaced", sa.Text),
        # Why runners cannot compute its ticks; an edit clears it.
        sa.Column("error", sa.Text),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.CheckConstraint("length(id) between 1 and 200", name="id"),
        sa.CheckConstraint("length(handler) between 1 and 200", name="handler"),
        sa.CheckConstraint("jitter >= 0 and jitter < 1e9", name="jitter"),
        one_of("overlap", Overlap),
        *object_checks("payload", "options"),
        *time_checks("next_at", "run_requested_at", "paused_at", "paused_until"),
    ]


def is_unplanned(schedule: Any) -> sa.ColumnElement[bool]:
    """The condition that a runner has to compute the next tick, now or after a pause, in the form of its index."""
    may_tick = schedule.paused_at.is_(None) | schedule.paused_until.is_not(None)
    unplanned: sa.ColumnElement[bool] = schedule.next_at.is_(None) & may_tick & schedule.error.is_(None)
    return unplanned


def alert() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Alerts, firing or resolved, and their silences."""
    return [
        # RULE:SUBJECT, a rule for a silence of all its alerts, or `evaluation`, whose seen_at is that of the last one.
        sa.Column("name", Name, primary_key=True),
        sa.Column("severity", sa.Text, nullable=False, server_default=""),
        sa.Column("title", sa.Text, nullable=False, server_default=""),
        sa.Column("text", sa.Text, nullable=False, server_default=""),
        sa.Column("advice", sa.Text, nullable=False, server_default=""),
        # The first and the last evaluation that found it; null if none did.
        sa.Column("since", Instant),
        sa.Column("seen_at", Instant),
        sa.Column("resolved_at", Instant),
        # When its notice was submitted; null if none was since it began.
        sa.Column("notified_at", Instant),
        sa.Column("silenced_until", Instant),
        sa.Column("silenced_by", sa.Text),
        sa.Column("silenced_why", sa.Text),
        sa.CheckConstraint("length(name) between 1 and 500", name="name"),
        *time_checks("silenced_until"),
    ]


def tick() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """The history of schedules: a tick happens once, and a tick of a broadcast once for each runner."""
    return [
        sa.Column("schedule", Name, primary_key=True),
        sa.Column("tick", Instant, primary_key=True),
        # The runner of a broadcast; 0 for other schedules.
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False, server_default="0"),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        one_of("outcome", TickOutcome),
    ]


def _pause() -> list[sa.Column[Any]]:
    return [
        sa.Column("paused_at", Instant),
        sa.Column("paused_until", Instant),
        sa.Column("paused_by", sa.Text),
        sa.Column("paused_why", sa.Text),
    ]


BREAKER: dict[str, Any] = {"probes": sa.Integer, "wait": sa.Float, "round": sa.Integer, "opened_at": Instant}
BREAKER |= {"probe_at": Instant, "by": sa.Text, "why": sa.Text, "closed_at": Instant}


def _breaker() -> list[sa.Column[Any] | sa.CheckConstraint]:
    always = " and ".join(f"breaker_{name} is not null" for name in ("wait", "round", "opened_at", "probe_at"))
    return [
        sa.Column("breaker", JsonText),
        *(sa.Column(f"breaker_{name}", type_) for name, type_ in BREAKER.items()),
        sa.CheckConstraint("breaker_probes >= 1", name="breaker_probes"),
        sa.CheckConstraint("breaker_wait > 0 and breaker_wait < 1e9", name="breaker_wait"),
        sa.CheckConstraint(f"breaker_probes is null or ({always})", name="breaker"),
    ]


LIMIT_COLUMNS = ("max_running", "max_per_tenant", "rate_limit", "rate_period")
"""The columns of the limits of a queue or a handler, in the order of runner.policy.limits.SharedLimits."""


def _limits() -> list[sa.Column[Any] | sa.CheckConstraint]:
    """Limits of a queue or a handler over all runners; null for no limit."""
    numbers = [name for name in LIMIT_COLUMNS if name != "rate_period"]
    whole = " and ".join(f"typeof(coalesce({name}, 1)) = 'integer'" for name in numbers)
    return [
        *(sa.Column(name, sa.Integer) for name in numbers),
        sa.Column("rate_period", sa.Float),
        # Seconds from 1970 until the time when all used tokens are back; see runner.policy.limits.
        sa.Column("rate_spent", sa.Float),
        # Null if the limits are those of the handler's code.
        sa.Column("limited_at", Instant),
        *(sa.Column(name, sa.Text) for name in ("limited_by", "limited_why")),
        *(sa.CheckConstraint(f"{name} >= 1", name=name) for name in numbers),
        sa.CheckConstraint("rate_period > 0 and rate_period < 1e9", name="rate_period"),
        sa.CheckConstraint("(rate_limit is null) = (rate_period is null)", name="rate"),
        sa.CheckConstraint(whole, name="limits").ddl_if(dialect="sqlite"),
    ]
