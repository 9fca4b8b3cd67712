"""script: what an intervention executes, as SQL that a person can paste into psql or sqlite3.

Nothing is written a second time: the intervention is carried out, what it executes is noted, and all is taken back.
Each task has a transaction of its own, in which nothing happens if the task is not as it was seen.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from runner.errors import NoScript
from runner.people.redaction import audited, decoded, masked
from runner.people.terminal import clean, one_line
from runner.store.dialects.shells import Whole, in_psql, in_sqlite
from runner.store.intervene.answers import By, Result, Target
from runner.store.intervene.bulk import Operation
from runner.store.intervene.locking import Held, standing
from runner.store.intervene.undo import undo
from runner.store.observe.audit import Audited
from runner.store.recording import Recording
from runner.store.transaction import Transaction
from runner.store.unique import is_held

T = TypeVar("T")

MOST_SCRIPTED = 100
"""Tasks that one script is written for."""

SECRET = "it would show secrets, which are masked here; let runner do it"  # noqa: S105 - it tells of them
UNSAFE = "it would hold characters that a terminal could take for keys; let runner do it"


class Part(NamedTuple):
    """What is to be done to one task: by whom and how is bound already."""

    target: Target
    doing: Callable[[Transaction], Awaitable[Result]]


class Guard(NamedTuple):
    """What must still be as it was.

    Args:
        select: finds something only then.
        holds: says so in a comment.
        otherwise: says what is the case when it finds nothing.
    """

    select: sa.Select[Any]
    holds: str
    otherwise: str


async def script(tx: Transaction, operation: Operation, targets: Sequence[Target]) -> str:
    """Write what an intervention would do to tasks, without doing it.

    Args:
        tx: a writing transaction; all that is done in it is taken back.
        operation: the intervention.
        targets: the tasks, as they were seen; those without a version are taken as they are now.

    Returns:
        One transaction for each task, and a comment for each that is left alone.

    Raises:
        NoScript: there are too many, none can be changed, or it would show what is masked elsewhere.
    """
    if len(targets) > MOST_SCRIPTED:
        raise NoScript(why=f"it is written for {MOST_SCRIPTED} tasks at most, and these are {len(targets):,}")
    return await written(tx, [Part(target, _bound(operation, target)) for target in targets])


async def undo_script(tx: Transaction, entry: Audited, by: By) -> str:
    """Write what taking back a change of a task would do; see `script`.

    Args:
        tx: a writing transaction; all that is done in it is taken back.
        entry: the change.
        by: who would take it back.

    Raises:
        NoScript: it is no change of a task, cannot be taken back, or would show what is masked elsewhere.
    """
    if entry.task_id is None:
        raise NoScript(why=f"change {entry.id} is not about a task; let runner undo take it back")
    return await written(tx, [Part(Target(entry.task_id), partial(undo, entries=[entry.id], by=by))])


def _bound(operation: Operation, target: Target) -> Callable[[Transaction], Awaitable[Result]]:
    async def doing(tx: Transaction) -> Result:
        return await operation(tx, [target])

    return doing


async def written(tx: Transaction, parts: Iterable[Part]) -> str:
    """Write what is to be done to each of some tasks; see `script`."""
    texts, done = [], False
    for part in parts:
        seen = await standing(tx, [part.target.id], locked=True)
        result, statements = await rehearsed(tx, part.doing)
        if result.changed:
            done = True
            texts.append(transaction(tx, _guard(tx, seen[part.target.id]), statements))
        else:
            texts += [f"-- {one_line(why)}" for why in result.left_alone()]
    text = "\n\n".join(texts)
    if not done:
        raise NoScript(why="; ".join(line.removeprefix("-- ") for line in texts) or "nothing would be changed")
    return pasteable(text)


async def rehearsed(tx: Transaction, doing: Callable[[Transaction], Awaitable[T]]) -> tuple[T, list[Whole]]:
    """Do something, note what it writes, and take it back.

    Returns:
        What it returned, and what it wrote.
    """
    recording = Recording(tx)
    savepoint = await tx.connection.begin_nested()
    result = await doing(recording)
    await savepoint.rollback()
    return result, [whole for executed in recording.executed if executed.writes for whole in executed.complete()]


def transaction(tx: Transaction, guard: Guard, statements: Sequence[Whole]) -> str:
    """Write statements down as one transaction.

    Raises:
        NoScript: it would show what is masked elsewhere.
    """
    if any(_shows_secrets(value) for whole in statements for value in whole.given(tx.dialect.name)):
        raise NoScript(why=SECRET)
    why = f"nothing was changed: {guard.otherwise}"
    if tx.dialect.isolates_rows:
        lines = in_psql(guard.select, statements, tx.tables.unique, why)
    else:
        lines = in_sqlite(guard.select, statements, why)
    return "\n".join([f"-- {one_line(guard.holds)}", *(f"{line};" for line in lines)])


def pasteable(text: str) -> str:
    """A script, if a terminal takes it for nothing else.

    Raises:
        NoScript: it does.
    """
    if clean(text, newlines=True) != text:
        raise NoScript(why=UNSAFE)
    return f"{text}\n"


def _guard(tx: Transaction, task: Held) -> Guard:
    select = _as_seen(tx, task)
    holds = f"task {task.id}, if it is still {task.state} at version {task.version}"
    return Guard(select, holds, f"task {task.id} is not as it was seen, at version {task.version}")


def _as_seen(tx: Transaction, task: Held) -> sa.Select[Any]:
    """What selects the task if it is as it was seen, and if nobody has taken its unique key since."""
    live, unique = tx.tables.task, tx.tables.unique
    table = tx.tables.history if task.state.final else live
    same = [table.c.id == task.id, table.c.version == task.version, table.c.state == task.state.value]
    if task.state.final and task.unique_key is not None:
        mine = (unique.c.handler == task.handler) & (unique.c.unique_key == task.unique_key)
        same.append(~sa.exists().where(mine, unique.c.task_id != task.id, is_held(unique, live)))
    if not task.state.final:
        same.append(live.c.blocked_by == task.blocked_by)
    return sa.select(table.c.id).where(*same)


def _shows_secrets(value: Any) -> bool:
    """Tell whether a value that goes into the text is masked where it is shown."""
    if isinstance(value, (list, tuple)):
        return any(map(_shows_secrets, value))
    if not isinstance(value, str):
        return False
    if masked(value) != value:
        return True
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return decoded(value) != decoded(value, reveal=True) or audited(value) != audited(value, reveal=True)
