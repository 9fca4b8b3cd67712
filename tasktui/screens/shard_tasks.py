"""ShardTasksScreen: the tasks of all shards of a profile as one list."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from runner.filter.parse import parse_filter
from runner.filter.sort import NEWEST
from runner.queries.counting import Count, total_of
from runner.queries.task_list.search import TaskPage
from runner.queries.task_list.search import page as read_page
from runner.queries.task_list.shard_page import ShardPage, ShardTask, merged
from tasktui.actions.as_command import filter_word
from tasktui.data.task_list import TASK_HEADS, columns_for, task_line
from tasktui.render.render import Cell, ListColumn, RenderedRow, line
from tasktui.render.rows import BLANK, Part, Row, heading, rule
from tasktui.screens.as_of import note_rows
from tasktui.screens.selection import toggled
from tasktui.session.session import Session
from tasktui.session.shard_reads import ShardAnswer, ShardReads
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

if TYPE_CHECKING:
    from tasktui.session.shards import ShardsSession

ShardKey: TypeAlias = tuple[str, int]
"""The shard and the id of a task."""

PAGE, MOST, NEAR = 100, 1_000, 20
"""Tasks that are read first, those that are read at most, and rows before the last one at which more are read."""

SHARD = ListColumn("SHARD", 5, drop=20)


@dataclass(frozen=True, slots=True)
class ShardTaskPages:
    """The merged list.

    Args:
        answers: the page of each shard, or why there is none.
    """

    page: ShardPage
    answers: Mapping[str, ShardAnswer[TaskPage]]

    @property
    def count(self) -> Count:
        """The tasks that were found: a lower bound if a shard has more, or no answer."""
        found = [Count(len(page.tasks), page.next is not None) for page in self.page.pages.values()]
        number, more = total_of(found)
        return Count(number, more or bool(self.missing))

    @property
    def missing(self) -> dict[str, str]:
        """The shards without an answer, each with its error."""
        return {name: answer.error for name, answer in self.answers.items() if answer.value is None}


class ShardTasksScreen(LiveScreen):
    """The tasks of all shards, in the order of one list."""

    ABOUT = (
        "The tasks of all shards in one order; a list by id or age follows the time of the submit. / filters, o sorts, "
        "s shows or hides succeeded tasks. Enter opens a task in its shard, where it can be changed. Without the "
        "answer of a shard the list is partial."
    )
    OPENS = "open"
    AUTO_FOCUS = "#tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "app.command('tasks')", "Filter", key_display="/", priority=True),
        Binding("o", "app.command('sort')", "Sort", priority=True),
        Binding("s", "succeeded", "Succeeded"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._limit = PAGE
        self._reads: tuple[object, ShardReads[TaskPage]] | None = None
        self._more = False

    def parts(self) -> Iterable[Widget]:
        """Return the filter with the number of tasks, the list, and the notes."""
        yield Canvas(id="title")
        yield Table[ShardKey](TASK_HEADS, id="tasks")
        yield Canvas(id="below")

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same tasks."""
        text, sort = self.opened.filter_text, self.opened.sort
        order = [] if sort == NEWEST else ["--sort", sort.by, "--desc" if sort.descending else "--asc"]
        return ["tasks", *([filter_word(text)] if text else []), *order]

    def request(self) -> object:
        """Return the filter, the order and the number of tasks to read."""
        return (self.opened.filter_text, self.opened.sort, self._limit)

    async def read(self) -> object:
        """Read a page of each shard, and merge them."""
        session, request = cast("ShardsSession", self.session), self.request()
        sort, limit = self.opened.sort, self._limit
        if self._reads is None or self._reads[0] != request:
            task_filter = parse_filter(self.opened.filter_text, session.now(), session.zone)

            async def of_shard(shard: Session) -> TaskPage:
                return await shard.read(read_page, task_filter, None, limit, sort)

            self._reads = (request, ShardReads(session.shards, of_shard))
        reads = self._reads[1]
        answers = await reads.read()
        session.silent = reads.silent
        pages = {name: answer.value for name, answer in answers.items() if answer.value is not None}
        return ShardTaskPages(merged(pages, dict.fromkeys(pages), sort, limit), answers)

    def on_screen_resume(self) -> None:
        """Read the tasks of a filter that another screen has set from the beginning."""
        self._limit = PAGE
        super().on_screen_resume()

    def action_succeeded(self) -> None:
        """Show or hide succeeded tasks."""
        self.opened.filter_text = toggled(self.opened.filter_text)
        self.action_reload()

    def show(self, snapshot: Any) -> None:
        """Show the list."""
        data: ShardTaskPages = snapshot
        self._more = bool(data.page.next) and len(data.page.tasks) == self._limit < MOST
        width = self.size.width
        rows = {(each.shard, each.task.id): each for each in data.page.tasks}
        places = columns_for(self.opened.sort)
        table = self.query_one("#tasks", Table)
        table.columns = (SHARD, *places.values())
        order = table.steady(rows, str(self.request()))
        table.show(order, lambda key: shard_task_line(rows[key], data.page, [*places]))
        self.query_one("#title", Canvas).draw([_title(data, self.opened.filter_text, width), BLANK])
        self.query_one("#below", Canvas).draw(note_rows(_notes(data, self._limit), width))

    @on(Table.CursorMoved)
    def _read_more(self) -> None:
        table = self.query_one("#tasks", Table)
        if self._more and (table.position(table.cursor) or 0) >= self._limit - NEAR:
            self._more, self._limit = False, min(MOST, self._limit + PAGE)
            self.feed.hurry()

    @on(Table.Selected)
    def _open(self, event: Table.Selected) -> None:
        shard, id = event.key
        keys: Sequence[ShardKey] = self.query_one("#tasks", Table).keys
        self.console.databases.choose(shard)
        self.console.open_task(id, [each for name, each in keys if name == shard])


def shard_task_line(row: ShardTask, page: ShardPage, places: Sequence[int]) -> RenderedRow:
    """The row of a task: its shard, then the columns of a list, with the shard in the id."""
    line_of = task_line(row.task, page.pages[row.shard].at)
    cells = [line_of.cells[place] for place in places]
    id = cells[0]._replace(text=line(str(row)), parts=None)
    return line_of._replace(cells=(Cell(line(row.shard), "muted"), id, *cells[1:]))


def _title(data: ShardTaskPages, filter_text: str, width: int) -> Row:
    least = f"at least {data.count.number:,} tasks" if data.count.more else data.count.of("task")
    note: list[Part] = [(least, "muted"), *([(", partial", "bold lost")] if data.missing else [])]
    words: list[Part] = [heading("TASKS"), (f" {line(filter_text)}" if filter_text else "", "text")]
    return rule(words, width, note)


def _notes(data: ShardTaskPages, limit: int) -> Iterable[str]:
    for name, error in data.missing.items():
        yield f"{name} is unknown: {error}"
    for name, page in data.page.pages.items():
        if page.capped and name in data.page.next:
            yield f"{name}: {page.access}; later tasks are not listed. Narrow the filter, or open the shard."
    if data.page.next and len(data.page.tasks) >= limit >= MOST:
        yield f"The first {MOST:,} tasks are listed. Narrow the filter, or open a shard."
