"""The list of tasks: identity, frozen order, marks, filter."""

from datetime import timedelta
from functools import partial

import pytest
import sqlalchemy as sa
from textual import events
from textual.widgets import Input

from runner.db.database import Database
from runner.filter import saved
from runner.filter.sort import NEWEST
from runner.model.outcome import Failure, Retry
from runner.model.task import Shown, State
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.queries.task_list.search import page
from runner.store.registration import leave
from tasktui.data import task_pages
from tasktui.data.task_list import TASK_HEADS, Listing, columns_for, task_line
from tasktui.render.render import widths
from tasktui.screens import task
from tasktui.screens.selection import toggled
from tasktui.screens.tasks import states
from tasktui.session.opened import QUIET_TEXT, Opened
from tests.store.rows import add_attempt, add_live, add_past, ahead
from tests.store.runners import Runner
from tests.store.table import expire, make_due, put
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch
from tests.tasktui.test_commands import NOW, row


async def remove(database: Database, id: int) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.delete(tx.tables.task).where(tx.tables.task.c.id == id))


async def test_live_and_finished_tasks_are_listed_newest_first(database: Database, watch: Watch) -> None:
    await add_live(database, "mail.send", id=10, key="order-1")
    await add_past(database, 11, State.DEAD, handler="mail.send", error="OSError: gone")
    async with watch("tasks") as operator:
        await operator.sees("order-1", "✗ dead", "OSError: gone", "○ ready", "indexed")
        assert operator.screen.pages.listing.ids == (11, 10)


@ON_ONE_DATABASE
async def test_the_list_fits_eighty_columns(database: Database, watch: Watch) -> None:
    await add_live(database, "mail.send", id=1832017, error="SMTPServerDisconnected: Connection unexpectedly closed")
    async with watch("tasks", NARROW) as operator:
        await operator.sees("1832017 ○ ready", "mail.send", "KEY", "WHEN", "REASON", "SMTPServer")
        assert all(len(line) <= NARROW[0] for line in operator.text.splitlines())


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_order_stays_fixed_and_newer_tasks_are_announced(database: Database, watch: Watch) -> None:
    first = await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("1 task")
        second = await add_live(database)
        await operator.sees("+1 newer, r loads them")
        assert operator.screen.pages.listing.ids == (first,)
        await operator.press("r")
        await operator.until(lambda: operator.screen.pages.listing.ids == (second, first))


async def test_the_time_that_a_pause_holds_a_due_task_is_amber(database: Database, watch: Watch) -> None:
    id = await add_live(database, queue="mail", attempt=1, run_at=ahead(-300), retry="1m", error="OSError: gone")
    await add_attempt(database, id, started_at=ahead(-400), ended_at=ahead(-390), delay=90.0, queue="mail")
    async with watch("task", task_id=id) as operator:
        await operator.sees("ATTEMPTS", "failed")
        assert "↻ held" not in operator.text
        await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), Actor("ana", "desk-1"))
        await operator.until(lambda: "held back" in operator.text)
        (row,) = [line for line in operator.text.splitlines() if "2 ↻ held" in line]
        assert "━━━━" in row


@ON_ONE_DATABASE
async def test_the_attempts_of_a_succeeded_task_end_with_the_success(database: Database, watch: Watch) -> None:
    day = 86_400.0
    times = {"run_at": ahead(-day), "claimed_at": ahead(20 - day), "finished_at": ahead(40 - day)}
    await add_past(database, 7, State.SUCCEEDED, attempt=2, host="web-1", **times)
    await add_attempt(database, 7, started_at=ahead(-day), ended_at=ahead(10 - day))
    async with watch("task", task_id=7) as operator:
        await operator.sees("1 ✗ failed", "2 ✓ succeeded web-1")
        (row,) = [line for line in operator.text.splitlines() if "2 ✓ succeeded" in line]
        assert " 20s " in row
        assert row.count("█") > 10  # The axis ends with the task, not a day later.


