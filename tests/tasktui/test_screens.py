"""The screens at common terminal sizes, and while the database is away."""

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from rich.cells import cell_len
from textual.events import Resize
from textual.geometry import Size

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.stuck_row import BlockingSession, StuckCause, StuckRow, stored_stuck
from runner.model.task import State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.queries.health import Ping
from tasktui.commands.syntax import COMMANDS
from tasktui.panels import failure
from tasktui.render.rows import Row, width_of
from tasktui.screens import MODES
from tasktui.shell.frame import Keys
from tasktui.shell.heading import ROOM_FOR_AGE, Status, first_line, second_line, third_line
from tasktui.widgets.table import Table
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.store.table import change
from tests.store.unique_tasks import once, put
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Operator, Watch

AWAY = "postgresql://localhost:1/app?sslmode=disable"
BY = Actor("ana", "web-1", "relay is back")

SEEN = {
    "overview": ("NEEDS ATTENTION", "READY", "OLDEST", "mail"),
    "tasks": ("ATTEMPT", "○ ready", "✗ dead", "order-17", "2 tasks"),
    "task": ("○ ready", "smtp.send", "order-17", "5 of 9"),
    "failures": ("ERROR", "ConnectionError: no route", "Traceback of it"),
    "runners": ("SLOTS", "● web-7", "1 alive"),
    "reports": ("SUCCESS", "1ST ATT", "P95", "span:1 h"),
    "audit": ("CHANGE", "ana", "edit", "priority: 1 -> 5"),
}


@pytest.fixture
async def task_id(database: Database) -> int:
    """A little of everything."""
    id = await add_live(database, "smtp.send", queue="mail", key="order-17")
    await add_past(database, id + 1, State.DEAD, handler="smtp.send", queue="mail", error="ConnectionError: no route")
    tried: dict[str, Any] = {"error_type": "ConnectionError", "message": "no route", "traceback": "Traceback of it"}
    await add_attempt(database, id + 1, started_at=ahead(-2), ended_at=ahead(-1), handler="smtp.send", **tried)
    await add_runner(database, host="web-7", handlers='["smtp.send"]', capacity=8)
    await database.write(edit, id, None, Changes(priority=5), BY)
    return id


def shows(operator: Operator, size: tuple[int, int], *texts: str) -> bool:
    """True if the screen has all texts, and nothing exceeds its size."""
    lines = operator.text.splitlines()
    fits = len(lines) == size[1] and max(map(cell_len, lines)) <= size[0]
    return fits and all(text in operator.text for text in texts)


@pytest.mark.parametrize(
    "sizes", [(NARROW, WIDE), pytest.param(((100, 30), (200, 60)), marks=pytest.mark.slow)], ids=["usual", "others"]
)
async def test_each_screen_is_one_key_away_and_shows_its_essentials(
    task_id: int, watch: Watch, sizes: tuple[tuple[int, int], ...]
) -> None:
    async with watch(task_id=task_id) as operator:
        for mode, texts in SEEN.items():
            await operator.press(MODES[mode].key)
            for size in sizes:
                await operator.pilot.resize_terminal(*size)
                await operator.until(partial(shows, operator, size, "tasktui", "?  help", *texts))


@ON_ONE_DATABASE
async def test_the_help_follows_the_width_of_the_terminal(task_id: int, watch: Watch) -> None:
    async with watch("runners", (30, 12), task_id=task_id) as operator:
        await operator.press("question_mark")
        await operator.sees("Keys of Runners")
        assert "GO TO" not in operator.text
        await operator.pilot.resize_terminal(*WIDE)
        await operator.sees("LOOK", "GO TO")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_read_that_outlives_its_screen_needs_no_widget(task_id: int, watch: Watch) -> None:
    async with watch(task_id=task_id) as operator:
        for mode in MODES.values():
            await operator.press(mode.key)
            await operator.until(lambda: operator.screen.feed.read_at is not None and not operator.screen.feed.looking)
            operator.screen.feed.looking = True  # No further read begins.
            await operator.screen.query(Table).remove()
            await operator.screen.read()


