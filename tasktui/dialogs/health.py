"""HealthScreen: a dialog with the health of the database."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content

from runner.queries.health import Health, Ping, health_issues
from runner.queries.health import health as read_health
from runner.text import formatting
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.render import content, line
from tasktui.session.session import Session
from tasktui.shell.heading import milliseconds

MOST_TABLES = 5
FEW = 100
"""Tables with fewer dead rows are not listed."""


class Vitals(NamedTuple):
    """A measured latency and clock skew, and the health that the database reports."""

    ping: Ping
    health: Health


class HealthScreen(AnswerScreen[None]):
    """The health of the database."""

    FAILING = "The database does not answer"
    TITLE = "Health"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("h", "dismiss", "Close")]

    def __init__(self, session: Session) -> None:
        super().__init__(session, "Database")

    async def read(self) -> object:
        """Measure latency and skew, and read the health."""
        return Vitals(await self.session.pinged(), await self.session.read(read_health))

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:  # noqa: ARG002 - its lines are short
        """Render the health."""
        return health_lines(answer, self.session.name, self.session.load)


def health_lines(vitals: Vitals, name: str, load: int) -> Iterator[Content]:
    """Render the health of a database.

    Args:
        vitals: measured and reported values.
        load: transactions of this console in the last minute.
    """
    health = vitals.health
    yield content((f"{line(name)}: {health.kind} {line(health.version)}", "bold"))
    yield from (content((f"{label:>20}  ", "muted"), value) for label, value in _rows(vitals, load))
    for issue in health_issues(health):
        yield content((f" ! {line(issue.text)}", "bold"))
        yield content((f"   → {line(issue.advice)}", "muted"))


def _oldest(health: Health) -> str:
    """The oldest transaction; a hidden connection may have an older one."""
    if (oldest := health.oldest) is None:
        return "unknown, hidden from this role" if health.hidden else "none besides this console"
    who = f"{line(oldest.program)} (connection {oldest.pid}), {line(oldest.state)}"
    return f"{'at least ' * bool(health.hidden)}{formatting.age(oldest.age)}, {who}"


def _rows(vitals: Vitals, load: int) -> Iterator[tuple[str, str]]:
    health = vitals.health
    yield "latency", f"{formatting.duration(vitals.ping.took)} each round trip"
    if health.stale is not None:
        yield "standby", f"newest replicated change is {formatting.age(health.stale)} old"
    yield "clock skew", milliseconds(vitals.ping.skew).replace(" ", "")
    yield "console load", f"{load} transactions in the last minute"
    if health.size is not None:
        free = f", {formatting.size(health.free)} of it free" if health.free else ""
        yield "size", f"{formatting.size(health.size)}{free}"
    if health.wal is not None:
        yield "write-ahead log", formatting.size(health.wal)
    if health.connections is not None:
        used, most = health.connections
        hidden = f", {health.hidden} of them hidden from this role (pg_read_all_stats)" if health.hidden else ""
        yield "connections", f"{used} of {most}{hidden}"
        yield "oldest transaction", _oldest(health)
    for index, table in enumerate(table for table in health.dead[:MOST_TABLES] if table.dead >= FEW):
        vacuumed = f"vacuumed {formatting.age(table.vacuumed)} ago" if table.vacuumed is not None else "never vacuumed"
        text = f"{line(table.table)}: {table.dead:,}, live {table.live:,}, {vacuumed}"
        yield "" if index else "dead rows", text
