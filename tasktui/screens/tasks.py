"""TasksScreen: the task list with filter, sort, marks and actions."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from runner.errors import RunnerError
from runner.filter.sort import NEWEST, Sort, SortField
from tasktui.actions.targets import Targets
from tasktui.data.complete_filter import complete_filter
from tasktui.data.load_tasks import MOST_NEWER, Loaded, matching
from tasktui.data.task_list import Listing
from tasktui.data.task_pages import TaskPages
from tasktui.messages import MatchesFound, Notice
from tasktui.render.render import ListColumn, RenderedRow, content, line, task_line
from tasktui.screens.actions import TASK_TARGETS, action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.screens.selection import Selection
from tasktui.screens.why import open_why
from tasktui.widgets.canvas import TextBlock
from tasktui.widgets.input import CompletionInput
from tasktui.widgets.table import Table

COLUMNS = (
    ListColumn("ID", 8, right=True),
    ListColumn("STATE", 11),
    ListColumn("QUEUE", 10, drop=2),
    ListColumn("HANDLER", 13, grow=1),
    ListColumn("KEY", 10, drop=1, grow=1),
    ListColumn("ATT", 5, right=True),
    ListColumn("WHEN", 10, right=True),
    ListColumn("AGE", 7, right=True, drop=3),
    ListColumn("REASON", 16, grow=4),
)

TITLES = {
    SortField.ID: "ID",
    SortField.AGE: "AGE",
    SortField.RUN_AT: "WHEN",
    SortField.CLAIMED_AT: "WHEN",
    SortField.FINISHED_AT: "WHEN",
    SortField.ATTEMPTS: "ATT",
}
"""The column of each sort order; priority has none."""


def columns_for(sort: Sort) -> tuple[ListColumn, ...]:
    """Return the columns, with an arrow at the sorted one."""
    title, arrow = TITLES.get(sort.by), f" {sort.arrow}"
    return tuple(column._replace(title=column.title + arrow * (column.title == title)) for column in COLUMNS)


class TasksScreen(LiveScreen):
    """The list of tasks."""

    ABOUT = (
        "Newest first; o changes the order. The order stays fixed while you work: rows update in place, finished tasks "
        "are struck through, and r reloads the list."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(*TASK_TARGETS),
        Binding("space", "mark('one')", "Mark", show=False),
        Binding("v", "mark('range')", "Mark a range from the last mark", show=False),
        Binding("asterisk", "mark('all')", "Mark all matching tasks", show=False, key_display="*"),
        Binding("backslash", "mark('none')", "Clear marks", show=False, key_display="\\"),
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("w", "why", "Why"),
        Binding("o", "app.command('sort')", "Sort", show=False, priority=True),
        Binding("escape", "list", "Back to the list", show=False),
    ]

    def __init__(self) -> None:
        self.pages = TaskPages()
        self.table = Table[int](COLUMNS, id="tasks")
        self.selection = Selection(self.pages, self.table)
        super().__init__(Targets(tasks=self.selection.tasks, task_filter=self.selection.task_filter))
        self.sql = lambda: self.pages.sql(self.session)

    def parts(self) -> Iterable[Widget]:
        """Return the filter, a summary and the list."""
        hint = "filter: queue:mail state:dead error~Timeout since:1h"
        yield CompletionInput(lambda text: complete_filter(text, self.session.names), hint, id="filter")
        yield TextBlock(id="about")
        yield self.table

    def on_mount(self) -> None:
        """Focus the list, not the filter."""
        self.set_focus(self.table)

    def on_screen_resume(self) -> None:
        """Apply a filter or sort order that another screen has set."""
        if self.session.sort != self.pages.sort:
            self.pages.set_sort(self.session.sort)
            self.action_reload()
        if self.session.filter_text != self.pages.filter_text:
            self.query_one("#filter", Input).value = self.session.filter_text
            self._apply_filter(self.session.filter_text)

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same tasks."""
        text, sort = self.pages.filter_text, self.pages.sort
        order = [] if sort == NEWEST else ["--sort", sort.by, "--desc" if sort.descending else "--asc"]
        return ["tasks", *([text] if text else []), *order]

    def request(self) -> object:
        """Return the filter, the order and the number of reloads."""
        return self.pages.request

    async def read(self) -> object:
        """Load the first page, read the next page, or refresh the visible and marked tasks."""
        marks = list(self.pages.listing.marks)[:MOST_NEWER]
        return await self.pages.read(self.session, tuple(dict.fromkeys((*self.table.visible_keys, *marks))))

    def show(self, snapshot: Any) -> None:
        """Update the list; only a load changes its order."""
        self.pages.update(snapshot)
        self.draw()
        if isinstance(snapshot, Loaded) and self.table.cursor is None:
            self.table.action_first()

    def action_reload(self) -> None:
        """Reload the list."""
        self.pages.reload()
        self.feed.hurry()
        self.table.scroll_home(animate=False)
        self.table.cursor = None

    def action_filter(self) -> None:
        """Focus the filter without delay: the following keys are meant for it."""
        self.set_focus(self.query_one("#filter"))

    def action_list(self) -> None:
        """Go back to the list and discard an unsubmitted filter."""
        self.query_one("#filter", Input).value = self.pages.filter_text
        self.table.focus()

    def action_why(self) -> None:
        """Explain why the task under the cursor is not running, regardless of marks."""
        open_why(self, self.table.cursor)

    def action_mark(self, tasks: str) -> None:
        """Mark tasks: the `one` under the cursor, a `range` to the cursor, `all` that match the filter, or `none`."""
        task_filter = self.pages.filter

        async def read_all() -> None:
            self.post_message(await self.session.read(matching, task_filter))

        match tasks:
            case "one":
                self.selection.toggle()
            case "range":
                self.selection.extend()
            case "none":
                self.selection.clear()
            case "all":
                self.actions.run(read_all())
        self.draw()

    @on(MatchesFound)
    def _mark_matches(self, message: MatchesFound) -> None:
        self.selection.add(message)
        self.draw()
        self.post_message(Notice(f"Marked {message.count.of('task')}"))

    @on(Input.Submitted, "#filter")
    def _submitted(self, event: Input.Submitted) -> None:
        self.set_focus(self.table if self._apply_filter(event.value) else event.input)

    @on(Table.Selected)
    def _open_task(self, event: Table.Selected) -> None:
        self.session.task_id = event.key
        self.app.switch_mode("task")

    @on(Table.CursorMoved)
    def _read_next_page(self) -> None:
        if self.pages.continues(self.table.position(self.table.cursor) or 0):
            self.feed.hurry()

    def _apply_filter(self, text: str) -> bool:
        try:
            self.pages.set_filter(text, self.session)
        except RunnerError as error:
            self.post_message(Notice(str(error), bad=True))
            return False
        self.session.filter_text = text
        self.action_reload()
        return True

    def draw(self) -> None:
        """Show the current list."""
        listing = self.pages.listing
        self.table.columns = columns_for(self.pages.sort)
        self.table.show(listing.ids, partial(list_line, listing), listing.marks)
        self.query_one("#about", TextBlock).set_text(summary(listing, self.pages.sort))


def list_line(listing: Listing, id: int) -> RenderedRow:
    """Render a task of a list as a row."""
    assert listing.at is not None  # noqa: S101 - ids come from a read
    return task_line(listing.tasks[id], listing.at, ended=listing.ended(id), gone=id in listing.gone)


def summary(listing: Listing, sort: Sort) -> Content:
    """Render the number of loaded, marked and newer tasks of a list."""
    order = "" if sort == NEWEST else f"   {sort.arrow} {sort.by}, {sort.words}"
    marked = f"   {len(listing.marks):,} marked{listing.details}" if listing.marks else ""
    if listing.all is not None:
        marked = f"   all {listing.all.count} matching {line(listing.all.task_filter)} marked"
    capped = "+" if listing.newer >= MOST_NEWER else ""
    newer = f"   +{listing.newer:,}{capped} newer (r reloads) " if listing.newer else ""
    text = f" {listing.count_text}{order}   {listing.access}"
    return content((text, "muted"), (marked, "bold"), (newer, "bold on sel"))
