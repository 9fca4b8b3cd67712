"""RunnersScreen: the registered runners and their running tasks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from textual import on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.model.shard import ShardId
from runner.queries.alerts.runners import name_of
from runner.queries.runners import RunnerRow, used_slots
from runner.text import formatting
from runner.text.runner_name import process_name, runner_name
from runner.text.stuck_row import stuck_text
from tasktui.actions.action import ActionTarget, Targets
from tasktui.actions.actions import ACTIONS
from tasktui.commands.syntax import filter_of
from tasktui.data.runners import NO_RUNNER, Workforce, WorkforceReader, merged_workforce
from tasktui.panels.runner import runner_rows
from tasktui.panels.side import (
    busy_rows,
    by_host,
    colours_of,
    host_figures,
    host_rows,
    legend,
    percent,
    slot_row,
    slots_per_block,
)
from tasktui.render.plot import compact, gauge, sparkline
from tasktui.render.render import Cell, ListColumn, RenderedRow, cut_middle, fitted, line, widths
from tasktui.render.rows import BLANK, Part, Row, beside, ends, faded, fit, handler, heading, rule, silent_shards
from tasktui.screens.row_texts import texts_of_row
from tasktui.session.session import Session
from tasktui.session.shard_reads import ShardReads, split
from tasktui.session.shards import ShardsSession, database_of
from tasktui.shell.actions import action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import GUTTER, MARGIN, Table

if TYPE_CHECKING:
    from tasktui.data.values import Copyable

SLOTS = "SLOTS BY HANDLER"
"""The title of the column that takes the room of the others."""

COLUMNS = (
    ListColumn("  RUNNER", 12),
    ListColumn("VERSION", 7, drop=6),
    ListColumn("UP", 5, right=True, drop=2),
    ListColumn(SLOTS, 22, grow=1),
    ListColumn("USED", 5, right=True),
    ListColumn("CPU", 6, right=True, drop=3),
    ListColumn("MEMORY", 9, right=True, drop=5),
    ListColumn("/MIN", 4, right=True, drop=1),
    ListColumn("FAILED", 6, right=True, drop=4),
    ListColumn(" DONE, LAST HOUR", 15, grow=1, drop=7),
    ListColumn("SEEN", 11, right=True),
)

NORMAL, WIDE, TALL = 100, 180, 56
"""Columns of a screen with the age of each runner, and with its last hour; rows of one with the busy slots."""

MOST_HOSTS = 6
"""Maximum number of hosts with figures."""

FEW_CELLS = 10
"""Cells of the smallest gauge."""

HIGH = 30
"""Rows of a screen that has room for hosts and the whole legend."""

FEW_EXPLAINED = 2
"""Rows of the legend on a lower screen."""

BESIDE = 72
"""Cells of the settings and the handlers of a runner beside its tasks."""

WITH_KEYS = 96
"""Cells of the list of tasks that has room for keys and attempts."""


class RunnersScreen(LiveScreen):
    """The registered runners."""

    ABOUT = (
        "All registered runners, including lost ones, and the tasks that the runner under the cursor has claimed, "
        "longest running first. CPU is the share of one processor since the last heartbeat, and MEMORY the resident "
        "memory, both with the processes of handlers; the line of a host has their sums. "
        "/MIN is the tasks that it finished per minute, and FAILED the share of failed attempts, both over the last "
        "ten minutes. Enter lists the tasks. A runner that exits keeps the cursor until you move it. "
        "Over all shards, a process has a row for each shard that it serves, and its slots count once. "
        "L drains the runner: it finishes its tasks and exits. S changes how many tasks it runs concurrently."
    )
    OPENS = "tasks"
    BINDINGS: ClassVar[list[BindingType]] = action_bindings(ActionTarget.RUNNER)

    def __init__(self) -> None:
        super().__init__(Targets(runner=self.runner, copyable=self._texts, by_shard=self._by_shard))
        self._table = Table[int](COLUMNS, id="runners")
        self._runners: dict[int, RunnerRow] = {}
        self._exited: int | None = None
        self._reads = ShardReads[Workforce]()
        self._readers: dict[str, WorkforceReader] = {}

    def parts(self) -> Iterable[Widget]:
        """Return the runners, and the tasks of the runner under the cursor."""
        yield Canvas(id="about")
        yield self._table
        yield Canvas(id="legend")
        yield VerticalScroll(Canvas(id="claimed"), id="trace")
        yield Canvas(id="busy")

    def request(self) -> object:
        """Return the runner under the cursor."""
        return self._table.cursor

    async def read(self) -> object:
        """Read the runners."""
        wide, tall, session = self.size.width >= WIDE, self.size.height >= TALL, self.session
        cursor = self._table.cursor
        of, id = database_of(session, cursor)

        async def of_database(each: Session) -> Workforce:
            reader = self._readers.setdefault(each.name, WorkforceReader())
            own = id if cursor is None or each is of else NO_RUNNER
            return await reader.read(each, own, wide=wide, tall=tall)

        parts, silent = split(await self._reads.read(session, of_database, (cursor, wide, tall)))
        if isinstance(session, ShardsSession):
            return merged_workforce(parts, silent)
        return next(iter(parts.values()))

    def show(self, snapshot: Any) -> None:
        """Show the runners."""
        data: Workforce = snapshot
        listed = self._with_exited(data)
        self._runners = runners = {runner.id: runner for runner in listed.runners}
        (width, height), databases = self.size, self.frame.databases_height
        colours = colours_of(data.slots)
        table = self._table
        most = height - 14 if height > 30 else height // 2
        busy = busy_rows(data, self.session.zone, width) if height >= TALL else []
        heads = host_heads(listed, width, most - len(busy), spaced=height >= HIGH)
        keys = tuple(heads) or tuple(runners)
        table.columns = columns_for(listed, width, grouped=bool(heads), exited=self._exited)
        table.styles.height = max(3, min(len(keys) + 1, most))
        titles = {key: RenderedRow((Cell("", "", tuple(row)),)) for key, row in heads.items() if row is not None}
        render = partial(runner_line, data=data, colours=colours, columns=table.columns, width=width)
        exited = self._exited
        table.show(keys, lambda id: titles.get(id) or render(runners[id], exited=id == exited), titles=titles)
        target, self.opened.target = self.opened.target, ""
        named = next((id for id, runner in runners.items() if target in (str(id), name_of(runner))), None)
        if named is not None:
            table.move_to(named)
        hosts = host_rows(data.runners, width, MOST_HOSTS if height >= HIGH and not heads else 0)
        self.query_one("#about", Canvas).draw(
            [
                totals_row(data, width),
                *silent_shards(data.silent, width),
                *hosts,
                *([BLANK] if height >= HIGH or not heads else []),
            ]
        )
        slots = max((runner.capacity for runner in data.runners), default=0)
        explained = legend(colours, width, slots_per_block(slots, column_widths(table.columns, width)[SLOTS]))
        explained = [BLANK, *explained, BLANK] if height >= HIGH else explained[:FEW_EXPLAINED]
        self.query_one("#legend", Canvas).draw(explained)
        around = (
            len(keys)
            + len(busy)
            + len(data.silent)
            + (12 if height >= HIGH else 6 + len(explained))
            + len(hosts)
            + databases
        )
        tasks = lower_rows(self.runner(), data, width)
        tasks = tasks if len(tasks) <= height - around else lower_rows(self.runner(), data, max(40, width - 3))
        self.query_one("#claimed", Canvas).draw(tasks)
        self.query_one("#busy", Canvas).draw(busy)

    def _with_exited(self, data: Workforce) -> Workforce:
        """The runners with the one under the cursor, which keeps its row after its exit until the cursor leaves it."""
        last = self._runners.get(self._table.cursor or NO_RUNNER)
        registered = [runner.id for runner in data.runners]
        self._exited = None
        if last is None or last.id in registered or data.silent:
            return data
        self._exited = last.id
        place = list(self._runners).index(last.id)
        last = last._replace(lease=-1.0, cpu=None, memory=None, running_tasks=0)
        return replace(data, runners=(*data.runners[:place], last, *data.runners[place:]))

    def refusal(self, key: str) -> str:
        """Return the reason why a key does nothing: the runner under the cursor has exited."""
        runner = self.runner()
        acts = any(each.key == key for each in ACTIONS.values() if each.target is ActionTarget.RUNNER)
        if runner is not None and runner.id == self._exited and acts:
            return f"{runner_name(runner.id, runner.host, runner.pid)} has exited"
        return super().refusal(key)

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same runners."""
        return ["runners"]

    def runner(self) -> RunnerRow | None:
        """Return the runner under the cursor."""
        return self._runners.get(self._table.cursor or 0)

    def _by_shard(self) -> Mapping[str, Targets]:
        runner = self.runner()
        if runner is None or not isinstance(runner.id, ShardId):
            return {}
        own = runner._replace(id=int(runner.id))
        return {runner.id.shard: Targets(runner=lambda: own)}

    def _texts(self) -> "Copyable | None":
        runner = self.runner()
        if runner is None:
            return None
        session, id = database_of(self.session, runner.id)
        name = process_name(runner.host, runner.pid)
        title = runner_name(runner.id, runner.host, runner.pid)
        return texts_of_row(session, title, ["tasks", filter_of(runner=str(id))], {"id": str(runner.id), "name": name})

    @on(Table.CursorMoved)
    def _read_tasks(self) -> None:
        self.action_reload()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        session, id = database_of(self.session, event.key)
        self.console.databases.bring(session)
        self.console.open_tasks(f"runner:{id} state:running")