def text_of(row: Row) -> str:
    return "".join(text for text, _ in row)


@ON_ONE_DATABASE
async def test_the_heading_drops_figures_that_do_not_fit(task_id: int, watch: Watch) -> None:
    async with watch("tasks", NARROW, writable=False, production=True, profile="orders") as operator:
        await operator.sees("orders", "PRODUCTION", "READ-ONLY")
        heading = operator.text.splitlines()[0]
        assert re.search(r"\d\d:\d\d:\d\d( UTC)?$", heading)


@ON_ONE_DATABASE
async def test_the_last_snapshot_stays_while_the_database_is_away(task_id: int, watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-17")
        session = operator.console.session
        there, session.database = session.database, Database.open(AWAY)
        await operator.sees("data is ", "cannot be reached", "order-17")
        await session.database.dispose()
        session.database = there
        operator.screen.feed.hurry()
        await operator.until(lambda: "cannot be reached" not in operator.text)


@ON_ONE_DATABASE
async def test_a_missing_task_is_reported(watch: Watch) -> None:
    async with watch() as operator:
        await operator.command("task 999")
        await operator.sees("Task 999 does not exist", "runner show 999 --archive", "! not read")
        assert "No task is open" not in operator.text


@ON_ONE_DATABASE
async def test_only_another_size_draws_a_screen_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watch("overview") as operator:
        await operator.sees("START HERE")
        drawn = list[Size]()
        monkeypatch.setattr(operator.screen, "redraw", lambda: drawn.append(operator.screen.size))
        operator.screen.query_one("#figures").styles.height = 9  # the screen gets a scroll bar
        await operator.pilot.pause()
        operator.screen.post_message(Resize(operator.screen.size, Size(120, 90)))
        await operator.pilot.pause()
        assert not drawn
        await operator.pilot.resize_terminal(*NARROW)
        assert drawn == [Size(*NARROW)]


@ON_ONE_DATABASE
async def test_help_lists_keys_commands_and_fields(watch: Watch) -> None:
    async with watch("tasks", (120, 130)) as operator:
        await operator.press("question_mark")
        await operator.sees("Terminate", "Clear marks", ":pause QUEUE", "max_attempts", "LOOK", "GO TO")
        await operator.back("Tasks")


@ON_ONE_DATABASE
async def test_a_failure_leads_to_its_tasks(task_id: int, watch: Watch) -> None:
    async with watch("failures") as operator:
        await operator.sees("ConnectionError", "LAST HOUR")
        await operator.press("s")
        await operator.sees("LAST 24 H", "ConnectionError")
        await operator.press("enter")
        await operator.sees("failure:", f"{task_id + 1}  ✗ dead")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_failure_groups_are_sorted_by_the_next_figure(database: Database, watch: Watch) -> None:
    for id, (name, number, minutes, verb) in enumerate((("many", 3, 50, "retry"), ("new", 1, 1, "die")), 1):
        for fence in range(number):
            times: dict[str, Any] = {"started_at": ahead(-60 * minutes - 1), "ended_at": ahead(-60 * minutes)}
            await add_attempt(database, id, fence, fingerprint=name, verb=verb, **times)
    async with watch("failures") as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: table.keys == ("new", "many"))
        await operator.sees("by rise", "NEW 1m", "NEW 50m", "┊", "WAS")
        await operator.press("o")
        await operator.sees("by count, same cause together, o sorts")
        assert table.keys == ("many", "new")
        assert table.cursor == "new"
        await operator.press("o")
        await operator.until(lambda: table.keys == ("new", "many"))
        await operator.press("o", "o", "o", "o")
        await operator.sees("by rise")


