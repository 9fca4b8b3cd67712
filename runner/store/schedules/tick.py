"""tick: submit the tasks of due schedules, and record each tick so that it happens once."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.handlers.parameters import StoredSignature, read_signature
from runner.model.schedule import Overlap, ScheduleSpec, TickOutcome
from runner.model.task import BatchMember, DependsOn, NewTask
from runner.policy.lanes import Lane, lane_of_new, runner_queue
from runner.policy.schedule import Rule, parse_rule
from runner.policy.schedule_ticks import due_ticks, parse_misfire, resolve_overlap, task_of, task_template
from runner.store.schedules.runs import LastRuns, broadcast_runners, due_schedules, kept_runs, last_runs, terminate
from runner.store.submit import submit_many
from runner.store.validation import check

MILLISECOND = timedelta(milliseconds=1)
"""Resolution of a tick, as SQLite stores it."""


Seal: TypeAlias = Callable[[str, str | None, str], str | None]
"""Encrypts the payload of a handler whose stored codec is given."""


class Ticked(NamedTuple):
    """The result of one schedule that was due.

    Args:
        tasks: ids of the submitted tasks.
        lanes: the lanes of these tasks.
        skipped: the ticks that its overlap policy skipped.
        missed: the latest tick that its misfire policy dropped.
        error: the reason if its ticks cannot be computed or its tasks cannot be submitted.
    """

    schedule: str
    tasks: Sequence[int] = ()
    lanes: frozenset[Lane] = frozenset()
    skipped: Sequence[datetime] = ()
    missed: datetime | None = None
    error: str | None = None


@dataclass(slots=True)
class _Plan:
    """The changes of one schedule."""

    row: Mapping[str, Any]
    unfinished: Mapping[int, str]
    """The queues of its unfinished runs by id, in order."""
    next_at: datetime | None = None
    runs: list[tuple[datetime, NewTask, int]] = field(default_factory=list)
    """Tick, task and runner of each task; runner 0 unless it is a broadcast."""
    skipped: list[datetime] = field(default_factory=list)
    missed: datetime | None = None
    manual: datetime | None = None
    resumed: bool = False
    replaced: list[int] = field(default_factory=list)
    wait: bool = False
    is_partial: bool = False
    """True if more runs are replaced before its own ones are submitted: the schedule stays due."""
    error: str | None = None
    last_tick: datetime | None = None

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def lanes(self) -> frozenset[Lane]:
        """The lanes of its tasks."""
        return frozenset(lane_of_new(task) for _, task, _ in self.runs)


async def tick(
    tx: Transaction,
    limit: int = 100,
    *,
    notify: bool = True,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seal: Seal | None = None,
) -> list[Ticked]:
    """Submit the tasks of due schedules, in one transaction with the record of their ticks.

    Any number of runners may do this at the same time: a schedule is locked, and a recorded tick is not repeated.

    Args:
        limit: maximum number of schedules.
        notify: wake listening runners (PostgreSQL).
        only: ids of the only schedules to tick, which were due a moment ago; None for all due ones.
        without: ids of schedules to leave out.
        seal: returns a payload as it is stored; None leaves the schedule to a runner that can encrypt it.

    Returns:
        The results of the schedules that were due.
    """
    rows = await due_schedules(tx, limit, only, without)
    rows = rows if seal is None or not rows else await _sealed(tx, rows, seal)
    if not rows:
        return []
    now = _round(await clock(tx))
    runs = await last_runs(tx, rows)
    runners = await broadcast_runners(tx, [row for row in rows if row["broadcast"]])
    defaults = await _handler_defaults(tx, rows)
    plans = [_plan(row, now, runs, runners.get(row["id"]), defaults.get(row["id"], {})) for row in rows]
    await _drop_recorded(tx, plans)
    plans = [_part(plan) if plan.replaced and runs.may_have_more(plan.row) else plan for plan in plans]
    replaced = {run: f"replaced by the next run of schedule {plan.id}" for plan in plans for run in plan.replaced}
    cancelled = await terminate(tx, replaced)
    tasks = _chained([plan for plan in plans if plan.runs], cancelled)
    ids = iter(await submit_many(tx, tasks, notify=notify))
    submitted = {plan.id: [next(ids) for _ in plan.runs] for plan in plans}
    await _record(tx, plans, submitted)
    await _store(tx, plans, submitted)
    return [Ticked(plan.id, submitted[plan.id], plan.lanes, plan.skipped, plan.missed, plan.error) for plan in plans]


async def _sealed(tx: Transaction, rows: Sequence[dict[str, Any]], seal: Seal) -> list[dict[str, Any]]:
    """Encrypt the arguments of schedules whose handlers have a codec; leave out those that cannot be encrypted here."""
    signatures = await _signatures(tx, {row["handler"] for row in rows})
    sealed: list[dict[str, Any]] = []
    for row in rows:
        signature = signatures.get(row["handler"])
        payload = seal(row["handler"], signature and signature.codec, row["payload"])
        if payload is not None:
            sealed.append({**row, "payload": payload})
    return sealed


async def _signatures(tx: Transaction, handlers: Collection[str]) -> dict[str, StoredSignature | None]:
    table = tx.tables.handler
    names = tx.dialect.one_of(table.c.name, sorted(handlers))
    stored = await tx.rows(sa.select(table.c.name, table.c.signature).where(names))
    return {row.name: read_signature(row.signature) for row in stored}


def _round(moment: datetime) -> datetime:
    return moment - timedelta(microseconds=moment.microsecond) + moment.microsecond // 1000 * MILLISECOND


async def _handler_defaults(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The task options of the handlers of schedules that no code declares, as the runners stored them, by schedule."""
    handlers = {row["id"]: row["handler"] for row in rows if row["module"] is None}
    if not handlers:
        return {}
    signatures = await _signatures(tx, set(handlers.values()))
    by_schedule = {id: signatures.get(name) for id, name in handlers.items()}
    return {id: signature.options for id, signature in by_schedule.items() if signature is not None}


