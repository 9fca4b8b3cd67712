"""Shards: the overview of all shards of a profile, and the reason where a screen shows one of them only."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from runner.queries.counting import Count
from runner.queries.counts import QueueCounts, QueueTotals, queue_totals
from runner.text import formatting
from runner.text.sanitize import count_noun
from tasktui.actions.action import ActionTarget, Targets
from tasktui.commands.syntax import filter_of
from tasktui.data.shards import OverviewReader, ShardOverview, ShardOverviews, problems
from tasktui.panels.overview import alert_count, alert_row
from tasktui.render.plot import compact
from tasktui.render.render import Cell, ListColumn, RenderedRow, line
from tasktui.render.rows import BLANK, Part, Row, fit, heading, rule
from tasktui.screens.as_of import note_rows
from tasktui.screens.failures import FailuresScreen
from tasktui.screens.runners import RunnersScreen
from tasktui.screens.tasks import TasksScreen
from tasktui.session.session import Session
from tasktui.session.shard_reads import ShardReads
from tasktui.shell.actions import action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import HELD, Table

if TYPE_CHECKING:
    from tasktui.session.shards import ShardsSession

TOTAL, UNKNOWN, UNSURE = "total", "unknown", "?"

MOST_PROBLEMS, MOST_PROBLEMS_TALL, TALL = 3, 8, 40
"""Problems that the screen lists, and those on a screen with many rows."""

LEAST_QUEUES = 4
"""Queues that keep their room below many shards."""

SHARD_COLUMNS = (
    ListColumn("SHARD", 9, grow=1, name=True),
    ListColumn("READY", 8, right=True, grow=1),
    ListColumn("SCHED", 7, right=True, grow=1, drop=5),
    ListColumn("RETRY", 7, right=True, grow=1),
    ListColumn("BLOCKED", 7, right=True, grow=1, drop=8),
    ListColumn("LOST", 6, right=True, grow=1, drop=7),
    ListColumn("DEAD", 7, right=True, grow=1),
    ListColumn("SLOTS", 9, right=True, grow=1, drop=3),
    ListColumn("OLDEST", 7, right=True, grow=1),
    ListColumn("IN/MIN", 6, right=True, grow=1, drop=2),
    ListColumn("OUT/MIN", 7, right=True, grow=1, drop=1),
    ListColumn("FAIL/MIN", 8, right=True, grow=1, drop=6),
    ListColumn("RUNNERS", 7, right=True, grow=1, drop=4),
)


class ShardFigure(NamedTuple):
    """A figure that the queues show for each shard.

    Args:
        head: its head in capitals.
        text: its text for the queue of one shard, or for several.
        role: its style.
    """

    head: str
    text: Callable[[QueueTotals], str]
    role: str


def _age(totals: QueueTotals) -> str:
    return formatting.age(totals.oldest) if totals.oldest is not None else "0s"


FIGURES = (
    ShardFigure("READY", lambda totals: str(totals.ready), "text"),
    ShardFigure("RETRY", lambda totals: str(totals.retrying), "retrying"),
    ShardFigure("RUN", lambda totals: str(totals.running), "running"),
    ShardFigure("DEAD", lambda totals: str(totals.dead), "dead"),
    ShardFigure("OLDEST", _age, "text"),
    ShardFigure("OUT/MIN", lambda totals: compact(totals.finished), "text"),
)
"""The figures of a queue; a key chooses the one that each shard shows."""


class ShardsScreen(LiveScreen):
    """All shards of a profile with their total, and each queue with its figure in each shard."""

    ABOUT = (
        "SHARDS has a row for each shard and their total; enter on a shard brings it to the front, as d and :db do. A "
        "shard without an answer is unknown, and the total is then partial. QUEUES has the sum of each queue over the "
        "shards, and one figure for each shard; s chooses the figure. Counts stop at 10,000 in each shard (10,000+). "
        "Tab moves between both lists; enter on a queue lists its tasks in all shards, P and M act on it in each."
    )
    OPENS = "open"
    AUTO_FOCUS = "#shards"
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.QUEUE),
        Binding("s", "figure", "Figure by shard"),
        Binding("tab", "app.focus_next", "Shards, queues", key_display="tab"),
    ]

    def __init__(self) -> None:
        super().__init__(Targets(queue=self._queue, by_shard=self._by_shard))
        self._figure, self._shards_of = 0, dict[str, list[str]]()
        self._reads = ShardReads[ShardOverview]()
        self._readers: dict[str, OverviewReader] = {}
        self._complete = False

    @property
    def shards(self) -> Sequence[Session]:
        """The sessions of the shards."""
        return cast("ShardsSession", self.session).shards

    def parts(self) -> Iterable[Widget]:
        """Return the problems, the shards and the queues."""
        yield Canvas(id="attention")
        yield Table[str](SHARD_COLUMNS, id="shards", beside=True)
        yield Canvas(id="title")
        yield Table[str](SHARD_COLUMNS[:1], id="queues", beside=True)

    async def read(self) -> object:
        """Read the overview of each shard."""
        return ShardOverviews(
            await self._reads.read(
                self.session, lambda shard: self._readers.setdefault(shard.name, OverviewReader()).read(shard)
            )
        )

    def show(self, snapshot: Any) -> None:
        """Show the shards and the queues."""
        data: ShardOverviews = snapshot
        self._shards_of = {queue: [*shards] for queue, shards in data.queues.items()}
        if not self._complete:  # The second read counts further.
            self._complete = True
            self.feed.hurry()
        width, height = self.size
        found = [*problems(data, self.shards)]
        most = MOST_PROBLEMS_TALL if height >= TALL else MOST_PROBLEMS
        upper = _attention(found, data, width, most)
        self.query_one("#attention", Canvas).draw([*upper, _shards_rule(data, width)])
        shards = self.query_one("#shards", Table)
        figures = shard_rows(data)
        shards.show((*data.answers, TOTAL), figures.__getitem__)
        above = (3 if width >= 100 else 2) + self.frame.databases_height + len(upper) + 1
        room = height - above - 2
        shards.styles.height = min(len(figures) + 1, max(3, room - LEAST_QUEUES - 1))
        queues = self.query_one("#queues", Table)
        figure = FIGURES[self._figure]
        queues.columns = queue_columns(data, figure)
        order = queues.steady(data.queues, figure.head)
        held = order != tuple(data.queues)
        self.query_one("#title", Canvas).draw([_queues_rule(data, width, figure, held=held)])
        queues.show(order, partial(queue_row, data, figure))

    def action_figure(self) -> None:
        """Show the next figure of each queue by shard."""
        self._figure = (self._figure + 1) % len(FIGURES)
        self.redraw()

    def _queue(self) -> str | None:
        queues = self.query_one("#queues", Table)
        return queues.cursor if self.focused is queues else None

    def _by_shard(self) -> Mapping[str, Targets]:
        queue = self._queue()
        return dict.fromkeys(self._shards_of.get(queue or "", ()), Targets(queue=lambda: queue))

    @on(Table.Selected)
    def _open_row(self, event: Table.Selected) -> None:
        if self.focused is not self.query_one("#shards"):
            self.console.open_tasks(filter_of(queue=event.key))
        elif event.key != TOTAL:
            self.console.switch_mode(self.console.databases.choose(event.key))


def _attention(found: Sequence[Any], data: ShardOverviews, width: int, most: int) -> list[Row]:
    """The problems of all shards, at most a number of rows; or a line that there are none."""
    title: list[Part] = [heading("NEEDS ATTENTION")]
    if not found and not data.complete:
        return [rule(title, width), fit([("  reading", "faint")], width)]
    if not found:
        runners = count_noun(
            len({(each.host, each.pid) for overview in data.known.values() for each in overview.alive}), "runner"
        )
        text = f"{runners} alive, no queue of any shard falls behind."
        return [
            rule(title, width),
            fit([("  ✓ ", "bold succeeded"), ("Nothing. ", "bold strong"), (text, "text")], width),
        ]
    title += alert_count(found, complete=data.complete)
    more: list[Part] = [(f"+{len(found) - most} more", "muted")] if len(found) > most else []
    rows = [alert_row(each, width, True, first=not place) for place, each in enumerate(found[:most])]
    return [rule(title, width, more), *rows]


def _shards_rule(data: ShardOverviews, width: int) -> Row:
    note: Part = (count_noun(len(data.answers), "shard"), "muted")
    if data.missing:
        note = (f"the total is partial, without {', '.join(map(line, data.missing))}", "bold lost")
    return rule([heading("SHARDS")], width, [note])


def _queues_rule(data: ShardOverviews, width: int, figure: ShardFigure, *, held: bool) -> Row:
    hidden = any(overview.hides_queues for overview in data.known.values())
    note: list[Part] = [(f"{figure.head} in each shard, ", "muted")]
    note += [(Count(len(data.queues), hidden).of("queue"), "muted")]
    note += [(", partial", "bold lost")] if data.missing else []
    note += [(HELD, "accent")] if held else []
    return rule([heading("QUEUES")], width, note)


def shard_rows(data: ShardOverviews) -> Mapping[str, RenderedRow]:
    """The row of each shard by its name, and that of their total."""
    rows = {}
    for name in data.answers:
        overview = data.known.get(name)
        if overview is None:
            cells = [Cell(line(name), "lost"), Cell(UNKNOWN, "bold lost")]
            rows[name] = RenderedRow((*cells, *[Cell(UNSURE, "faint")] * (len(SHARD_COLUMNS) - 2)))
            continue
        rows[name] = _shard_row(line(name), "strong", queue_totals([overview.queues]), data, [name])
    title = f"{TOTAL}, partial" if data.missing else TOTAL
    if data.known:
        rows[TOTAL] = _shard_row(title, "bold strong", data.total, data, [*data.known])
    else:
        rows[TOTAL] = RenderedRow((Cell(TOTAL, "lost"), Cell(UNKNOWN, "bold lost"), *[Cell(UNSURE, "faint")] * 11))
    return rows


def _shard_row(title: str, style: str, totals: QueueTotals, data: ShardOverviews, shards: Sequence[str]) -> RenderedRow:
    busy, slots = data.slots_of(shards)
    processes = {(each.host, each.pid) for name in shards for each in data.known[name].alive}
    return RenderedRow(
        (
            Cell(title, style),
            _count(totals.ready, "bold strong"),
            _count(totals.scheduled, "muted"),
            _count(totals.retrying, "retrying"),
            _count(totals.blocked, "blocked"),
            _count(totals.lost, "bold lost"),
            _count(totals.dead, "dead"),
            Cell(f"{busy:,}/{slots:,}", "running" if busy else "muted"),
            Cell(_age(totals), "text" if totals.oldest else "faint"),
            Cell(f"{compact(totals.arrived.number)}{'+' if totals.arrived.more else ''}", "text"),
            Cell(compact(totals.finished), "text"),
            Cell(compact(totals.failed), "dead" if totals.failed else "faint"),
            Cell(f"{len(processes):,}", "text" if processes else "bold dead"),
        )
    )


def _count(count: Count, role: str) -> Cell:
    return Cell(str(count), role if count.number else "faint")


def queue_columns(data: ShardOverviews, figure: ShardFigure) -> tuple[ListColumn, ...]:
    """The columns of the queues: the totals, of which a narrow screen drops some, and one for each shard."""
    heads = [each.head for each in FIGURES if each is not figure]
    totals = {"DEAD": 101, "OLDEST": 102, "RUN": 103, "OUT/MIN": 104}
    return (
        ListColumn("NAME", 9, grow=1, name=True),
        ListColumn(figure.head, 8, right=True, grow=1),
        *(ListColumn(line(name, 12), 7, right=True, grow=1, drop=place) for place, name in enumerate(data.answers)),
        *(ListColumn(head, 7, right=True, grow=1, drop=totals.get(head, 105)) for head in heads),
    )


def queue_row(data: ShardOverviews, figure: ShardFigure, name: str) -> RenderedRow:
    """The row of a queue: its figure in total and in each shard, then its other totals."""
    total, shards = data.total_of(name), data.queues[name]
    trouble = any(queue.falls_behind for queue in shards.values())
    paused = sum(queue.paused is not None for queue in shards.values())
    role = "muted" if paused == len(shards) else "strong" if trouble else "text"
    title: list[Part] = [(line(name), role)]
    if paused:
        title.append((f" ‖{'' if paused == len(shards) else f' {paused} of {len(shards)}'}", "paused"))
    cells = [Cell(_shown(total, figure), f"bold {figure.role if figure.role != 'text' else 'strong'}")]
    for shard in data.answers:
        cells.append(_of_shard(shards.get(shard), figure, known=shard in data.known))
    cells += [Cell(_shown(total, each), each.role) for each in FIGURES if each is not figure]
    cells = [cell._replace(style="faint") if cell.text in ("0", "0s", "") else cell for cell in cells]
    return RenderedRow((Cell.of(title, role), *cells))


def _of_shard(queue: QueueCounts | None, figure: ShardFigure, *, known: bool) -> Cell:
    if not known:
        return Cell(UNKNOWN, "lost")
    return Cell("", "faint") if queue is None else Cell(_shown(queue_totals([[queue]]), figure), figure.role)


def _shown(totals: QueueTotals, figure: ShardFigure) -> str:
    return figure.text(totals)


class OneShardScreen(LiveScreen):
    """A screen that shows one shard at a time."""

    LIVE = False

    def parts(self) -> Iterable[Widget]:
        """Return the line with the reason."""
        yield Canvas(id="title")

    async def read(self) -> object:
        """Read nothing."""
        return ()

    def show(self, _snapshot: Any) -> None:
        """Show the reason."""
        session = cast("ShardsSession", self.session)
        names = ", ".join(f":db {shard.name}" for shard in session.shards)
        note = f"{self.title} shows one shard at a time. Choose it with d or {names}; 1 shows all of them."
        self.query_one("#title", Canvas).draw([BLANK, *note_rows([note], self.size.width)])


def shards_screen(name: str) -> LiveScreen:
    """The screen that shows all shards of a profile, by the name of the screen of one database."""
    screens: dict[str, type[LiveScreen]] = {
        "overview": ShardsScreen,
        "tasks": TasksScreen,
        "failures": FailuresScreen,
        "runners": RunnersScreen,
    }
    return screens.get(name, OneShardScreen)()