def host_heads(data: Workforce, width: int, room: int, *, spaced: bool) -> dict[int, Row | None]:
    """The rows of the table by host: a rule before the runners, which have None; empty without room.

    Args:
        width: cells.
        spaced: put a blank row before each further host.
    """
    hosts = by_host(data.runners)
    if len(hosts) > MOST_HOSTS or len(data.runners) + (1 + spaced) * len(hosts) > room:
        return {}
    heads: dict[int, Row | None] = {}
    for place, (host, runners) in enumerate(hosts.items()):
        heads |= {-2 * place - 1: BLANK} if place and spaced else {}
        finished = sum(data.result(runner.id).finished for runner in runners)
        rate: list[Part] = [(compact(finished / 10), "text" if finished else "faint"), (" / min", "muted")]
        figures = host_figures(runners)
        title = rule([heading(line(host, 40))], width, [*rate, *([("   ", "")] if figures else []), *figures])
        heads |= {-2 * place - 2: title, **dict.fromkeys((runner.id for runner in runners), None)}
    return heads


def columns_for(data: Workforce, width: int, *, grouped: bool, exited: int | None = None) -> tuple[ListColumn, ...]:
    """The columns: as wide as their texts, and without figures that no runner has or that the hosts show."""
    measured = any(runner.cpu is not None or runner.memory is not None for runner in data.runners)
    names = [cell_len(f"● {shard_name(runner)}") for runner in data.runners]
    remarks = [cell_len(liveness(runner).text) for runner in data.runners if runner.id != exited]
    most_slots = max((runner.capacity for runner in data.runners), default=0)
    versions = [cell_len(line(runner.version)) for runner in data.runners]
    texts = {
        "  RUNNER": (names, 60 if width >= WIDE else 34 if width >= NORMAL else 22),
        "VERSION": (versions, 12),
        "SEEN": (remarks, 44 if width >= NORMAL else 20),
        SLOTS: ([2 * most_slots], 64),
    }
    hidden = set() if measured and (width >= WIDE or not grouped) else {"CPU", "MEMORY"}
    hidden |= {" DONE, LAST HOUR"} if width < WIDE else set()
    hidden |= {"UP"} if width < NORMAL else set()  # Its room gives each slot a cell.
    columns = [column for column in COLUMNS if column.title not in hidden]
    for place, column in enumerate(columns):
        if width < WIDE and column.grow:  # It takes what the others leave: a cell for each slot, if possible.
            columns[place] = column._replace(width=min(max(column.width, most_slots), 32))
            continue
        lengths, most = texts.get(column.title, ([], 0))
        grow = 0 if column.title == SLOTS else column.grow
        columns[place] = column._replace(width=min(max([column.width, *lengths]), max(most, column.width)), grow=grow)
    return tuple(columns)


