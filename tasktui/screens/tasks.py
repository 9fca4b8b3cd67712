"""TasksScreen: the task list with filter, sort, marks and actions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input

from runner.errors import RunnerError, TaskNotFound
from runner.filter import saved
from runner.filter.sort import NEWEST, Sort, SortField
from runner.queries.task.detail import TaskDetail, task_detail
from runner.text.sanitize import SIGNS
from tasktui.actions.targets import Targets
from tasktui.data.complete_filter import complete_filter
from tasktui.data.load_tasks import MOST_NEWER, Loaded, matching
from tasktui.data.task_list import Listing
from tasktui.data.task_pages import TaskPages
from tasktui.data.task_panels import preview
from tasktui.messages import MatchesFound, Notice
from tasktui.render.plot import gauge
from tasktui.render.render import ListColumn, RenderedRow, line, task_line
from tasktui.render.rows import BLANK, Part, Row, ends, fit, rule
from tasktui.screens.actions import TASK_TARGETS, action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.screens.selection import Selection
from tasktui.screens.why import open_why
from tasktui.session.cache import TtlCache
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.input import CompletionInput
from tasktui.widgets.table import Table

COLUMNS = (
    ListColumn("ID", 8, right=True),
    ListColumn("STATE", 12),
    ListColumn("QUEUE", 10, drop=4),
    ListColumn("HANDLER", 19),
    ListColumn("KEY", 15, grow=1),
    ListColumn("ATTEMPT", 7, right=True),
    ListColumn("WHEN", 10, right=True),
    ListColumn("AGE", 7, right=True, drop=2),
    ListColumn("REASON", 16, grow=2, drop=1),
)
"""The columns; narrow screens show those without REASON, AGE and QUEUE."""

TALL, PREVIEW = 34, 9
"""Rows of a screen with a preview below the list, and of the preview."""

WIDE, SIDE = 180, 72
"""Columns of a screen with a preview beside the list, and of the preview."""

PREVIEW_EVERY = 2.0
"""Seconds to cache the task of the preview."""

TITLES = {
    SortField.ID: "ID",
    SortField.AGE: "AGE",
    SortField.RUN_AT: "WHEN",
    SortField.CLAIMED_AT: "WHEN",
    SortField.FINISHED_AT: "WHEN",
    SortField.ATTEMPTS: "ATTEMPT",
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
    OPENS = "open"
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(*TASK_TARGETS),
        Binding("space", "mark('one')", "Mark", key_display="space"),
        Binding("v", "mark('range')", "Mark a range from the last mark", show=False),
        Binding("asterisk", "mark('all')", "Mark all matching tasks", show=False, key_display="*"),
        Binding("backslash", "mark('none')", "Clear marks", show=False, key_display="\\"),
        Binding("w", "why", "Why"),
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("p", "preview", "Preview", show=False),
        Binding("o", "app.command('sort')", "Sort", show=False, priority=True),
        Binding("escape", "list", "Back to the list", show=False),
    ]

    def __init__(self) -> None:
        self.pages = TaskPages()
        self.table = Table[int](COLUMNS, id="tasks")
        self.selection = Selection(self.pages, self.table)
        super().__init__(Targets(tasks=self.selection.tasks, task_filter=self.selection.task_filter))
        self.sql = lambda: self.pages.sql(self.session)
        self._wants_preview = True
        self._detail: TaskDetail | None = None
        self._details = TtlCache[TaskDetail | None](PREVIEW_EVERY)

    def parts(self) -> Iterable[Widget]:
        """Return the filter, a summary and the list."""
        hint = "queue:mail state:dead error~Timeout since:1h"
        filter_line = CompletionInput(lambda text: complete_filter(text, self.session.names), hint, id="filter")
        filter_line.display = False
        filter_line.on_submit = self._submitted
        yield filter_line
        yield Canvas(id="chips")
        yield Canvas(id="states")
        yield Horizontal(
            Vertical(self.table, Canvas(id="newer"), Canvas(id="below"), id="left"), Canvas(id="preview"), id="body"
        )

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
        visible = tuple(dict.fromkeys((*self.table.visible_keys, *marks)))
        snapshot = await self.pages.read(self.session, visible)
        cursor = self.table.cursor
        if cursor is not None and self._has_preview:
            self._detail = await self._details.get(cursor, partial(self._read_preview, cursor))
        return snapshot

    async def _read_preview(self, id: int) -> TaskDetail | None:
        with suppress(TaskNotFound):
            return await self.session.read(task_detail, id)
        return None

    @property
    def _has_preview(self) -> bool:
        return self._wants_preview and (
            self.size.width >= WIDE or (self.size.height >= TALL and self.size.width >= 100)
        )

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
        self._edit_filter(editing=True)
        self.set_focus(self.query_one("#filter"))

    def action_preview(self) -> None:
        """Show or hide the preview."""
        self._wants_preview = not self._wants_preview
        self.draw()
        self.feed.hurry()

    def _edit_filter(self, *, editing: bool) -> None:
        """Show the input, or the chips in its place."""
        self.query_one("#filter").display = editing
        self.query_one("#chips").display = not editing

    def on_descendant_blur(self) -> None:
        """Show the chips again when the filter loses the focus."""
        self.call_after_refresh(lambda: self._edit_filter(editing=self.focused is self.query_one("#filter")))

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

    def _submitted(self, text: str) -> None:
        if self._apply_filter(text):
            self.set_focus(self.table)

    @on(Table.Selected)
    def _open_task(self, event: Table.Selected) -> None:
        self.session.task_id = event.key
        self.app.switch_mode("task")

    @on(Table.CursorMoved)
    def _read_next_page(self) -> None:
        if self._has_preview:
            self.draw_preview()
            self.feed.hurry()
        if self.pages.continues(self.table.position(self.table.cursor) or 0):
            self.feed.hurry()

    def _apply_filter(self, text: str) -> bool:
        try:
            text = saved.expand(text.split(), self.session.views) if saved.SIGN in text else text
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
        width = self.size.width
        columns = columns_for(self.pages.sort)
        self.table.columns = columns[:2] + columns[3:7] if width < 100 else columns
        render = partial(list_line, listing, narrow=width < 100)
        self.table.show(listing.ids, render, listing.marks)
        self.query_one("#chips", Canvas).draw([chips(listing, self.pages.filter_text, self.pages.sort, width)])
        self.query_one("#states", Canvas).draw([states(listing, width), BLANK] if width >= 100 else [])
        self.query_one("#newer", Canvas).draw(newer(listing, self.table.size.width or width))
        self.draw_preview()

    def draw_preview(self) -> None:
        """Show the task under the cursor below the list, or beside it."""
        below, beside = self.query_one("#below", Canvas), self.query_one("#preview", Canvas)
        wide = self.size.width >= WIDE
        below.display, beside.display = self._has_preview and not wide, self._has_preview and wide
        detail = self._detail if self._detail is not None and self._detail.task.id == self.table.cursor else None
        if below.display:
            below.styles.height = PREVIEW
            rows = preview(detail, self.session.zone, self.size.width, PREVIEW, tall=False) if detail else []
            below.draw([*rows, *[BLANK] * (PREVIEW - len(rows))])
        elif beside.display:
            rows = preview(detail, self.session.zone, SIDE, self.size.height - 8, tall=True) if detail else []
            beside.draw([*rows, *[BLANK] * (self.size.height - 8 - len(rows))])


def list_line(listing: Listing, id: int, *, narrow: bool = False) -> RenderedRow:
    """Render a task of a list as a row."""
    assert listing.at is not None  # noqa: S101 - ids come from a read
    row = task_line(listing.tasks[id], listing.at, ended=listing.ended(id), gone=id in listing.gone)
    return row._replace(cells=row.cells[:2] + row.cells[3:7]) if narrow else row


def chips(listing: Listing, filter_text: str, sort: Sort, width: int) -> Row:
    """The filter as chips, and the numbers of matching and marked tasks."""
    left: list[Part] = [(" / ", "bold accent")]
    for word in filter_text.split():
        name, sign, value = _split(line(word))
        left += [(f" {name}{sign}", "muted on raised"), (f"{value} ", "bold strong on raised"), ("  ", "")]
    if not filter_text:
        left.append(("type to filter", "italic faint"))
    if sort != NEWEST:
        left.append((f"  {sort.arrow} {sort.by}, {sort.words}", "muted"))
    right: list[Part] = []
    if listing.access and width >= 100:
        right.append((f"{listing.access}   ", "succeeded" if listing.indexed else "retrying"))
    number, _, noun = listing.count_text.partition(" ")
    right += [(number, "bold strong"), (f" {noun}", "muted")]
    if listing.all is not None:
        right.append((f"   all {listing.all.count} matching {line(listing.all.task_filter)} marked", "bold accent"))
    elif listing.marks:
        right.append((f"   {len(listing.marks):,} marked{listing.details}", "bold accent"))
    return ends(left, [*right, (" ", "")], width)


def _split(word: str) -> tuple[str, str, str]:
    """A word of a filter: field, operator and value."""
    for place, character in enumerate(word):
        if character in ":~<>=":
            end = place + (2 if word[place : place + 2] in (">=", "<=", "!=") else 1)
            return word[:place], word[place:end], word[end:]
    return "", "", word


def states(listing: Listing, width: int) -> Row:
    """The states of the loaded tasks as one bar with their counts."""
    counts = Counter(task.shown for task in listing.tasks.values())
    total = sum(counts.values())
    if not total:
        return BLANK
    ordered = counts.most_common()
    bar = gauge([(number / total, str(shown)) for shown, number in ordered], max(20, width // 4))
    row: list[Part] = [(" ", ""), *bar]
    for shown, number in ordered:
        row += [(f"  {SIGNS[shown]} ", str(shown)), (f"{number:,}", "strong"), (f" {shown}", "muted")]
    if listing.next is not None:
        row.append((f"   of the first {total:,}", "faint"))
    return fit(row, width)


def newer(listing: Listing, width: int) -> list[Row]:
    """A line below the list while there are newer tasks; it never moves the list."""
    if not listing.newer:
        return []
    more = "+" if listing.newer >= MOST_NEWER else ""
    text: list[Part] = [(f"+{listing.newer:,}{more} newer, ", "text"), ("r", "bold accent"), (" loads them", "muted")]
    return [rule(text, width)]
