"""Overview: the queues at a glance, what was done in the last hour, and what is in trouble."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from textual import on
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from runner import cells
from runner.store import observe
from runner.store.observe import Flow, MinuteFlow, QueueCounts, RunnerRow, UnknownHandler
from runner.store.transaction import Transaction
from tasktui.columns import Column
from tasktui.plot import plot
from tasktui.query import filter_of
from tasktui.render import Cell, Line, content, line, lines
from tasktui.screens.acting import ActingScreen
from tasktui.widgets.table import Table

MINUTES = 60
PLOT_HEIGHT = 4

COLUMNS = (
    Column("QUEUE", 14, grow=1),
    Column("READY", 7, right=True),
    Column("SCHED", 7, right=True),
    Column("RETRY", 7, right=True),
    Column("RUN/LIM", 7, right=True),
    Column("DEAD", 7, right=True),
    Column("OLDEST", 7, right=True),
    Column("DONE/m", 6, right=True, drop=1),
    Column("FAIL/m", 6, right=True, drop=1),
    Column("BLOCKED", 7, right=True, drop=2),
    Column("LOST", 6, right=True, drop=2),
)


@dataclass(frozen=True, slots=True)
class Glance:
    """Everything of one moment."""

    at: datetime
    queues: tuple[QueueCounts, ...]
    hour: tuple[MinuteFlow, ...]
    runners: tuple[RunnerRow, ...]
    unknown: tuple[UnknownHandler, ...]


class OverviewScreen(ActingScreen):
    """The queues at a glance."""

    KEY = "1"
    TITLE = "Overview"
    ABOUT = "Counts stop at 10,000 (10,000+). Enter lists the tasks of a queue; P pauses or resumes it."

    def __init__(self) -> None:
        super().__init__()
        self._glance: Glance | None = None

    def parts(self) -> Iterable[Widget]:
        """The queues, two plots, and what is in trouble."""
        yield Table[str](COLUMNS, id="queues")
        yield Horizontal(Static(id="done"), Static(id="failed"), id="plots")
        yield Static(id="alerts")

    async def look(self) -> object:
        """Read everything of one moment."""
        return await self.session.read(_glance)

    def show(self, snapshot: Any) -> None:
        """Show what was read."""
        self._glance = glance = snapshot
        queues = {queue.queue: queue for queue in glance.queues}
        self.session.queues = tuple(name for name in queues if line(name) == name)
        self.query_one("#queues", Table).show(tuple(queues), lambda name: queue_line(queues[name]))
        width = max(24, self.size.width // 2 - 2)
        begin = (glance.at - timedelta(minutes=MINUTES)).astimezone(self.session.zone)
        ends = (f"{begin:%H:%M}", f"{glance.at.astimezone(self.session.zone):%H:%M}")
        for name, title, values in (
            ("done", "done a minute", per_minute(glance.hour, glance.at, _done)),
            ("failed", "failed attempts a minute", per_minute(glance.hour, glance.at, _failed)),
        ):
            drawn = "\n".join([f" {title}", *plot(values, width, PLOT_HEIGHT, ends)])
            self.query_one(f"#{name}", Static).update(content(drawn))
        self.query_one("#alerts", Static).update(lines(content(text) for text in alerts(glance)))

    def queue(self) -> str | None:
        """The queue under the cursor."""
        cursor: str | None = self.query_one("#queues", Table).cursor
        return cursor

    @on(Table.Chosen)
    def _chosen(self, event: Table.Chosen) -> None:
        self.session.wanted = filter_of(queue=event.key)
        self.app.switch_mode("tasks")


def queue_line(queue: QueueCounts) -> Line:
    """A queue in the table."""
    limit = f"/{queue.limit}" if queue.limit else ""
    failed = queue.minute.retried + queue.minute.died
    return Line(
        (
            Cell(f"{line(queue.queue)}{' ⏸ paused' if queue.paused else ''}", "bold" if queue.paused else ""),
            Cell(str(queue.ready)),
            Cell(str(queue.scheduled), "dim"),
            Cell(str(queue.retrying), "yellow" if queue.retrying.number else "dim"),
            Cell(f"{queue.running}{limit}"),
            Cell(str(queue.dead), "red" if queue.dead.number else "dim"),
            Cell(cells.age(queue.oldest)),
            Cell(f"{queue.minute.succeeded:,}"),
            Cell(f"{failed:,}", "red" if failed else "dim"),
            Cell(str(queue.blocked), "dim"),
            Cell(str(queue.lost), "bold red" if queue.lost.number else "dim"),
        )
    )


def alerts(glance: Glance) -> Iterable[str]:
    """What is in trouble, the worst first."""
    alive = sum(runner.alive for runner in glance.runners)
    slots = sum(runner.capacity for runner in glance.runners if runner.alive)
    holds = sum(runner.holds for runner in glance.runners if runner.alive)
    yield f" {alive} runners alive, {holds:,} of {slots:,} slots in use"
    for runner in glance.runners:
        if not runner.alive:
            name = f"runner {runner.id} on {line(runner.host)}"
            yield f" ! {name} is lost: silent for {cells.age(runner.silent)}, {runner.holds} tasks in hand"
    for unknown in glance.unknown:
        queues = line(", ".join(unknown.queues))
        due = f"due for {cells.age(unknown.due)}" if unknown.due >= 0 else f"due in {cells.age(-unknown.due)}"
        yield f" ! no live runner takes handler {line(unknown.handler)} (queue {queues}, {due})"
    for queue in glance.queues:
        if queue.paused:
            until = cells.distance(queue.paused.until, glance.at) if queue.paused.until else "when somebody says so"
            by, why = line(queue.paused.by), line(queue.paused.why)
            yield f" ⏸ {line(queue.queue)} paused by {by}: {why}; it resumes {until}"


def per_minute(flows: Sequence[MinuteFlow], at: datetime, number: Any) -> list[float]:
    """One value for each of the last minutes with the present one, those without anything being zero."""
    last = at.replace(second=0, microsecond=0)
    found = {flow.minute: number(flow.flow) for flow in flows}
    return [float(found.get(last - timedelta(minutes=back), 0)) for back in range(MINUTES - 1, -1, -1)]


def _done(flow: Flow) -> int:
    return flow.succeeded


def _failed(flow: Flow) -> int:
    return flow.retried + flow.died


async def _glance(tx: Transaction) -> Glance:
    at = await observe.clock(tx)
    return Glance(
        at,
        tuple(await observe.counts(tx)),
        tuple(await observe.per_minute(tx, at - timedelta(minutes=MINUTES + 1), at + timedelta(minutes=1))),
        tuple(await observe.runners(tx)),
        tuple(await observe.unknown_handlers(tx)),
    )