async def test_attempts_have_the_names_of_live_lost_and_stopped_runners(database: Database, watch: Watch) -> None:
    live, lost, stopped = [await Runner.enter(database, host=f"web-{number}") for number in (1, 2, 3)]
    id = await put(database, max_attempts=9)
    for runner in (live, lost, stopped):
        (task,) = await runner.claim()
        await runner.end(task, Retry("1h", failure=Failure("OSError", "refused", "")))
        await make_due(database, id)
    await expire(database, lost.id)
    await live.rescue()
    await database.write(leave, stopped.id)
    async with watch("task", task_id=id) as operator:
        await operator.sees("1 ✗ failed    web-1:1 ", "2 ✗ failed    web-2:1 ", "3 ✗ failed    web-3:1 ")


@pytest.mark.slow
@pytest.mark.representatives(1)
@ON_ONE_DATABASE
@pytest.mark.parametrize("theme", ["dark", "sixteen", "none"])
async def test_dialogs_leave_the_screen_behind_and_the_cursor_in_sight(
    database: Database, watch: Watch, theme: str
) -> None:
    await add_live(database, queue="mail")
    async with watch("overview") as operator:
        operator.console.apply_theme(theme)
        await operator.sees("NEEDS ATTENTION")
        for key in ("P", "colon"):
            await operator.press(key)
            await operator.until(lambda: operator.screen.is_modal and isinstance(operator.screen.focused, Input))
            picture = operator.console.export_screenshot()  # Only a whole drawing contains the screen behind.
            assert "NEEDS&#160;ATTENTION" in picture
            assert "DEAD" in picture
            cursor = operator.screen.focused.get_component_rich_style("input--cursor")
            assert cursor.bgcolor != cursor.color
            assert bool(cursor.reverse) == (theme == "none")  # A reversed white ground is black.
            await operator.press("escape")
            await operator.until(lambda: not operator.screen.is_modal)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_empty_fields_have_a_mark_where_the_theme_has_no_ground(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("task", task_id=id) as operator:
        operator.console.apply_theme("sixteen")
        await operator.sees("PAYLOAD")
        await operator.press("E")
        await operator.until(lambda: operator.screen.is_modal and bool(operator.screen.query(Input)))
        await operator.until(
            lambda: all(field.styles.border_left[0] == "outer" for field in operator.screen.query(Input))
        )


@pytest.mark.slow
async def test_n_and_p_open_the_neighbours_of_a_task_in_its_list(database: Database, watch: Watch) -> None:
    ids = [await add_live(database, key=f"order-{number}") for number in range(3)]
    await add_live(database, queue="other", key="elsewhere")
    async with watch("tasks") as operator:
        operator.console.databases.opened.tasks.filter_text = "queue:default"
        operator.screen.on_screen_resume()
        await operator.until(lambda: operator.screen.pages.listing.ids == tuple(reversed(ids)))
        await operator.press("enter")
        await operator.sees(f"{ids[2]}  h", "order-2")
        await operator.press("p")
        await operator.sees_notice("This is the first task that the list has read")
        for index in (1, 0):
            await operator.press("n")
            await operator.sees(f"{ids[index]}  h", f"order-{index}")
        await operator.press("n")
        await operator.sees_notice("This is the last task that the list has read")
        await operator.press("p")
        await operator.sees(f"{ids[1]}  h", "order-1")
        await operator.command(f"task {ids[1] + 9}")
        await operator.press("n")
        await operator.sees_notice("was not opened from the task list")


async def test_a_task_that_ends_stays_in_its_place_struck_through(database: Database, watch: Watch) -> None:
    ids = [await add_live(database) for _ in range(3)]
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == 3)
        await remove(database, ids[1])
        await add_past(database, ids[1])
        await operator.sees("✓ succeeded")
        assert operator.screen.pages.listing.ids == tuple(reversed(ids))
        strips = operator.console.screen._compositor.render_strips()
        (struck,) = [strip for strip in strips if "succeeded" in strip.text and "default" in strip.text]
        (number,) = [segment for segment in struck if segment.text.strip() == str(ids[1])]
        assert number.style.strike


