"""runners: the registered runners, and the handlers that no live runner has."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.dialects import Dialect
from runner.db.schema import Tables, is_state
from runner.db.transaction import Transaction
from runner.db.types import db_now, seconds_until
from runner.model.alert import DELIVER, DELIVERIES, QUEUE
from runner.model.shard import ShardId
from runner.model.stuck_row import VERBS_OF_RUNNING, StuckReport, StuckRow, StuckVerb, read_stuck
from runner.model.task import BUCKETS, LIVE, State
from runner.policy.lanes import Lane, runner_queue, serves
from runner.policy.selection import stored_buckets
from runner.queries.counting import lane_heads
from runner.queries.registries import registry_entries
from runner.queries.rows import as_int, as_text, from_row, number, readable, text, texts
from runner.store.heartbeat import MOST_SUSPECTS, LoopBlock
from runner.store.registration import ExecutorSlots
from runner.text.document import JsonProperty
from runner.text.formatting import age
from runner.text.hosts import admits, host_names
from runner.text.runner_name import process_name
from runner.text.sanitize import count_noun

MOST = 1_000
"""Maximum number of runners in a list."""

MOST_CPUS, LONGEST_SECONDS = 1e6, 1e9
"""Limits of the figures that a row may contain; others count as unknown."""


PIPES = ("pipe_write", "pipe_wait", "anon_pipe_write", "n_tty_write", "unix_stream_sendmsg", "sock_alloc_send_pskb")
"""Functions of the kernel in which a thread waits for a reader."""

NOTHING_STUCK = StuckReport()

RESIZABLE = ("slots", "threads", "processes")
"""The kinds of slots whose number an operator can change."""

OWN_SLOTS = (*RESIZABLE, QUEUE)
"""The kinds of slots that a runner process has itself."""

SlotKind: TypeAlias = str
"""The slots of a runner: `slots` for coroutines, `threads`, `processes`, `runner.alerts` for deliveries, or an external
executor, by name."""


class RunnerRow(NamedTuple):
    """A runner process.

    Args:
        id: the runner's id, which changes with every start.
        pid: the process id on that host.
        started_at: when it registered.
        heartbeat_age: seconds since its last heartbeat.
        lease: seconds until its lease expires; negative if its tasks may be rescued.
        queues: the queues that it claims from; empty for all.
        threaded: the handlers that run in threads.
        capacity: its slots, threads and processes included.
        in_processes: the handlers that run in processes.
        running: the tasks that it reported with its last heartbeat.
        abandoned: its threads whose function did not end after the timeout of its task.
        replaced: the ones with a spare thread instead; the others keep their slots.
        running_tasks: the running tasks of this runner in the task table.
        command: the runner command that an operator stored for it.
        claim_order: the order in which it claims.
        polling: its poll mode and periods; empty for an older runner.
        slice: its slice; None without one.
        buckets: the buckets that it claims from, such as 0-499; None for all, empty for none.
        cpu: the processors in use between its last two heartbeats, its handler processes included; None if unknown.
        memory: their resident memory in bytes; None if unknown.
        block: the reason why it sends no heartbeat although it is alive; None if it sends them.
        stuck: the rows of tasks that it could not change.
        executors: the slots and the handlers of its external executors, by name.
    """

    id: int
    host: str
    pid: int
    version: str
    started_at: datetime | None
    heartbeat_age: float
    lease: float
    handlers: tuple[str, ...]
    queues: tuple[str, ...]
    threaded: tuple[str, ...]
    capacity: int
    threads: int
    in_processes: tuple[str, ...]
    processes: int
    running: int
    running_tasks: int
    command: str | None
    abandoned: int = 0
    replaced: int = 0
    claim_order: str = "strict"
    polling: str = ""
    slice: str | None = None
    buckets: str | None = None
    cpu: float | None = None
    memory: int | None = None
    block: LoopBlock | None = None
    stuck: StuckReport = NOTHING_STUCK
    executors: Mapping[str, ExecutorSlots] = {}

    @JsonProperty
    def alive(self) -> bool:
        """True until its lease expires."""
        return self.lease >= 0

    @property
    def silent(self) -> bool:
        """True if it is alive, but half of its lease has passed without a heartbeat."""
        return self.alive and self.heartbeat_age > self.lease

    @property
    def draining(self) -> bool:
        """True if it was asked to claim no more tasks."""
        return self.command is not None and "drain" in self.command.split()

    @property
    def order(self) -> str:
        """Its command as text, such as `concurrency=5 draining`; empty without one."""
        return " ".join("draining" if word == "drain" else word for word in (self.command or "").split())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Its command, stuck rows, abandoned threads, and its selection, order and polling if not the default."""
        from runner.policy.polling import DEFAULT_POLLING  # the first data of the console need no poll modes

        claim_order = "" if self.claim_order == "strict" else self.claim_order
        polling = "" if self.polling == DEFAULT_POLLING else self.polling
        remarks = (self.order, self.stuck_rows, self.threads_lost, self.selection, claim_order, polling)
        return tuple(text for text in remarks if text)

    @property
    def threads_lost(self) -> str:
        """Its abandoned threads as text; empty without one."""
        if not self.abandoned:
            return ""
        lost = self.abandoned - self.replaced
        text = count_noun(self.abandoned, "abandoned thread")
        return f"{text}, {count_noun(lost, 'slot')} lost" if lost else text

    @property
    def blocked_for(self) -> float:
        """Seconds for which something has blocked it; 0 if nothing does."""
        return self.block.seconds + max(0.0, self.heartbeat_age) if self.block is not None and self.alive else 0.0

    @property
    def culprit(self) -> str:
        """What blocks it: a task, one of several, or a line of code."""
        if self.block is None:
            return ""
        names = [f"{handler} (task {id})" for id, handler in self.block.tasks if handler not in self.in_processes]
        name = f"one of {', '.join(names)}" if len(names) > 1 else "".join(names)
        return name or self.block.place or "unknown code"

    @property
    def guess(self) -> str:
        """The probable reason why not even its threads run: a reader that stands still, or C code."""
        fact = self.block.fact if self.block is not None else ""
        if fact.endswith(PIPES):
            return "probably a reader of its log or output has stopped"
        return f"probably C code of {self.culprit} holds the interpreter lock"

    @property
    def obstruction(self) -> str:
        """How long it has been blocked, and by what; empty if nothing blocks it."""
        return f"blocked {age(self.blocked_for)} by {self.culprit}" if self.blocked_for else ""

    @property
    def stuck_rows(self) -> str:
        """The number of rows that it could not change, as text; empty without one, and if it is lost."""
        return count_noun(self.stuck.total, "stuck row") if self.stuck.total and self.alive else ""

    @property
    def selection(self) -> str:
        """Its slice and its buckets as text; empty if it claims from all buckets."""
        if self.buckets is None:
            return ""
        number = len(stored_buckets(self.buckets))
        if self.slice is None:
            return f"buckets {self.buckets}"
        return f"slice {self.slice} ({f'{number} of {BUCKETS} buckets' if number else 'standby'})"

    def pool_of(self, handler: str) -> SlotKind:
        """The slots in which it runs the tasks of a handler."""
        if handler == DELIVER:
            return QUEUE
        if handler in self.in_processes:
            return "processes"
        for name, executor in self.executors.items():
            if handler in executor["handlers"]:
                return name
        return "threads" if handler in self.threaded else "slots"

    @property
    def sizes(self) -> dict[SlotKind, int]:
        """The number of its slots of each kind."""
        external = {name: executor["slots"] for name, executor in self.executors.items()}
        slots = max(0, self.capacity - self.threads - self.processes - sum(external.values()))
        threads = max(0, self.threads - self.abandoned + self.replaced)
        deliveries = {QUEUE: DELIVERIES} if DELIVER in self.handlers else {}
        return {"threads": threads, "processes": self.processes, **external, "slots": slots, **deliveries}

    def takes(self, queue: str, handler: str) -> bool:
        """True if it claims tasks of this queue and handler."""
        return handler in self.handlers and serves(queue, self.queues, runner_queue(self.id))

    def takes_of(self, lane: Lane) -> bool:
        """True if it claims the tasks of a lane."""
        return self.takes(lane.queue, lane.handler) and admits(as_text(lane.hosts), self.host)

    def takes_bucket(self, queue: str, bucket: int) -> bool:
        """True if it claims tasks of this bucket; those for this runner alone have any."""
        return self.buckets is None or queue == runner_queue(self.id) or bucket in stored_buckets(self.buckets)


