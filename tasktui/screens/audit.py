"""Audit: who changed what, when, from where and why; and taking it back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.people import cells
from runner.people.redaction import differences
from runner.store import observe
from runner.store.observe import Audited
from runner.store.transaction import Transaction
from tasktui.act.actions import ACTIONS, Subject
from tasktui.draw.columns import Column
from tasktui.draw.render import Cell, Line, line, lines
from tasktui.look.storyboard import change
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts
from tasktui.widgets.said import Said
from tasktui.widgets.table import Table

MOST = 200
"""Entries that are listed, the latest ones."""

COLUMNS = (
    Column("ENTRY", 7, right=True),
    Column("AGO", 7, right=True),
    Column("WHO", 10, grow=1),
    Column("FROM", 10, grow=1, drop=1),
    Column("WHAT", 10),
    Column("OF", 12, grow=1),
    Column("CHANGE", 18, grow=4),
    Column("WHY", 12, grow=2, drop=2),
)


@dataclass(frozen=True, slots=True)
class Entries:
    """The latest entries at one moment."""

    at: datetime
    found: tuple[Audited, ...]


class AuditScreen(ActingScreen):
    """Who changed what."""

    ABOUT = "What operators did, the latest first, from here and from the command line. Z takes back what can be."

    BINDINGS: ClassVar[list[BindingType]] = acts(Subject.ENTRY)

    def __init__(self) -> None:
        super().__init__()
        self._entries: Entries | None = None

    def parts(self) -> Iterable[Widget]:
        """The entries, and the one under the cursor in full."""
        yield Table[int](COLUMNS, id="entries")
        yield VerticalScroll(Said(id="entry"), id="trace")

    async def look(self) -> object:
        """Read the entries."""
        return await self.session.read(_entries)

    def show(self, snapshot: Any) -> None:
        """Show the entries."""
        self._entries = snapshot
        found = {entry.id: entry for entry in snapshot.found}
        undone = {entry.undo_of for entry in snapshot.found}
        self.query_one("#entries", Table).show(
            tuple(found), lambda id: entry_line(found[id], snapshot.at, undone=id in undone)
        )
        self._seek()
        self._in_full()

    def spoken(self) -> Sequence[object]:
        """What lists the same changes."""
        return ["audit"]

    def action_act(self, name: str) -> None:
        """Take back the entry under the cursor; other actions have nothing to be done to here."""
        action, entry = ACTIONS[name], self._entry()
        if action.subject is Subject.ENTRY and entry is not None:
            self.prepare(self.ask_for_entry(action, entry))
        else:
            super().action_act(name)

    def _seek(self) -> None:
        """Put the cursor on the latest change of what somebody came to look at."""
        sought, self.session.sought = self.session.sought, ""
        found = self._entries.found if self._entries else ()
        entry = next((entry for entry in found if sought and line(entry.target) == sought), None)
        if entry is not None:
            self.query_one("#entries", Table).put(entry.id)
        elif sought:
            self.tell(f"What was done to {sought} is not among the latest {MOST} changes", bad=True)

    @on(Table.Chosen)
    def _chosen(self) -> None:
        entry = self._entry()
        if entry is not None and entry.task_id is not None:
            self.session.task_id = entry.task_id
            self.app.switch_mode("task")

    @on(Table.Moved)
    def _in_full(self) -> None:
        entry = self._entry()
        parts = change(entry, self._entries.at) if entry and self._entries else ()
        self.query_one("#entry", Said).say(lines(parts))

    def _entry(self) -> Audited | None:
        cursor = self.query_one("#entries", Table).cursor
        found = self._entries.found if self._entries else ()
        return next((entry for entry in found if entry.id == cursor), None)


def entry_line(entry: Audited, at: datetime, *, undone: bool) -> Line:
    """An entry in the table."""
    target = f"task {entry.task_id}" if entry.task_id is not None else entry.target
    verb = f"undo of {entry.undo_of}" if entry.undo_of else cells.verb(entry.verb)
    return Line(
        (
            Cell(str(entry.id)),
            Cell(cells.since(entry.at, at)),
            Cell(line(entry.operator)),
            Cell(line(entry.host)),
            Cell(line(verb)),
            Cell(line(target)),
            Cell(line("; ".join(differences(entry.before, entry.after)))),
            Cell(line(entry.reason)),
        ),
        struck=undone,
    )


async def _entries(tx: Transaction) -> Entries:
    return Entries(await observe.clock(tx), tuple(await observe.audit(tx, limit=MOST)))
