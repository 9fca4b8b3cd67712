"""TasksScreen: the task list with filter, sort, marks and actions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from runner.filter.parse import Filter
from runner.filter.sort import NEWEST, Sort, SortField, parse_sort
from runner.model.task import Shown, State, is_new
from runner.queries.task_list.compile import QUIET
from runner.text.formatting import SIGNS
from tasktui.actions.action import Targets
from tasktui.actions.as_command import filter_word
from tasktui.data.task_list import (
    TASK_HEADS,
    TITLES,
    Listing,
    columns_for,
    empty_column,
    list_line,
    longest_key,
)
from tasktui.data.task_pages import MOST_NEWER, Loaded, TaskPages
from tasktui.messages import MatchesFound, Notice, Tone
from tasktui.render.plot import gauge
from tasktui.render.render import line
from tasktui.render.rows import BLANK, Part, Row, fit, rule, silent_shards
from tasktui.screens.selection import FilterBar, Selection, toggled, why_marked
from tasktui.screens.task import PreviewPane, texts_of_task
from tasktui.session.shards import database_of
from tasktui.shell.actions import TASK_TARGETS, action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.terminal.keyboard import key_buffer
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

NORMAL = 100
"""Cells of a screen that has room for the states above the list."""


class TasksScreen(LiveScreen):
    """The list of tasks."""

    ABOUT = (
        "Newest first; o changes the order. The list hides succeeded tasks at first: s shows them. The order stays "
        "fixed while you work: rows update in place, finished tasks are struck through, and r reloads the list. R, T, "
        "D and E change the task under the cursor, or the marked ones; * marks all that match. A, N and E submit or "
        "save a payload that the stored signature refuses, with a reason in the form. Over all shards of a profile, an "
        "id has its shard; a key acts there, and on marks in several shards in each of them."
    )
    OPENS = "open"
    AUTO_FOCUS = "#tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(*TASK_TARGETS),
        Binding("space", "mark('one')", "Mark", key_display="space"),
        Binding("v", "mark('range')", "Mark a range", show=False),
        Binding("backslash", "mark('none')", "Clear marks", show=False, key_display="\\"),
        Binding("w", "why", "Why"),
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("asterisk", "mark('all')", "All matches", key_display="*"),
        Binding("n", "show('older')", "Search older tasks", show=False),
        Binding("p", "show('preview')", "Preview", show=False),
        Binding("s", "show('succeeded')", "Succeeded", show=False),
        Binding("o", "app.command('sort')", "Sort", show=False, priority=True),
        Binding("escape", "list", "Back", show=False),
    ]

    def __init__(self) -> None:
        self.pages = TaskPages()
        self.table = Table[int](TASK_HEADS, id="tasks")
        self.selection = Selection(self.pages, self.table)
        super().__init__(
            Targets(
                tasks=self.selection.tasks,
                task_filter=self.selection.task_filter,
                remarks=self.selection.remarks,
                copyable=lambda: texts_of_task(*database_of(self.session, self.table.cursor)),
                by_shard=self.selection.by_shard,
                unmark=self.selection.unmark,
            )
        )
        self.sql = lambda: self.pages.sql(self.session)
        self.preview = PreviewPane()
        self.filter_bar = FilterBar(
            self.pages,
            lambda: self.session,
            lambda: self.opened,
            self.action_reload,
            lambda: self.set_focus(self.table),
            self.frame.clear_error,
        )

    def parts(self) -> Iterable[Widget]:
        """Return the filter, a summary and the list."""
        yield self.filter_bar
        yield Canvas(id="states")
        left = Vertical(self.table, Canvas(id="newer"), self.preview.below, id="left")
        yield Horizontal(left, self.preview.beside, id="body")

    def on_screen_resume(self) -> None:
        """Apply a filter or sort order that another screen has set."""
        if self.opened.sort != self.pages.sort:
            self.pages.set_sort(self.opened.sort)
            self.action_reload()
        if self.opened.filter_text != self.pages.filter_text:
            self.filter_bar.open(self.opened.filter_text)

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same tasks."""
        text, sort = self.pages.filter_text, self.pages.sort
        order = [] if sort == NEWEST else ["--sort", sort.by, "--desc" if sort.descending else "--asc"]
        return ["tasks", *([filter_word(text)] if text else []), *order]

    def request(self) -> object:
        """Return the filter, the order and the number of reloads."""
        return self.pages.request

    async def read(self) -> object:
        """Load the first page, read the next page, or refresh the visible and marked tasks."""
        marks = list(self.pages.listing.marks)[:MOST_NEWER]
        visible = tuple(dict.fromkeys((*self.table.visible_keys, *marks)))
        snapshot = await self.pages.read(self.session, visible)
        cursor = self.table.cursor
        if cursor is not None and self.preview.fits(self.size):
            listed = self.pages.listing.tasks.get(cursor)
            session, id = database_of(self.session, cursor)
            if session.name not in self.pages.listing.silent:
                await self.preview.read(session, id, (listed.version, listed.shown) if listed else None)
        return snapshot

    def show(self, snapshot: Any) -> None:
        """Update the list; only a load changes its order."""
        self.pages.update(snapshot)
        self.draw()
        if self.pages.searching or (isinstance(snapshot, Loaded) and self.pages.listing.next):
            self.feed.hurry()  # The next read continues the search, or counts the tasks.
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
        self.filter_bar.edit()

    def action_show(self, what: str) -> None:
        """Show or hide the `preview` or `succeeded` tasks, or search on for `older` ones after the scan limit."""
        if what == "older":
            self.pages.search()
        elif what == "succeeded":
            self.filter_bar.open(toggled(self.pages.filter_text))
        else:
            self.preview.toggle()
        self.draw()
        self.feed.hurry()

    async def action_list(self) -> None:
        """Go back to the list, discard an unsubmitted filter, and stop a search; then, to where the list was opened."""
        if self.focused is self.table and not self.pages.searching and self.opened.go_back():
            self.on_screen_resume()
            return
        if self.focused is self.table and not self.pages.searching:
            await self.run_action("app.go('back')")
        self.pages.stop_search()
        self.filter_bar.discard()
        self.table.focus()

    def action_why(self) -> None:
        """Explain why the marked tasks, or the task under the cursor, are not running."""
        why_marked(self, self.selection, self.table.cursor)

    def action_mark(self, tasks: str) -> None:
        """Mark tasks: the `one` under the cursor, a `range` to the cursor, `all` that match the filter, or `none`."""
        ahead = key_buffer(self.app).ahead

        async def read_all() -> None:
            try:
                self.post_message(await self.pages.matching(self.session))
            finally:
                ahead.release()

        match tasks:
            case "one":
                self.selection.toggle()
            case "range":
                self.selection.extend()
            case "none":
                self.selection.clear()
            case "all":
                ahead.hold()  # the next key is for the marked tasks
                self.actions.run(read_all())
        self.draw()

    @on(MatchesFound)
    def _mark_matches(self, message: MatchesFound) -> None:
        self.selection.add(message)
        self.draw()
        without = f"; no answer of {', '.join(message.silent)}" if message.silent else ""
        tone = Tone.PARTIAL if message.silent else Tone.DONE
        self.post_message(Notice(f"Marked {message.count.of('task')}{without}", tone=tone))

    @on(Table.Selected)
    @on(Table.HeadClicked)
    def _choose(self, event: Table.Selected | Table.HeadClicked) -> None:
        """Open a task, or sort by the head of a column."""
        if isinstance(event, Table.Selected):
            session, id = database_of(self.session, event.key)
            own = [each for key in self.table.keys for of, each in (database_of(self.session, key),) if of is session]
            self.console.databases.bring(session)
            self.console.open_task(id, own)
        elif (sort := sort_by_head(event.title, self.opened.sort, self.pages.listing)) is not None:
            self.opened.sort = sort
            self.on_screen_resume()

    @on(Table.CursorMoved)
    def _read_next_page(self) -> None:
        if self.preview.fits(self.size):
            self.preview.draw(self.table.cursor, self.session, self.size)
            self.feed.hurry()
        if self.pages.continues(self.table.position(self.table.cursor) or 0):
            self.feed.hurry()

    def draw(self) -> None:
        """Show the current list."""
        listing = self.pages.listing
        width = self.size.width
        listed = [listing.tasks[id] for id in listing.ids] if width >= NORMAL else []
        keys = longest_key(listed) if width >= NORMAL else None
        ids = max((len(str(id)) for id in listing.ids), default=0)
        columns = columns_for(self.pages.sort, self.pages.filter, empty_column(listed), keys, ids)
        self.table.columns = tuple(columns.values())
        render = partial(list_line, listing, positions=tuple(columns))
        self.table.show(listing.ids, render, listing.marks)
        self.filter_bar.draw(listing, self.pages.sort, width)
        self.query_one("#states", Canvas).draw([states(listing, width), BLANK] if width >= NORMAL else [])
        room = self.table.size.width or width
        below = [*newer(listing, room), *unknown_names(listing, room), *only_succeeded(listing, self.pages.filter)]
        below += [*silent_shards(listing.silent, room), *back_again(listing, room)]
        below += searched(listing, room, searching=self.pages.searching)
        self.query_one("#newer", Canvas).draw(below)
        self.preview.draw(self.table.cursor, self.session, self.size)


