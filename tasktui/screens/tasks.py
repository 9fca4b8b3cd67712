"""Tasks: the list. Filter, sort, mark, act."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from runner.errors import RunnerError
from runner.people.filters import Filter, parse_filter
from runner.people.sorts import NEWEST, By, Sort
from runner.store import observe
from runner.store.observe import Count
from tasktui.act.copying import Sql
from tasktui.draw.columns import Column
from tasktui.draw.render import Line, content, line, task_line
from tasktui.look.loading import MOST_NEWER, Loaded, More, Refreshed, counted, load, names, refresh
from tasktui.operator.recall import Recall
from tasktui.screens.marking import MarkingScreen
from tasktui.typed.query import complete_filter
from tasktui.widgets.said import Said
from tasktui.widgets.table import Table
from tasktui.widgets.typed import Typed

PAGE = 200
"""Tasks that are loaded at once."""

EDGE = 50
"""So close to the last loaded task the next page is fetched."""

COUNT_EVERY = 10.0
"""Seconds for which the number of tasks that match is kept."""

MOST_LOADED = 5_000
"""Tasks that are loaded at most; further down a filter leads faster."""

COLUMNS = (
    Column("ID", 8, right=True),
    Column("STATE", 11),
    Column("QUEUE", 10, drop=2),
    Column("HANDLER", 13, grow=1),
    Column("KEY", 10, drop=1, grow=1),
    Column("TRY", 5, right=True),
    Column("WHEN", 10, right=True),
    Column("AGE", 7, right=True, drop=3),
    Column("REASON", 16, grow=4),
)

TITLES = {
    By.ID: "ID",
    By.AGE: "AGE",
    By.RUN_AT: "WHEN",
    By.CLAIMED_AT: "WHEN",
    By.FINISHED_AT: "WHEN",
    By.ATTEMPTS: "TRY",
}
"""The column that shows what is sorted by; priorities have none."""


def titled(sort: Sort) -> tuple[Column, ...]:
    """The columns, with an arrow at the one that is sorted by."""
    chosen, arrow = TITLES.get(sort.by), f" {sort.arrow}"
    return tuple(column._replace(title=column.title + arrow * (column.title == chosen)) for column in COLUMNS)


class TasksScreen(MarkingScreen):
    """The list of tasks."""

    ABOUT = (
        "Newest first, or as o sorts them. The order stands still while you look: tasks change in their places, those "
        "that have ended are struck through, and r loads the list anew."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("w", "why", "Why"),
        Binding("o", "sort", "Sort", show=False, priority=True),
        Binding("escape", "list", "To the list", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._wanted = Filter()
        self._typed = ""
        self._sort = NEWEST
        self._load = True
        self._more = False
        self._loads = 0
        self._newest: int | None = None
        self._counts = Recall[Count](COUNT_EVERY)

    def parts(self) -> Iterable[Widget]:
        """The filter, what is to be said about the list, and the list."""
        hint = "filter: queue:mail state:dead error~Timeout since:1h"
        yield Typed(lambda text: complete_filter(text, self.session.names), hint, id="filter")
        yield Said(id="about")
        yield Table[int](COLUMNS, id="tasks")

    @property
    def table(self) -> Table[int]:
        """The list's widget."""
        return self.query_one("#tasks", Table)

    def on_mount(self) -> None:
        """Begin in the list, not in the filter."""
        self.set_focus(self.table)

    def on_screen_resume(self) -> None:
        """Take over a filter that another screen asked for, and an order."""
        if self.session.sort != self._sort:
            self._sort = self.session.sort
            self._begin()
        if self.session.wanted != self._typed:
            self.query_one("#filter", Input).value = self.session.wanted
            self._apply(self.session.wanted)

    def wanted(self) -> Filter:
        """The filter of the list."""
        return self._wanted

    def spoken(self) -> Sequence[object]:
        """What lists the same tasks."""
        way = "--desc" if self._sort.descending else "--asc"
        order = [] if self._sort == NEWEST else ["--sort", self._sort.by, way]
        return ["tasks", *([self._typed] if self._typed else []), *order]

    def sql(self) -> Sql:
        """What lists the same first page."""
        return partial(self.session.read, observe.page_script, self._wanted, self._sort, PAGE)

    def question(self) -> object:
        """The filter, the order, and how often the list was begun anew."""
        return (self._typed, self._sort, self._loads)

    async def look(self) -> object:
        """Load, go on, or refresh what is in sight."""
        if self._load:
            self.session.learn(await self.session.read(names))
            return await self.session.read(load, self._wanted, PAGE, self._sort)
        if self._more and self.listing.next is not None:
            return More(await self.session.read(observe.page, self._wanted, self.listing.next, PAGE, self._sort))
        asked = tuple(dict.fromkeys((*self.table.in_sight, *list(self.listing.marks)[:MOST_NEWER])))
        seen = await self.session.read(refresh, asked, self._wanted, self._newest)
        return replace(seen, matching=await self._matching())

    async def _matching(self) -> Count | None:
        """How many tasks match, loaded or not; where more than are loaded do, and counting them is cheap."""
        everything = self.listing.indexed and self._sort.by in (By.ID, By.AGE, By.ATTEMPTS)
        if self.listing.next is None or not everything:
            return None
        return await self._counts.get(self.question(), partial(self.session.read, counted, self._wanted))

    def show(self, snapshot: Any) -> None:
        """Put what was read into the list; only a load changes the order."""
        match snapshot:
            case Loaded(page, newest):
                self.listing, self._load, self._more = self.listing.loaded(page), False, False
                self._newest = newest
            case More(page):
                self.listing, self._more = self.listing.extended(page), False
            case Refreshed(asked, rows, newer, at, matching):
                self.listing = replace(self.listing.refreshed(asked, rows, at, newer), matching=matching)
                self._load = bool(newer) and not self.listing.ids
        self.draw()
        if isinstance(snapshot, Loaded) and self.table.cursor is None:
            self.table.action_first()

    def looked_at(self) -> int | None:
        """The task under the cursor, whatever is marked."""
        return self.table.cursor

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let a letter that is typed into the filter be a letter."""
        if action in ("filter", "sort") and isinstance(self.focused, Input):
            return False
        return super().check_action(action, parameters)

    def action_reload(self) -> None:
        """Load the list anew."""
        self._begin()

    def action_filter(self) -> None:
        """Go to the filter at once: the next keys are meant for it."""
        self.set_focus(self.query_one("#filter"))

    def action_list(self) -> None:
        """Go back to the list; what was typed and not sent is dropped."""
        self.query_one("#filter", Input).value = self._typed
        self.table.focus()

    async def action_sort(self) -> None:
        """Ask what to sort by."""
        await cast("Any", self.app).begin_command("sort")

    @on(Input.Submitted, "#filter")
    def _submitted(self, event: Input.Submitted) -> None:
        self.set_focus(self.table if self._apply(event.value) else event.input)

    @on(Table.Chosen)
    def _chosen(self, event: Table.Chosen) -> None:
        self.session.task_id = event.key
        self.app.switch_mode("task")

    @on(Table.Moved)
    def _moved(self) -> None:
        place = self.table.place(self.table.cursor) or 0
        near = place >= len(self.listing.ids) - EDGE and len(self.listing.ids) < MOST_LOADED
        if near and self.listing.next is not None and not self._more:
            self._more = True
            self.feed.hurry()

    def _apply(self, text: str) -> bool:
        try:
            self._wanted = parse_filter(text, self.session.now(), self.session.zone)
        except RunnerError as error:
            self.tell(str(error), bad=True)
            return False
        self._typed = self.session.wanted = text
        self._begin()
        return True

    def _begin(self) -> None:
        self._load, self._loads = True, self._loads + 1
        self.feed.hurry()
        self.table.scroll_home(animate=False)
        self.table.cursor = None

    def draw(self) -> None:
        """Show the list as it is now."""
        listing = self.listing
        self.table.columns = titled(self._sort)
        self.table.show(listing.ids, self._line, listing.marks)
        self.query_one("#about", Said).say(self._about())

    def _line(self, id: int) -> Line:
        listing = self.listing
        assert listing.at is not None  # noqa: S101 - there are no ids before anything was read
        return task_line(listing.tasks[id], listing.at, ended=listing.ended(id), gone=id in listing.gone)

    def _about(self) -> Content:
        listing = self.listing
        sort = self._sort
        order = "" if sort == NEWEST else f"   {sort.arrow} {sort.by}, {sort.words}"
        marked = f"   {len(listing.marks):,} marked{listing.aside}" if listing.marks else ""
        if listing.all is not None:
            marked = f"   all {listing.all.count} that match {line(listing.all.wanted)} marked"
        capped = "+" if listing.newer >= MOST_NEWER else ""
        newer = f"   +{listing.newer:,}{capped} newer, r to load " if listing.newer else ""
        found = f" {listing.found}{order}   {listing.way}"
        return content((found, "dim"), (marked, "bold"), (newer, "bold reverse"))
