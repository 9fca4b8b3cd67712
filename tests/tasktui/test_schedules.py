"""The schedules screen: what it shows, and each of its keys on both databases."""

import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler, Options
from runner.model.schedule import ScheduleSpec
from runner.model.task import Shown
from runner.operations.results import Actor
from runner.operations.schedule import add_schedule, edit_schedule
from runner.queries.schedules import ScheduleRow, schedules
from runner.store.registration import Identity, leave, register
from runner.store.schedules.tick import tick
from tasktui.actions.action import Confirmation
from tasktui.actions.as_command import new_schedule_words
from tasktui.actions.schedule import rule_rows
from tasktui.data.schedules import planned, read_board
from tasktui.panels.schedules import lateness, sentence
from tasktui.render.rows import plain
from tests.store.rows import add_past, add_runner, ahead, stored
from tests.store.table import change
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch
from tests.tasktui.test_actions import audited, confirm
from tests.tasktui.test_new_task import fill

BY = Actor("ana", "desk")


async def row(database: Database, id: str = "carts.remind") -> ScheduleRow:
    (schedule,) = await database.read(schedules, [id])
    return schedule


async def add(database: Database, id: str = "carts.remind", rule: str = "every 1h", overlap: str = "skip") -> None:
    await database.write(add_schedule, id, ScheduleSpec("h", rule, overlap=overlap), BY)
    await database.write(tick)


async def make_due(database: Database, seconds: float) -> None:
    table = database.tables.schedule
    await change(database, sa.update(table).values(next_at=db_later(db_now(), -seconds)))


@ON_ONE_DATABASE
async def test_a_schedule_is_shown_with_its_rule_and_its_next_run(database: Database, watch: Watch) -> None:
    soon = (datetime.now(UTC).minute + 30) % 60  # No tick becomes due during the test.
    await add(database, rule="every 30d")
    await add(database, "mail.digest", f"{soon} * * * *")
    async with watch("schedules", (120, 40)) as operator:
        await operator.sees("carts.remind", "every 30 d", f"hourly at :{soon:02}", "NEXT HOUR", "◆")
        await operator.sees("Next in")
        # A time that is near has a space in front of it, in place of the line.
        await operator.until(lambda: re.search(r"\bnow [ ─]", operator.text))


@ON_ONE_DATABASE
async def test_the_ruler_of_a_frequent_schedule_reaches_its_end(database: Database) -> None:
    await add(database, rule="every 5s")
    frequent = await row(database)
    at = frequent.upcoming[0]
    ticks = planned(frequent, at, timedelta(hours=1))
    assert max(after - before for before, after in pairwise(ticks)) <= timedelta(seconds=20)
    assert ticks[-1] >= at + timedelta(minutes=59, seconds=40)


@ON_ONE_DATABASE
async def test_a_run_that_waits_for_another_one_is_late_and_says_why(database: Database, watch: Watch) -> None:
    half_an_hour_from_now = (datetime.now(UTC).minute + 30) % 60  # No tick lies between the two below.
    await add(database, rule=f"{half_an_hour_from_now} * * * *", overlap="queue")
    for seconds in (900, 700):
        await make_due(database, seconds)
        await database.write(tick)
    task = database.tables.task
    await change(database, sa.update(task).where(task.c.id == 1).values(attempt=1, claimed_at=db_later(db_now(), -890)))
    async with watch("schedules", (120, 40)) as operator:
        await operator.sees("1 late", "has not started", "and runs do not overlap", "◇ waits", "NEXT HOUR")
        lines = operator.text.splitlines()
        (head,), (axis,) = (
            [line for line in lines if re.search(text, line)] for text in ("NEXT HOUR", "^[^A-Z]* now [ ─]")
        )
        assert head.index("NEXT HOUR") == axis.index("now")
    async with watch("schedules", (80, 24)) as operator:
        await operator.sees("1 late", "has not started")


