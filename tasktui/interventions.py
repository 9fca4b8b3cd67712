"""Carrying out what an operator said yes to, in transactions of the store."""

from collections.abc import Callable

from runner.errors import RunnerError
from runner.store import intervene, observe
from runner.store.intervene import Kind, Place, Result
from runner.store.observe import Audited, Pause, undoable
from runner.store.transaction import Transaction
from runner.times import parse_moment
from tasktui.actions import Plan, operation
from tasktui.session import Session

CHUNK = 200
"""Tasks that are changed in one transaction."""

LATEST = 100
"""Entries of a task's audit among which one to take back is looked for."""


async def carry_out(
    session: Session, made: Plan, answer: str, reason: str | None, on_progress: Callable[[Result], object]
) -> Result:
    """Do to tasks what was planned, each only if it is still as it was seen.

    Args:
        session: of the operator.
        made: the plan that was said yes to.
        answer: to what its action asks.
        reason: why; None when none was given.
        on_progress: told the result so far after each transaction but the last.
    """
    doing = operation(made.action, session.by(reason), answer)
    result = Result()
    for first in range(0, len(made.targets), CHUNK):
        try:
            result.add(await session.write(doing, made.targets[first : first + CHUNK]))
        except RunnerError:
            on_progress(result)
            raise
        if first + CHUNK < len(made.targets):
            on_progress(result)
    return result


async def pause_of(session: Session, queue: str) -> Pause | None:
    """The pause of a queue that is in force now."""

    async def read(tx: Transaction) -> Pause | None:
        entry = (await observe.registered(tx, tx.tables.queue)).get(queue)
        return entry.pause if entry else None

    return await session.read(read)


async def pause(session: Session, queue: str, length: str, reason: str | None) -> str:
    """Let no more tasks of a queue start.

    Args:
        session: of the operator.
        queue: its name.
        length: how long, such as 30m, or until when, such as 14:30; empty for as long as a
            present pause, or until somebody ends it.
        reason: why.

    Returns:
        What was done.
    """
    now = await session.read(observe.clock)
    text = f"+{length}" if length[:1].isdigit() and ":" not in length and "-" not in length else length
    until = parse_moment(text, now, session.zone) if length else None
    done = await session.write(intervene.pause, Place(Kind.QUEUE, queue), session.by(reason), until)
    return "paused, as it was before" if done.again else "paused"


async def resume(session: Session, queue: str, reason: str | None) -> str:
    """End the pause of a queue.

    Returns:
        What was done.
    """
    done = await session.write(intervene.resume, Place(Kind.QUEUE, queue), session.by(reason))
    return "goes on" if done else "was not paused"


async def last_change(session: Session, task_id: int) -> Audited | None:
    """The latest change of a task by an operator that was not taken back."""
    return undoable(await session.read(observe.audit, task_id=task_id, limit=LATEST))


async def take_back(session: Session, entry: int, reason: str | None) -> Result:
    """Set a task back to what it was before an entry of the audit."""
    return await session.write(intervene.undo, entry, session.by(reason))
