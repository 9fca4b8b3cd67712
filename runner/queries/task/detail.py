"""All details of one task, live or finished."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, tzinfo
from typing import Annotated, Any

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidRetryPlan, TaskNotFound
from runner.handlers.options import FROM_SETTINGS, TASK_OPTIONS
from runner.model.stuck_row import StuckRow
from runner.model.task import Scope, State
from runner.policy.breaker import OpenBreaker
from runner.policy.claim_conditions import used_up
from runner.policy.own_retry_plan import NAME, title_of
from runner.policy.retry import next_runs, parse_plan
from runner.policy.suspicion import describe, is_suspect
from runner.queries.audit import AuditRecord, audit
from runner.queries.breakers import breakers
from runner.queries.health import reads_audit
from runner.queries.registries import Pause, pauses
from runner.queries.rows import as_int, as_text, from_row, moment, number, readable, text
from runner.queries.runners import RunnerRow, runner_of, runner_value
from runner.queries.stuck_rows import stored_stuck, with_sessions
from runner.queries.task.attempts import (
    LAST_LINES,
    MOST_ATTEMPTS,
    Attempt,
    CheckpointRow,
    LogRow,
    attempts_of,
    checkpoints_of,
    log_of,
    progress_of,
)
from runner.queries.task.dependency_tree import DependencyTree, dependency_progress, dependency_tree
from runner.queries.task.steps import SignalRow, StepRow, signals_of, steps_of
from runner.queries.task_list.row import TaskRow, computed, one_task, same_key_tasks
from runner.queries.workflows.list import WorkflowName, workflow_name
from runner.store.unique import is_key_held
from runner.text import formatting
from runner.text.document import Flat, Treatment
from runner.text.progress import TaskProgress
from runner.text.runner_name import process_name
from runner.text.sanitize import count_noun
from runner.text.stuck_row import MISSED, stuck_fact


@dataclass(frozen=True, slots=True)
class UniqueKeyState:
    """A unique key, as seen from one of its tasks.

    Args:
        key: the key.
        holder: the task that holds it; None if it is free.
        scope: the scope of the holder; None if the key is free.
        until: when the key becomes free, if known.
        duplicates: the submits that returned this task instead of a new one.
        duplicate_at: the time of the last duplicate.
    """

    key: str
    holder: int | None = None
    scope: str | None = None
    until: datetime | None = None
    duplicates: int = 0
    duplicate_at: datetime | None = None

    def describe(self, id: int, at: datetime) -> str:
        """Describe the key's meaning for a task."""
        scopes = {
            Scope.FOR_A_TIME.value: f"for another {formatting.age(self.until - at)}" if self.until else "for a time"
        }
        match self.holder:
            case None:
                state = "free again"
            case holder if holder == id:
                state = f"held {scopes.get(self.scope or '', self.scope)}"
            case holder:
                state = f"held by task {holder} now"
        if not self.duplicates:
            return state
        last = formatting.distance(self.duplicate_at, at)
        return f"{state}; {self.duplicates:,} duplicate{'s' if self.duplicates > 1 else ''}, the last {last}"


async def unique_key(tx: Transaction, id: int, handler: str, key: str) -> UniqueKeyState:
    """Find the holder of a task's unique key.

    Args:
        key: the task's unique key.
    """
    unique = tx.tables.unique
    names = ("task_id", "scope", "expires_at", "duplicates", "duplicate_at")
    columns = [*readable(tx, [unique.c[name] for name in names]), is_key_held(unique, tx.tables).label("in_force")]
    same_key = (unique.c.handler == handler) & (unique.c.unique_key == key)
    row = (await tx.execute(sa.select(*columns).where(same_key))).mappings().one_or_none()
    if row is None:
        return UniqueKeyState(key)
    duplicates = (as_int(row["duplicates"]), moment(row["duplicate_at"])) if row["task_id"] == id else ()
    if not row["in_force"]:
        return UniqueKeyState(key, None, None, None, *duplicates)
    return UniqueKeyState(key, as_int(row["task_id"]), text(row["scope"]), moment(row["expires_at"]), *duplicates)