def _plan(
    row: Mapping[str, Any], now: datetime, runs: LastRuns, runners: Sequence[int] | None, defaults: Mapping[str, Any]
) -> _Plan:
    """Decide the ticks of a schedule; a definition that is not valid becomes its error."""
    unfinished = runs.unfinished(row)
    plan = _Plan(row, unfinished, next_at=row["next_at"], last_tick=row["last_tick"])
    try:
        rule = parse_rule(row["rule"], row["timezone"])
        template = task_template(plan.id, ScheduleSpec.of(row), defaults)
        ticks = _due(plan, rule, now, runs)
        if row["run_requested_at"] is not None:
            plan.manual = now
            ticks = [moment for moment in ticks if moment != now]
        if runners is not None:
            _plan_round(plan, ticks, template, runners)
        else:
            _plan_runs(plan, ticks, template)
        for _, task, _ in plan.runs:
            check(task)
        if rule.delay is not None and plan.runs:
            plan.next_at = None
    except InvalidInput as error:
        plan = _Plan(row, unfinished, error=str(error), last_tick=row["last_tick"])
    return plan


def _due(plan: _Plan, rule: Rule, now: datetime, runs: LastRuns) -> list[datetime]:
    """The ticks to run now, unless the schedule is paused; sets the next one."""
    row = plan.row
    if row["paused_at"] is not None:
        if row["paused_until"] is None or row["paused_until"] > now:
            plan.next_at = row["paused_until"]
            return []
        plan.resumed = True
        plan.next_at = None
    if plan.next_at is None:
        plan.next_at = _next(plan, rule, now, runs)
    if plan.next_at is None:
        return []
    decision = due_ticks(rule, parse_misfire(row["misfire"]), plan.next_at, now)
    plan.next_at, plan.missed = decision.next_at, decision.missed
    return decision.run


def _next(plan: _Plan, rule: Rule, now: datetime, runs: LastRuns) -> datetime | None:
    """The next tick of a schedule without one; after a pause the first one since its end, which may be missed."""
    pause_end = plan.row["paused_until"] if plan.resumed else None
    if rule.delay is None:
        return rule.next(now if pause_end is None else pause_end - datetime.resolution)
    if plan.unfinished:
        return None
    end = runs.end(plan.row)
    return now if end is None else max(rule.next(end) or now, pause_end or end)


def _part(plan: _Plan) -> _Plan:
    """The plan of a tick that replaces a part of the runs of a schedule and changes nothing else."""
    row = plan.row
    part = _Plan(row, plan.unfinished, next_at=row["next_at"], last_tick=row["last_tick"], is_partial=True)
    part.replaced = plan.replaced
    return part


def _plan_runs(plan: _Plan, ticks: Sequence[datetime], template: NewTask) -> None:
    """The runs of the due ticks by the overlap, and the run that an operator asked for, which waits for nothing."""
    row = plan.row
    decision = resolve_overlap(Overlap(row["overlap"]), ticks, bool(plan.unfinished))
    plan.skipped, plan.wait = list(decision.skip), decision.wait
    plan.replaced = list(plan.unfinished) if decision.replace else []
    moments = [*decision.submit, *([] if plan.manual is None else [plan.manual])]
    plan.runs = [(each, task_of(template, plan.id, each, row["jitter"]), 0) for each in moments]


def _plan_round(plan: _Plan, ticks: Sequence[datetime], template: NewTask, runners: Iterable[int]) -> None:
    """A round of a broadcast: the latest tick on every runner, unless its last run is unfinished."""
    overlap = Overlap.ALLOW if plan.manual is not None else Overlap(plan.row["overlap"])
    moments = [*ticks, *([] if plan.manual is None else [plan.manual])]
    plan.skipped = list(moments[:-1])
    for moment in moments[-1:]:
        for runner_id in runners:
            queue = runner_queue(runner_id)
            unfinished = [id for id, own in plan.unfinished.items() if own == queue]
            task = task_of(template, plan.id, moment, plan.row["jitter"])
            task = task._replace(queue=queue, hosts=None, hosts_for=None)
            if unfinished and overlap is Overlap.SKIP:
                continue
            if unfinished and overlap is not Overlap.ALLOW:
                task = task._replace(after=(*(task.after or ()), *_ends(unfinished)))
                plan.replaced += unfinished if overlap is Overlap.REPLACE else []
            plan.runs.append((moment, task, runner_id))
        if not plan.runs:
            plan.skipped.append(moment)


