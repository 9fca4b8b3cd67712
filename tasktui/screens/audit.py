"""Audit: who changed what, when, from where and why; and taking it back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.people import cells
from runner.people.redaction import differences
from runner.store import observe
from runner.store.observe import Deed
from runner.store.transaction import Transaction
from tasktui.act.actions import ACTIONS, Subject
from tasktui.draw.columns import Column
from tasktui.draw.render import Cell, Line, content, line, lines
from tasktui.look.storyboard import change
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts
from tasktui.widgets.said import Said
from tasktui.widgets.table import Table

MOST = 200
"""Lines that are shown, the latest ones."""

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
    found: tuple[Deed, ...]


class AuditScreen(ActingScreen):
    """Who changed what."""

    ABOUT = (
        "What operators did, the latest first, from here and from the command line. What was done together is "
        "one line: enter lists its changes, escape goes back. Z takes back what can be, B all that was done together."
    )

    BINDINGS: ClassVar[list[BindingType]] = [*acts(Subject.ENTRY), Binding("escape", "back", "Back", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self._entries: Entries | None = None
        self._batch: str | None = None

    def parts(self) -> Iterable[Widget]:
        """The entries, and the one under the cursor in full."""
        about = Said(id="about")
        about.display = False
        yield about
        yield Table[int](COLUMNS, id="entries")
        yield VerticalScroll(Said(id="entry"), id="trace")

    async def look(self) -> object:
        """Read the entries."""
        return await self.session.read(_entries, self._batch)

    def question(self) -> object:
        """What was done together and is listed one by one."""
        return self._batch

    def show(self, snapshot: Any) -> None:
        """Show the entries."""
        self._entries = snapshot
        found = {deed.entry.id: deed for deed in snapshot.found}
        undone = {deed.entry.undo_of for deed in snapshot.found}
        self.query_one("#entries", Table).show(
            tuple(found), lambda id: deed_line(found[id], snapshot.at, self.session.zone, undone=id in undone)
        )
        self._seek()
        self._in_full()

    def spoken(self) -> Sequence[object]:
        """What lists the same changes."""
        return ["audit", *(["--batch", self._batch] if self._batch else [])]

    def action_act(self, name: str) -> None:
        """Take back the entry under the cursor; other actions have nothing to be done to here."""
        action, deed = ACTIONS[name], self._deed()
        if action.subject is Subject.ENTRY and deed is not None:
            together = ACTIONS["undo --batch"] if is_many(deed) else action
            self.prepare(self.ask_for_entry(together, deed.entry))
        else:
            super().action_act(name)

    def _seek(self) -> None:
        """Put the cursor on the latest change of what somebody came to look at."""
        sought, self.session.sought = self.session.sought, ""
        found = self._entries.found if self._entries else ()
        deed = next((deed for deed in found if sought and line(deed.entry.target) == sought), None)
        if deed is not None:
            self.query_one("#entries", Table).put(deed.entry.id)
        elif sought:
            self.tell(f"What was done to {sought} is not among the latest {MOST} changes", bad=True)

    @on(Table.Chosen)
    def _chosen(self) -> None:
        deed = self._deed()
        if deed is not None and is_many(deed):
            self._list(deed.entry.batch)
        elif deed is not None and deed.entry.task_id is not None:
            self.session.task_id = deed.entry.task_id
            self.app.switch_mode("task")

    def action_back(self) -> None:
        """List all deeds again."""
        if self._batch is not None:
            self._list(None)

    def _list(self, batch: str | None) -> None:
        self._batch = batch
        about = self.query_one("#about", Said)
        about.say(content(f" done together as {line(batch)}, the latest {MOST} at most; escape lists all"))
        about.display = batch is not None
        table = self.query_one("#entries", Table)
        table.scroll_home(animate=False)
        table.show((), lambda _: Line(()))  # what comes has its cursor at the top
        self.action_reload()

    @on(Table.Moved)
    def _in_full(self) -> None:
        deed, seen = self._deed(), self._entries
        parts = change(deed.entry, seen.at, self.session.zone) if deed and seen else ()
        self.query_one("#entry", Said).say(lines(parts))

    def _deed(self) -> Deed | None:
        cursor = self.query_one("#entries", Table).cursor
        found = self._entries.found if self._entries else ()
        return next((deed for deed in found if deed.entry.id == cursor), None)


def is_many(deed: Deed) -> bool:
    """Tell whether a line stands for several changes."""
    return deed.number.number > 1


def deed_line(deed: Deed, at: datetime, zone: tzinfo, *, undone: bool) -> Line:
    """A deed in the table; of many changes only what they have in common."""
    entry, many = deed.entry, is_many(deed)
    target = f"task {entry.task_id}" if entry.task_id is not None else entry.target
    target = f"{deed.number} tasks" if many and entry.task_id is not None else target
    undo = "undo" if many else f"undo of {entry.undo_of}"
    verb = undo if entry.undo_of else cells.verb(entry.verb)
    changed = "enter lists them" if many else "; ".join(differences(entry.before, entry.after, zone=zone))
    return Line(
        (
            Cell(str(entry.id)),
            Cell(cells.since(entry.at, at)),
            Cell(line(entry.operator)),
            Cell(line(entry.host)),
            Cell(line(verb)),
            Cell(line(target)),
            Cell(line(changed), "dim" if many else ""),
            Cell(line(entry.reason)),
        ),
        struck=undone and not many,
    )


async def _entries(tx: Transaction, batch: str | None) -> Entries:
    return Entries(await observe.clock(tx), tuple(await observe.deeds(tx, MOST, batch)))
