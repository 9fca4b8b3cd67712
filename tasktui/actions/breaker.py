"""Actions on breakers: open and close."""

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.content import Content

from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import Shown
from runner.operations.pause import PauseKind
from runner.queries.counting import Count
from runner.text import formatting
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import breaker_words
from tasktui.actions.question import Dialog, Question
from tasktui.data.task_pages import count_matches
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session

if TYPE_CHECKING:
    from runner.queries.breakers import BreakerRow


def ask_for_breaker_of(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to open the breaker of the selected handler, or to close it if it is open."""
    target = targets.pause_target(PauseKind.HANDLER)
    return ask_for_breaker(action, session, target.name) if target else None


async def ask_for_breaker(action: Action, session: Session, handler: str, wait: str = "", reason: str = "") -> Dialog:
    """Ask to open the breaker of a handler, or to close it if it is open.

    Args:
        wait: time until the first probe, as typed; empty for the default. An open breaker accepts none.
        reason: reason, as typed.
    """
    from runner.operations.breaker import breaker_of
    from tasktui.actions import perform

    row = await session.read(breaker_of, handler)
    closes = row.state is not None
    held = await session.read(count_matches, _held_by(handler)) if closes else Count()
    if closes and wait:
        return Notice(
            f"The breaker of {line(handler)} is open already; close it first with :breaker {line(handler)}", bad=True
        )
    named = action.without_prompt() if closes else action._replace(default=wait or action.default, required=not wait)
    return Question(
        named,
        _about_breaker(row, held),
        1,
        words=partial(breaker_words, handler, close=closes),
        change=partial(_switch, session, handler, closes),
        title="Close the breaker?" if closes else "Open the breaker?",
        subject=f"of {line(handler)}",
        sql=partial(perform.breaker_sql, session, handler, closes),
        reason=reason,
    )


def _held_by(handler: str) -> Filter:
    """The tasks that an open breaker holds back."""
    return Filter((Term("handler", Operator.EQ, handler), Term("state", Operator.EQ, str(Shown.READY))))


def _about_breaker(row: "BreakerRow", held: Count) -> list[Content]:
    definition = "its definition is not readable" if row.definition is None else line(str(row.definition))
    if row.state is None:
        title = content(("Its tasks wait and spend no attempts", "bold strong"))
        return [title, content(f"  running tasks finish; it closes when a probe succeeds ({definition})")]
    by = f" by {line(row.state.by)}" if row.state.by else ""
    why = f": {line(row.state.why)}" if row.state.why else ""
    probe = f"next probe in {formatting.age(max(0.0, row.state.next_in))}"
    return [
        content((f"All its tasks may start: {held.of('task')} ready", "bold strong")),
        content(f"  opened {row.state.since} ago{by}{why}; {probe}"),
        content((f"  {definition}", "muted")),
    ]


async def _switch(session: Session, handler: str, closes: bool, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    result = await perform.switch_breaker(session, handler, closes, confirmation)
    return Notice(f"Breaker of {line(handler)} {result}")
