"""HealthScreen: how the database itself is, in front of the screen."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content

from runner.people import cells
from runner.store import observe
from runner.store.observe import Health, Ping, worries
from tasktui.draw.render import content, line
from tasktui.operator.session import Session
from tasktui.screens.answer import AnswerScreen
from tasktui.widgets.heading import milliseconds

MOST_TABLES = 5
FEW = 100
"""Dead rows that are not worth a line."""


class Vitals(NamedTuple):
    """What was measured, and what the database said."""

    ping: Ping
    health: Health


class HealthScreen(AnswerScreen[None]):
    """What the database says of itself.

    Args:
        session: of the operator.
    """

    FAILING = "The database does not answer"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("h", "dismiss", "Close")]

    def __init__(self, session: Session) -> None:
        super().__init__(session, "The database")

    async def look(self) -> object:
        """Measure, and ask."""
        return Vitals(await self.session.pinged(), await self.session.read(observe.health))

    def told(self, found: Any, width: int) -> Iterable[Content]:  # noqa: ARG002 - its lines are short
        """Tell how it is."""
        return told(found, self.session.name, self.session.load)


def told(found: Vitals, name: str, load: int) -> Iterator[Content]:
    """Tell how a database is, in lines.

    Args:
        found: what was measured, and what it said.
        name: what it is called.
        load: how often we asked it in the last minute.
    """
    health = found.health
    yield content((f"{line(name)}: {health.kind} {line(health.version)}", "bold"))
    yield from (content((f"{topic:>20}  ", "dim"), value) for topic, value in _facts(found, load))
    for worry in worries(health):
        yield content((f" ! {line(worry.text)}", "bold"))
        yield content((f"   → {line(worry.advice)}", "dim"))


def _facts(found: Vitals, load: int) -> Iterator[tuple[str, str]]:
    health = found.health
    yield "answers in", cells.duration(found.ping.took)
    if health.stale is not None:
        yield "standby", f"the newest change that it shows was made {cells.age(health.stale)} ago"
    yield "clock", f"{milliseconds(found.ping.skew)} from ours"
    yield "our own load", f"{load} transactions in the last minute"
    if health.size is not None:
        free = f", {cells.size(health.free)} of it free" if health.free else ""
        yield "size", f"{cells.size(health.size)}{free}"
    if health.wal is not None:
        yield "write-ahead log", cells.size(health.wal)
    if health.connections is not None:
        used, most = health.connections
        hidden = f", {health.hidden} of them hidden from this role (pg_read_all_stats)" if health.hidden else ""
        yield "connections", f"{used} of {most}{hidden}"
        oldest = health.oldest
        who = f", {line(oldest.program)} (connection {oldest.pid}), {line(oldest.state)}" if oldest else ""
        yield "oldest transaction", f"{cells.age(oldest.age)}{who}" if oldest else "none but ours"
    for place, table in enumerate(table for table in health.dead[:MOST_TABLES] if table.dead >= FEW):
        vacuumed = f"vacuumed {cells.age(table.vacuumed)} ago" if table.vacuumed is not None else "never vacuumed"
        about = f"{line(table.table)}: {table.dead:,}, live {table.live:,}, {vacuumed}"
        yield "" if place else "dead rows", about