def column_widths(columns: Sequence[ListColumn], width: int) -> dict[str, int]:
    """The cells of each column on a screen of a width, by title."""
    return dict(zip((column.title for column in columns), widths(columns, width - GUTTER - MARGIN), strict=True))


def totals_row(data: Workforce, width: int) -> Row:
    """Runners alive and silent, and the slots in use."""
    alive = [runner for runner in data.runners if runner.alive]
    silent = sum(runner.silent for runner in alive)
    if not data.runners and not data.silent:
        hint: list[Part] = [(" 0 alive, 0 lost", "muted"), ("; start one with: ", "muted")]
        return fit([*hint, ("runner work -H package.module", "bold strong")], width)
    busy, capacity = used_slots(alive)
    share = busy / capacity if capacity else 0.0
    left: list[Part] = [(f"  {len(alive) - silent}", "bold succeeded"), (" alive", "muted")]
    for number, word in ((silent, "silent"), (len(data.runners) - len(alive), "lost")):
        left += [(f", {number}", "bold lost"), (f" {word}", "lost")] if number else []
    left += [(", partial", "bold lost")] if data.silent else []
    left += [("   ", ""), (f"{formatting.slots(busy, capacity)}   ", "running")]
    bar = min(30, width - 86)
    left += [*gauge([(share, "retrying" if share >= 1 else "running")], bar), ("  ", "")] if bar >= FEW_CELLS else []
    left += [(f"{round(share * 100)} %", "bold strong")]
    late = [runner for runner in alive if runner.silent]
    right: list[Part] = []
    if late:
        soonest = min(runner.lease for runner in late)
        right = [(f"next lease ends in {formatting.age(soonest)} ", "lost")]
    return ends(left, right, width)


