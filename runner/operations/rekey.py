"""rekey: encrypt the values of tasks again with the first key, after a rotation of keys."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import next_version
from runner.errors import RunnerError
from runner.handlers.keyring import Keyring, Use
from runner.model.sealed import Sealed, read_sealed, sealed_in
from runner.model.step import StepKind
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.sealed_payload import note_codec
from runner.operations.targets import lock_targets
from runner.operations.written_rows import write_rows
from runner.queries.rows import as_text

SAME = "it is encrypted with the first key already"
PLAIN = "it is not encrypted, and its handler has no codec"


class StoredColumn(NamedTuple):
    """A column with values that a codec encrypts.

    Args:
        table: the name of the table in Tables.
        keys: the columns of its primary key after the id of the task.
        use: what its values are.
        of_steps: True for the steps with a function or a child; those that wait have signals, which are plain.
    """

    table: str
    keys: tuple[str, ...]
    name: str
    use: Use
    of_steps: bool = False


COLUMNS = (
    StoredColumn("task", (), "payload", "payload"),
    StoredColumn("task", (), "error", "text"),
    StoredColumn("history", (), "payload", "payload"),
    StoredColumn("history", (), "result", "result"),
    StoredColumn("history", (), "error", "text"),
    StoredColumn("attempt", ("fence",), "message", "text"),
    StoredColumn("attempt", ("fence",), "traceback", "text"),
    StoredColumn("checkpoint", ("number",), "state", "checkpoint"),
    StoredColumn("log", ("fence", "number"), "line", "text"),
    StoredColumn("step", ("name",), "result", "checkpoint", of_steps=True),
    StoredColumn("step", ("name",), "error", "text", of_steps=True),
)


@dataclass(slots=True)
class TaskValues:
    """The values of a task that are encrypted, or should be.

    Args:
        values: the stored texts, by column and by the rest of the primary key.
    """

    handler: str
    values: dict[tuple[StoredColumn, tuple[Any, ...]], str] = field(default_factory=dict)

    def codec(self, keyring: Keyring) -> str | None:
        """The codec of its handler, or the one that encrypted its payload; None without one."""
        payloads = (read_sealed(text) for (column, _), text in self.values.items() if column.use == "payload")
        stored = next((sealed.codec for sealed in payloads if sealed is not None), None)
        return keyring.of_name(self.handler) or stored

    def objection(self, keyring: Keyring) -> str | None:
        """The reason why it stays as it is; None if it changes.

        Raises:
            KeyMissing: the codec has no key here.
        """
        if (codec := self.codec(keyring)) is None:
            return PLAIN
        first = keyring.key_of(keyring.require_own(codec))
        old = [sealed for sealed in self._sealed() if sealed.codec != codec or not first or sealed.key != first]
        if not old and not self._plain():
            return SAME
        for sealed in old:
            if not keyring.has(sealed):
                return f"it needs key {sealed.key or '(without an id)'} of codec {sealed.codec}, which is not here"
        return None

    def keys(self) -> list[str]:
        """The ids of its keys, and `none` for a plain payload."""
        return sorted({sealed.key for sealed in self._sealed()} | ({"none"} if self._plain() else set()))

    def sealed_anew(self, keyring: Keyring) -> dict[tuple[StoredColumn, tuple[Any, ...]], str]:
        """The values that change, encrypted with the first key.

        Raises:
            Undecodable, CodecFailed: a value cannot be decrypted, or not be encrypted.
        """
        codec = self.codec(keyring) or ""
        changed = {}
        for (column, keys), text in self.values.items():
            new = self._anew(keyring, codec, column.use, text)
            if new != text:
                changed[column, keys] = new
        return changed

    def _anew(self, keyring: Keyring, codec: str, use: Use, text: str) -> str:
        first = keyring.key_of(codec)

        def again(sealed: Sealed) -> str:
            if sealed.codec == codec and first and sealed.key == first:
                return sealed.text
            return keyring.seal(codec, self.handler, use, keyring.open(sealed, self.handler, use))

        if use == "text":
            for sealed in sealed_in(text):
                text = text.replace(sealed.text, again(sealed))
            return text
        if (sealed_value := read_sealed(text)) is not None:
            return again(sealed_value)
        return keyring.seal(codec, self.handler, use, text)

    def _sealed(self) -> list[Sealed]:
        found: list[Sealed] = []
        for (column, _), text in self.values.items():
            if column.use == "text":
                found += sealed_in(text)
            elif (sealed := read_sealed(text)) is not None:
                found.append(sealed)
        return found

    def _plain(self) -> bool:
        """True if a value that only a codec hides is plain. Plain errors and lines may be those of a runner."""
        return any(column.use != "text" and read_sealed(text) is None for (column, _), text in self.values.items())


async def rekey(tx: Transaction, targets: Iterable[Target], by: Actor, keyring: Keyring) -> Result:
    """Encrypt payloads, results, checkpoints, errors and logs again with the first key. There is no undo.

    Plain payloads, results and checkpoints of a handler with a codec are encrypted too. Entries of the audit log keep
    their keys.

    Args:
        targets: the tasks, with the versions that the operator saw; a running task is skipped.
        keyring: the keys: the first one encrypts, all decrypt.

    Raises:
        KeyMissing: there is no key.
    """
    tasks, result = await lock_targets(tx, "rekey", targets)
    values = await _read(tx, [task.id for task in tasks], keyring)
    entries = []
    for task in tasks:
        stored = values[task.id]
        if why := stored.objection(keyring):
            result.skipped.append(Skipped(task.id, why))
            continue
        before = stored.keys()
        try:
            changed = await asyncio.to_thread(stored.sealed_anew, keyring)  # an own codec may block
        except RunnerError as error:
            result.skipped.append(Skipped(task.id, str(error)))
            continue
        await _write(tx, task.id, "history" if task.state.final else "task", changed)
        after = keyring.key_of(stored.codec(keyring) or "")
        entries.append(AuditEntry("rekey", {"keys": ", ".join(before)}, {"keys": after}, task.id))
        result.changed.append(task.id)
    await record(tx, by, entries)
    return result


async def rekey_objections(tx: Transaction, ids: Sequence[int], keyring: Keyring) -> dict[int, str]:
    """The reasons why tasks would stay as they are, by id."""
    values = await _read(tx, ids, keyring)
    return {id: why for id, stored in values.items() if (why := stored.objection(keyring)) is not None}


async def _read(tx: Transaction, ids: Sequence[int], keyring: Keyring) -> dict[int, TaskValues]:
    """Read the values of tasks, and the codecs of their handlers."""
    tasks: dict[int, TaskValues] = {}
    for table in (tx.tables.task, tx.tables.history):
        rows = await tx.rows(sa.select(table.c.id, table.c.handler).where(tx.dialect.one_of(table.c.id, ids)))
        tasks |= {row.id: TaskValues(as_text(row.handler)) for row in rows}
    for handler in sorted({task.handler for task in tasks.values()}):
        await note_codec(tx, keyring, handler)
    for column in COLUMNS:
        table = getattr(tx.tables, column.table)
        task_id = table.c.task_id if column.keys else table.c.id
        value = sa.cast(table.c[column.name], sa.Text)
        statement = sa.select(task_id, value, *(table.c[name] for name in column.keys)).where(value.is_not(None))
        if column.of_steps:
            statement = statement.where(table.c.kind.in_((StepKind.FUNCTION.value, StepKind.CALL.value)))
        for id, text, *keys in await tx.rows(statement.where(tx.dialect.one_of(task_id, ids))):
            if id in tasks:
                tasks[id].values[column, tuple(keys)] = as_text(text)
    return tasks


async def _write(tx: Transaction, id: int, own: str, changed: dict[tuple[StoredColumn, tuple[Any, ...]], str]) -> None:
    """Write the values of a task, one statement for each row."""
    rows: dict[tuple[str, tuple[tuple[str, Any], ...]], dict[str, Any]] = defaultdict(dict)
    table = getattr(tx.tables, own)
    rows[own, ()] = {"version": next_version(table.c.version)}
    for (column, keys), text in changed.items():
        rows[column.table, tuple(zip(column.keys, keys, strict=True))][column.name] = text
    for (name, primary), values in rows.items():
        table = getattr(tx.tables, name)
        task_id = table.c.task_id if primary else table.c.id
        is_row = sa.and_(task_id == id, *(table.c[key] == value for key, value in primary))
        await write_rows(tx, sa.update(table).where(is_row).values(values))