def _ends(runs: Iterable[int]) -> tuple[DependsOn, ...]:
    return tuple(DependsOn(id, "run") for id in runs)


def _chained(plans: Iterable[_Plan], cancelled: Collection[int]) -> list[NewTask]:
    """The tasks in the order of their submit; those that wait for each other depend on the one before.

    Args:
        cancelled: the ids of the replaced runs that had not started, for which no task waits.
    """
    tasks: list[NewTask] = []
    for plan in plans:
        before = _ends(plan.unfinished)
        for moment, task, _ in plan.runs:
            waits = plan.wait and moment != plan.manual
            after = [*(task.after or ()), *(before if waits else ())]
            tasks.append(task._replace(after=tuple(each for each in after if each.parent not in cancelled) or None))
            before = (DependsOn(BatchMember(len(tasks) - 1), "run"),)
    return tasks


async def _drop_recorded(tx: Transaction, plans: Sequence[_Plan]) -> None:
    """Drop the ticks that have happened: after a step of the clock, or an edit, a schedule computes some again."""
    tick = tx.tables.tick
    ids = [plan.id for plan in plans if plan.runs or plan.skipped or plan.missed]
    moments = [moment for plan in plans for moment in _moments(plan)]
    if not ids:
        return
    recorded = sa.select(tick.c.schedule, tick.c.tick).where(
        tx.dialect.one_of(tick.c.schedule, ids), tick.c.tick >= min(moments), tick.c.tick <= max(moments)
    )
    ticks = {(row.schedule, row.tick) for row in await tx.rows(recorded)}
    for plan in plans:
        plan.runs = [run for run in plan.runs if (plan.id, run[0]) not in ticks]
        plan.skipped = [moment for moment in plan.skipped if (plan.id, moment) not in ticks]
        plan.replaced = plan.replaced if any(moment != plan.manual for moment, _, _ in plan.runs) else []
        if (plan.id, plan.missed) in ticks:
            plan.missed = None


def _moments(plan: _Plan) -> list[datetime]:
    return [moment for moment, _, _ in plan.runs] + plan.skipped + ([plan.missed] if plan.missed else [])


async def _record(tx: Transaction, plans: Iterable[_Plan], submitted: Mapping[str, Sequence[int]]) -> None:
    rows: list[dict[str, Any]] = []
    for plan in plans:
        values = {"schedule": plan.id, "task_id": None, "runner_id": 0}
        rows += [values | {"tick": moment, "outcome": TickOutcome.SKIPPED.value} for moment in plan.skipped]
        if plan.missed is not None:
            rows.append(values | {"tick": plan.missed, "outcome": TickOutcome.MISSED.value})
        for (moment, _, runner_id), task_id in zip(plan.runs, submitted[plan.id], strict=True):
            outcome = TickOutcome.MANUAL if moment == plan.manual else TickOutcome.SUBMITTED
            run = {"tick": moment, "outcome": outcome.value, "task_id": task_id, "runner_id": runner_id}
            rows.append(values | run)
    if rows:
        await tx.execute(sa.insert(tx.tables.tick), rows)


async def _store(tx: Transaction, plans: Iterable[_Plan], submitted: Mapping[str, Sequence[int]]) -> None:
    schedule = tx.tables.schedule
    rows = [_values(plan, submitted[plan.id]) for plan in plans]
    values = [name for name in rows[0] if name != "which"]
    changes = {name: sa.bindparam(f"new_{name}", type_=schedule.c[name].type) for name in values}
    statement = sa.update(schedule).where(schedule.c.id == sa.bindparam("which")).values(changes)
    parameters = [{name if name == "which" else f"new_{name}": value for name, value in row.items()} for row in rows]
    await tx.execute(statement, parameters)


def _values(plan: _Plan, ids: Sequence[int]) -> dict[str, Any]:
    row, moments = plan.row, _moments(plan)
    pause = ("paused_at", "paused_until", "paused_by", "paused_why")
    submitted = ((id, task.queue) for id, (_, task, _) in zip(ids, plan.runs, strict=True))
    *others, last = kept_runs(row, [*plan.unfinished.items(), *submitted]) or [row["last_task_id"]]
    return {
        "which": plan.id,
        "next_at": plan.next_at,
        "last_tick": max((each for each in (plan.last_tick, *moments) if each is not None), default=None),
        "last_task_id": last,
        "other_task_ids": json.dumps(others) if others else None,
        "run_requested_at": row["run_requested_at"] if plan.is_partial else None,
        "error": plan.error,
        **{name: None if plan.resumed else row[name] for name in pause},
    }
