"""Limiting a queue or a handler over all runners: its confirmation."""

from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.content import Content

from runner.operations.pause import PauseKind, PauseTarget, name_warning
from runner.policy.limits import LimitUsage
from runner.text import formatting
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.as_command import breaker_words, limit_words
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


if TYPE_CHECKING:
    from runner.queries.limits import BreakerRow


def ask_for_breaker_of(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to open the breaker of the selected handler, or to close it if it is open."""
    place = targets.place(PauseKind.HANDLER)
    return ask_for_breaker(action, session, place.name) if place else None


async def ask_for_breaker(action: Action, session: Session, handler: str, wait: str = "", reason: str = "") -> Dialog:
    """Ask to open the breaker of a handler, or to close it if it is open.

    Args:
        action: the action with its prompt.
        session: the operator's session.
        handler: name of the handler.
        wait: time until the first probe, as typed; empty for the default. An open breaker accepts none.
        reason: reason, as typed.
    """
    from runner.operations.limit import breaker_of  # imports modules that the first screen does not need
    from tasktui.actions import perform

    row = await session.read(breaker_of, handler)
    closes = row.state is not None
    if closes and wait:
        return Notice(
            f"The breaker of {line(handler)} is open already; close it first with :breaker {line(handler)}", bad=True
        )
    named = action.without_prompt() if closes else replace(action, default=wait or action.default, required=not wait)
    return Question(
        named,
        _about_breaker(row),
        1,
        words=partial(breaker_words, handler, close=closes),
        change=partial(_switch, session, handler, closes),
        sql=partial(perform.breaker_sql, session, handler, closes),
        reason=reason,
    )


def _about_breaker(row: "BreakerRow") -> list[Content]:
    handler = line(row.handler)
    definition = "its definition is not readable" if row.definition is None else line(str(row.definition))
    if row.state is None:
        title = content((f"Open the breaker of {handler}: its tasks wait and spend no attempts", "bold strong"))
        return [title, content(f"  running tasks finish; it closes when a probe succeeds ({definition})")]
    by = f" by {line(row.state.by)}" if row.state.by else ""
    why = f": {line(row.state.why)}" if row.state.why else ""
    probe = f"next probe in {formatting.age(max(0.0, row.state.next_in))}"
    return [
        content((f"Close the breaker of {handler}: all its tasks may start", "bold strong")),
        content(f"  opened {row.state.since} ago{by}{why}; {probe}"),
        content((f"  {definition}", "muted")),
    ]


async def _switch(session: Session, handler: str, closes: bool, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    result = await perform.switch_breaker(session, handler, closes, confirmation)
    return Notice(f"Breaker of {line(handler)} {result}")
