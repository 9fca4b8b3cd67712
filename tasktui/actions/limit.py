"""Limiting a queue or a handler over all runners: its confirmation."""

from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from textual.content import Content

from runner.operations.pause import PauseKind, PauseTarget, name_warning
from runner.policy.limits import LimitUsage
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.as_command import limit_words
from tasktui.actions.question import Dialog, Question
from tasktui.actions.targets import Targets
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session

MOST_HOLDERS = 5
"""Maximum number of runners to list."""


def ask_for_queue(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask for new limits of the selected queue."""
    place = targets.place(PauseKind.QUEUE)
    return _ask(action, session, place) if place else None


def ask_for_handler(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask for new limits of the selected handler."""
    place = targets.place(PauseKind.HANDLER)
    return _ask(action, session, place) if place else None


async def ask_for(action: Action, session: Session, place: PauseTarget, limits: str, reason: str) -> Dialog:
    """Ask for new limits of a queue or a handler that an operator typed.

    Args:
        action: the action with its prompt.
        session: the operator's session.
        place: the queue or the handler; a name that was never used is refused, because it is probably misspelled.
        limits: limits, as typed; empty for the current ones.
        reason: reason, as typed.
    """
    if warning := await session.read(name_warning, place):
        return Notice(f"Nothing was changed: {warning}", bad=True)
    return await _ask(action, session, place, limits, reason)


async def _ask(action: Action, session: Session, place: PauseTarget, limits: str = "", reason: str = "") -> Dialog:
    from runner.operations.limit import edit_words  # imports modules that the first screen does not need
    from tasktui.actions import perform

    usage = await perform.current_limits(session, place)
    return Question(
        replace(action, default=limits or (edit_words(usage.limits) if usage else action.default)),
        _about(place, usage),
        1,
        words=partial(limit_words, place),
        change=partial(_set, session, place),
        sql=partial(perform.limit_sql, session, place),
        reason=reason,
    )


def _about(place: PauseTarget, usage: LimitUsage | None) -> list[Content]:
    about = [content((f"Limit {line(place)} over all runners", "bold strong"))]
    if usage is None:
        return [*about, content("  no limit; running tasks go on, and the next claims keep the new one")]
    about.append(content(f"  {usage.limits}; {usage.total:,} running"))
    if usage.since:
        why = f": {line(usage.why)}" if usage.why else ""
        about.append(content((f"  set {usage.since} ago by {line(usage.by)}{why}", "muted")))
    holders = list(usage.holders.items())[:MOST_HOLDERS]
    return about + [content((f"  {number:>6,}  {line(holder)}", "muted")) for holder, number in holders]


async def _set(session: Session, place: PauseTarget, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    result = await perform.limit(session, place, confirmation.answer, confirmation.reason)
    return Notice(f"{str(place).capitalize()}: {result}")
