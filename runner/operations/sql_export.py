"""script: the SQL of an operation, to paste into psql or sqlite3.

The operation runs in a savepoint, its statements are recorded, and the savepoint is rolled back, so that there is no
second implementation. The SQL has one transaction per task, which does nothing if the task has changed.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from runner.db.sql_text import BoundStatement, Recording, in_psql, in_sqlite
from runner.db.transaction import Transaction
from runner.errors import NoSqlEquivalent
from runner.operations.breaker import read_state
from runner.operations.bulk import Operation
from runner.operations.limit import LimitEdit, read_entry, set_limits
from runner.operations.pause import PauseTarget, pause_of, registry_of
from runner.operations.results import Actor, Result, Target
from runner.operations.runner_command import send_command
from runner.operations.silence import target_of_alert
from runner.operations.targets import LockedTask, read_tasks
from runner.operations.undo import undo
from runner.policy.claim_policy import PAUSED
from runner.queries.audit import AuditRecord
from runner.store.unique import is_key_held
from runner.text.redact import decode, decode_audit, mask
from runner.text.sanitize import clean, one_line

T = TypeVar("T")

MOST_SCRIPTED = 100
"""Maximum number of tasks in one script."""

SECRET = "it would show secrets, which are masked here; execute it with runner instead"  # noqa: S105 - a message
UNSAFE = "it would contain control characters; execute it with runner instead"


class Part(NamedTuple):
    """An operation on one task, with all arguments bound."""

    target: Target
    operation: Callable[[Transaction], Awaitable[Result]]


class Guard(NamedTuple):
    """The condition under which a script changes anything.

    Args:
        select: returns a row if the condition is true.
        condition: the condition in words, for a comment.
        failure: the reason to print if the condition is false.
    """

    select: sa.Select[Any]
    condition: str
    failure: str


async def script(tx: Transaction, operation: Operation, targets: Sequence[Target]) -> str:
    """Write the SQL of an operation, without executing it.

    Args:
        tx: a writing transaction; all changes in it are rolled back.
        targets: the tasks, with the versions that the operator saw; without a version the current one counts.

    Returns:
        One transaction per task, and a comment per skipped task.

    Raises:
        NoSqlEquivalent: there are too many tasks, none would change, or the SQL would show masked secrets.
    """
    if len(targets) > MOST_SCRIPTED:
        raise NoSqlEquivalent(why=f"a script is limited to {MOST_SCRIPTED} tasks, and this one has {len(targets):,}")
    return await sql_of(tx, [Part(target, _bind(operation, target)) for target in targets])


async def undo_script(tx: Transaction, entry: AuditRecord, by: Actor) -> str:
    """Write the SQL of an undo; see `script`.

    Args:
        tx: a writing transaction; all changes in it are rolled back.

    Raises:
        NoSqlEquivalent: the change is not to a task, cannot be undone, or the SQL would show masked secrets.
    """
    if entry.task_id is None:
        raise NoSqlEquivalent(why=f"change {entry.id} is not a change of a task; use runner undo")
    return await sql_of(tx, [Part(Target(entry.task_id), partial(undo, entries=[entry.id], by=by))])


def _bind(operation: Operation, target: Target) -> Callable[[Transaction], Awaitable[Result]]:
    async def bound(tx: Transaction) -> Result:
        return await operation(tx, [target])

    return bound


async def sql_of(tx: Transaction, parts: Iterable[Part]) -> str:
    """Write the SQL of operations on tasks; see `script`."""
    texts, is_changed = [], False
    for part in parts:
        tasks = await read_tasks(tx, [part.target.id], locked=True)
        result, statements = await dry_run(tx, part.operation)
        if result.changed:
            is_changed = True
            texts.append(transaction(tx, _guard(tx, tasks[part.target.id]), statements))
        else:
            texts += [f"-- {one_line(why)}" for why in result.reasons()]
    text = "\n\n".join(texts)
    if not is_changed:
        raise NoSqlEquivalent(why="; ".join(line.removeprefix("-- ") for line in texts) or "nothing would change")
    return pasteable(text)


async def dry_run(tx: Transaction, operation: Callable[[Transaction], Awaitable[T]]) -> tuple[T, list[BoundStatement]]:
    """Run an operation, record its statements, and roll it back.

    Returns:
        The result of the operation, and the statements.
    """
    recording = Recording(tx)
    async with tx.connection.begin_nested() as savepoint:
        result = await operation(recording)
        await savepoint.rollback()
    return result, [whole for executed in recording.executed if executed.writes for whole in executed.complete()]


def transaction(tx: Transaction, guard: Guard, statements: Sequence[BoundStatement]) -> str:
    """Write statements as one transaction.

    Raises:
        NoSqlEquivalent: the SQL would show masked secrets.
    """
    if any(_shows_secrets(value) for whole in statements for value in whole.parameters(tx.dialect.name)):
        raise NoSqlEquivalent(why=SECRET)
    failure = f"nothing was changed: {guard.failure}"
    if tx.dialect.is_server:
        lines = in_psql(guard.select, statements, tx.tables.unique, failure)
    else:
        lines = in_sqlite(guard.select, statements, failure)
    return "\n".join([f"-- {one_line(guard.condition)}", *(f"{line};" for line in lines)])


def pasteable(text: str) -> str:
    """A script that is safe to paste into a terminal.

    Raises:
        NoSqlEquivalent: the script contains control characters.
    """
    if clean(text, newlines=True) != text:
        raise NoSqlEquivalent(why=UNSAFE)
    return f"{text}\n"


def _guard(tx: Transaction, task: LockedTask) -> Guard:
    select = _as_seen(tx, task)
    condition = f"task {task.id}, if it is still {task.state} at version {task.version}"
    return Guard(select, condition, f"task {task.id} has changed since version {task.version}")


def _as_seen(tx: Transaction, task: LockedTask) -> sa.Select[Any]:
    """Select the task if it is unchanged and no other task holds its unique key."""
    live, unique = tx.tables.task, tx.tables.unique
    table = tx.tables.history if task.state.final else live
    conditions = [table.c.id == task.id, table.c.version == task.version, table.c.state == task.state.value]
    if task.state.final and task.unique_key is not None:
        same_key = (unique.c.handler == task.handler) & (unique.c.unique_key == task.unique_key)
        conditions.append(~sa.exists().where(same_key, unique.c.task_id != task.id, is_key_held(unique, tx.tables)))
    if not task.state.final:
        conditions.append(live.c.blocked_by == task.blocked_by)
    return sa.select(table.c.id).where(*conditions)


def _shows_secrets(value: Any) -> bool:
    """True if a value contains text that is masked in displays."""
    if isinstance(value, (list, tuple)):
        return any(map(_shows_secrets, value))
    if not isinstance(value, str):
        return False
    if mask(value) != value:
        return True
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return decode(value) != decode(value, reveal=True) or decode_audit(value) != decode_audit(value, reveal=True)


ONE: sa.ColumnElement[int] = sa.literal_column("1")


async def _guarded(
    tx: Transaction,
    guard: Guard,
    operation: Callable[[Transaction], Awaitable[object]],
    unchanged: str = "nothing would change",
) -> str:
    """Write the SQL of an operation that is not on tasks; see `script`.

    Args:
        unchanged: why the operation changes nothing.
    """
    _, statements = await dry_run(tx, operation)
    if not statements:
        raise NoSqlEquivalent(why=unchanged)
    return pasteable(transaction(tx, guard, statements))


async def pause_script(
    tx: Transaction, target: PauseTarget, operation: Callable[[Transaction], Awaitable[object]]
) -> str:
    """Write the SQL of a pause or resume; it does nothing if the pause has changed by then.

    Args:
        tx: a writing transaction; all changes in it are rolled back.
        target: the queue or handler.
        operation: pauses or resumes it.

    Raises:
        NoSqlEquivalent: nothing would change, or the SQL cannot be pasted safely.
    """
    return await _guarded(tx, await _same_pause(tx, target), operation, f"{target} is not paused")


async def _same_pause(tx: Transaction, target: PauseTarget) -> Guard:
    registry, before = registry_of(tx, target), await pause_of(tx, target)
    is_target, failure = registry.c.name == target.name, f"{target} has been paused or resumed since"
    if before:
        same = sa.select(registry.c.name).where(is_target, registry.c.paused_at == before["paused_at"])
        return Guard(same, f"{target}, if its pause has not changed", failure)
    not_paused = sa.select(ONE).where(~sa.exists().where(is_target, PAUSED.is_paused(registry)))
    return Guard(not_paused, f"{target}, if it is still not paused", failure)


async def limit_script(tx: Transaction, target: PauseTarget, edit: LimitEdit, by: Actor) -> str:
    """Write the SQL of a change of limits; it does nothing if the limits have changed by then.

    Args:
        tx: a writing transaction; all changes in it are rolled back.
        target: the queue or handler.

    Raises:
        NoSqlEquivalent: the SQL cannot be pasted safely.
    """
    registry, row = registry_of(tx, target), await read_entry(tx, target, locked=False)
    is_target = (registry.c.name == target.name, registry.c.limited_at.is_not_distinct_from(row["limited_at"]))
    same = sa.select(registry.c.name).where(*is_target)
    if not row["known"]:
        same = sa.select(ONE).where(~sa.exists().where(registry.c.name == target.name))
    guard = Guard(same, f"{target}, if its limits have not changed", f"the limits of {target} have changed since")
    return await _guarded(tx, guard, partial(set_limits, target=target, edit=edit, by=by))


async def breaker_script(tx: Transaction, handler: str, operation: Callable[[Transaction], Awaitable[object]]) -> str:
    """Write the SQL that opens or closes a breaker; it does nothing if the breaker has changed by then.

    Args:
        tx: a writing transaction; all changes in it are rolled back.
        operation: opens or closes it.

    Raises:
        NoSqlEquivalent: the SQL cannot be pasted safely.
    """
    registry = tx.tables.handler
    state = await read_state(tx, handler)
    unchanged = (registry.c[name].is_not_distinct_from(state[name]) for name in ("breaker_probes", "breaker_opened_at"))
    same = sa.select(registry.c.name).where(registry.c.name == handler, *unchanged)
    what = f"the breaker of {handler}"
    return await _guarded(tx, Guard(same, f"{what}, if it has not changed", f"{what} has changed"), operation)


async def silence_script(tx: Transaction, name: str, operation: Callable[[Transaction], Awaitable[object]]) -> str:
    """Write the SQL that silences an alert or ends its silence; it does nothing if the silence has changed by then.

    Args:
        tx: a writing transaction; all changes in it are rolled back.
        operation: sets or ends it.

    Raises:
        NoSqlEquivalent: the alert is not silenced, or the SQL cannot be pasted safely.
    """
    alert = tx.tables.alert
    until = await tx.scalar(sa.select(alert.c.silenced_until).where(alert.c.name == name))
    same = sa.select(alert.c.name).where(alert.c.name == name, alert.c.silenced_until == until)
    if until is None:
        same = sa.select(ONE).where(~sa.exists().where(alert.c.name == name, alert.c.silenced_until.is_not(None)))
    target = target_of_alert(name)
    guard = Guard(same, f"{target}, if its silence has not changed", f"the silence of {target} has changed since")
    return await _guarded(tx, guard, operation, f"{target} is not silenced")


async def command_script(tx: Transaction, runner_id: int, command: str, by: Actor) -> str:
    """Write the SQL of a runner command; it does nothing if the command has changed by then.

    Args:
        tx: a writing transaction; all changes in it are rolled back.

    Raises:
        NoSqlEquivalent: the runner does not exist, or the SQL cannot be pasted safely.
    """
    runner = tx.tables.runner
    current = await tx.scalar(sa.select(runner.c.command).where(runner.c.id == runner_id))
    same = sa.select(runner.c.id).where(runner.c.id == runner_id, runner.c.command.is_not_distinct_from(current))
    condition = f"runner {runner_id}, if its command has not changed"
    guard = Guard(same, condition, f"runner {runner_id} does not exist, or its command has changed")
    operation = partial(send_command, runner_id=runner_id, command=command, by=by)
    return await _guarded(tx, guard, operation, f"runner {runner_id} does not exist")
