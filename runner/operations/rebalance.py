"""rebalance: move waiting tasks to the shards of their routes, in chunks that a crash leaves whole.

A chunk takes four transactions, in two databases. A copy of each task is held in its new shard, blocked, so that no
runner takes it. Then the task is deleted where it was, if no runner has claimed it and no operator has changed it since
it was read; the audit log records that. Then the copies of the deleted tasks are released, and the others deleted.

The attempts, checkpoints, steps, signals and log lines of a task move with it, and so does its unique key, unless the
new shard has it. A task whose dependents, signals or order key would lose it stays.

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
from runner.store.unique import key_holders, lock_unique_keys

CHUNK = 500
"""Tasks per chunk."""

VERB = "rebalance"

HELD = "moving from {shard}:{id}, fence {fence}, version {version}, by runner rebalance"
"""The first line of the error of a copy that is held; the error of its task follows."""

_HELD = re.compile(
    r"moving from ([\w.-]+):(\d+), fence (\d+), version (\d+), by runner rebalance(?:\n(.*))?", re.DOTALL
)

OWN_COLUMNS = ("id", "state", "blocked_by", "error", "version", "retried", "runner_id")
"""The columns that a copy does not take over."""

MOVED = ("attempt", "checkpoint", "step", "signal", "progress", "log")
"""The tables of the rows that move with their task. Its audit entries stay: nothing changes them."""

UNIQUE, ORDER = "a unique key that the new shard has", "an order key with other tasks"
WORKFLOW, DEPENDENCY = "a workflow", "dependencies"


class MovableTask(NamedTuple):
    """A task to move.

    Args:
        values: its columns, by name.
        related: the rows that move with it, by the name of their table, without its id.
        unique: the row of the unique key that it holds; None without one.
    """

    id: int
    fence: int
    version: int
    route: str
    values: Mapping[str, Any]
    error: str | None
    related: Mapping[str, Sequence[Mapping[str, Any]]]
    unique: Mapping[str, Any] | None


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
        error: the error of the task.
    """

    id: int
    shard: str
    task: tuple[int, int, int]
    error: str | None = None


async def scan(tx: Transaction, after: int, shard: str, rule: ShardRule, most: int = CHUNK) -> MovableTasks:
    """Read waiting tasks that belong to another shard.

    Args:
        after: the id after which to begin.
        shard: the name of this shard.
        rule: the shard of a route.
        most: number of tasks to read.
    """
    task = tx.tables.task
    read = sa.select(task).where(task.c.id > after).order_by(task.c.id).limit(most)
    rows = (await tx.execute(read)).mappings().all()
    chosen, left = list[tuple[Any, str]](), Counter[str]()
    unmovable, shared = await _parents_and_callers(tx, rows), await _shared_order_keys(tx, rows)
    for row in rows:
        route = read_headers(row["headers"]).get(ROUTE)
        if route is None or row["state"] not in (State.WAITING, State.BLOCKED) or rule(route) == shard:
            continue
        is_held = row["error"] is not None and _HELD.fullmatch(row["error"]) is not None
        is_parent_or_caller = row["id"] in unmovable or (row["handler"], row["key"]) in unmovable
        if reason := _reason(row, is_parent_or_caller=is_parent_or_caller, is_shared=row["order_key"] in shared):
            left[reason] += not is_held
        else:
            chosen.append((row, route))
    ids = [row["id"] for row, _ in chosen]
    related = {name: await _by_task(tx, getattr(tx.tables, name), ids) for name in MOVED}
    unique = await _unique_keys(tx, [row for row, _ in chosen])
    tasks = [
        MovableTask(
            row["id"],
            row["fence"],
            row["version"],
            route,
            {name: value for name, value in row.items() if name not in OWN_COLUMNS},
            row["error"],
            {name: rows_of.get(row["id"], []) for name, rows_of in related.items()},
            unique.get(row["id"]),
        )
        for row, route in chosen
    ]
    return MovableTasks(tasks, left, rows[-1]["id"] if len(rows) == most else None)


def _reason(row: Any, *, is_parent_or_caller: bool, is_shared: bool) -> str:
    if row["workflow"] is not None:
        return WORKFLOW
    if is_shared:
        return ORDER
    is_dependent = row["state"] == State.BLOCKED or row["parents"] is not None or row["blocked_by"]
    return DEPENDENCY if is_parent_or_caller or is_dependent else ""


async def _shared_order_keys(tx: Transaction, rows: Sequence[Any]) -> set[str]:
    """The order keys of some tasks that further live tasks have."""
    keys = sorted({row["order_key"] for row in rows if row["order_key"] is not None})
    if not keys:
        return set()
    column = tx.tables.task.c.order_key
    counted = sa.select(column).where(tx.dialect.one_of(column, keys)).group_by(column).having(sa.func.count() > 1)
    return {row[0] for row in await tx.rows(counted)}


