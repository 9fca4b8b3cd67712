"""Confirmations of pauses, limits and runner commands."""

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from textual.content import Content

from runner.db.transaction import clock
from runner.errors import InvalidInput, InvalidMoment
from runner.operations.names import name_warning, pause_note
from runner.operations.pause import PauseKind, PauseTarget
from runner.policy.limits import UNLIMITED, LimitUsage, SharedLimits
from runner.queries.counting import Count
from runner.queries.counts import QueueCounts
from runner.queries.counts import counts as read_counts
from runner.queries.registries import Pause
from runner.text import formatting
from runner.text.times import parse_moment
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import limit_words, pause_words
from tasktui.actions.question import AnswerPart, Dialog, Question
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.render.rows import Part
from tasktui.session.session import Session

MAX_NOTE = 300
"""Characters of a warning about a name."""

MOST_COUNTED = 1_000
"""Waiting tasks of a queue that the confirmation counts."""


def ask_to_pause_selected(
    action: Action, session: Session, targets: Targets, kind: PauseKind
) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to pause the selected queue or handler, or to resume it if it is paused."""
    target = targets.pause_target(kind)
    return _ask_about_pause(action, session, target) if target else None


async def ask_to_pause(
    action: Action, session: Session, target: PauseTarget, length: str, reason: str, *, resume: bool
) -> Dialog:
    """Ask to pause a queue or a handler that an operator typed, or to resume it.

    Args:
        target: the queue or the handler; the confirmation warns about a name that was never used.
        length: duration or end, as typed; empty for the default.
        reason: reason, as typed.
        resume: True to resume it.
    """
    from tasktui.actions import perform

    current = await perform.current_pause(session, target)
    if resume and current is None:
        warning = await session.read(name_warning, target)
        return Notice(f"{str(target).capitalize()} is not paused{f': {warning}' if warning else ''}", bad=True)
    if current is not None and not resume:
        until = formatting.exact(current.until, await session.read(clock), session.zone) if current.until else "resumed"
        return Notice(f"{str(target).capitalize()} is already paused until {until}; resume it first", bad=True)
    named = action._replace(default=length or action.default, required=not length)
    return await _ask_about_pause(named, session, target, reason)


async def _ask_about_pause(action: Action, session: Session, target: PauseTarget, reason: str = "") -> Dialog:
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    current = await perform.current_pause(session, target)
    return Question(
        action if current is None else action.without_prompt(),
        await _about_pause(session, target, current),
        1,
        words=partial(pause_words, target, resume=current is not None),
        change=partial(_toggle, session, target, current),
        subject=line(target),
        title="Pause?" if current is None else "Resume?",
        sql=partial(perform.pause_sql, session, target, current),
        reason=reason,
        meaning=partial(pause_meaning, session),
    )


def pause_meaning(session: Session, typed: str) -> Part:
    """The end of a pause with a typed length, and its role."""
    if not typed:
        return "✓ until it is resumed", "muted"
    now = session.now()
    try:
        end = parse_moment(typed, now, session.zone)
    except InvalidMoment:
        return "✗ 30m, or an end: 14:30", "dead"
    if end <= now:
        return "✗ is over already", "dead"
    return f"✓ until {formatting.clock(end, now, session.zone)}, {formatting.distance(end, now)}", "muted"


async def _about_pause(session: Session, target: PauseTarget, current: Pause | None) -> list[Content]:
    if current is None:
        texts = [content(("None of its tasks start", "bold strong"))]
        if target.kind is PauseKind.QUEUE:
            counts = {queue.queue: queue for queue in await session.read(read_counts, depth=MOST_COUNTED)}
            if queue := counts.get(target.name):
                texts.append(content(f"  {backlog(queue)}"))
        if note := await session.read(pause_note, target):
            texts.append(content((f"  {line(note, MAX_NOTE)}", "retrying")))
        return texts
    at = await session.read(clock)
    until = formatting.exact(current.until, at, session.zone) if current.until else "resumed"
    return [content(f"Paused by {line(current.by)} until {until}{f': {line(current.why)}' if current.why else ''}")]


def backlog(queue: QueueCounts) -> str:
    """The tasks of a queue that a pause holds back, and those that it lets finish; without unknown figures."""
    waits = [(queue.ready, "ready"), (queue.retrying, "retrying")]
    known = [f"{count} {word}" for count, word in waits if count != Count(0, more=True)]
    finish = "finishes" if queue.running == Count(1) else "finish"
    held = f"{' and '.join(known)} tasks wait, " if known else ""
    return f"{held}{queue.running.of('running task')} {finish}"


async def _toggle(session: Session, target: PauseTarget, current: Pause | None, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    if current is None:
        result = await perform.pause(session, target, confirmation.answer, confirmation.reason)
    else:
        result = await perform.resume(session, target, confirmation.reason)
    return Notice(f"{str(target).capitalize()} {result}")


MOST_HOLDERS = 5
"""Maximum number of runners to list."""


def ask_to_limit_selected(
    action: Action, session: Session, targets: Targets, kind: PauseKind
) -> Coroutine[Any, Any, Dialog] | None:
    """Ask for new limits of the selected queue or handler."""
    target = targets.pause_target(kind)
    return _ask_about_limits(action, session, target, targets.answer) if target else None


async def ask_to_limit(action: Action, session: Session, target: PauseTarget, limits: str, reason: str) -> Dialog:
    """Ask for new limits of a queue or a handler that an operator typed.

    Args:
        target: the queue or the handler; a name that was never used is refused, because it is probably misspelled.
        limits: limits, as typed; empty for the current ones.
        reason: reason, as typed.
    """
    if warning := await session.read(name_warning, target):
        return Notice(f"Nothing was changed: {warning}", bad=True)
    return await _ask_about_limits(action, session, target, limits, reason)


async def _ask_about_limits(
    action: Action, session: Session, target: PauseTarget, limits: str = "", reason: str = ""
) -> Dialog:
    from runner.operations.limit import DEFAULT, parse_edit  # imports modules that the first screen does not need
    from tasktui.actions import perform

    usage = await perform.current_limits(session, target)
    fixed = limits.strip() == DEFAULT

    def answered(confirmation: Confirmation) -> Confirmation:
        return confirmation._replace(answer=DEFAULT) if fixed else confirmation

    return Question(
        action.without_prompt() if fixed else action,
        _about_limits(usage, default=fixed),
        1,
        words=lambda confirmation: limit_words(target, answered(confirmation)),
        change=lambda confirmation: _set(session, target, answered(confirmation)),
        sql=lambda confirmation: perform.limit_sql(session, target, answered(confirmation)),
        parts=() if fixed else _limit_parts(usage.limits if usage else UNLIMITED, parse_edit(limits).values),
        title="Limit?",
        subject=line(target),
        reason=reason,
    )


LIMIT_TEXTS = {"concurrency": "a number, or none", "per-tenant": "a number, or none", "rate": "5/s, 100/min, none"}
"""The texts that each limit takes."""


def _limit_parts(limits: SharedLimits, typed: Mapping[str, str]) -> list[AnswerPart]:
    """An input for each limit.

    Args:
        typed: limits that a command names, as text.
    """
    from runner.operations.limit import current_texts  # imports modules that the first screen does not need

    return [
        AnswerPart(
            option,
            option.replace("-", " ").capitalize(),
            current,
            typed.get(option, current),
            LIMIT_TEXTS[option],
            partial(_limit_meaning, limits, option, current),
        )
        for option, current in current_texts(limits).items()
    ]


def _limit_meaning(limits: SharedLimits, option: str, current: str, text: str) -> Part:
    from runner.operations.limit import edited

    try:
        edited(limits, {option: text})
    except InvalidInput:
        return f"✗ {LIMIT_TEXTS[option]}", "dead"
    return f"✓ was {current}", "muted"


def _about_limits(usage: LimitUsage | None, *, default: bool) -> list[Content]:
    effect = "Return to the limits of the handler's code" if default else "Over all runners"
    about = [content((f"{effect}; running tasks go on", "bold strong"))]
    if usage is None:
        return [*about, content("  no limit now")]
    about.append(content(f"  {usage.limits}; {usage.total:,} running"))
    if usage.since:
        why = f": {line(usage.why)}" if usage.why else ""
        about.append(content((f"  set {usage.since} ago by {line(usage.by)}{why}", "muted")))
    holders = list(usage.holders.items())[:MOST_HOLDERS]
    return about + [content((f"  {number:>6,}  {line(holder)}", "muted")) for holder, number in holders]


async def _set(session: Session, target: PauseTarget, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    result = await perform.limit(session, target, confirmation.answer, confirmation.reason)
    return Notice(f"{str(target).capitalize()}: {result}")