def sort_by_head(title: str, sort: Sort, listing: Listing) -> Sort | None:
    """The order after a click on the head of a column; None if the list cannot be sorted by it."""
    fields = [field for field, head in TITLES.items() if head == title]
    if sort.by in fields:
        return sort.reverse
    field = fields[0] if len(fields) == 1 else time_field(listing)
    return parse_sort(field) if fields else None


def time_field(listing: Listing) -> SortField:
    """The sort field of WHEN for the tasks of a list: the end, the start or the due time of its first task."""
    first = next((listing.tasks[id] for id in listing.ids if id in listing.tasks), None)
    if first is not None and first.state.final:
        return SortField.FINISHED_AT
    return SortField.CLAIMED_AT if first is not None and first.state is State.RUNNING else SortField.RUN_AT


def states(listing: Listing, width: int) -> Row:
    """The states of the loaded tasks as one bar with their counts."""
    tasks = [task for id, task in listing.tasks.items() if id not in listing.missing]
    counts = Counter(task.shown for task in tasks)
    total = sum(counts.values())
    if not total or listing.at is None:
        return BLANK
    dead = [task for task in tasks if task.shown is Shown.DEAD]
    new = sum(is_new(task.finished_at, listing.at) for task in dead)
    ordered = counts.most_common()
    roles = {shown: str(shown) for shown in counts} | {Shown.SUCCEEDED: "line"}
    shares = [(number / total, roles[shown]) for shown, number in ordered if shown is not Shown.DEAD]
    bar = gauge([(new / total, "dead"), *shares, ((len(dead) - new) / total, "muted")], max(20, width // 4))
    row: list[Part] = [(" ", ""), *bar]
    for shown, number in ordered:
        is_old = shown is Shown.DEAD and not new
        row += [(f"  {SIGNS[shown]} ", "muted" if is_old else str(shown)), (f"{number:,}", "strong")]
        row.append((f" {shown}", "muted"))
        if shown is Shown.DEAD and 0 < new < number:
            row.append((f", {new:,} new", "dead"))
    if listing.next:
        row.append((f"   of the first {total:,}", "faint"))
    return fit(row, width)


def newer(listing: Listing, width: int) -> list[Row]:
    """A line below the list while there are newer tasks; it never moves the list."""
    if not listing.newer:
        return []
    more = "+" if listing.newer >= MOST_NEWER else ""
    text: list[Part] = [(f"+{listing.newer:,}{more} newer, ", "text"), ("r", "bold accent"), (" loads them", "muted")]
    return [rule(text, width)]


def unknown_names(listing: Listing, width: int) -> list[Row]:
    """A line below an empty list for each unknown queue and handler of the filter."""
    if listing.ids:
        return []
    return [fit([("  ! ", "bold retrying"), (line(clause), "text")], width) for clause in listing.unknown]


def back_again(listing: Listing, width: int) -> list[Row]:
    """A line below the list for the shards that answer again, and whose tasks are not in the list."""
    back = [name for name in listing.unlisted if name not in listing.silent]
    names = line(", ".join(back))
    text: list[Part] = [(f"{names} answers again, ", "text"), ("r", "bold accent"), (" lists its tasks", "muted")]
    return [rule(text, width)] if back else []


def only_succeeded(listing: Listing, task_filter: Filter) -> list[Row]:
    """A line below an empty list that hides succeeded tasks, with the key that shows them."""
    if listing.ids or listing.silent or listing.at is None or task_filter != Filter((QUIET,)):
        return []
    return [
        [("  No task is unfinished, dead or cancelled; ", "text"), ("s", "bold accent"), (" shows the rest", "text")]
    ]


def searched(listing: Listing, width: int, *, searching: bool) -> list[Row]:
    """A line below the list while a search has not seen all tasks: the last task it has seen, and the key to go on."""
    if not listing.capped or not listing.next:
        return []
    ends = [str(cursor.id) for cursor in listing.next.values() if cursor is not None]
    position = f"to task {', '.join(ends)}"
    if searching:
        return [rule([(f"Searching, {position} so far, ", "text"), ("esc", "bold accent"), (" stops", "muted")], width)]
    verb = "Searched" if listing.ids else "No match"
    text: list[Part] = [(f"{verb} {position}, ", "text"), ("n", "bold accent"), (" searches on", "muted")]
    return [rule(text, width)]