def runner_line(
    runner: RunnerRow,
    data: Workforce,
    colours: Mapping[str, int],
    columns: Sequence[ListColumn],
    width: int,
    *,
    exited: bool = False,
) -> RenderedRow:
    """Render a runner as a row.

    Args:
        width: cells of the screen.
        exited: it is not registered any more.
    """
    room = column_widths(columns, width)
    flow = data.result(runner.id)
    name = shard_name(runner)
    well = runner.alive and not runner.silent
    sign, role = ("●", "succeeded") if well else ("◌", "bold lost")
    short = cut_middle([(name, "text" if well else "bold lost")], room["  RUNNER"] - cell_len(f"{sign} "))
    title: tuple[Part, ...] = ((f"{sign} ", role), *short)
    blocks = slot_row(data.slots.get(runner.id, {}), runner.capacity, room[SLOTS], colours)
    attempts = flow.failed + flow.succeeded
    failing = attempts >= 10 and flow.failed >= attempts * 0.9
    failed = f"{round(flow.failed / attempts * 100)} %" if attempts else ""
    remark = liveness(runner)
    if runner.silent and cell_len(remark.text) > room["SEEN"]:  # The title names the end of the next lease.
        remark = remark._replace(text=remark.text.partition(",")[0])
    cells = {
        "  RUNNER": Cell(f"{sign} {name}", "text", title),
        "VERSION": Cell(line(runner.version), "muted"),
        "UP": Cell(re.sub(r"(?<=m)\d\ds$", "", formatting.since(runner.started_at, data.at)), "muted"),
        SLOTS: Cell.of(blocks if well else faded(blocks), "running"),
        "USED": Cell(f"{min(runner.running_tasks, runner.capacity)}/{runner.capacity}", "text"),
        "CPU": Cell(percent(runner.cpu), "text" if runner.alive else "faint"),
        "MEMORY": Cell(formatting.size(runner.memory), "muted" if runner.alive else "faint"),
        "/MIN": Cell(compact(flow.finished / 10), "text" if flow.finished else "faint"),
        "FAILED": Cell(failed, "bold dead" if failing else "muted" if flow.failed else "faint"),
        "SEEN": Cell("exited", "faint") if exited else remark,
    }
    if hour := room.get(" DONE, LAST HOUR"):
        plotted = [(" ", ""), *sparkline(data.hours.done.get(runner.id, (0.0,)), hour - 1)]
        cells[" DONE, LAST HOUR"] = Cell.of(plotted, "spark")
    return RenderedRow(tuple(cells.get(column.title, Cell("")) for column in columns), struck=exited)


def shard_name(runner: RunnerRow) -> str:
    """The name of the process of a runner, after its shard if there are several."""
    name = process_name(runner.host, runner.pid)
    return f"{line(runner.id.shard)} {name}" if isinstance(runner.id, ShardId) else name