def used_slots(runners: Iterable[RunnerRow]) -> tuple[int, int]:
    """The running tasks of runners, and their slots: a process with runners in several shards shares its slots."""
    busy, shards = 0, defaultdict[str, Counter[tuple[str, int]]](Counter)
    for runner in runners:
        busy += runner.running_tasks
        shards[runner.id.shard if isinstance(runner.id, ShardId) else ""][runner.host, runner.pid] += runner.capacity
    slots = Counter[tuple[str, int]]()
    for own in shards.values():
        slots |= own
    return busy, slots.total()


class HandlerWithoutRunner(NamedTuple):
    """A handler with waiting tasks that no live runner claims.

    Args:
        queues: the queues with its unclaimed tasks.
        due: seconds since its first task became due; negative if it is not due yet.
        seen: when a runner last had the handler; None for never.
        hosts: the hosts that these tasks wait for, each list once; empty if any host may take them.
    """

    handler: str
    queues: tuple[str, ...]
    due: float
    seen: datetime | None
    hosts: tuple[str, ...] = ()


async def runners(tx: Transaction) -> list[RunnerRow]:
    """List the registered runners, lost ones included, by host and id."""
    return await _runners(tx, _statement(tx.tables, tx.dialect))


async def runner_of(tx: Transaction, runner_id: int | None) -> RunnerRow | None:
    """Find one runner; None if it is not registered."""
    if runner_id is None:
        return None
    rows = await _runners(tx, _statement(tx.tables, tx.dialect).where(tx.tables.runner.c.id == runner_id))
    return rows[0] if rows else None


