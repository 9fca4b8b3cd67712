"""Carrying out what an operator said yes to, in transactions of the store."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from runner.errors import NoScript
from runner.people.filters import Filter
from runner.people.times import format_moment, parse_moment
from runner.store import intervene, observe
from runner.store.intervene import Kind, Place, Result, together
from runner.store.observe import Pause
from tasktui.act.actions import Action, Plan, operation, plan_of
from tasktui.act.consent import Consent
from tasktui.operator.session import Session
from tasktui.operator.work import Work

if TYPE_CHECKING:
    from runner.store.observe import Audited  # with what is told of every change, and the first screen does not

CHUNK = 200
"""Tasks that are changed in one transaction at most, so that progress is seen and nobody waits for us for long."""

LATEST = 100
"""Entries of a task's audit among which one to take back is looked for."""


async def preview(session: Session, action: Action, wanted: Filter) -> Plan:
    """Ask the database what an action would do to all that a filter lets through."""
    return plan_of(action, wanted, await session.read(intervene.preview, wanted, action.verb))


async def carry_out(session: Session, made: Plan, consent: Consent, work: Work) -> Result:
    """Do to tasks what was planned, chunk by chunk, each only if it is still as it was seen.

    Args:
        session: of the operator.
        made: the plan that was said yes to.
        consent: the answers of the operator.
        work: told how far it has come; it tells when to stop.
    """
    by = session.by(consent.reason)
    alone = made.wanted is None and len(made.chosen) == 1
    doing = operation(made.action, by if alone else together(by), consent.answer)
    course = intervene.Course(CHUNK, most=work.total, on_progress=work.went_on, stop=lambda: work.stopping)
    if made.wanted is not None:
        return await intervene.to_all(session, doing, made.wanted, course)
    return await intervene.to_each(session, doing, made.chosen, course)


async def script(session: Session, made: Plan, consent: Consent) -> str:
    """Write the SQL that does to tasks what was planned.

    Raises:
        NoScript: there is none.
    """
    if made.wanted is not None:
        raise NoScript(why="it is done to all that a filter matches; the command line does that")
    by = session.by(consent.reason)
    doing = operation(made.action, by if len(made.chosen) == 1 else together(by), consent.answer)
    return await session.write(intervene.script, doing, made.chosen[: consent.amount])


async def undo_script(session: Session, entry: "Audited", consent: Consent) -> str:
    """Write the SQL that takes a change back.

    Raises:
        NoScript: there is none.
    """
    return await session.write(intervene.undo_script, entry, session.by(consent.reason))


async def pause_of(session: Session, place: Place) -> Pause | None:
    """The pause of a queue or a handler that is in force now."""
    found = await session.read(observe.pauses)
    return (found.queues if place.kind is Kind.QUEUE else found.handlers).get(place.name)


async def pause(session: Session, place: Place, length: str, reason: str | None) -> str:
    """Let no more tasks of a queue or a handler start.

    Args:
        session: of the operator.
        place: the queue or the handler.
        length: how long, such as 30m, or until when, such as 14:30; empty for as long as a
            present pause, or until somebody ends it.
        reason: why.

    Returns:
        What was done, until when, and whether the name is a new one.
    """
    doubt = await session.read(intervene.misnamed, place)
    done = await session.write(intervene.pause, place, session.by(reason), await _until(session, length))
    before = ", as it was before" if done.again else ""
    end = f"until {format_moment(done.until, session.zone)}" if done.until else "until it is resumed"
    return f"paused {end}{before}{f'; {doubt}' if doubt else ''}"


async def _until(session: Session, length: str) -> datetime | None:
    """When a pause ends that lasts so long, or until then."""
    now = await session.read(observe.clock)
    return parse_moment(length, now, session.zone) if length else None


async def place_script(session: Session, place: Place, found: Pause | None, consent: Consent) -> str:
    """Write the SQL that pauses a queue or a handler, or ends its pause.

    Raises:
        NoScript: there is none.
    """
    by = session.by(consent.reason)
    if found is not None:
        return await session.write(intervene.place_script, place, partial(intervene.resume, place=place, by=by))
    until = await _until(session, consent.answer)
    return await session.write(intervene.place_script, place, partial(intervene.pause, place=place, by=by, until=until))


async def wish_script(session: Session, action: Action, runner_id: int, consent: Consent) -> str:
    """Write the SQL that asks a runner for something.

    Raises:
        NoScript: there is none.
    """
    wanted = consent.answer if action.asks else action.name
    return await session.write(intervene.wish_script, runner_id, wanted, session.by(consent.reason))


async def resume(session: Session, place: Place, reason: str | None) -> str:
    """End the pause of a queue or a handler.

    Returns:
        What was done.
    """
    done = await session.write(intervene.resume, place, session.by(reason))
    return "goes on" if done else "was not paused"


async def wish(session: Session, runner_id: int, wanted: str, reason: str | None) -> str:
    """Ask a runner for something.

    Returns:
        What was done.
    """
    done = await session.write(intervene.wish, runner_id, wanted, session.by(reason))
    return f"is asked for: {wanted}" if done else "is not registered any more"


async def reveal(session: Session, task_id: int) -> None:
    """Write down that the secrets of a task are going to be shown."""
    await session.write(intervene.reveal, task_id, session.by(None))


async def last_change(session: Session, task_id: int) -> "Audited | None":
    """The latest change of a task by an operator that was not taken back."""
    return observe.undoable(await session.read(observe.audit, task_id=task_id, limit=LATEST))


async def take_back(session: Session, entry: int, reason: str | None) -> Result:
    """Take a change back."""
    return await session.write(intervene.undo, [entry], session.by(reason))


async def take_back_all(session: Session, batch: str, consent: Consent, work: Work) -> Result:
    """Take back all that was changed together, chunk by chunk."""
    course = intervene.Course(CHUNK, most=work.total, on_progress=work.went_on, stop=lambda: work.stopping)
    return await intervene.undo_all(
        session, partial(intervene.undo, by=together(session.by(consent.reason))), batch, course
    )