ALONE = DependencyTree()


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """All details of one task.

    Args:
        task: the task as a list shows it.
        error: the full text of the last error.
        payload: its arguments, JSON text.
        result: its result, JSON text; None if there is none.
        retry: its retry plan as text; None for the handler's plan.
        timeout: seconds that an attempt may take; None for the handler's timeout.
        headers: its headers, JSON text; None without any.
        bucket: its bucket, from 0 to 999.
        unique: its unique key and the key's holder; None if it has no unique key.
        deadline_at: when the current attempt times out.
        started_at: when the current attempt started; None while no start is recorded.
        attempts: its failed attempts, in order.
        audit: the operations on it, in order.
        audit_seen: False if this login may not read the audit log.
        next_runs: when it runs again if every attempt fails immediately; empty if its plan or its maximum of attempts
            comes from a handler that is unknown here.
        runner: the runner that executes it; None if it is not running, or the runner is no longer registered.
        queue_pause: the pause of its queue; None if the queue is not paused.
        handler_pause: the pause of its handler; None if the handler is not paused.
        breaker: the open breaker of its handler, for a waiting task; None if it is closed.
        progress: its progress; None without one.
        checkpoints: its checkpoints, oldest first.
        log: its last log lines.
        steps: its last steps, in the order in which they were written.
        signals: the last signals for it.
        options: the task options without a field here or in `task`, by column.
        handler_retry: the retry plan of the handler or of the settings of its runners, for a task without its own; None
            if the task has one, or it is unknown.
        handler_max_attempts: the same for the maximum of attempts.
        handler_timeout: the same for the timeout in seconds; 0 if there is none.
        from_settings: those of "retry", "max_attempts" and "timeout" that the handler leaves to the settings.
        chunk: the maximum number of tasks in a chunk of the handler; None without chunks.
        chunk_wait: seconds for which a chunk waits for more tasks after its first one; None without chunks.
        same_key: the newest other tasks of its handler with its key.
        stuck: the verbs of live runners that could not change its row, with the reasons.
        workflow: its workflow; None outside of workflows.
        pid: the process id of the runner of its last attempt; None if it is unknown.
    """

    task: Annotated[TaskRow, Flat()]
    error: str | None
    payload: Annotated[str, Treatment.JSON]
    result: Annotated[str | None, Treatment.JSON]
    retry: str | None
    timeout: float | None
    tags: tuple[str, ...]
    headers: Annotated[str | None, Treatment.JSON]
    submitted_by: str | None
    deadline_at: datetime | None
    attempts: tuple[Attempt, ...]
    audit: tuple[AuditRecord, ...]
    next_runs: tuple[datetime, ...]
    runner: RunnerRow | None
    at: datetime
    bucket: int = 0
    unique: UniqueKeyState | None = None
    queue_pause: Pause | None = None
    handler_pause: Pause | None = None
    breaker: OpenBreaker | None = None
    dependencies: DependencyTree = ALONE
    started_at: datetime | None = None
    audit_seen: bool = True
    progress: TaskProgress | None = None
    checkpoints: tuple[CheckpointRow, ...] = ()
    log: tuple[LogRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    signals: tuple[SignalRow, ...] = ()
    options: Mapping[str, str | None] = field(default_factory=dict)
    handler_retry: str | None = None
    handler_max_attempts: int | None = None
    handler_timeout: float | None = None
    from_settings: tuple[str, ...] = ()
    chunk: int | None = None
    chunk_wait: float | None = None
    pid: int | None = None
    same_key: tuple[TaskRow, ...] = ()
    stuck: tuple[StuckRow, ...] = ()
    workflow: WorkflowName | None = None

    @property
    def has_ended(self) -> bool:
        """True if the attempt of a running task has ended, and its outcome is not written."""
        return any(row.verb == "settle" for row in self.stuck)

    @property
    def pending(self) -> StepRow | None:
        """The sleep or the wait of a task that is not due; None without one."""
        task = self.task
        if task.state is not State.WAITING or task.run_at is None or task.run_at <= self.at:
            return None
        return next((step for step in self.steps if step.done_at is None and step.signal is not None), None)

    def run_time(self, attempt: Attempt) -> timedelta | float | None:
        """The time of a failed attempt: that of its handler if it is known, or else from its claim to its end."""
        died = self.task.state is State.DEAD and attempt.attempt == self.task.attempt
        return self.task.duration if died and self.task.duration is not None else attempt.duration

    def source(self, option: str) -> str:
        """Name the source of an option of attempts that the task does not set."""
        return "the settings" if option in self.from_settings else "the handler"

    @property
    def suspicion(self) -> str:
        """The sentence about a task that is suspected of killing its runners; empty for other tasks."""
        task = self.task
        attempts_left = None if task.max_attempts is None else task.max_attempts - task.attempt
        return describe(task.rescues, attempts_left) if is_suspect(task.rescues, attempts_left, task.attempt) else ""


_NAMED = {*(item.name for item in fields(TaskDetail)), *TaskRow._fields, "unique_key"}
OTHER_OPTIONS = tuple(option.column for option in TASK_OPTIONS if option.column and option.column not in _NAMED)
"""Columns of the task options that have no field in TaskDetail or TaskRow."""


async def task_detail(tx: Transaction, id: int, attempts: Mapping[str, Any] | None = None) -> TaskDetail:
    """Read all details of a task.

    Args:
        attempts: the options of attempts of its handler, see `attempt_options`; None for those that runners stored.

    Raises:
        TaskNotFound: neither the live table nor the history has a task with this id.
    """
    row, (now, all_pauses), (reads_log, changes), notes, stuck, progress_of_parents = await tx.gather(
        _row(tx, id),
        tx.gather(clock(tx), pauses(tx)),
        _audit_of(tx, id),
        _notes_of(tx, id),
        stored_stuck(tx, id),
        dependency_progress(tx, id),
    )
    task, retry, timeout = from_row(TaskRow, row), text(row["retry"]), number(row["timeout"])
    failed, progress, checkpoints, log, steps, signals = notes
    state, key = task.state, text(row["unique_key"])
    options, opened, executor, unique, tree, (same_key, workflow) = await tx.gather(
        _stored_attempts(tx, task.handler) if attempts is None else _nothing(),
        breakers(tx, task.handler, only_open=True) if state is State.WAITING else _nothing(),
        runner_of(tx, task.runner_id) if state is State.RUNNING else _nothing(),
        unique_key(tx, id, task.handler, key) if key is not None else _nothing(),
        dependency_tree(tx, task, progress_of_parents),
        tx.gather(same_key_tasks(tx, task), workflow_name(tx, row["workflow"])),
    )
    stored = options or attempts or {}
    handler_retry = None if retry is not None else _readable_retry(stored.get("retry"))
    return from_row(
        TaskDetail,
        row,
        task=task,
        retry=retry,
        handler_retry=handler_retry,
        **_of_handler(stored, task.max_attempts, timeout),
        attempts=tuple(failed),
        audit=tuple(reversed(changes)),
        next_runs=forecast(task, retry or handler_retry, now),
        runner=executor,
        at=now,
        unique=unique,
        queue_pause=all_pauses.queues.get(task.queue),
        handler_pause=all_pauses.handlers.get(task.handler),
        breaker=opened[0].state if opened else None,
        dependencies=tree,
        audit_seen=reads_log,
        progress=progress,
        checkpoints=tuple(checkpoints),
        log=tuple(log),
        steps=tuple(steps),
        signals=tuple(signals),
        options={name: text(row[name]) for name in OTHER_OPTIONS},
        same_key=tuple(same_key),
        stuck=() if task.state.final else tuple(await with_sessions(tx, stuck)),
        workflow=workflow,
    )


async def _nothing() -> None:
    """A step for a figure that a task does not have."""


async def _audit_of(tx: Transaction, id: int) -> tuple[bool, list[AuditRecord]]:
    """True if this login may read the audit log, and the operations on a task, latest first."""
    reads_log = await reads_audit(tx)
    return reads_log, await audit(tx, task_id=id, limit=MOST_ATTEMPTS) if reads_log else []


async def _notes_of(
    tx: Transaction, id: int
) -> tuple[list[Attempt], TaskProgress | None, list[CheckpointRow], list[LogRow], list[StepRow], list[SignalRow]]:
    """What the attempts of a task have left."""
    return await tx.gather(
        attempts_of(tx, id),
        progress_of(tx, id),
        checkpoints_of(tx, id),
        log_of(tx, id, limit=LAST_LINES),
        steps_of(tx, id),
        signals_of(tx, id),
    )


async def _stored_attempts(tx: Transaction, handler: str) -> Mapping[str, Any]:
    """The options of attempts of a handler as its runners stored them last; empty if there are none."""
    from runner.queries.signatures import stored_signature  # imports pydantic

    signature = await stored_signature(tx, handler)
    return signature.attempts if signature is not None else {}


def _of_handler(stored: Mapping[str, Any], own_most: int | None, own_timeout: float | None) -> dict[str, Any]:
    """The stored options of a handler that hold for a task, as far as they are readable."""
    (most, limit), (size, wait) = map(stored.get, ("max_attempts", "timeout")), map(stored.get, ("chunk", "chunk_wait"))
    return {
        "handler_max_attempts": most if isinstance(most, int) and own_most is None else None,
        "handler_timeout": float(limit) if isinstance(limit, int | float) and own_timeout is None else None,
        "chunk": size if isinstance(size, int) else None,
        "chunk_wait": float(wait) if isinstance(wait, int | float) else None,
        "from_settings": tuple(map(str, settings)) if isinstance(settings := stored.get(FROM_SETTINGS), list) else (),
    }


def _readable_retry(plan: Any) -> str | None:
    """A stored retry plan; None if there is none, or nothing can read it."""
    try:
        parse_plan(as_text(plan))
    except InvalidRetryPlan:  # the plan of an application whose code this process has not loaded, or nothing
        return as_text(plan) if NAME.fullmatch(as_text(plan)) else None
    return as_text(plan)


def forecast(task: TaskRow, retry: str | None, now: datetime) -> tuple[datetime, ...]:
    """Predict when a task runs again if every attempt fails immediately.

    Args:
        retry: the effective plan, as text; None if unknown.

    Returns:
        The times of all remaining attempts: from the next one for a waiting task, from the one after the current for a
        running task. Empty if the task has ended, or the times cannot be predicted.
    """
    if task.state.final or task.state is State.BLOCKED or task.max_attempts is None:
        return ()
    if task.state is State.RUNNING:
        return _runs(retry, task.attempt, task.max_attempts, now)
    if used_up(task.attempt, task.max_attempts):
        return ()
    start = max(task.run_at or now, now)
    return (start, *_runs(retry, task.attempt + 1, task.max_attempts, start))


def _runs(retry: str | None, attempt: int, max_attempts: int, start: datetime) -> tuple[datetime, ...]:
    if retry is None:
        return ()
    try:
        return tuple(next_runs(parse_plan(retry), attempt, max_attempts, start))
    except InvalidRetryPlan:
        return ()


async def _row(tx: Transaction, id: int) -> sa.RowMapping:
    statements = []
    for table in (tx.tables.task, tx.tables.history):
        columns = [
            *readable(tx, table.c),
            *computed(tx.tables, table),
            runner_value(tx.tables, table.c.runner_id, "pid"),
        ]
        statements.append(one_task(tx, table, id, columns))
    for result in await tx.gather(*map(tx.execute, statements)):
        row = result.mappings().one_or_none()
        if row is not None:
            return row
    raise TaskNotFound(id=id)


def task_fields(detail: TaskDetail, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """List the fields of a task; empty ones are left out.

    Yields:
        A label and a text; the text is not sanitized.
    """
    task = detail.task
    yield "task", f"{task.id}   version {task.version}"
    remarks = "   ended, its outcome is not written" if detail.has_ended else ""
    remarks += "   termination requested" if task.cancel_requested else ""
    yield "state", f"{formatting.state(task.shown)}{remarks}"
    for row in detail.stuck:
        yield str(row.cause), f"{stuck_fact(row)}; {MISSED[row.verb]}"
    yield "handler", f"{task.handler}   in queue {task.queue}, priority {task.priority}"
    rescued = f"   rescued {count_noun(task.rescues, 'time')}" if task.rescues else ""
    stops = f"   interrupted {count_noun(task.interruptions, 'time')}" if task.interruptions else ""
    yield "attempts", f"{formatting.attempts(task.attempt, task.max_attempts)}{rescued}{stops}"
    if detail.progress is not None:
        yield "progress", detail.progress.describe(detail.at, running=task.state is State.RUNNING)
    times = {"run at": task.run_at, "submitted": task.submitted_at, "claimed": task.claimed_at}
    times |= {"started": detail.started_at, "deadline": detail.deadline_at, "finished": task.finished_at}
    times |= {"expires": task.expires_at, "any host from": task.hosts_until if task.hosts else None}
    yield from ((name, formatting.exact(moment, detail.at, zone)) for name, moment in times.items() if moment)
    yield from ((name, str(value)) for name, value in _rest(detail) if value not in (None, ""))


def _rest(detail: TaskDetail) -> Iterator[tuple[str, object]]:
    task, runner = detail.task, detail.runner
    yield "key", task.key
    yield "tenant", task.tenant
    yield "hosts", task.hosts
    yield "unique key", detail.unique and detail.unique.key
    yield "key status", detail.unique and detail.unique.describe(task.id, detail.at)
    yield "workflow", detail.workflow and f"{detail.workflow.id} {detail.workflow.name or ''}".rstrip()
    yield "parents", detail.dependencies.progress
    yield "submitted by", detail.submitted_by
    yield "handler time", formatting.duration(task.duration) if task.duration is not None else None
    beat = f", heartbeat {formatting.age(runner.heartbeat_age)} ago" if runner else ""
    yield "runner", task.runner_id and f"{task.runner_id} ({process_name(task.host, detail.pid)}){beat}"
    if runner is not None and runner.memory is not None:
        yield "its process", f"CPU {round((runner.cpu or 0) * 100)} %, memory {formatting.size(runner.memory)}"
    own, limit = detail.handler_retry, detail.handler_timeout or None
    own_plan = own and f"{title_of(own)}, from {detail.source('retry')}"
    yield "retry plan", title_of(detail.retry) if detail.retry else own_plan
    own_limit = limit and f"{formatting.age(limit)}, from {detail.source('timeout')}"
    yield "timeout", formatting.age(detail.timeout) if detail.timeout is not None else own_limit
    chunk_wait = "" if detail.chunk_wait is None else f", {formatting.duration(detail.chunk_wait)} after the first one"
    yield "chunk", detail.chunk and f"up to {count_noun(detail.chunk, 'task')}{chunk_wait}"
    yield "tags", ", ".join(detail.tags)
    yield "bucket", detail.bucket
    yield from ((name.replace("_", " "), value) for name, value in detail.options.items())
