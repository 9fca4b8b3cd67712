"""MarkingScreen: a list of tasks some of which are marked, one by one, from here to there, or all that match."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from runner.people.filters import Filter
from runner.store.observe import TaskRow
from tasktui.act.actions import Action, Subject
from tasktui.look import loading
from tasktui.look.listing import Listing
from tasktui.messages import Matched
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts
from tasktui.widgets.table import Table


class MarkingScreen(ActingScreen):
    """A list of tasks that can be marked; a screen says where the list is, and draws it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *acts(Subject.TASKS, Subject.TASK, Subject.QUEUE, Subject.HANDLER, Subject.ENTRY),
        Binding("space", "mark", "Mark", show=False),
        Binding("v", "mark_range", "Mark from the last mark to here", show=False),
        Binding("asterisk", "mark_all", "Mark all that match", show=False, key_display="*"),
        Binding("backslash", "clear", "Clear marks", show=False, key_display="\\"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.listing = Listing()
        self._from: int | None = None

    @property
    def table(self) -> Table[int]:
        """The list's widget."""
        raise NotImplementedError

    def wanted(self) -> Filter:
        """The filter of the list."""
        raise NotImplementedError

    def draw(self) -> None:
        """Show the list as it is now."""
        raise NotImplementedError

    def chosen(self) -> Sequence[TaskRow]:
        """The marked tasks, or the one under the cursor."""
        return self.listing.chosen(self.table.cursor)

    def ask_for_tasks(self, action: Action, chosen: Sequence[TaskRow]) -> None:
        """Ask about the marked tasks, or about all that match."""
        if self.listing.all is not None:
            self.ask_for_all(action, self.listing.all.wanted)
        else:
            super().ask_for_tasks(action, chosen)

    def action_mark(self) -> None:
        """Mark the task under the cursor, or take its mark away, and go on."""
        if self.table.cursor is not None:
            self._from = self.table.cursor
            self.listing = self.listing.toggled(self.table.cursor)
            self.table.action_move(1)
            self.draw()

    def action_mark_range(self) -> None:
        """Mark everything from the task that was marked last to the one under the cursor."""
        here = self.table.cursor
        if here is not None:
            self.listing = self.listing.marked(self.listing.between(self._from, here))
            self._from = here
            self.draw()

    def action_clear(self) -> None:
        """Take all marks away."""
        self.listing, self._from = self.listing.cleared(), None
        self.draw()

    def action_mark_all(self) -> None:
        """Mark what the filter lets through, whether it is loaded or not."""
        self.work(self._mark_all(self.wanted()))

    async def _mark_all(self, wanted: Filter) -> None:
        self.post_message(await self.session.read(loading.matching, wanted))

    @on(Matched)
    def _matched(self, message: Matched) -> None:
        if message.rows is None:
            self.listing = self.listing.with_all(message.wanted, message.count)
        else:
            self.listing = self.listing.marked(message.rows)
        self.draw()
        self.tell(f"Marked {message.count.of('task')}")