@ON_ONE_DATABASE
async def test_equal_failure_groups_keep_their_places(database: Database, watch: Watch) -> None:
    for id, (name, seconds) in enumerate((("first", 9), ("second", 8)), 1):
        times: dict[str, Any] = {"started_at": ahead(-seconds), "ended_at": ahead(-seconds)}
        await add_attempt(database, id, 1, fingerprint=name, verb="retry", **times)
    async with watch("failures") as operator:
        await operator.until(lambda: operator.screen.query_one(Table).keys == ("first", "second"))


async def test_the_rows_of_a_foreign_client_break_no_screen(database: Database, watch: Watch) -> None:
    id = await add_live(database, tags='["x", 3]', error="\ud7ff")
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.audit).values(operator="", host="", verb="", before="null", after="[]"))
    async with watch("task", task_id=id) as operator:
        await operator.sees("○ ready", "PAYLOAD")
        await operator.press("8")
        await operator.sees("OPERATION")


@ON_ONE_DATABASE
async def test_the_result_of_a_task_is_shown(database: Database, watch: Watch) -> None:
    id = await add_past(database, 4711, result='{"charged": 5}')
    async with watch("task", task_id=id) as operator:
        await operator.sees("✓ succeeded", "RESULT", '"charged": 5')


async def test_a_unique_key_is_shown_with_its_holder_and_duplicates(database: Database, watch: Watch) -> None:
    (first,) = (await put(database, once("user-7"), once("user-7"))).ids[:1]
    async with watch("task", task_id=first) as operator:
        await operator.sees("unique key", "user-7", "held until finished; 1 duplicate, the last", "bucket")
        await database.write(terminate, [Target(first)], BY)
        (second,) = (await put(database, once("user-7"))).ids
        await operator.press("r")
        await operator.sees(f"held by task {second} now")


def test_a_line_of_a_hundred_cells_has_each_title_with_its_count() -> None:
    places = [(mode.key, mode.title) for mode in MODES.values()]
    counts = dict.fromkeys(("Failures", "Runners", "Schedules"), ("7", "dead"))
    status = Status("db", False, "", None, "14:02:31", places, "Tasks", counts=counts)
    assert text_of(second_line(status, 100)).split()[-2:] == ["9", "Workflows"]


@pytest.mark.parametrize(
    ("title", "end"), [("Tasks", "8 Audit 9 Work… 0 Stor…"), ("Stores", "8 Audit 9 Work… 0 Stores")]
)
def test_the_last_titles_are_cut_and_the_one_in_front_is_whole(title: str, end: str) -> None:
    places = [*((mode.key, mode.title) for mode in MODES.values()), ("0", "Stores")]
    status = Status("db", False, "", None, "14:02:31", places, title, counts={"Failures": ("77,777", "dead")})
    assert " ".join(text_of(second_line(status, 100)).split()).endswith(end)


def test_each_tab_has_a_name_in_80_columns() -> None:
    places = [(mode.key, mode.title) for mode in MODES.values()]
    for _, title in places:
        tabs = text_of(second_line(Status("db", False, "", None, "14:02:31", places, title), 80))
        named = dict(re.findall(r"(\d) ([A-Z][a-z]*…?)", tabs))
        assert all(len(named[key]) >= 4 and each.startswith(named[key].removesuffix("…")) for key, each in places)
        assert title in named.values()


@pytest.mark.parametrize("lock", ["", "READ-ONLY", "READ-ONLY standby, 12m old"])
@pytest.mark.parametrize("name", ["db", "a-database-with-a-long-name", "数据库数据库数据库"])
def test_the_heading_has_two_lines_however_narrow_the_terminal_is(name: str, lock: str) -> None:
    places = [(mode.key, mode.title) for mode in MODES.values()]
    for production, old, width in product((False, True), ("", "12s"), range(36, 130)):
        ping = Ping(0.0123, timedelta(0))
        status = Status(name, production, lock, ping, "14:02:31", places, "Tasks", age=old)
        rows = first_line(status, width), second_line(status, width), third_line(status, width)
        assert [width_of(row) for row in rows] == [width] * 3
        first, second, _ = map(text_of, rows)
        assert ("data 12s old" in first) is bool(old and width >= ROOM_FOR_AGE)
        assert ("PRODUCTION" in first) is production
        assert first.count("READ-ONLY") == bool(lock)
        assert "2 Tasks" in second


