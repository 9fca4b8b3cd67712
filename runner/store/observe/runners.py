"""runners: who works, what they know, and which work nobody knows."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.columns import db_now, seconds_until
from runner.schema import is_state
from runner.store.observe.legible import legible, moment, text, texts, whole, words
from runner.store.observe.pauses import registered
from runner.store.survey import survey
from runner.store.transaction import Transaction
from runner.task import State

MOST = 1_000
"""Runners that are listed."""


@dataclass(frozen=True, slots=True)
class RunnerRow:
    """A runner process.

    Args:
        id: the number of this incarnation.
        host: where it runs.
        pid: its process there.
        version: of the program.
        started_at: when it registered.
        silent: seconds since its last sign of life.
        lease: seconds for which it still counts as alive; negative when its tasks may be taken back.
        handlers: the names that it knows.
        queues: that it claims from; empty for all.
        threaded: those of its handlers that run in threads.
        capacity: how many tasks it can run at once.
        threads: how many of these in threads.
        running: how many tasks it said it had in hand.
        holds: how many tasks the table says it has in hand.
        wish: what an operator has asked of it.
    """

    id: int
    host: str
    pid: int
    version: str
    started_at: datetime | None
    silent: float
    lease: float
    handlers: tuple[str, ...]
    queues: tuple[str, ...]
    threaded: tuple[str, ...]
    capacity: int
    threads: int
    running: int
    holds: int
    wish: str | None

    @property
    def alive(self) -> bool:
        """True while its lease holds."""
        return self.lease >= 0

    def takes(self, queue: str, handler: str) -> bool:
        """Tell whether it claims such tasks."""
        return takes(self.handlers, self.queues, queue, handler)


@dataclass(frozen=True, slots=True)
class UnknownHandler:
    """A handler with waiting tasks that no live runner takes.

    Args:
        handler: its name.
        queues: where its tasks wait, and nobody claims them.
        due: seconds for which the first has been due; negative when it is not due yet.
        seen: when a runner last knew the handler; None for never.
    """

    handler: str
    queues: tuple[str, ...]
    due: float
    seen: datetime | None


async def runners(tx: Transaction) -> list[RunnerRow]:
    """List the runners that are registered, lost ones included, by host and number."""
    return await _runners(tx, sa.true())


async def runner_of(tx: Transaction, runner_id: int | None) -> RunnerRow | None:
    """Find one runner; None when it is not registered (any more)."""
    if runner_id is None:
        return None
    found = await _runners(tx, tx.tables.runner.c.id == runner_id)
    return found[0] if found else None


async def _runners(tx: Transaction, condition: sa.ColumnElement[bool]) -> list[RunnerRow]:
    runner, task = tx.tables.runner, tx.tables.task.c
    held = sa.select(sa.func.count()).where(task.runner_id == runner.c.id, is_state(task.state, State.RUNNING))
    columns = [
        *legible(tx, runner.c),
        seconds_until(runner.c.beat_at).label("beat"),
        seconds_until(runner.c.lease_until).label("lease"),
        held.correlate(runner).scalar_subquery().label("holds"),
    ]
    statement = sa.select(*columns).where(condition).order_by(runner.c.host, runner.c.id).limit(MOST)
    return [_runner(row) for row in (await tx.execute(statement)).mappings().all()]


def _runner(row: sa.RowMapping) -> RunnerRow:
    return RunnerRow(
        id=row["id"],
        host=words(row["host"]),
        pid=whole(row["pid"]),
        version=words(row["version"]),
        started_at=moment(row["started_at"]),
        silent=-(row["beat"] or 0.0),
        lease=row["lease"] or 0.0,
        handlers=texts(row["handlers"]),
        queues=texts(row["queues"]),
        threaded=texts(row["threaded"]),
        capacity=whole(row["capacity"]),
        threads=whole(row["threads"]),
        running=whole(row["running"]),
        holds=row["holds"],
        wish=text(row["wish"]),
    )


async def unknown_handlers(tx: Transaction) -> list[UnknownHandler]:
    """Find the handlers whose tasks wait for a runner that takes them, the longest due first."""
    waits: dict[str, dict[str, float]] = defaultdict(dict)
    for head in await survey(tx):
        queues = waits[words(head.lane.handler)]
        queue = words(head.lane.queue)
        queues[queue] = min(queues.get(queue, head.wait), head.wait)
    runner = tx.tables.runner.c
    rows = await tx.rows(sa.select(runner.handlers, runner.queues).where(runner.lease_until >= db_now()))
    live = [(texts(row[0]), texts(row[1])) for row in rows]
    registry = await registered(tx, tx.tables.handler)
    unknown = []
    for handler, queues in waits.items():
        left = {queue: wait for queue, wait in queues.items() if not any(takes(*one, queue, handler) for one in live)}
        if left:
            seen = registry[handler].seen if handler in registry else None
            unknown.append(UnknownHandler(handler, tuple(sorted(left)), -min(left.values()), seen))
    return sorted(unknown, key=lambda found: (-found.due, found.handler))


def takes(handlers: Collection[str], queues: Collection[str], queue: str, handler: str) -> bool:
    """Tell whether a runner claims tasks of a queue and a handler.

    Args:
        handlers: that it knows.
        queues: that it claims from; empty for all.
        queue: of the tasks.
        handler: of the tasks.
    """
    return handler in handlers and (not queues or queue in queues)
