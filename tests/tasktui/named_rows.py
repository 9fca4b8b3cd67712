"""The rows that a confirmation names, by its command, and the rows that have changed since a look at the database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.db.database import Database
from runner.filter.parse import parse_filter
from runner.queries.task_list.search import find

Key: TypeAlias = tuple[str, Any]
"""A kind of row and its id or name; a task keeps its key when it moves between the live table and the history."""

TABLES = {
    "task": ("task", "id"),
    "task_history": ("task", "id"),
    "task_signal": ("task", "task_id"),
    "task_queue": ("queue", "name"),
    "task_handler": ("handler", "name"),
    "task_runner": ("runner", "id"),
    "task_schedule": ("schedule", "id"),
    "task_alert": ("alert", "name"),
}
"""The kind and the key of the rows of each table."""

TASK_VERBS = ("retry", "terminate", "delay", "unblock", "edit", "rewind", "signal")
"""The commands that name tasks, by id or by a filter."""


async def rows_of(database: Database) -> Mapping[Key, object]:
    """Read every row that an operator can change."""
    rows: dict[Key, list[object]] = {}
    async with database.reading() as tx:
        for name, (kind, key) in TABLES.items():
            for row in await tx.rows(sa.text(f"SELECT {key}, {name}.* FROM {name} ORDER BY 1")):
                rows.setdefault((kind, row[0]), []).append((name, *row))
    return rows


@dataclass(frozen=True)
class Named:
    """The rows that a confirmation names.

    Args:
        words: the words of the equivalent command after `runner`.
        limit: the maximum number of tasks; None for all.
        before: the rows when the operator confirmed.
        keys: the named rows.
        number: the number of tasks in the question; None for a change that does not name tasks, and for "1,000+".
        partial: the operator stopped the change, or a task changed while the dialog was open.
    """

    words: Sequence[object]
    limit: int | None
    before: Mapping[Key, object]
    keys: frozenset[Key]
    number: int | None
    partial: bool = False

    def check(self, after: Mapping[Key, object]) -> int:
        """Check that the named rows have changed, in the named number, and no others; return their number."""
        changed = {key for key in self.before.keys() | after.keys() if self.before.get(key) != after.get(key)}
        new = {key for key in changed if key[0] == "task" and key not in self.before}
        assert changed - new <= self.keys, (self.words, "changed as well", sorted(map(str, changed - new - self.keys)))
        if self.number is None:
            assert len(new) <= int(self.words[0] in ("submit", "copy") or self.words[:2] == ["schedules", "run"]), new
        else:
            most = self.number if self.limit is None else min(self.number, self.limit)
            assert not new, (self.words, new)
            assert len(changed) <= most, (self.words, len(changed), most)
            # A task that becomes due by itself before its turn is no longer retrying: the change skips it.
            fewer = self.partial or self.words[0] == "retry" or "state:retrying" in str(self.words[1])
            assert fewer or len(changed) == most, (self.words, len(changed), most)
        return len(changed)


async def rows_named(
    database: Database,
    words: Sequence[object],
    limit: int | None,
    before: Mapping[Key, object],
) -> Named:
    """Read which rows a command names, before it changes them."""
    keys, number = await _keys(database, list(words))
    return Named(words, limit, before, frozenset(keys), number)


async def _keys(database: Database, words: Sequence[Any]) -> tuple[set[Key], int | None]:
    verb, *rest = words
    if verb == "undo":
        return await _undone(database, rest), None
    if verb in TASK_VERBS:
        return await _tasks(database, verb, rest)
    if verb == "show":
        return {("runner", await _runner_of(database, rest[0]))}, None
    return set() if verb == "copy" else {_registered(verb, rest)}, None


def _registered(verb: str, words: Sequence[Any]) -> Key:
    """The queue, handler, alert, schedule or runner of a command."""
    if verb == "submit":
        return "handler", words[0]
    if verb in ("pause", "resume"):
        return ("handler", words[1]) if words[0] == "--handler" else ("queue", words[0])
    return str(words[0]) if verb == "limit" else verb.removesuffix("s"), words[1]


async def _tasks(database: Database, verb: str, words: Sequence[Any]) -> tuple[set[Key], int | None]:
    """The tasks of a command, and their number if it decides how many change."""
    if "--yes" in words:
        number = str(words[2])
        return {("task", id) for id in await _matching(database, words[0])}, int(number) if number.isdigit() else None
    ids = list(takewhile(lambda word: isinstance(word, int), words))
    if not ids:
        ids = [int(id) for id in words[0].removeprefix("id:").split(",")]
    return {("task", id) for id in ids}, None if verb in ("edit", "rewind") and len(ids) == 1 else len(ids)


async def _matching(database: Database, text: str) -> Sequence[int]:
    return (await database.read(find, parse_filter(text, datetime.now(UTC), UTC), 100_000, scan_limit=1_000_000)).ids


async def _undone(database: Database, words: Sequence[Any]) -> set[Key]:
    """The subjects of the changes that an undo names."""
    audit = database.tables.audit.c
    entries = audit.change_group == words[1] if words[0] == "--group" else audit.id == words[0]
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(audit.task_id, audit.target).where(entries))
    keys: set[Key] = {("task", row.task_id) for row in rows if row.task_id is not None}
    for row in rows:
        if row.target is not None:
            kind, _, name = row.target.partition(" ")
            keys.add((kind, int(name) if kind == "runner" else name))
    return keys


async def _runner_of(database: Database, task_id: int) -> int:
    task = database.tables.task.c
    async with database.reading() as tx:
        return int(await tx.scalar(sa.select(task.runner_id).where(task.id == task_id)))
