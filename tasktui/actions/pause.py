"""Pausing and resuming a queue or a handler: its confirmation."""

from collections.abc import Coroutine
from datetime import datetime
from functools import partial
from typing import Any

from textual.content import Content

from runner.db.transaction import clock
from runner.operations.pause import PauseKind, PauseTarget
from runner.queries.pauses import Pause
from runner.text import formatting
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.as_command import pause_words
from tasktui.actions.question import Dialog, Question
from tasktui.actions.targets import Targets
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session


def ask_for_queue(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to pause the selected queue, or to resume it if it is paused."""
    place = targets.place(PauseKind.QUEUE)
    return _ask(action, session, place) if place else None


def ask_for_handler(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to pause the selected handler, or to resume it if it is paused."""
    place = targets.place(PauseKind.HANDLER)
    return _ask(action, session, place) if place else None


async def _ask(action: Action, session: Session, place: PauseTarget) -> Dialog:
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    current = await perform.current_pause(session, place)
    return Question(
        action if current is None else action.without_prompt(),
        _about(session, place, current, await session.read(clock)),
        1,
        words=partial(pause_words, place, resume=current is not None),
        change=partial(_toggle, session, place, current),
        sql=partial(perform.pause_sql, session, place, current),
    )


def _about(session: Session, place: PauseTarget, current: Pause | None, at: datetime) -> list[Content]:
    if current is None:
        return [content((f"Pause {line(place)}: none of its tasks start", "bold"))]
    until = formatting.exact(current.until, at, session.zone) if current.until else "resumed"
    return [
        content((f"Resume {line(place)}", "bold")),
        content(f"  paused by {line(current.by)} until {until}{f': {line(current.why)}' if current.why else ''}"),
    ]


async def _toggle(session: Session, place: PauseTarget, current: Pause | None, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    if current is None:
        result = await perform.pause(session, place, confirmation.answer, confirmation.reason)
    else:
        result = await perform.resume(session, place, confirmation.reason)
    return Notice(f"{str(place).capitalize()} {result}")