@pytest.mark.slow
async def test_runners_are_summed_by_host_and_a_blocked_one_is_named(database: Database, watch: Watch) -> None:
    block = json.dumps({"seconds": 11.0, "tasks": [[41, "reports.render"]], "place": "", "locked": False})
    ids = []
    for pid in (7, 7, 8):  # two runners of one process share its memory
        ids.append(await add_runner(database, 1e6, host="web-1", pid=pid, capacity=8, cpu=0.3, memory=2**27))
    values = {"cpu": 1.5, "memory": 2**30, "stall": block, "heartbeat_at": ahead(300)}
    ids.append(await add_runner(database, 1e6, host="web-2", pid=9, capacity=4, **values))
    ids.append(await add_runner(database, -5.0, host="web-3", pid=9, cpu=9.0, memory=2**40))
    async with watch("runners", WIDE) as operator:
        await operator.until(lambda: "1 GiB" in operator.text)
        heads = [line.replace("─", " ").split() for line in operator.text.splitlines() if line.startswith("─ web-")]
        assert [" ".join(words) for words in heads[:3]] == [
            "web-1 0 / min cpu 60 % memory 256 MiB",
            "web-2 0 / min cpu 150 % memory 1 GiB",
            "web-3 0 / min",
        ]
        assert "4 alive, 1 lost" in operator.text
        assert "blocked 1" in operator.text
        table = operator.screen.query_one("#runners", Table)
        for key, row in (("down", 1), ("down", 2), ("down", 3), ("end", 4), ("up", 3), ("home", 0)):
            await operator.press(key)  # The cursor skips the rules of the hosts.
            await operator.until(lambda row=row: table.cursor == ids[row])
        assert operator.screen.runner().id == ids[0]
    async with watch("overview", WIDE) as operator:
        await operator.until(lambda: "reports.render (task 41) blocks the event loop" in operator.text)


@ON_ONE_DATABASE
@pytest.mark.parametrize("number", [1, 2])
async def test_a_runner_that_exits_keeps_the_cursor_until_it_moves(
    database: Database, watch: Watch, number: int
) -> None:
    ids = [await add_runner(database, host="web-1", pid=pid, capacity=8) for pid in (7, 8)[:number]]
    async with watch("runners", WIDE) as operator:
        table = operator.screen.query_one("#runners", Table)
        await operator.until(lambda: table.cursor == ids[0])
        await change(database, sa.delete(database.tables.runner).where(database.tables.runner.c.id == ids[0]))
        await operator.until(lambda: re.search(r"▌.*web-1:7 .* exited", operator.text))
        assert (f"{number - 1} alive" in operator.text, "lost" in operator.text) == (True, number == 1)
        await operator.press("L")
        await operator.sees_notice(f"runner {ids[0]} (web-1:7) has exited")
        await operator.press("down")
        if number == 2:
            await operator.until(lambda: table.cursor == ids[1] and "exited" not in operator.text.partition("✗")[0])


