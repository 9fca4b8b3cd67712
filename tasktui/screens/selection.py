"""Selection of tasks: the filter of the task list, as a bar of chips or an input, and the marks on its tasks.

It also opens the dialogs that explain why the selected tasks are not running, and the screen of the cause.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from textual.containers import VerticalGroup
from textual.widget import Widget

from runner.errors import RunnerError
from runner.filter import saved
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.filter.sort import NEWEST, Sort
from runner.model.shard import ShardId
from runner.operations.results import Result
from runner.queries.task_list.row import TaskRow
from runner.queries.why.remedies import RelatedView
from tasktui.actions.action import Targets
from tasktui.commands.syntax import complete_filter
from tasktui.data.task_list import Listing
from tasktui.data.task_pages import TaskPages
from tasktui.messages import MatchesFound, Notice
from tasktui.render.render import line
from tasktui.render.rows import Part, Row, ends
from tasktui.session.opened import QUIET_TEXT, OpenedList
from tasktui.session.session import Session
from tasktui.session.shards import ShardsSession, database_of
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.input import CompletionInput
from tasktui.widgets.table import Table

if TYPE_CHECKING:
    from tasktui.actions.remedy_key import RemedyKey
    from tasktui.shell.live import LiveScreen


T = TypeVar("T")

FEW = 3
"""Tasks that a sentence names."""


class Selection:
    """The marked tasks, or the task under the cursor.

    Args:
        pages: the loaded tasks, which hold the marks.
    """

    def __init__(self, pages: TaskPages, table: Table[int]) -> None:
        self._pages = pages
        self._table = table
        self._range_start: int | None = None

    def tasks(self) -> Sequence[TaskRow]:
        """Return the marked tasks, or the task under the cursor."""
        return self._pages.listing.selected(self._table.cursor)

    def task_filter(self) -> Filter | None:
        """Return the filter whose tasks are all marked; None if the marks are on single tasks."""
        everything = self._pages.listing.all
        return everything.task_filter if everything is not None else None

    def by_shard(self) -> Mapping[str, Targets]:
        """The selection in each shard, by its name; the tasks have the ids of their shard."""
        everything = self._pages.listing.all
        if everything is not None:
            return {name: Targets(task_filter=partial(_same, each)) for name, each in everything.filters.items()}
        by_shard: dict[str, list[TaskRow]] = {}
        for task in self.tasks():
            if isinstance(task.id, ShardId):
                by_shard.setdefault(task.id.shard, []).append(task._replace(id=int(task.id)))
        return {name: Targets(tasks=partial(_same, tasks), remarks=self.remarks) for name, tasks in by_shard.items()}

    def remarks(self) -> tuple[str, ...]:
        """Name the marked tasks that the list does not show."""
        hidden = self._pages.listing.hidden
        if not hidden:
            return ()
        names = ", ".join(f"{task.id} {line(task.handler, 30)}" for task in hidden[:FEW])
        more = f" and {len(hidden) - FEW:,} more" if len(hidden) > FEW else ""
        are = "is marked, but not" if len(hidden) == 1 else "are marked, but not"
        return (f"{names}{more} {are} in the list; \\ on the list clears the marks.",)

    def toggle(self) -> None:
        """Toggle the mark of the task under the cursor and move down."""
        if self._table.cursor is not None:
            self._range_start = self._table.cursor
            self._pages.listing = self._pages.listing.toggled(self._table.cursor)
            self._table.action_move(1)

    def extend(self) -> None:
        """Mark the tasks from the last marked one to the cursor."""
        cursor, listing = self._table.cursor, self._pages.listing
        if cursor is not None:
            self._pages.listing = listing.marked(listing.between(self._range_start, cursor))
            self._range_start = cursor

    def clear(self) -> None:
        """Clear all marks."""
        self._pages.listing, self._range_start = self._pages.listing.cleared(), None

    def unmark(self, result: Result) -> None:
        """Remove the marks of the changed tasks: the next key must not change them again. The others keep theirs."""
        self._pages.listing = self._pages.listing.unmarked(result)

    def add(self, matches: MatchesFound) -> None:
        """Mark all tasks that match a filter, loaded or not, and no others: marks outside of the list are cleared."""
        listing = self._pages.listing.cleared()
        if matches.rows is None:
            self._pages.listing = listing.with_all(matches.filters, matches.count)
        else:
            self._pages.listing = listing.marked(matches.rows)


def _same(value: T) -> T:
    return value


HINT = "queue:mail state:dead error~Timeout since:1h"


class FilterBar(VerticalGroup):
    """The filter above the task list.

    Args:
        pages: the loaded tasks, which hold the filter.
        session: returns the operator's session.
        opened: returns the arguments of the task list.
        reload: called after a change of the filter.
        close: called after a change that the operator typed.
        clear_error: called after a valid filter.
    """

    def __init__(
        self,
        pages: TaskPages,
        session: Callable[[], Session],
        opened: Callable[[], OpenedList],
        reload: Callable[[], object],
        close: Callable[[], object],
        clear_error: Callable[[], object],
    ) -> None:
        super().__init__()
        self._pages, self._session, self._opened = pages, session, opened
        self._reload, self._close, self._clear_error = reload, close, clear_error
        self._input = CompletionInput(lambda text: complete_filter(text, session().names), "/", HINT, id="filter")
        self._input.on_submit = self._submit
        self._input.display = False
        self._chips = Canvas(id="chips")

    def compose(self) -> Iterable[Widget]:
        """Return the input and the chips, one of which is visible."""
        yield self._input
        yield self._chips

    def edit(self) -> None:
        """Focus the input without delay: the following keys are meant for it."""
        self._show_input(editing=True)
        self.screen.set_focus(self._input)

    def discard(self) -> None:
        """Replace the typed text by the filter of the list."""
        self._input.value = self._pages.filter_text

    def open(self, text: str) -> None:
        """List the tasks that match a filter which another screen has set."""
        self._input.value = text
        self._apply(text)

    def draw(self, listing: Listing, sort: Sort, width: int) -> None:
        """Show the filter as chips."""
        self._chips.draw([chips(listing, self._pages.filter_text, sort, width)])

    def on_click(self) -> None:
        """Edit the filter after a click on its chips."""
        if self._chips.display:
            self.edit()

    def on_descendant_blur(self) -> None:
        """Show the chips again when the input loses the focus."""
        self.call_after_refresh(self._follow_focus)

    def _follow_focus(self) -> None:
        if self.is_attached:  # The blur of a screen that closes comes too late.
            self._show_input(editing=self.screen.focused is self._input)

    def _show_input(self, *, editing: bool) -> None:
        self._input.display, self._chips.display = editing, not editing

    def _submit(self, text: str) -> None:
        if self._apply(text):
            self._close()

    def _apply(self, text: str) -> bool:
        session = self._session()
        try:
            text = saved.expand_text(text, session.views)
            self._pages.set_filter(text, session)
        except RunnerError as error:
            self.post_message(Notice(str(error), bad=True))
            return False
        self._opened().filter_text = text
        self._clear_error()
        self._reload()
        return True


def chips(listing: Listing, filter_text: str, sort: Sort, width: int) -> Row:
    """The filter as chips, and the numbers of matching and marked tasks."""
    left: list[Part] = [(" / ", "bold accent")]
    for word in filter_text.split():
        if word == QUIET_TEXT:
            left += [(" not succeeded ", "bold strong on raised"), ("s", "bold accent on raised"), (" ", "on raised")]
            left.append(("  ", ""))
            continue
        name, sign, value = _split(line(word))
        left += [(f" {name}{sign}", "muted on raised"), (f"{value} ", "bold strong on raised"), ("  ", "")]
    if filter_text in ("", QUIET_TEXT):
        left.append(("type to filter", "italic faint"))
    if not filter_text and width >= 100:
        left += [("    s", "bold accent"), (" hides succeeded", "faint")]
    if sort != NEWEST:
        left.append((f"  {sort.arrow} {sort.by}, {sort.words}", "muted"))
    right: list[Part] = [(" ", "")]
    if listing.access and width >= 100:
        right.append((f"{listing.access}   ", "succeeded" if listing.indexed else "retrying"))
    number, _, noun = listing.count_text.partition(" ")
    right += [(number, "bold strong"), (f" {noun}", "muted")]
    if listing.all is not None:
        marked = line(listing.all.task_filter)  # Names the filter only if it is not the one beside it.
        which = "" if marked.startswith(f"{filter_text} id<=") else f" matching {marked}"
        right.append((f"   all {listing.all.count}{which} marked", "bold accent"))
    elif listing.marks:
        right.append((f"   {len(listing.marks):,} marked{listing.details}", "bold accent"))
    return ends(left, [*right, (" ", "")], width)


def toggled(filter_text: str) -> str:
    """The filter with the term that hides succeeded tasks, or without it if it has one."""
    words = filter_text.split(" ")
    if QUIET_TEXT in words:
        return " ".join(word for word in words if word != QUIET_TEXT).strip()
    return f"{QUIET_TEXT} {filter_text}".strip()


def _split(word: str) -> tuple[str, str, str]:
    """A word of a filter: field, operator and value."""
    for place, character in enumerate(word):
        if character in ":~<>=":
            end = place + (2 if word[place : place + 2] in (">=", "<=", "!=") else 1)
            return word[:place], word[place:end], word[end:]
    return "", "", word


def why_marked(screen: "LiveScreen", selection: Selection, cursor: int | None) -> None:
    """Explain the marked tasks if there are several, or else the task under the cursor.

    Args:
        cursor: the id of the task under the cursor; None if there is none.
    """
    session, parts = screen.session, selection.by_shard()
    if len(parts) > 1 and isinstance(session, ShardsSession):
        asked = [(session.shard(name), _filter_of(part)) for name, part in parts.items()]
        _open_why_each(screen, asked)
        return
    marks = selection.tasks()
    several = _several(marks) if len(marks) > 1 else None
    if isinstance(session, ShardsSession):
        session = next((session.shard(name) for name in parts), session)
    one = None if cursor is None else database_of(session, cursor)[1]
    open_why(screen, selection.task_filter() or several or one, session)


def _several(tasks: Iterable[TaskRow]) -> Filter:
    return Filter((Term("id", Operator.IN, tuple(int(task.id) for task in tasks)),))


def _filter_of(targets: Targets) -> Filter:
    return targets.task_filter() or _several(targets.tasks())


def _open_why_each(screen: "LiveScreen", asked: Sequence[tuple[Session, Filter]]) -> None:
    """Explain the tasks of several shards, one shard after another: escape opens the next one."""
    (session, tasks), *rest = asked
    _show_why(screen, tasks, session, line(session.name), rest)


def why_queue(screen: "LiveScreen", queue: str | None) -> None:
    """Explain why the tasks of a queue are not running; None if no queue is under the cursor."""
    open_why(screen, None if queue is None else Filter((Term("queue", Operator.EQ, queue),)))


def open_why(screen: "LiveScreen", tasks: int | Filter | None, session: Session | None = None) -> None:
    """Explain why a task, or many tasks, are not running.

    Args:
        tasks: the id of a task, or the filter of many; None if nothing is selected.
        session: the session with their database; None for that of the screen.
    """
    if tasks is None:
        text = "No task under the cursor: select one to see why it is not running"
        screen.post_message(Notice(text, bad=True))
        return
    _show_why(screen, tasks, session or screen.session)


def _show_why(
    screen: "LiveScreen",
    tasks: int | Filter,
    session: Session,
    place: str = "",
    rest: Sequence[tuple[Session, Filter]] = (),
) -> None:
    def open_cause(choice: "RelatedView | RemedyKey | None") -> None:
        if isinstance(choice, RelatedView):
            screen.console.databases.bring(session)
            _open_cause(screen, choice)
        elif choice is not None:
            parts = {session.name: choice.targets}
            screen.actions.start_for(choice.action, choice.targets._replace(by_shard=lambda: parts))
        elif rest:
            _open_why_each(screen, rest)

    from tasktui.dialogs.why import WhyManyScreen, WhyScreen

    following = line(rest[0][0].name) if rest else ""
    dialog = WhyManyScreen(session, tasks, place, following) if isinstance(tasks, Filter) else WhyScreen(session, tasks)
    dialog.open(screen.app, open_cause)


def _open_cause(screen: "LiveScreen", view: RelatedView) -> None:
    match view.kind:
        case "tasks":
            screen.console.open_tasks(view.about)
        case "task":
            screen.console.open_task(int(view.about))
        case kind:
            screen.console.open_at(kind, view.about)
