"""Rows that every operation can change, and the operations."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.handlers.keyring import Keyring
from runner.model.codec_key import new_key
from runner.model.schedule import ScheduleSpec
from runner.model.task import NewTask, State
from runner.operations.audit_log import reveal
from runner.operations.breaker import close_by_hand, open_by_hand
from runner.operations.delay import delay
from runner.operations.edit import edit, edit_all, edit_each
from runner.operations.edit_values import Changes
from runner.operations.erase import erase
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.new_task import copy_task, submit_task
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.rekey import rekey
from runner.operations.results import Actor, Target
from runner.operations.resume import resume
from runner.operations.retry import requeue, retry_now
from runner.operations.rewind import forget_steps, rewind
from runner.operations.runner_command import send_command
from runner.operations.schedule import (
    add_schedule,
    delete_schedule,
    edit_schedule,
    free_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from runner.operations.signal import signal
from runner.operations.silence import silence, unsilence
from runner.operations.sql_export import command_script, undo_script
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo
from runner.policy.breaker import Breaker
from runner.queries.audit import audit_record
from runner.settings import Settings
from runner.store.breaker import declare_breakers
from tests.store.dependencies import put_after
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead

TOGETHER = "1f2e3d4c"
BY = Actor("ana", "web-1", "relay is back", TOGETHER)

DUE, LATER, HELD, BLOCKED = range(1, 5)
DEAD, OLD = 11, 12
"""The tasks: two waiting, one on RUNNER, one that depends on LATER; one dead, one to prune."""

RUNNER, LOST = 1, 2
SCHEDULE, RESTING = "nightly", "resting"
"""The schedules: one that ticks, one that is paused during a run."""
FAR = datetime(2099, 1, 1, tzinfo=UTC)
EDITED = 1
"""The id of an audit entry."""
KEYRING = Keyring(Settings(codec="fernet", codec_keys=(new_key(),)))
"""Keys for tasks that are not encrypted yet."""

Verb = Callable[[Transaction], Awaitable[Any]]


async def _undo_script(tx: Transaction) -> str:
    entry = await audit_record(tx, EDITED)
    assert entry is not None
    return await undo_script(tx, entry, BY)


OPERATIONS: dict[str, Verb] = {
    "retry_now": lambda tx: retry_now(tx, [Target(LATER)], BY),
    "requeue": lambda tx: requeue(tx, [Target(DEAD)], BY),
    "terminate": lambda tx: terminate(tx, [Target(LATER), Target(HELD)], BY),
    "submit_task": lambda tx: submit_task(tx, NewTask("h"), BY),
    "copy_task": lambda tx: copy_task(tx, DEAD, {"priority": 3}, BY),
    "delay": lambda tx: delay(tx, [Target(LATER)], seconds=60, by=BY),
    "edit": lambda tx: edit(tx, LATER, None, Changes(FAR, 9, 9, "1m", 5.0, "{}", "k"), BY),
    "edit_each": lambda tx: edit_each(tx, [Target(LATER)], Changes(key="k"), BY),
    "edit_all": lambda tx: edit_all(tx, [Target(LATER)], Changes(priority=2), BY),
    "undo_script": _undo_script,
    "command_script": lambda tx: command_script(tx, RUNNER, "drain", BY),
    "undo": lambda tx: undo(tx, [EDITED], BY),
    "add_schedule": lambda tx: add_schedule(tx, "weekly", ScheduleSpec("h", "@weekly"), BY),
    "edit_schedule": lambda tx: edit_schedule(tx, SCHEDULE, {"rule": "every 2h"}, BY),
    "pause_schedule": lambda tx: pause_schedule(tx, SCHEDULE, BY),
    "resume_schedule": lambda tx: resume_schedule(tx, RESTING, BY),
    "run_schedule": lambda tx: run_schedule(tx, SCHEDULE, BY),
    "free_schedule": lambda tx: free_schedule(tx, RESTING, BY),
    "delete_schedule": lambda tx: delete_schedule(tx, SCHEDULE, BY),
    "pause": lambda tx: pause(tx, PauseTarget(PauseKind.QUEUE, "mail"), BY),
    "pause handler": lambda tx: pause(tx, PauseTarget(PauseKind.HANDLER, "h"), BY),
    "resume": lambda tx: resume(tx, PauseTarget(PauseKind.QUEUE, "slow"), BY),
    "silence": lambda tx: silence(tx, "no-runner", FAR, BY),
    "unsilence": lambda tx: unsilence(tx, "tasks-dead", BY),
    "reveal": lambda tx: reveal(tx, LATER, BY),
    "unblock": lambda tx: unblock(tx, [Target(BLOCKED)], BY),
    "set_limits": lambda tx: set_limits(tx, PauseTarget(PauseKind.QUEUE, "mail"), LimitEdit({"concurrency": "5"}), BY),
    "open_by_hand": lambda tx: open_by_hand(tx, "sms", BY),
    "close_by_hand": lambda tx: close_by_hand(tx, "mms", BY),
    "signal": lambda tx: signal(tx, [Target(LATER), Target(HELD)], "approved", '{"by": "ana"}', BY),
    "forget_steps": lambda tx: forget_steps(tx, [Target(LATER)], "charge", BY),
    "rewind": lambda tx: rewind(tx, [Target(LATER)], 1, BY),
    "erase": lambda tx: erase(tx, [Target(DEAD)], BY),
    "rekey": lambda tx: rekey(tx, [Target(DEAD)], BY, KEYRING),
    "send_command": lambda tx: send_command(tx, RUNNER, "drain", BY),
}
"""Every operation of the store by name; each one changes something."""


def undone(verb: Verb) -> Verb:
    """Apply an operation, and undo it."""

    async def both(tx: Transaction) -> Any:
        await verb(tx)
        audit = tx.tables.audit.c
        return await undo(tx, [await tx.scalar(sa.select(sa.func.max(audit.id)))], BY)

    return both


UNDOABLE = (
    *("submit_task", "retry_now", "requeue", "delay", "unblock", "pause", "resume", "silence", "unsilence"),
    "send_command",
)

UNDOS: dict[str, Verb] = {
    f"undo {name}": undone(verb)
    for name, verb in {
        **{
            name: OPERATIONS[name]
            for name in (
                "submit_task",
                "retry_now",
                "requeue",
                "delay",
                "signal",
                "unblock",
                "pause",
                "resume",
                "silence",
                "unsilence",
                "send_command",
            )
        },
        "terminate": lambda tx: terminate(tx, [Target(LATER)], BY),
        "terminate of what was blocked": lambda tx: terminate(tx, [Target(BLOCKED)], BY),
        "terminate of what runs": lambda tx: terminate(tx, [Target(HELD)], BY),
    }.items()
}
"""The undo of each operation."""


async def arrange(database: Database) -> None:
    """Create the rows in an empty database."""
    await add_live(database, queue="mail")
    await add_live(database, run_at=ahead(600), workflow=1)
    await add_runner(database, lease=3600)
    await add_runner(database, lease=-60)
    running: dict[str, Any] = {"state": State.RUNNING.value, "runner_id": RUNNER, "fence": 1, "attempt": 1}
    await add_live(database, max_attempts=3, claimed_at=db_now(), **running)
    assert await put_after(database, LATER) == BLOCKED
    await add_past(database, DEAD, State.DEAD)
    await add_past(database, OLD, finished_at=ahead(-400 * 86_400))
    await add_attempt(database, DEAD, started_at=ahead(-2), ended_at=ahead(-1))
    await database.write(edit, LATER, None, Changes(priority=5), BY)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "slow"), BY)
    for id in (SCHEDULE, RESTING):
        await database.write(add_schedule, id, ScheduleSpec("h", "every 1h"), BY)
    await database.write(pause_schedule, RESTING, BY)
    async with database.writing() as tx:
        schedule = tx.tables.schedule
        await tx.execute(sa.update(schedule).where(schedule.c.id == RESTING).values(last_task_id=LATER))
        await tx.execute(sa.insert(tx.tables.handler), [{"name": "sms"}, {"name": "mms"}])
    await database.write(declare_breakers, ["sms", "mms"], dict.fromkeys(("sms", "mms"), Breaker("1/s").columns))
    await database.write(open_by_hand, "mms", BY)
    await database.write(silence, "tasks-dead", FAR, BY)
    async with database.writing() as tx:
        both = [{"task_id": LATER, "number": n, "fence": 0, "attempt": 1, "state": "{}"} for n in (1, 2)]
        await tx.execute(sa.insert(tx.tables.checkpoint), both)
        step = {"task_id": LATER, "name": "charge", "kind": "function", "number": 1, "fence": 1, "attempt": 1}
        await tx.execute(sa.insert(tx.tables.step), step)


async def all_rows(database: Database) -> dict[str, list[str]]:
    """All rows of all tables."""
    async with database.reading() as tx:
        rows_by_table = {table.name: await tx.rows(sa.select(table)) for table in tx.tables.metadata.sorted_tables}
    return {name: sorted(map(str, rows)) for name, rows in rows_by_table.items()}
