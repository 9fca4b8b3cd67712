"""HealthScreen: how the database itself is, in front of the screen."""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from runner.errors import RunnerError
from runner.people import cells
from runner.store import observe
from runner.store.observe import Health, Ping, worries
from tasktui.messages import Failed, Looked
from tasktui.render import block, content, line, lines
from tasktui.session import PINGS, Session
from tasktui.widgets.heading import milliseconds

EVERY = 2.0
"""Seconds between looks."""

MOST_TABLES = 5
FEW = 100
"""Dead rows that are not worth a line."""


class Vitals(NamedTuple):
    """What was measured, and what the database said."""

    ping: Ping
    health: Health


class HealthScreen(ModalScreen[None]):
    """What the database says of itself, again and again while it is open.

    Args:
        session: of the operator.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,h,q", "dismiss", "Close")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._looking = False

    def compose(self) -> ComposeResult:
        """One text that can be scrolled."""
        yield VerticalScroll(Static(content(("The database ...", "dim")), id="vitals"), classes="dialog")

    def on_mount(self) -> None:
        """Look at once, and then now and then."""
        self._look()
        self.set_interval(EVERY, self._look)

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self.run_worker(self._ask(), group="look")

    async def _ask(self) -> None:
        try:
            answer = await observe.ping(lambda: self._session.read(observe.clock), PINGS)
            found = Vitals(answer, await self._session.read(observe.health))
        except RunnerError as error:
            self.post_message(Failed(error))
        else:
            self.post_message(Looked(found, None, answer.took))

    @on(Looked)
    def _looked(self, message: Looked) -> None:
        self._looking = False
        assert isinstance(message.snapshot, Vitals)  # noqa: S101 - nothing else is posted here
        self._tell(lines(told(message.snapshot, self._session.name, self._session.load)))

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        self._looking = False
        self._tell(content(("The database does not answer\n", "bold red"), block(str(message.error))))

    def _tell(self, about: Content) -> None:
        self.query_one("#vitals", Static).update(about)


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
    yield content(("\nescape closes", "dim"))


def _facts(found: Vitals, load: int) -> Iterator[tuple[str, str]]:
    health = found.health
    yield "answers in", cells.duration(found.ping.took)
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
