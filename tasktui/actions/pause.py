"""Pausing and resuming a queue or a handler: its confirmation."""

from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from textual.content import Content

from runner.db.transaction import clock
from runner.operations.pause import PauseKind, PauseTarget, name_warning
from runner.queries.pauses import Pause
from runner.queries.queues import counts as read_counts
from runner.text import formatting
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.as_command import pause_words
from tasktui.actions.question import Dialog, Question
from tasktui.actions.targets import Targets
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session

MOST_COUNTED = 1_000
"""Waiting tasks of a queue that the confirmation counts."""


def ask_for_queue(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to pause the selected queue, or to resume it if it is paused."""
    place = targets.place(PauseKind.QUEUE)
    return _ask(action, session, place) if place else None


def ask_for_handler(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to pause the selected handler, or to resume it if it is paused."""
    place = targets.place(PauseKind.HANDLER)
    return _ask(action, session, place) if place else None


async def ask_for(
    action: Action, session: Session, place: PauseTarget, length: str, reason: str, *, resume: bool
) -> Dialog:
    """Ask to pause a queue or a handler that an operator typed, or to resume it.

    Args:
        action: the action with its prompt.
        session: the operator's session.
        place: the queue or the handler; a name that was never used is refused, because it is probably misspelled.
        length: duration or end, as typed; empty for the default.
        reason: reason, as typed.
        resume: True to resume it.
    """
    from tasktui.actions import perform

    if warning := await session.read(name_warning, place):
        return Notice(f"Nothing was changed: {warning}", bad=True)
    current = await perform.current_pause(session, place)
    if resume and current is None:
        return Notice(f"{str(place).capitalize()} is not paused", bad=True)
    if current is not None and not resume:
        until = formatting.exact(current.until, await session.read(clock), session.zone) if current.until else "resumed"
        return Notice(f"{str(place).capitalize()} is already paused until {until}; resume it first", bad=True)
    named = replace(action, default=length or action.default, required=not length)
    return await _ask(named, session, place, reason)


async def _ask(action: Action, session: Session, place: PauseTarget, reason: str = "") -> Dialog:
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    current = await perform.current_pause(session, place)
    return Question(
        action if current is None else action.without_prompt(),
        await _about(session, place, current),
        1,
        words=partial(pause_words, place, resume=current is not None),
        change=partial(_toggle, session, place, current),
        sql=partial(perform.pause_sql, session, place, current),
        reason=reason,
    )


async def _about(session: Session, place: PauseTarget, current: Pause | None) -> list[Content]:
    if current is None:
        texts = [content((f"Pause {line(place)}: none of its tasks start", "bold strong"))]
        if place.kind is PauseKind.QUEUE:
            counts = {queue.queue: queue for queue in await session.read(read_counts, depth=MOST_COUNTED)}
            if queue := counts.get(place.name):
                held = f"{queue.ready} ready and {queue.retrying} retrying tasks are held back"
                texts.append(content(f"  {held}, {queue.running} running tasks finish"))
        return texts
    at = await session.read(clock)
    until = formatting.exact(current.until, at, session.zone) if current.until else "resumed"
    return [
        content((f"Resume {line(place)}", "bold strong")),
        content(f"  paused by {line(current.by)} until {until}{f': {line(current.why)}' if current.why else ''}"),
    ]


async def _toggle(session: Session, place: PauseTarget, current: Pause | None, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    if current is None:
        result = await perform.pause(session, place, confirmation.answer, confirmation.reason)
    else:
        result = await perform.resume(session, place, confirmation.reason)
    return Notice(f"{str(place).capitalize()} {result}")