async def test_stuck_rows_are_named_on_the_overview_and_by_their_runner(database: Database, watch: Watch) -> None:
    session = BlockingSession(4711, "psql", "mai", "idle in transaction", 312.0)
    stuck = StuckRow(41, "mail.send", "settle", StuckCause.LOCKED, "55P03 no lock", datetime.now(UTC), 4, session)
    refused = stuck._replace(task=42, cause=StuckCause.REFUSED, fact="P0001 audit says no", blocker=None)
    runner = await add_runner(database, 1e6, pid=9, handlers='["mail.send"]', stuck=stored_stuck([stuck, refused]))
    for id in (41, 42):
        await add_live(database, "mail.send", id=id, state=State.RUNNING, runner_id=runner)
    async with watch("overview", WIDE) as operator:
        await operator.sees("the row of task 41 (mail.send) is locked", "the row of task 42 (mail.send) is refused")
        assert "P0001 audit says no" in operator.text
    async with watch("runners", WIDE) as operator:
        await operator.sees("2 stuck rows", "task 41 (mail.send): 55P03 no lock, held by process 4711 (psql, user mai")


@pytest.mark.parametrize("verb", ["settle", "note"])
async def test_the_header_of_a_task_says_that_it_has_ended_if_its_outcome_is_stuck(
    database: Database, watch: Watch, verb: Literal["settle", "note"]
) -> None:
    stuck = StuckRow(41, "mail.send", verb, StuckCause.REFUSED, "P0001 audit says no", datetime.now(UTC), 4)
    runner = await add_runner(database, 1e6, pid=9, handlers='["mail.send"]', stuck=stored_stuck([stuck]))
    await add_live(
        database, "mail.send", id=41, state=State.RUNNING, runner_id=runner, attempt=1, started_at=ahead(-60)
    )
    async with watch("task", WIDE, task_id=41) as operator:
        if verb == "settle":
            await operator.sees("Ended, its outcome is not written: started", " ago on ", "P0001 audit says no")
            assert "Running for" not in operator.text
        else:
            await operator.sees("Running for", "attempt 1")
            assert "Ended" not in operator.text


async def test_a_wide_and_tall_screen_shows_the_last_hour_of_each_runner(database: Database, watch: Watch) -> None:
    id = await add_runner(database, 1e6, host="web-1", pid=7, capacity=8)
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    for ago in (1, 3):
        minute = Minute(at - timedelta(minutes=ago), "mail", "h")
        minute.counts["succeeded"] = 5
        await database.write(write_statistics, id, [minute], {})
    async with watch("runners", (200, 60)) as operator:
        await operator.sees("DONE, LAST HOUR", "BUSY SLOTS, LAST HOUR", "0 of 8 now, all runners together")
        await operator.sees("RUNNER 1 ", "in use", "DONE  FAILED ")
        (row,) = [line for line in operator.text.splitlines() if "● web-1:7" in line]
        assert set(row.split("▁", 1)[1].split()[0]) == {"▁", "▇"}


@pytest.mark.slow
async def test_the_group_under_the_cursor_is_explained(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "FRESH", -1.0)
    for version, seconds in (("4.11", 9_000), ("4.12", 600)):
        await add_runner(database, 1e6, version=version, started_at=ahead(-seconds), host=version)
    tried: dict[str, Any] = {"error_type": "shop.GatewayTimeout", "message": "no answer", "runner_id": 2}
    for nth in range(5):
        id = await add_live(database, "pay.charge", attempt=1, fence=1, run_at=ahead(300), key=f"order-{nth}")
        await add_attempt(database, id, handler="pay.charge", ended_at=ahead(-300 + nth), host="web-1", **tried)
    async with database.writing() as tx:
        opened = {"breaker_probes": 1, "breaker_wait": 60.0, "breaker_round": 1, "breaker_probe_at": ahead(60)}
        handler = sa.insert(tx.tables.handler).values(name="pay.charge", breaker_opened_at=ahead(-200), **opened)
        await tx.execute(handler)
    for size in ((200, 60), NARROW):
        async with watch("failures", size) as operator:
            await operator.sees("Only version 4.12, first 5m after its deploy. All on host web-1.")
            await operator.until(lambda: re.search(r"↻ 5  \S+ ago  breaker open", operator.text))
            await operator.sees("5 within 10 min", "GatewayTimeout")
            if size != NARROW:
                await operator.sees("deploy 4.12 ", "breaker opens ", "4.11 ", "LATEST", "order-4", "of 5 tasks")
                assert operator.text.index("order-4") < operator.text.index("order-0")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_commands_open_screens_and_the_help_and_quit(database: Database, watch: Watch) -> None:
    async with watch("overview") as operator:
        await operator.command("runners")
        await operator.until(lambda: operator.screen.title == "Runners")
        await operator.command("help")
        await operator.until(lambda: type(operator.screen).__name__ == "HelpScreen")
        await operator.press("escape")
        await operator.command("stop")
        await operator.command("q")
        await operator.until(lambda: operator.console._exit)


TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/mail.py", line 12, in send
    client.post(letter)
  File "/srv/venv/lib/python3.12/site-packages/httpx/client.py", line 825, in post
    raise ValueError("no")
ValueError: no
"""


@ON_ONE_DATABASE
async def test_keys_of_a_failure_group_unfold_its_frames_and_explain_its_tasks(
    database: Database, watch: Watch
) -> None:
    id = await add_live(database, run_at=ahead(600))
    await add_attempt(database, id, started_at=ahead(-2), ended_at=ahead(-1), traceback=TRACEBACK)
    async with watch("failures") as operator:
        await operator.sees("ValueError: no", "1 frame of httpx folded, f unfolds")
        await operator.press("f")
        await operator.sees("httpx/client.py:825 in post")
        await operator.press("w")
        await operator.sees("the due time is in the future")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_keys_of_a_task_unfold_it_and_return_and_the_audit_names_a_single_change(
    database: Database, watch: Watch
) -> None:
    id = await add_live(database, payload=json.dumps({"rows": list(range(200))}))
    await database.write(edit, id, 0, Changes(priority=5), Actor("ana", "desk"))
    async with watch("task", task_id=id) as operator:
        await operator.sees("f unfolds")
        await operator.press("f")
        await operator.until(lambda: "f unfolds" not in operator.text)
        await operator.back("Tasks")
        await operator.press("8")
        await operator.sees("edit")
        await operator.press("t")
        await operator.sees_notice("This is a single change; enter opens its task")


@pytest.mark.representatives(1)
@ON_ONE_DATABASE
@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.slow), 200])
@pytest.mark.parametrize("writable", [True, False])
async def test_a_footer_names_exactly_keys_that_work(
    database: Database, watch: Watch, width: int, *, writable: bool
) -> None:
    id = await add_live(database, "smtp.send", queue="mail", state="running", attempt=1)
    await add_attempt(database, id)
    async with watch("overview", size=(width, 40), writable=writable, task_id=id) as operator:
        for name, mode in MODES.items():
            await operator.press(mode.key)
            await operator.until(lambda title=mode.title: operator.screen.title == title)
            await operator.until(lambda: operator.screen.feed.read_at is not None)
            screen = operator.screen
            screen.frame.redraw()
            active = {
                active.binding.key_display or screen.app.get_key_display(active.binding): active
                for active in screen.active_bindings.values()
            }
            groups = screen.frame._groups()
            for hint in (*groups.look, *groups.change, *groups.console):
                if hint.key.startswith(":") and hint.key != ":":
                    assert hint.key[1:] in COMMANDS, name
                elif hint.key != "↵":
                    assert active[hint.key].enabled is not hint.locked, (name, hint)
            own = {key for key, each in active.items() if each.node is screen and each.binding.show}
            assert own <= {hint.key for hint in (*groups.look, *groups.change)}, name
            row = screen.query_one(Keys)._row()
            assert width_of(row) == width
            shown = text_of(row)
            assert [hint.key for hint in groups.look[:2] if f" {hint.key} " not in shown] == [], name
            assert {hint.locked for hint in groups.change} <= {not writable}, name
            if width >= (120 if writable else 200):
                mores = {"tasks": " * ", "overview": " :incident " if width >= 200 else " c "}
                more, keys = mores.get(name, ""), screen.query_one(Keys)
                await operator.until(lambda keys=keys, more=more: more in text_of(keys._row()))


@ON_ONE_DATABASE
@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_a_list_without_failures_names_its_span(database: Database, watch: Watch, size: tuple[int, int]) -> None:
    await add_past(database, 7, State.DEAD)
    async with watch("failures", size) as operator:
        await operator.sees("No attempt failed in the last hour; s changes the span.")


@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_an_empty_audit_explains_its_rows(database: Database, watch: Watch, size: tuple[int, int]) -> None:
    id = await add_live(database)
    async with watch("audit", size) as operator:
        await operator.sees("  No change is recorded", "  Each change by an operator gets a row")
        await database.write(terminate, [Target(id)], Actor("ana", "desk-1"))
        await operator.press("r")
        await operator.until(lambda: "No change is recorded" not in operator.text)


@ON_ONE_DATABASE
async def test_a_long_change_wraps_below_its_list_and_tab_scrolls_to_its_end(database: Database, watch: Watch) -> None:
    id, by = await add_live(database), Actor("ana", "desk")
    for nth in range(12):
        await database.write(edit, id, nth, Changes(priority=2 + nth % 2), by)
    arguments = {"note": "long " * 40, **{f"n{nth}": 1234567890 + nth for nth in range(9)}}
    await database.write(edit, id, 12, Changes(max_attempts=12, payload=json.dumps(arguments)), by)
    async with watch("audit", NARROW) as operator:
        await operator.sees("max attempts  ", "-> 12", "\n                long long", "tab scrolls")
        await operator.press("tab", "end")
        await operator.sees("payload n8    1234567898")
        await operator.press("tab", "down")
        await operator.sees("priority  2 -> 3")
        assert "tab scrolls" not in operator.text


@ON_ONE_DATABASE
@pytest.mark.parametrize("size", [NARROW, *(pytest.param(size, marks=pytest.mark.slow) for size in ((100, 30), WIDE))])
async def test_the_help_cuts_no_line(database: Database, watch: Watch, size: tuple[int, int]) -> None:
    for mode in MODES:
        async with watch(mode, size) as operator:
            about = operator.screen.ABOUT
            await operator.press("question_mark")
            await operator.sees("escape closes")
            canvas = operator.screen.query_one(".dialog Canvas")
            await operator.until(lambda canvas=canvas: canvas.size.width)
            assert [row for row in canvas.rows if width_of(row) > canvas.size.width] == [], mode
            assert about in " ".join(" ".join(text_of(row).split()) for row in canvas.rows), mode


@pytest.mark.parametrize("name", ["overview", "failures", "runners"])
def test_the_help_explains_each_rate_per_minute(name: str) -> None:
    screen = MODES[name].screen
    rates = [column.title for column in import_module(screen.__module__).COLUMNS if "/MIN" in column.title]
    assert rates
    assert all(rate in screen.ABOUT for rate in rates)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_big_screen_unfolds_a_task_that_has_room(database: Database, watch: Watch) -> None:
    numbers = ", ".join(str(number) for number in range(30))
    id = await add_live(database, payload=f'{{"charges": [{numbers}]}}', attempt=1)
    many = await add_live(database, payload=f'{{"charges": [{", ".join(["7"] * 200)}]}}', attempt=1)
    async with watch("task", (200, 60), task_id=id) as operator:
        await operator.until(lambda: "29" in operator.text)
        await operator.press("f")
        await operator.sees("30 items, f unfolds")
        await operator.press("f")
        await operator.until(lambda: "f unfolds" not in operator.text)
        await operator.command(f"task {many}")
        await operator.sees("200 items, f unfolds")
    async with watch("task", WIDE, task_id=id) as operator:
        await operator.sees("30 items, f unfolds")