@ON_ONE_DATABASE
async def test_the_runner_of_a_run_has_the_name_that_other_screens_show(database: Database, watch: Watch) -> None:
    await add(database, rule="every 36500d")
    for _ in range(2):
        await make_due(database, 1)
        await database.write(tick)
    present = await add_runner(database, host="web-3.eu-central.shop.internal", pid=4117)
    task, gone = database.tables.task, present + 1
    await change(database, sa.update(task).values(runner_id=gone, host="web-1"))
    async with watch("schedules", (120, 40)) as operator:
        await operator.sees(f" runner {gone} (web-1) ")
        await change(database, sa.update(task).values(runner_id=present, host="web-3.eu-central.shop.internal"))
        await operator.sees(" web-3.eu-c…ernal:4117 ")
        await database.write(leave, present)
        await operator.press("r")
        await operator.sees(" web-3.eu-c…ernal:4117 ")


@ON_ONE_DATABASE
async def test_w_on_a_late_schedule_explains_the_lateness_and_not_an_earlier_run(
    database: Database, watch: Watch
) -> None:
    await add(database, rule="every 30d")
    await make_due(database, 900)
    await database.write(tick)
    task = await stored(database, 1)
    async with database.writing() as tx:
        await tx.execute(sa.delete(tx.tables.task))
    await add_past(database, task.id, handler=task.handler, finished_at=ahead(-800))
    await make_due(database, 432)
    async with watch("schedules", (120, 40)) as operator:
        await operator.sees("has not started")
        await operator.press("w")
        await operator.sees_notice("late: no runner has handled the tick")
        await database.write(tick)
        await operator.press("r")
        await operator.sees("its task waits; w explains")
        await operator.press("w")
        await operator.sees("Why is 2 not running?", "no live runner")


@ON_ONE_DATABASE
async def test_the_plot_ends_with_a_tick_that_no_runner_handles(database: Database) -> None:
    await add(database)
    await make_due(database, 1)
    await database.write(tick)
    await make_due(database, 432)
    board = await database.read(read_board, "carts.remind")
    board = replace(board, starts=(*board.starts, (board.at - timedelta(hours=9), 0.3)))
    text = plain(lateness(board, UTC, 80))
    assert ("worst now 7m12s" in text, " 8m ┤" in text, " 4m " in text) == (True, True, True), text
    assert "▁" in text.splitlines()[-2], "the run that started a moment late"


@ON_ONE_DATABASE
async def test_skipped_ticks_are_named_with_their_reason(database: Database) -> None:
    await add(database, rule="every 36500d")  # an hour that begins between two ticks would add one
    for _ in range(4):
        await make_due(database, 1)
        await database.write(tick)
    board = await database.read(read_board, None)
    (schedule,) = board.rows
    runs = [replace(run, task=run.task and run.task._replace(attempt=1, shown=Shown.RUNNING)) for run in schedule.runs]
    schedule = replace(schedule, runs=tuple(runs))
    text = "".join(text for text, _ in sentence(board, schedule, UTC))
    assert text.endswith(". 3 of the last 4 ticks skipped: the run before was not finished.")
    running = replace(schedule, runs=tuple(run for run in runs if run.task is not None))
    assert "No run has ended yet." in "".join(text for text, _ in sentence(board, running, UTC))
    missed = replace(schedule, runs=tuple(replace(run, outcome="missed") for run in runs))
    assert "4 of the last 4 ticks missed: no runner was up." in "".join(
        text for text, _ in sentence(board, missed, UTC)
    )


