"""rebalance: move waiting tasks to the shards of their routes, in chunks that a crash leaves whole.

A chunk takes four transactions, in two databases. A copy of each task is held in its new shard, blocked, so that no
runner takes it. Then the task is deleted where it was, if no runner has claimed it and no operator has changed it since
it was read; the audit log records that. Then the copies of the deleted tasks are released, and the others deleted.

A crash in between leaves copies that are held. `resolve` finds them, and the audit log of the other shard decides. It
changes the version of a task before it deletes the copy, so that a rebalance that is still at work cannot move it.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import is_state, state_literal
from runner.db.transaction import Transaction
from runner.db.types import next_version
from runner.model.headers import read_headers
from runner.model.shard import ROUTE
from runner.model.task import State
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor
from runner.policy.shard_rule import ShardRule

CHUNK = 500
"""Tasks per chunk."""

VERB = "rebalance"

HELD = "moving from {shard}:{id}, fence {fence}, version {version}, by runner rebalance"
"""The error of a copy that is held."""

_HELD = re.compile(r"moving from ([\w.-]+):(\d+), fence (\d+), version (\d+), by runner rebalance")

OWN_COLUMNS = ("id", "state", "blocked_by", "error", "version", "fence", "retried")
"""The columns that a copy does not take over."""

UNIQUE, ORDER, DEPENDENCY = "a unique key", "an order key", "dependencies"


class MovableTask(NamedTuple):
    """A task to move.

    Args:
        values: its columns, by name.
    """

    id: int
    fence: int
    version: int
    route: str
    values: Mapping[str, Any]


class MovableTasks(NamedTuple):
    """The next waiting tasks of a shard.

    Args:
        tasks: those that may move.
        left: the number of the others that have a route, by the reason.
        last: the id of the last task that was read; None after the last task of the shard.
    """

    tasks: list[MovableTask]
    left: Counter[str]
    last: int | None


class HeldCopy(NamedTuple):
    """A copy that is held.

    Args:
        shard: the shard of the task.
        task: id, version and fence of the task.
    """

    id: int
    shard: str
    task: tuple[int, int, int]


async def scan(tx: Transaction, after: int, shard: str, rule: ShardRule, most: int = CHUNK) -> MovableTasks:
    """Read waiting tasks that have never been attempted and belong to another shard.

    Args:
        after: the id after which to begin.
        shard: the name of this shard.
        rule: the shard of a route.
        most: number of tasks to read.
    """
    task = tx.tables.task
    read = sa.select(task).where(task.c.id > after).order_by(task.c.id).limit(most)
    rows = (await tx.execute(read)).mappings().all()
    tasks, left = list[MovableTask](), Counter[str]()
    parents = await _parents(tx, rows)
    for row in rows:
        route = read_headers(row["headers"]).get(ROUTE)
        if route is None or row["state"] != State.WAITING or row["attempt"] or row["rescues"] or rule(route) == shard:
            continue
        if reason := _reason(row, row["id"] in parents or (row["handler"], row["key"]) in parents):
            left[reason] += 1
            continue
        values = {name: value for name, value in row.items() if name not in OWN_COLUMNS}
        tasks.append(MovableTask(row["id"], row["fence"], row["version"], route, values))
    return MovableTasks(tasks, left, rows[-1]["id"] if len(rows) == most else None)


def _reason(row: Any, is_parent: bool) -> str:
    if row["unique_key"] is not None:
        return UNIQUE
    if row["order_key"] is not None:
        return ORDER
    return DEPENDENCY if is_parent or row["parents"] is not None or row["blocked_by"] else ""


async def _parents(tx: Transaction, rows: Sequence[Any]) -> set[Any]:
    """The tasks among some that others depend on: their ids, or their handlers and keys."""
    dependency = tx.tables.dependency.c
    is_open = dependency.satisfied_at.is_(None)
    by_id = sa.select(dependency.parent_id).where(tx.dialect.one_of(dependency.parent_id, [row["id"] for row in rows]))
    found: set[Any] = {row[0] for row in await tx.rows(by_id)} if rows else set()
    if keys := sorted({row["key"] for row in rows if row["key"] is not None}):
        by_key = sa.select(dependency.parent_handler, dependency.parent_key).where(
            is_open, tx.dialect.one_of(dependency.parent_key, keys)
        )
        found |= {tuple(row) for row in await tx.rows(by_key)}
    return found


async def hold(tx: Transaction, shard: str, tasks: Sequence[MovableTask]) -> dict[int, int]:
    """Insert copies of tasks that no runner takes.

    Args:
        shard: the shard of the tasks.

    Returns:
        The id of the copy of each task.
    """
    task = tx.tables.task
    rows = [
        {
            **each.values,
            "state": State.BLOCKED.value,
            "blocked_by": 1,
            "error": HELD.format(shard=shard, id=each.id, fence=each.fence, version=each.version),
        }
        for each in tasks
    ]
    inserted = await tx.execute(sa.insert(task).returning(task.c.id, task.c.error), rows)
    return {held.task[0]: held.id for held in map(_held, inserted) if held is not None}


async def take(
    tx: Transaction, tasks: Sequence[MovableTask], target: str, copies: Mapping[int, int], by: Actor
) -> set[int]:
    """Delete the tasks that are still as they were read, and record their copies in the audit log.

    Returns:
        The ids of the deleted tasks.
    """
    task = tx.tables.task
    unchanged = sa.tuple_(task.c.id, task.c.fence, task.c.version).in_(
        [(each.id, each.fence, each.version) for each in tasks]
    )
    deleted = await tx.rows(
        sa.delete(task).where(unchanged, is_state(task.c.state, State.WAITING)).returning(task.c.id)
    )
    ids = {row.id for row in deleted}
    await record(tx, by, [AuditEntry(VERB, {}, {"task": f"{target}:{copies[id]}"}, id) for id in sorted(ids)])
    return ids


async def release(tx: Transaction, copies: Sequence[int]) -> None:
    """Let runners take copies."""
    task = tx.tables.task
    values = {
        "state": state_literal(State.WAITING),
        "blocked_by": 0,
        "error": None,
        "version": next_version(task.c.version),
    }
    await tx.execute(sa.update(task).where(*_is_held(tx, copies)).values(values))


async def drop(tx: Transaction, copies: Sequence[int]) -> None:
    """Delete copies whose tasks stay where they are."""
    await tx.execute(sa.delete(tx.tables.task).where(*_is_held(tx, copies)))


def _is_held(tx: Transaction, copies: Sequence[int]) -> tuple[sa.ColumnElement[bool], ...]:
    task = tx.tables.task.c
    held = task.error.like("moving from %")
    return tx.dialect.one_of(task.id, list(copies)), is_state(task.state, State.BLOCKED), held


def _held(row: Any) -> HeldCopy | None:
    """Read the mark of a copy; None for a row without one."""
    match = _HELD.fullmatch(row.error or "")
    return None if match is None else HeldCopy(row.id, match[1], (int(match[2]), int(match[3]), int(match[4])))


async def held_copies(tx: Transaction) -> list[HeldCopy]:
    """Read the copies that are held."""
    task = tx.tables.task.c
    marked = is_state(task.state, State.BLOCKED) & task.error.like("moving from %")
    rows = await tx.rows(sa.select(task.id, task.error).where(marked).order_by(task.id))
    return [copy for row in rows if (copy := _held(row)) is not None]


async def decide(tx: Transaction, target: str, copies: Sequence[HeldCopy]) -> set[int]:
    """Find the copies whose tasks were deleted here, and make sure that the other tasks stay.

    Returns:
        The ids of the copies to release.
    """
    audit, task = tx.tables.audit.c, tx.tables.task
    # First: a rebalance that is at work either has deleted a task, and the audit log shows it, or cannot any more.
    unchanged = sa.tuple_(task.c.id, task.c.fence, task.c.version).in_([copy.task for copy in copies])
    await tx.execute(sa.update(task).where(unchanged).values(version=next_version(task.c.version)))
    ids = sorted({copy.task[0] for copy in copies})
    rows = await tx.rows(sa.select(audit.after).where(audit.verb == VERB, tx.dialect.one_of(audit.task_id, ids)))
    moved = {json.loads(row.after).get("task") for row in rows}
    return {copy.id for copy in copies if f"{target}:{copy.id}" in moved}


class Rebalance:
    """Moves the tasks of some shards.

    Args:
        databases: the database of each shard.
        rule: the shard of a route.
        by: the author of the moves.
    """

    def __init__(self, databases: Mapping[str, Database], rule: ShardRule, by: Actor) -> None:
        self._databases, self._rule, self._by = databases, rule, by
        self.moved: Counter[tuple[str, str]] = Counter()
        """The number of moved tasks, by the shards before and after."""
        self.left: Counter[tuple[str, str]] = Counter()
        """The number of tasks that cannot move, by their shard and the reason."""

    async def resolve(self) -> None:
        """Release or delete the copies that an earlier rebalance has left held."""
        for target, database in self._databases.items():
            by_shard = defaultdict[str, list[HeldCopy]](list)
            for copy in await database.read(held_copies):
                by_shard[copy.shard].append(copy)
            for shard, copies in by_shard.items():
                if (source := self._databases.get(shard)) is None:
                    self.left[target, f"a copy here, and the profile lacks their shard {shard}"] += len(copies)
                    continue
                released = await source.write(decide, target, copies)
                await database.write(release, sorted(released))
                await database.write(drop, [copy.id for copy in copies if copy.id not in released])
                self.moved[shard, target] += len(released)

    async def run(self, limit: float = inf, *, dry_run: bool = False) -> None:
        """Move tasks.

        Args:
            limit: stop after this number of tasks.
            dry_run: only count them.
        """
        for shard, database in self._databases.items():
            after: int | None = 0
            while after is not None and self.moved.total() < limit:
                found = await database.read(scan, after, shard, self._rule)
                after = found.last
                self.left.update({(shard, reason): tasks for reason, tasks in found.left.items()})
                by_target = defaultdict[str, list[MovableTask]](list)
                for task in found.tasks[: int(min(limit - self.moved.total(), CHUNK))]:
                    by_target[self._rule(task.route)].append(task)
                for target, tasks in by_target.items():
                    if dry_run:
                        self.moved[shard, target] += len(tasks)
                    else:
                        await self._move(shard, target, tasks)

    async def _move(self, shard: str, target: str, tasks: Sequence[MovableTask]) -> None:
        source, database = self._databases[shard], self._databases[target]
        copies = await database.write(hold, shard, tasks)
        taken = await source.write(take, tasks, target, copies, self._by)
        await database.write(release, [copies[id] for id in sorted(taken)])
        await database.write(drop, [copy for id, copy in copies.items() if id not in taken])
        self.moved[shard, target] += len(taken)