@ON_ONE_DATABASE
async def test_a_task_that_was_pruned_is_shown_as_gone(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        await remove(database, id)
        await operator.sees("gone")


@ON_ONE_DATABASE
async def test_the_bar_of_the_states_follows_tasks_out_of_sight(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages, "PAGE", 60)
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.task), [{"id": id, "handler": "h"} for id in range(1, 61)])
    async with watch("tasks") as operator:
        await operator.sees("60 tasks", "60 ready")
        assert {1, 2, 3}.isdisjoint(operator.screen.table.visible_keys)
        for id in (1, 2, 3):
            await remove(database, id)
        await add_past(database, 1)
        await add_past(database, 2, State.DEAD)
        await operator.sees("57 ready", "1 dead", "1 succeeded")


@ON_ONE_DATABASE
async def test_a_filter_is_typed_applied_and_judged(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail", key="this-one")
    await add_live(database, queue="other", key="that-one")
    async with watch("tasks") as operator:
        await operator.sees("this-one", "that-one")
        await operator.press("slash")
        await operator.type("queue:mail")
        await operator.press("enter")
        await operator.until(lambda: "that-one" not in operator.text)
        await operator.sees("this-one", "scan")


@ON_ONE_DATABASE
async def test_a_filter_that_is_pasted_in_lines_is_all_of_it(database: Database, watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("slash")
        operator.console.post_message(events.Paste("queue:mail\r\n  state:dead\n"))
        await operator.until(lambda: operator.screen.query_one("#filter", Input).value == "queue:mail   state:dead")


@ON_ONE_DATABASE
async def test_an_invalid_filter_is_explained(database: Database, watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("slash")
        await operator.type("stat:dead")
        await operator.press("enter")
        await operator.sees_notice("unknown field 'stat', did you mean 'state'")


@ON_ONE_DATABASE
async def test_a_command_with_an_invalid_filter_is_refused_and_the_screen_stays(
    database: Database, watch: Watch
) -> None:
    await add_live(database, key="this-one")
    async with watch("tasks", filter_text="state:ready") as operator:
        await operator.sees("this-one")
        await operator.press("1")
        await operator.sees("QUEUES")
        saved.save(operator.console.session.views, "old", "queu:mail")
        for command in ("tasks stat:dead", "views show old", "tasks @gone"):
            operator.console.notices.clear()
            await operator.command(command)
            await operator.until(lambda: "unknown" in operator.notices)
            await operator.sees("QUEUES")
        assert "unknown view 'gone'" in operator.notices
        assert operator.console.databases.opened.tasks.filter_text == "state:ready"


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_marks_outlive_the_filter_and_are_counted_until_a_star_replaces_them(
    database: Database, watch: Watch
) -> None:
    first, second = await add_live(database, queue="mail"), await add_live(database, queue="other")
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == 2)
        await operator.press("end", "space")
        await operator.sees("1 marked")
        await operator.command("tasks queue:other")
        await operator.sees("1 marked (1 not in this list)")
        await operator.press("T")
        await operator.sees(f"{first} h is marked, but not in the list; \\ on the list clears the marks.")
        await operator.press("escape", "U")
        await operator.sees_notice(f"Unblock: task {first} (h): ")
        assert [task.id for task in operator.screen.selection.tasks()] == [first]
        await operator.press("asterisk")
        await operator.sees_notice("Marked 1 task")
        assert [task.id for task in operator.screen.selection.tasks()] == [second]
        await operator.press("backslash")
        await operator.until(lambda: "marked" not in operator.text)


@ON_ONE_DATABASE
async def test_a_range_is_marked_from_the_last_mark_to_the_cursor(database: Database, watch: Watch) -> None:
    ids = [await add_live(database) for _ in range(6)]
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == 6)
        await operator.press("down", "space", "down", "down", "v")
        assert sorted(operator.screen.pages.listing.marks) == ids[1:5]
        await operator.press("home", "v")
        assert sorted(operator.screen.pages.listing.marks) == ids[1:]
        await operator.press("backslash", "v")
        assert list(operator.screen.pages.listing.marks) == [ids[-1]]
        await operator.sees("1 marked")


@ON_ONE_DATABASE
async def test_a_star_marks_all_that_match(database: Database, watch: Watch) -> None:
    ids = {await add_live(database, run_at=ahead(60)) for _ in range(3)}
    async with watch("tasks") as operator:
        await operator.press("asterisk")
        await operator.sees_notice("Marked 3 tasks")
        assert operator.screen.pages.listing.marks.keys() == ids


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_queues_that_were_seen_are_offered_to_the_filter(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail")
    async with watch("overview") as operator:
        await operator.sees("mail")
        await operator.press("2")
        await operator.until(lambda: operator.screen.pages.listing.ids)
        await operator.press("slash", *"que", "tab", "m", "right", "enter")
        await operator.until(lambda: operator.console.databases.opened.tasks.filter_text == "queue:mail")


@pytest.mark.slow
async def test_further_pages_are_read_at_the_end_of_the_list(database: Database, watch: Watch) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.task), [{"handler": "h", "error": "x" * 300}] * 450)
    async with watch("tasks") as operator:
        await operator.sees("450 tasks, 200 loaded", "xx…")
        await operator.press("end")
        await operator.sees("450 tasks, 400 loaded")
        await operator.press("end")
        await operator.until(lambda: "450 tasks" in operator.text and "loaded" not in operator.text)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_list_is_sorted_with_one_key_and_shows_the_order(database: Database, watch: Watch) -> None:
    first, second = await add_live(database, run_at=ahead(60)), await add_live(database, run_at=ahead(30))
    async with watch("tasks") as operator:
        await operator.until(lambda: operator.screen.pages.listing.ids == (second, first))
        assert "ID ↓" in operator.text
        await operator.press("o", *"run", "underscore", *"at", "enter")
        await operator.sees("↑ run_at, due first", "WHEN ↑", "indexed")
        assert operator.screen.pages.listing.ids == (second, first)
        await operator.press("o", "enter")
        await operator.until(lambda: operator.screen.pages.listing.ids == (first, second))
        await operator.press("Y")
        await operator.until(lambda: "runner tasks --sort run_at --desc" in operator.console.clipboard)
        third = await add_live(database)
        await operator.sees("+1 newer, r loads them")
        await operator.command("tasks state:dead")
        await operator.sees("only waiting tasks have this field")
        await operator.command("sort age")
        await operator.command("tasks")
        await operator.until(lambda: operator.screen.pages.listing.ids == (first, second, third))