@pytest.mark.slow
async def test_a_schedule_is_paused_edited_run_deleted_and_each_is_undone(database: Database, watch: Watch) -> None:
    await add(database)
    async with watch("schedules", (120, 40)) as operator:
        await operator.sees("carts.remind")
        await operator.press("P")
        await confirm(operator, reason="deploy")
        await operator.sees("Paused by")
        await operator.press("Z")
        await confirm(operator)
        await operator.sees("Next in")
        await operator.press("P")
        await confirm(operator)
        await operator.sees("Paused by")
        await operator.press("P")
        await confirm(operator)
        await operator.sees("Next in")
        await operator.press("N")
        await confirm(operator)
        await operator.sees_notice("runs within a second on a live runner")
        await operator.until(lambda: operator.screen.schedule().requested_at is not None)
        await operator.press("X")
        await confirm(operator)
        await operator.sees("There are no schedules")
    entries = await audited(database)
    assert [entry.verb for entry in reversed(entries)] == ["add", "pause", "resume", "pause", "resume", "run", "delete"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_the_values_of_a_schedule_are_edited_and_that_is_undone(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    spec = ScheduleSpec("h", "every 1h", payload='{"to": "ana", "token": "x7"}')
    await database.write(add_schedule, "carts.remind", spec, BY)
    async with watch("schedules", size) as operator:
        await operator.sees("carts.remind")
        await operator.press("E")
        await operator.sees("Edit schedule carts.remind", "no changes yet", '"token": "***"')
        await operator.press("ctrl+s")
        await operator.sees("edit a value first")
        await operator.press("down", "down")
        await operator.until(lambda: operator.screen.focused.value == "skip")
        await operator.press("up", "up")
        await fill(operator, Rule="61 * * * *", Overlap="twice", **{"Missed ticks": "never"})
        await operator.sees("bad minute")
        await fill(operator, Rule="30 2 * * *")
        await operator.sees('it must be "skip", "once" or "all N"')
        await fill(operator, **{"Missed ticks": "all 3"})
        await operator.sees("it must be one of skip, queue, replace, allow")
        await fill(operator, Overlap="queue", **{"Time zone": "Asia/Tokyo"})
        await fill(operator, Payload='{"to": "bob", "token": "***"')
        await operator.sees("invalid JSON")
        await fill(operator, Payload='{"to": "bob", "token": "***"}')
        await operator.sees("overlap: skip -> queue", "02:30:00 JST (+09:00)", 'payload to: "ana" -> "bob"')
        await operator.press("ctrl+s")
        await operator.sees("Edit schedule carts.remind?", "rule: every 1h -> 30 2 * * *", "misfire: once -> all 3")
        await operator.press("ctrl+y")
        await operator.sees("the payload has secrets")
        await confirm(operator, reason="the night is quiet")
        await operator.sees_notice("Schedule carts.remind edited")
        await operator.sees("daily at 02:30 Asia/Tokyo")
        edited = (await row(database)).spec
        assert (edited.rule, edited.timezone, edited.overlap) == ("30 2 * * *", "Asia/Tokyo", "queue")
        assert (edited.misfire, edited.payload) == ("all 3", '{"to": "bob", "token": "x7"}')
        await operator.press("Z")
        await confirm(operator)
        await operator.sees_notice("Undo: 1 changed")
    assert (await row(database)).spec == spec
    entries = await audited(database)
    assert [(entry.verb, entry.reason) for entry in entries[:2]] == [("edit", None), ("edit", "the night is quiet")]


@ON_ONE_DATABASE
async def test_the_undo_of_a_schedule_shows_the_values_that_return(database: Database, watch: Watch) -> None:
    await add(database)
    await database.write(edit_schedule, "carts.remind", {"rule": "every 2h"}, BY)
    async with watch("schedules", NARROW) as operator:
        await operator.sees("carts.remind")
        await operator.press("Z")
        await operator.sees("Undo edit of schedule carts.remind by", "rule", "every 1h, now every 2h")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_an_edit_over_another_edit_of_a_schedule_changes_nothing(database: Database, watch: Watch) -> None:
    await add(database)
    async with watch("schedules", WIDE) as operator:
        await operator.sees("carts.remind")
        await operator.press("E")
        await operator.sees("no changes yet")
        await fill(operator, Rule="every 2h")
        await operator.press("ctrl+s")
        await operator.sees("rule: every 1h -> every 2h")
        await database.write(edit_schedule, "carts.remind", {"overlap": "allow"}, BY)
        await confirm(operator)
        await operator.sees_notice("has changed")
    assert (await row(database)).spec.rule == "every 1h"


@pytest.mark.slow
async def test_a_schedule_is_added_and_that_is_undone(database: Database, watch: Watch) -> None:
    await database.write(register, Identity("web-1", 1, "1", ["hh"], 4), 60.0)
    async with watch("schedules", (120, 40)) as operator:
        await operator.sees("There are no schedules")
        await operator.press("A")
        await fill(operator, Name="carts.remind", Handler="h", Rule="61 * * * *")
        await operator.sees("bad minute")
        await operator.press("ctrl+s")
        assert await audited(database) == []
        await fill(operator, Rule="30 2 * * *", Payload='{"token": "x7"}', **{"Time zone": "Asia/Tokyo"})
        await operator.sees("02:30:00 JST (+09:00)")
        await operator.press("ctrl+s")
        await operator.sees("Add schedule carts.remind", '"token": "***"')
        await operator.sees("no runner ever had handler h, did you mean 'hh'; its tasks wait until a runner has it")
        await confirm(operator, reason="by phone")
        await operator.sees_notice("Schedule carts.remind added")
        await operator.sees("daily at 02:30")
        spec = (await row(database)).spec
        assert spec == ScheduleSpec("h", "30 2 * * *", "Asia/Tokyo", '{"token": "x7"}')
        await operator.press("Z")
        await confirm(operator)
        await operator.sees("There are no schedules")
    *_, entry = await audited(database)
    assert (entry.verb, entry.reason) == ("add", "by phone")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_payload_that_the_handler_refuses_stays_in_the_form(database: Database, watch: Watch) -> None:
    def send(order: int) -> None: ...

    signatures = stored_signatures({"send": Handler("send", send, Options())})
    await database.write(register, Identity("web-1", 1, "1", ["send"], 4, signatures=signatures), 60.0)
    async with watch("schedules", WIDE) as operator:
        await operator.sees("There are no schedules")
        await operator.press("A")
        await fill(operator, Name="carts.remind", Handler="send", Rule="@hourly")
        await operator.press("ctrl+s")
        await operator.sees("order: the handler requires it", "New schedule")
        await fill(operator, Payload='{"order": 1}')
        await operator.press("ctrl+s")
        await operator.sees("Add schedule carts.remind")


def test_the_command_of_a_new_schedule_has_its_values() -> None:
    spec = ScheduleSpec("h", "after_end 30s", payload='{"full": true}')
    words = new_schedule_words("carts", spec, Confirmation("", "by phone"))
    assert [*map(str, words)] == shlex.split(
        """schedules add carts h --after-end 30s --payload '{"full": true}' --reason 'by phone'"""
    )


@pytest.mark.parametrize(("width", "rows"), [(100, 5), (40, 10)])
def test_the_next_ten_times_of_a_typed_rule_are_shown(width: int, rows: int) -> None:
    now = datetime(2026, 3, 27, 12, tzinfo=UTC)
    shown = rule_rows("Europe/Berlin", now, width, "30 2 * * *", low=False)
    title, *times = ("".join(text for text, _ in row) for row in shown)
    assert (title.split()[1:3], len(title)) == (["Next", "runs"], width)
    assert "daily at 02:30" in title
    assert len(times) == rows
    text = " ".join(text for row in shown for text, _ in row)
    assert "2026-03-28 02:30:00 CET (+01:00)" in text
    assert "2026-03-29 03:00:00 CEST (+02:00)" in text  # the clocks skip 2:30
    assert text.count("02:30:00") == 9
    assert len(rule_rows("Europe/Berlin", now, width, "30 2 * * *", low=True)) == 2


def test_a_typed_rule_that_is_refused_names_the_reason() -> None:
    now = datetime(2026, 3, 27, 12, tzinfo=UTC)
    for typed, answer in (("61 * * * *", "✗ bad minute"), ("every 0s", "✗ the interval"), ("after_end 3s", "✓ 3 s")):
        (((text, _),),) = rule_rows("UTC", now, 60, typed, low=False)
        assert text.startswith(answer)


@ON_ONE_DATABASE
async def test_the_overview_of_a_wide_screen_shows_the_next_schedules(database: Database, watch: Watch) -> None:
    await add(database)
    async with watch("overview", (200, 60)) as operator:
        await operator.sees("NEXT SCHEDULES", "carts.remind")
        keys = ("6 opens Schedules", "4 opens Failures", "8 opens Audit")  # without the verb, counts of rows
        await operator.sees(*keys)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_keys_of_a_schedule_open_its_runs_explain_the_last_and_change_the_span(
    database: Database, watch: Watch
) -> None:
    await add(database, rule="every 30d")
    await make_due(database, 60)
    await database.write(tick)
    await add(database, "mail.digest", rule="every 30d")
    async with watch("schedules", (120, 40)) as operator:
        await operator.sees("carts.remind", "mail.digest", "NEXT HOUR")
        await operator.press("s")
        await operator.sees("NEXT 24 HOURS")
        await operator.press("w")
        await operator.sees("no live runner")
        await operator.press("escape", "down", "enter")
        await operator.sees_notice("Schedule mail.digest has no task yet")
        await operator.press("up")
        await operator.until(lambda: operator.screen.schedule().id == "carts.remind")
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Tasks")
        assert operator.console.databases.opened.tasks.filter_text == "id:1"
