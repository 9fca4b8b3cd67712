"""Silencing of alerts: its confirmation."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from runner.model.alert import Silence
from runner.text import formatting
from runner.text.times import parse_moment
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import silence_words
from tasktui.actions.question import Dialog, Question
from tasktui.actions.queues import pause_meaning
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session


def ask_about_first(action: Action, session: Session, targets: Targets) -> Dialog | Coroutine[Any, Any, Dialog]:
    """Ask to silence the first alert that is not silenced, or to end the first silence."""
    name = targets.alert()
    if name is None:
        return Notice("No alert fires; :silence RULE silences a rule", bad=True)
    return ask_to_silence(action, session, name)


async def ask_to_silence(action: Action, session: Session, name: str, length: str = "", reason: str = "") -> Dialog:
    """Ask to silence an alert or a rule, or to end its silence.

    Args:
        name: RULE:SUBJECT, or a rule.
        length: duration or end, as typed; empty for the default. A silence that exists accepts none.
        reason: reason, as typed.
    """
    from runner.operations.silence import check_alert  # imports operations, which the first screen does not need
    from runner.queries.alerts.records import alert_records

    await session.read(check_alert, name)
    records = await session.read(alert_records)
    silence = records.silences.get(name)
    if silence is not None and length:
        until = formatting.exact(silence.until, session.now(), session.zone)
        return Notice(f"{line(name)} is silenced until {until}; end that first with :silence {line(name)}", bad=True)
    if silence is not None:
        why = f": {line(silence.why)}" if silence.why else ""
        end = formatting.clock(silence.until, session.now(), session.zone)
        about = [
            content(("Its notices are sent again", "bold strong")),
            content(f"  silenced by {line(silence.by)} until {end}{why}"),
        ]
        named, title, of = action.without_prompt(), "End the silence?", "of "
    else:
        about = [content(("It sends no notices until the silence ends", "bold strong"))]
        about += [content(f"  {line(records.firing[name].title)}")] if name in records.firing else []
        named, title, of = action._replace(default=length or action.default, required=not length), "", ""
    return Question(
        named,
        about,
        1,
        words=partial(silence_words, name, ends=silence is not None),
        change=partial(_switch, session, name, silence),
        title=title,
        subject=f"{of}{line(name)}",
        reason=reason,
        meaning=partial(pause_meaning, session),
    )


async def _switch(session: Session, name: str, current: Silence | None, confirmation: Confirmation) -> Notice:
    from runner.operations.silence import silence, unsilence

    by = session.by(confirmation.reason)
    if current is not None:
        await session.write(unsilence, name, by)
        return Notice(f"{line(name)} sends its notices again")
    now = session.now()
    until = parse_moment(confirmation.answer, now, session.zone)
    await session.write(silence, name, until, by)
    return Notice(f"{line(name)} is silenced until {formatting.clock(until, now, session.zone)}; 8 Z undoes")