def liveness(runner: RunnerRow) -> Cell:
    """The last heartbeat of a runner, the reason why there is none, or its command and its abandoned threads."""
    age = formatting.age(runner.heartbeat_age)
    if not runner.alive:
        return Cell(f"lost, silent {age}", "bold lost")
    if runner.blocked_for:
        return Cell(line(runner.obstruction), "bold dead")
    if runner.silent:
        return Cell(f"silent {age}, lease {formatting.age(runner.lease)}", "bold lost")
    if runner.stuck_rows:
        return Cell(", ".join(filter(None, (runner.stuck_rows, line(runner.order)))), "bold dead")
    if trouble := [line(text) for text in (runner.order, runner.threads_lost) if text]:
        return Cell(", ".join(trouble), "bold retrying")
    return Cell(f"{age} ago", "faint")


MOST_NAME, LEAST_KEY, LEAST_BAR = 40, 19, 15
"""Cells of the longest handler, of a key that is cut, and of a bar beside it."""

MOST_STUCK = 3
"""Stuck rows that the runner names above its tasks."""


def lower_rows(runner: RunnerRow | None, data: Workforce, width: int) -> list[Row]:
    """The tasks of a runner, and on a wide screen its settings and handlers beside them."""
    if runner is None or width < WIDE - GUTTER - MARGIN:
        return claimed_rows(runner, data, width)
    left = width - BESIDE - 2
    return beside(claimed_rows(runner, data, left), runner_rows(runner, data, BESIDE), left)


def claimed_rows(runner: RunnerRow | None, data: Workforce, width: int) -> list[Row]:
    """The claimed tasks of a runner, with their run time against the 95th percentile of their handlers."""
    if runner is None:
        return []
    tasks = data.tasks
    more = f", the {len(tasks)} longest" if len(tasks) < runner.running_tasks else ""
    name = line(runner_name(runner.id, runner.host, runner.pid), width // 2)
    title: list[Part] = [heading(f"{name} RUNS {runner.running_tasks}")]
    queues = ", ".join(runner.queues) if runner.queues else "all"
    about = "".join(f", {text}" for text in runner.remarks)
    facts = line(f"queues {queues}{about}{more}", width * 2 // 3)
    rows: list[Row] = [rule(title, width, [(facts, "muted")])]
    rows += [fit([(line(stuck_text(row), width), "bold dead")], width) for row in runner.stuck.rows[:MOST_STUCK]]
    narrow = width < WITH_KEYS
    fixed = 35 if narrow else 45  # of the id, the times, the attempt and the blanks
    longest = max([len("HANDLER"), *(cell_len(line(task.handler)) for task in tasks)])
    names = max(len("HANDLER"), min(longest, MOST_NAME, width - fixed - LEAST_BAR))
    longest = max([len("KEY"), *(cell_len(line(task.key or "")) for task in tasks)])
    keys = 0 if narrow else min(longest, max(LEAST_KEY, width - fixed - names - LEAST_BAR))
    bar = max(9, width - fixed - names - keys)
    if tasks:
        key_title = "" if narrow else fitted("KEY", keys + 1)
        against = fitted("AGAINST ITS P95" if bar >= LEAST_BAR else "OF P95", bar + 2)
        times = f"{'RUNNING':>9}{'P95':>9}" + ("" if narrow else f"{'ATTEMPT':>9}")
        titles = f"{'ID':>10}  {fitted('HANDLER', names + 1)}{key_title}{against}{times}"
        rows.append(fit([(titles, "muted")], width))
    for task in tasks:
        length = (data.at - task.claimed_at).total_seconds() if task.claimed_at else 0.0
        p95 = data.p95.get(task.handler)
        slow = p95 is not None and length > p95
        share = min(length / p95, 1.0) if p95 else 0.0
        cancel: list[Part] = [("  termination requested", "retrying")] if task.cancel_requested else []
        tried = formatting.attempts(task.attempt, task.max_attempts)
        keyed: list[Part] = [] if narrow else [(fitted(line(task.key) if task.key else "", keys), "text"), (" ", "")]
        rows.append(
            fit(
                [
                    *[(f"{task.id!s:>10}  ", "muted"), *handler(task.handler, names), (" ", "")],
                    *[*keyed, *gauge([(share, "retrying" if slow else "running")], bar), ("  ", "")],
                    (f"{formatting.age(length):>9}", "retrying" if slow else "text"),
                    (f"{formatting.duration(p95) if p95 is not None else '':>9}", "faint"),
                    ("" if narrow else f"{tried:>9}", "muted"),
                    *cancel,
                ],
                width,
            )
        )
    return rows