async def runner_names(tx: Transaction) -> dict[int, str]:
    """The names of the live runners, and of as many that ended last, by id: `web-3:4117`.

    Args:
        tx: an open transaction; one statement is executed.
    """
    live, ended = tx.tables.runner.c, tx.tables.ended_runner.c
    parts = (
        sa.select(live.id, *readable(tx, (live.host, live.pid))).limit(MOST),
        sa.select(ended.runner_id, *readable(tx, (ended.host, ended.pid))).order_by(ended.ended_at.desc()).limit(MOST),
    )
    rows = await tx.rows(sa.union_all(*(sa.select(part.subquery()) for part in parts)))
    return {id: process_name(as_text(host), as_int(pid)) for id, host, pid in rows}


@lru_cache
def _statement(tables: Tables, dialect: Dialect) -> sa.Select[Any]:
    runner, task = tables.runner, tables.task.c
    running = sa.select(sa.func.count()).where(task.runner_id == runner.c.id, is_state(task.state, State.RUNNING))
    columns = [
        *readable(dialect, runner.c),
        seconds_until(runner.c.heartbeat_at).label("heartbeat"),
        seconds_until(runner.c.lease_until).label("lease"),
        running.correlate(runner).scalar_subquery().label("running_tasks"),
    ]
    return sa.select(*columns).order_by(runner.c.host, runner.c.id).limit(MOST)


async def _runners(tx: Transaction, statement: sa.Select[Any]) -> list[RunnerRow]:
    found = [_runner(row) for row in (await tx.execute(statement)).mappings().all()]
    stuck = [row for runner in found for row in runner.stuck.rows]
    if not stuck:
        return found
    current = set(await current_stuck(tx, stuck))
    return [runner._replace(stuck=runner.stuck.among(current)) if runner.stuck.rows else runner for runner in found]


def _executors(value: object) -> dict[str, ExecutorSlots]:
    """Read the external executors of a row; another program may have written anything."""
    found: dict[str, ExecutorSlots] = {}
    with suppress(ValueError, AttributeError):
        for name, each in json.loads(as_text(value)).items():
            if isinstance(each, dict):
                found[name] = ExecutorSlots(
                    slots=as_int(each.get("slots")), handlers=texts(json.dumps(each.get("handlers")))
                )
    return found


def _runner(row: sa.RowMapping) -> RunnerRow:
    return from_row(
        RunnerRow,
        row,
        heartbeat_age=-(row["heartbeat"] or 0.0),
        lease=row["lease"] or 0.0,
        executors=_executors(row["executors"]),
        abandoned=as_int(row["abandoned_threads"]),
        replaced=as_int(row["replaced_threads"]),
        cpu=share(row["cpu"]),
        memory=row["memory"] if isinstance(row["memory"], int) and row["memory"] >= 0 else None,
        block=_block(text(row["stall"])),
        stuck=read_stuck(text(row["stuck"])),
    )


def share(value: Any) -> float | None:
    """A number of processors; None if it is unreadable or impossible."""
    read = number(value)
    return read if read is not None and 0 <= read < MOST_CPUS else None


def _block(value: str | None) -> LoopBlock | None:
    """The stored reason, as far as it is readable; None without one."""
    if value is None:
        return None
    try:
        stored = json.loads(value)
    except (ValueError, RecursionError):
        stored = None
    stored = stored if isinstance(stored, dict) else {}
    seconds, tasks = number(stored.get("seconds")), stored.get("tasks")
    named = [
        (each[0], each[1])
        for each in (tasks if isinstance(tasks, list) else [])[:MOST_SUSPECTS]
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], int) and isinstance(each[1], str)  # noqa: PLR2004 - id and handler
    ]
    valid = seconds if seconds is not None and 0 <= seconds < LONGEST_SECONDS else 0.0
    fact = as_text(stored.get("fact"))
    return LoopBlock(valid, named, as_text(stored.get("place")), stored.get("locked") is True, fact)