async def _by_task(tx: Transaction, table: sa.Table, ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """The rows of some tasks, without their ids and computed values, in the order of the table."""
    found = defaultdict[int, list[dict[str, Any]]](list)
    if ids:
        columns = [column for column in table.c if column.computed is None]
        selected = sa.select(*columns).where(tx.dialect.one_of(table.c.task_id, list(ids))).order_by(*table.primary_key)
        for row in (await tx.execute(selected)).mappings().all():
            found[row["task_id"]].append({name: row[name] for name in row if name not in ("id", "task_id")})
    return found


async def _unique_keys(tx: Transaction, rows: Sequence[Any]) -> dict[int, dict[str, Any]]:
    """The rows of the unique keys that some tasks hold, by the id of the task."""
    keys = {(row["handler"], row["unique_key"]): row["id"] for row in rows if row["unique_key"] is not None}
    if not keys:
        return {}
    unique = tx.tables.unique
    selected = sa.select(unique).where(sa.tuple_(unique.c.handler, unique.c.unique_key).in_(sorted(keys)))
    found = (await tx.execute(selected)).mappings().all()
    return {row["task_id"]: dict(row) for row in found if keys[row["handler"], row["unique_key"]] == row["task_id"]}


async def _parents_and_callers(tx: Transaction, rows: Sequence[Any]) -> set[Any]:
    """The tasks among some that others depend on, or that have called others: their ids, or their handlers and keys."""
    dependency, ids = tx.tables.dependency.c, [row["id"] for row in rows]
    is_open = dependency.satisfied_at.is_(None)
    by_id = sa.select(dependency.parent_id).where(tx.dialect.one_of(dependency.parent_id, ids))
    callers = sa.select(dependency.task_id).where(
        tx.dialect.one_of(dependency.task_id, ids), dependency.step.is_not(None)
    )
    found: set[Any] = {row[0] for each in (by_id, callers) for row in await tx.rows(each)} if rows else set()
    if keys := sorted({row["key"] for row in rows if row["key"] is not None}):
        by_key = sa.select(dependency.parent_handler, dependency.parent_key).where(
            is_open, tx.dialect.one_of(dependency.parent_key, keys)
        )
        found |= {tuple(row) for row in await tx.rows(by_key)}
    return found


async def hold(tx: Transaction, shard: str, tasks: Sequence[MovableTask]) -> dict[int, int]:
    """Insert copies of tasks that no runner takes, unless a task here holds the unique key or the order key.

    Args:
        shard: the shard of the tasks.

    Returns:
        The id of the copy of each task.
    """
    keys = {(each.unique["handler"], each.unique["unique_key"]) for each in tasks if each.unique is not None}
    fresh = await tx.follow(lock_unique_keys(tx, keys)) if keys else set()
    held_keys = await tx.follow(key_holders(tx, keys - fresh)) if keys - fresh else {}
    ordered = await _order_keys(tx, tasks)
    task = tx.tables.task
    rows = [
        {**each.values, "state": State.BLOCKED.value, "blocked_by": 1, "error": _mark(shard, each)}
        for each in tasks
        if not (each.unique and (each.unique["handler"], each.unique["unique_key"]) in held_keys)
        and each.values["order_key"] not in ordered
    ]
    if not rows:
        return {}
    inserted = await tx.execute(sa.insert(task).returning(task.c.id, task.c.error), rows)
    copies = {held.task[0]: held.id for held in map(_held, inserted) if held is not None}
    for name in MOVED:
        related = [
            {**row, "task_id": copies[each.id]} for each in tasks if each.id in copies for row in each.related[name]
        ]
        if related:
            await tx.execute(sa.insert(getattr(tx.tables, name)), related)
    await _hold_keys(tx, [(each.unique, copies[each.id]) for each in tasks if each.unique and each.id in copies])
    return copies


def _mark(shard: str, task: MovableTask) -> str:
    mark = HELD.format(shard=shard, id=task.id, fence=task.fence, version=task.version)
    return mark if task.error is None else f"{mark}\n{task.error}"


async def _order_keys(tx: Transaction, tasks: Sequence[MovableTask]) -> set[str]:
    """The order keys of tasks that live tasks here have."""
    keys = sorted({each.values["order_key"] for each in tasks if each.values["order_key"] is not None})
    column = tx.tables.task.c.order_key
    return (
        {row[0] for row in await tx.rows(sa.select(column).where(tx.dialect.one_of(column, keys)))} if keys else set()
    )


async def _hold_keys(tx: Transaction, holders: Sequence[tuple[Mapping[str, Any], int]]) -> None:
    """Make copies the holders of their unique keys, which are locked."""
    unique = tx.tables.unique
    names = [column.name for column in unique.c if column.name not in ("handler", "unique_key")]
    same = (unique.c.handler == sa.bindparam("of_handler")) & (unique.c.unique_key == sa.bindparam("of_key"))
    update = sa.update(unique).where(same).values({name: sa.bindparam(f"new_{name}") for name in names})
    rows = [
        {"of_handler": row["handler"], "of_key": row["unique_key"]}
        | {f"new_{name}": row[name] for name in names}
        | {"new_task_id": copy}
        for row, copy in holders
    ]
    if rows:
        await tx.execute(update, rows)


async def take(
    tx: Transaction, tasks: Sequence[MovableTask], target: str, copies: Mapping[int, int], by: Actor
) -> set[int]:
    """Delete the tasks that are still as they were read, and record their copies in the audit log.

    Returns:
        The ids of the deleted tasks.
    """
    task, held = tx.tables.task, [each for each in tasks if each.id in copies]
    if not held:
        return set()
    unchanged = sa.tuple_(task.c.id, task.c.fence, task.c.version).in_(
        [(each.id, each.fence, each.version) for each in held]
    )
    # The lock waits for submits that depend on a task, and later ones do not find it any more.
    locked = sa.select(task).where(unchanged, is_state(task.c.state, State.WAITING)).order_by(task.c.id)
    rows = (await tx.execute(locked.with_for_update())).mappings().all()
    unmovable, shared = await _parents_and_callers(tx, rows), await _shared_order_keys(tx, rows)
    signals = await _by_task(tx, tx.tables.signal, [row["id"] for row in rows])
    known = {each.id: len(each.related["signal"]) for each in held}
    ids = {
        row["id"]
        for row in rows
        if row["id"] not in unmovable
        and (row["handler"], row["key"]) not in unmovable
        and row["order_key"] not in shared
        and len(signals.get(row["id"], ())) == known[row["id"]]
    }
    keys = [(row["handler"], row["unique_key"]) for row in rows if row["id"] in ids and row["unique_key"] is not None]
    await tx.execute(sa.delete(task).where(tx.dialect.one_of(task.c.id, sorted(ids))))
    await _forget(tx, sorted(ids), keys)
    await record(tx, by, [AuditEntry(VERB, {}, {"task": f"{target}:{copies[id]}"}, id) for id in sorted(ids)])
    return ids


async def _forget(tx: Transaction, ids: Sequence[int], keys: Sequence[tuple[str, str]]) -> None:
    """Delete the rows and the unique keys of tasks that are deleted."""
    for name in (*MOVED, "dependency"):  # closed ones, which its order key has left
        table: sa.Table = getattr(tx.tables, name)
        await tx.execute(sa.delete(table).where(tx.dialect.one_of(table.c.task_id, list(ids))))
    unique = tx.tables.unique
    if keys:
        named = sa.tuple_(unique.c.handler, unique.c.unique_key).in_(list(keys))
        await tx.execute(sa.delete(unique).where(named, tx.dialect.one_of(unique.c.task_id, list(ids))))


async def release(tx: Transaction, copies: Mapping[int, str | None]) -> None:
    """Let runners take copies.

    Args:
        copies: the error of each.
    """
    task = tx.tables.task
    by_error = defaultdict[str | None, list[int]](list)
    for id, error in copies.items():
        by_error[error].append(id)
    for error, ids in by_error.items():
        values = {
            "state": state_literal(State.WAITING),
            "blocked_by": 0,
            "error": error,
            "version": next_version(task.c.version),
        }
        await tx.execute(sa.update(task).where(*_is_held(tx, ids)).values(values))


async def drop(tx: Transaction, copies: Sequence[int]) -> None:
    """Delete copies whose tasks stay where they are."""
    task = tx.tables.task
    deleted = sa.delete(task).where(*_is_held(tx, copies)).returning(task.c.id, task.c.handler, task.c.unique_key)
    rows = await tx.rows(deleted)
    keys = [(row.handler, row.unique_key) for row in rows if row.unique_key is not None]
    await _forget(tx, sorted(row.id for row in rows), keys)


def _is_held(tx: Transaction, copies: Sequence[int]) -> tuple[sa.ColumnElement[bool], ...]:
    task = tx.tables.task.c
    held = task.error.like("moving from %")
    return tx.dialect.one_of(task.id, list(copies)), is_state(task.state, State.BLOCKED), held


def _held(row: Any) -> HeldCopy | None:
    """Read the mark of a copy; None for a row without one."""
    match = _HELD.fullmatch(row.error or "")
    return (
        None if match is None else HeldCopy(row.id, match[1], (int(match[2]), int(match[3]), int(match[4])), match[5])
    )


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
                await database.write(release, {copy.id: copy.error for copy in copies if copy.id in released})
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
        await database.write(release, {copies[each.id]: each.error for each in tasks if each.id in taken})
        await database.write(drop, [copy for id, copy in copies.items() if id not in taken])
        self.moved[shard, target] += len(taken)
        for each in tasks:
            if each.id not in copies:
                self.left[shard, UNIQUE if each.unique is not None else ORDER] += 1