@ON_ONE_DATABASE
async def test_enter_opens_the_task_under_the_cursor(database: Database, watch: Watch) -> None:
    first = await add_live(database, key="the-first")
    await add_live(database, key="the-second")
    async with watch("tasks") as operator:
        await operator.sees("the-first")
        await operator.press("down", "enter")
        await operator.sees("3 Task", f"{first}  h", "version 0")
        assert operator.screen.tasks()[0].id == first


@ON_ONE_DATABASE
@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_an_unknown_queue_of_a_filter_is_named_with_a_similar_one(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    await add_live(database, queue="payments")
    async with watch("tasks", size, filter_text="queue:paymnts") as operator:
        await operator.sees("0 tasks", "! queue paymnts has never been used, did you mean 'payments'")
        await operator.press("slash")
        await operator.type("queue:payments")
        await operator.press("enter")
        await operator.sees("1 task")
        assert "never been used" not in operator.text


@ON_ONE_DATABASE
async def test_a_search_that_stopped_goes_on_until_it_finds_more(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages, "read_page", partial(page, scan_limit=3))
    await add_live(database, id=1, error="OSError: no route")
    for id in range(2, 22):
        await add_live(database, id=id, key=f"order-{id}")
    async with watch("tasks", filter_text="error~route") as operator:
        await operator.sees("0 found so far", "No match to task 19, n searches on")
        await operator.press("n")
        await operator.sees("1 task", "OSError: no route")
        assert "searches on" not in operator.text
        assert operator.screen.pages.listing.ids == (1,)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_preview_follows_the_state_in_the_list(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "PREVIEW_EVERY", 3600.0)  # no entry of its cache becomes too old
    id = await add_live(database, run_at=ahead(3600))
    async with watch("tasks") as operator:
        await operator.sees("Runs in")
        await database.write(terminate, [Target(id, None)], Actor("ana", "web-1"))
        await operator.sees("⊘ cancelled", "Cancelled")


@ON_ONE_DATABASE
async def test_a_dead_task_has_one_run_time(database: Database, watch: Watch) -> None:
    """The attempt also lasts until its row is written."""
    await add_past(database, 11, State.DEAD, attempt=1, duration=2.0)
    await add_attempt(database, 11, verb="die", started_at=ahead(-60), ended_at=ahead(-55))
    async with watch("tasks") as operator:
        await operator.sees("Died", "ago in 2s", "last ran", "for 2s on")
        await operator.press("enter")
        await operator.sees("ATTEMPTS", "TIMELINE", "ended after 2s on")
        (row,) = [line for line in operator.text.splitlines() if "✗ failed" in line]
        assert " 2s " in row


@pytest.mark.slow
@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_the_list_hides_succeeded_tasks_until_a_key_shows_them(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    await add_past(database, 11, State.SUCCEEDED)
    async with watch("tasks", size, filter_text=Opened().tasks.filter_text) as operator:
        await operator.sees("not succeeded s", "No task is unfinished, dead or cancelled; s shows the rest")
        await add_past(database, 12, State.DEAD)
        await operator.press("r")
        await operator.until(lambda: operator.screen.pages.listing.ids == (12,))
        await operator.press("s")
        await operator.until(lambda: operator.screen.pages.listing.ids == (12, 11))
        assert "not succeeded" not in operator.text
        await operator.press("s")
        await operator.sees("not succeeded s", "✗ dead")
        await operator.press("Y")
        await operator.sees_notice("runner tasks '!state:succeeded'")
        await operator.until(lambda: operator.screen.pages.listing.ids == (12,))
        await operator.command("tasks id:11")  # A filter that somebody typed hides nothing more.
        await operator.until(lambda: operator.screen.pages.listing.ids == (11,))


def test_a_key_keeps_the_rest_of_the_filter() -> None:
    assert toggled("") == QUIET_TEXT
    assert toggled(f'queue:mail {QUIET_TEXT} "db  gone"') == 'queue:mail "db  gone"'
    assert toggled("queue:mail") == f"{QUIET_TEXT} queue:mail"


def test_red_is_for_tasks_that_died_in_the_last_hour() -> None:
    names = [head.title for head in TASK_HEADS]

    def styles(shown: Shown, minutes: int) -> dict[str, set[str]]:
        task = row(7, shown, attempt=5, max_attempts=5, finished_at=NOW - timedelta(minutes=minutes), error="E: x")
        cells = zip(names, task_line(task, NOW).cells, strict=True)
        return {name: {style for _, style in cell.parts or ((cell.text, cell.style),)} for name, cell in cells}

    fresh, old, done = styles(Shown.DEAD, 59), styles(Shown.DEAD, 61), styles(Shown.SUCCEEDED, 1)
    assert (fresh["STATE"], fresh["ATTEMPT"]) == ({"bold dead"}, {"dead"})
    assert {style for cell in old.values() for style in cell} == {"muted"}
    assert done["STATE"] == {"succeeded", "muted"}
    assert {style for name, cell in done.items() if name != "STATE" for style in cell} == {"muted"}


def test_the_reason_gets_the_spare_room() -> None:
    columns = [*columns_for(NEWEST, keys=9).values()]
    room = dict(zip([column.title for column in columns], widths(columns, 200), strict=True))
    assert room["KEY"] == 9
    assert room["REASON"] > 90
    assert {column.title: column.width for column in columns_for(NEWEST, keys=99).values()}["KEY"] == 30


def test_the_dead_count_is_red_only_beside_new_dead() -> None:
    tasks = {id: row(id, Shown.DEAD, finished_at=NOW - timedelta(hours=hours)) for id, hours in ((1, 0), (2, 5))}
    both, old = (Listing(tuple(some), some, NOW) for some in (tasks, {2: tasks[2]}))
    assert (", 1 new", "dead") in states(both, WIDE[0])
    assert all("dead" not in style.split() for _, style in states(old, WIDE[0]))