async def unknown_handlers(tx: Transaction) -> list[HandlerWithoutRunner]:
    """Find the handlers with waiting tasks that no live runner claims, longest due first.

    Args:
        tx: an open transaction; three or four statements are executed.
    """
    lanes: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    runner = tx.tables.runner.c
    live = sa.select(runner.id, runner.handlers, runner.queues, runner.host).where(runner.lease_until >= db_now())
    heads, rows = await tx.gather(tx.once(lane_heads), tx.rows(live))
    for head in heads:
        queues = lanes[as_text(head.lane.handler)]
        lane_key = as_text(head.lane.queue), ",".join(host_names(as_text(head.lane.hosts)))
        queues[lane_key] = min(queues.get(lane_key, head.wait), head.wait)
    claimants = [(runner_queue(row[0]), texts(row[1]), texts(row[2]), as_text(row[3])) for row in rows]
    result = []
    for handler, queues in lanes.items():
        unclaimed = {
            (queue, hosts): wait
            for (queue, hosts), wait in queues.items()
            if not any(
                handler in names and serves(queue, own_queues, own) and admits(hosts, host)
                for own, names, own_queues, host in claimants
            )
        }
        if unclaimed:
            names, hosts = (tuple(sorted(set(part))) for part in zip(*unclaimed, strict=True))
            hosts = () if "" in hosts else hosts
            result.append(HandlerWithoutRunner(handler, names, -min(unclaimed.values()), None, hosts))
    registry = await registry_entries(tx, tx.tables.handler) if result else {}
    result = [row._replace(seen=registry[row.handler].last_seen) if row.handler in registry else row for row in result]
    return sorted(result, key=lambda row: (-row.due, row.handler))


async def busy_slots(tx: Transaction, ids: Sequence[int] | None = None) -> dict[int, dict[str, int]]:
    """Count the running tasks of each runner, at most 10,000 over all, by handler, most first.

    Args:
        tx: an open transaction; one statement is executed.
        ids: only these runners; None for all.
    """
    task = tx.tables.task.c
    claimed = [is_state(task.state, State.RUNNING), *([] if ids is None else [tx.dialect.one_of(task.runner_id, ids)])]
    window = sa.select(task.runner_id, task.handler).where(*claimed).limit(10_000).subquery()
    groups = (window.c.runner_id, window.c.handler)
    rows = await tx.rows(sa.select(*groups, sa.func.count().label("tasks")).group_by(*groups))
    slots: dict[int, dict[str, int]] = defaultdict(dict)
    for runner_id, handler, tasks in sorted(rows, key=lambda row: (-row[2], as_text(row[1]))):
        if runner_id is not None:
            slots[runner_id][as_text(handler)] = tasks
    return dict(slots)


async def silent_runners(tx: Transaction) -> int:
    """Count the registered runners whose lease has expired."""
    runner = tx.tables.runner.c
    return int((await tx.rows(sa.select(sa.func.count()).where(runner.lease_until < db_now())))[0][0])


async def current_stuck(tx: Transaction, rows: Sequence[StuckRow]) -> list[StuckRow]:
    """Leave out the rows of tasks that have ended since a runner stored them, or that no longer run.

    Args:
        tx: an open transaction; one statement is executed if there are rows.
    """
    task = tx.tables.task.c
    ids = [row.task for row in rows]
    found = await tx.rows(sa.select(task.id, task.state).where(tx.dialect.one_of(task.id, ids))) if ids else []
    states = {row.id: row.state for row in found}
    return [row for row in rows if row.verb == "prune" or states.get(row.task) in _states_of(row.verb)]


def _states_of(verb: StuckVerb) -> Collection[str]:
    """The states of a task whose row a verb changes."""
    return (State.RUNNING,) if verb in VERBS_OF_RUNNING else LIVE


def runner_value(tables: Tables, runner_id: sa.ColumnElement[Any], name: Literal["pid", "version"]) -> sa.Label[Any]:
    """A value of the runner with an id, as the column `name`; null if its row was pruned.

    Args:
        runner_id: the column with its id.
    """
    live, ended = tables.runner.c, tables.ended_runner.c
    of_live = sa.select(live[name]).where(live.id == runner_id).scalar_subquery()
    of_ended = sa.select(ended[name]).where(ended.runner_id == runner_id).scalar_subquery()
    return sa.func.coalesce(of_live, of_ended).label(name)
