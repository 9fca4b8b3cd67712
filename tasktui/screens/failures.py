"""FailuresScreen: failed attempts, grouped by fingerprint."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.failures import Failures, failures
from runner.text import formatting
from runner.text.redact import mask
from runner.text.sanitize import count_noun
from tasktui.actions.action import ActionTarget
from tasktui.actions.targets import Targets
from tasktui.render.plot import compact
from tasktui.render.render import Cell, ListColumn, RenderedRow, block, brief, content, line
from tasktui.screens.actions import action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.widgets.canvas import TextBlock
from tasktui.widgets.table import Table

SPANS = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))

COLUMNS = (
    ListColumn("COUNT", 7, right=True),
    ListColumn("NOW/m", 5, right=True),
    ListColumn("TASKS", 6, right=True, drop=2),
    ListColumn("DEAD", 6, right=True),
    ListColumn("FIRST", 7, right=True, drop=1),
    ListColumn("LAST", 7, right=True),
    ListColumn("HANDLER", 14, grow=1),
    ListColumn("ERROR", 24, grow=4),
)


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The failure groups at one moment."""

    at: datetime
    groups: tuple[Failures, ...]


class FailuresScreen(LiveScreen):
    """The failure groups."""

    ABOUT = (
        "Failed attempts grouped by handler and error, with numbers, ids and quoted values masked. The most frequent "
        "group is first. NOW/m is the rate per minute over the last ten minutes, DEAD the attempts that left their "
        "task dead. Enter lists the tasks of a group. R, T and D act on all its tasks, H pauses its handler."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.TASKS, ActionTarget.HANDLER),
        Binding("s", "span", "Span"),
    ]

    def __init__(self) -> None:
        super().__init__(Targets(task_filter=self._task_filter, handler=self._handler))
        self._span = 1
        self._groups: dict[str, Failures] = {}

    def parts(self) -> Iterable[Widget]:
        """Return the groups, and an example of the group under the cursor."""
        yield TextBlock(id="about")
        yield Table[str](COLUMNS, id="groups")
        yield VerticalScroll(TextBlock(id="example"), id="trace")

    def request(self) -> object:
        """Return the time span."""
        return self._span

    async def read(self) -> object:
        """Read the groups."""
        return await self.session.read(_groups, SPANS[self._span])

    def show(self, snapshot: Any) -> None:
        """Show the groups."""
        self._groups = {group.fingerprint: group for group in snapshot.groups}
        groups = self._groups
        self.query_one("#groups", Table).show(tuple(groups), lambda key: group_line(groups[key], snapshot.at))
        span = ("hour", "day", "month")[self._span]
        self.query_one("#about", TextBlock).set_text(
            content((f" {count_noun(len(groups), 'failure group')} in the last {span} (s changes the span)", "muted"))
        )
        self._show_example()

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same groups."""
        return ["failures", f"since:{('1h', '1d', '30d')[self._span]}"]

    def action_span(self) -> None:
        """Switch to the next time span."""
        self._span = (self._span + 1) % len(SPANS)
        self.feed.hurry()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        group = self._groups[event.key]
        self.session.filter_text = str(filter_of_group(group))
        self.app.switch_mode("tasks")

    @on(Table.CursorMoved)
    def _show_example(self) -> None:
        group = self._group()
        text = "" if group is None else group.traceback or f"{group.error_type}: {group.message}"
        title = f"latest: task {group.task_id}" if group else ""
        self.query_one("#example", TextBlock).set_text(content((f"{title}\n", "bold"), block(mask(text))))

    def _task_filter(self) -> Filter | None:
        group = self._group()
        return filter_of_group(group) if group is not None else None

    def _handler(self) -> str | None:
        group = self._group()
        return group.handler if group is not None else None

    def _group(self) -> Failures | None:
        return self._groups.get(self.query_one("#groups", Table).cursor or "")


def filter_of_group(group: Failures) -> Filter:
    """Build the filter for the tasks of a failure group."""
    return Filter((Term("failure", Operator.EQ, group.fingerprint),))


def group_line(group: Failures, at: datetime) -> RenderedRow:
    """Render a failure group as a row."""
    return RenderedRow(
        (
            Cell(str(group.count)),
            Cell(compact(group.rate), "bold" if group.recent else "muted"),
            Cell(str(group.tasks)),
            Cell(str(group.dead), "dead" if group.dead else "muted"),
            Cell(formatting.since(group.first, at)),
            Cell(formatting.since(group.last, at)),
            Cell(line(group.handler)),
            Cell(brief(f"{group.error_type}: {group.message}")),
        )
    )


async def _groups(tx: Transaction, span: timedelta) -> FailureGroups:
    at = await clock(tx)
    return FailureGroups(at, tuple(await failures(tx, since=at - span)))
