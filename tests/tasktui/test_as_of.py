"""The console at a past time: a badge, no action, the data of then, and the way back."""

import time
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later
from runner.model.outcome import Dead, Failure, Snooze
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.queries.past import as_of as past
from tasktui.actions.actions import ACTIONS
from tasktui.screens import MODES, as_of
from tasktui.session.write_lock import ReadOnly
from tasktui.widgets.table import Table
from tests.store.runners import Runner
from tests.store.table import put
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Operator, Watch

pytestmark = ON_ONE_DATABASE

BY = Actor("ana", "desk", "restore")


async def shift(database: Database, seconds: float) -> None:
    """Let all that has happened have happened earlier."""
    columns = {
        database.tables.task: ("submitted_at", "run_at", "claimed_at"),
        database.tables.history: ("submitted_at", "run_at", "claimed_at", "finished_at"),
        database.tables.attempt: ("started_at", "ended_at"),
        database.tables.audit: ("at",),
    }
    async with database.writing() as tx:
        for table, names in columns.items():
            values: dict[str, Any] = {name: db_later(table.c[name], -seconds) for name in names}
            await tx.execute(sa.update(table).values(values))


@pytest.fixture
async def id(database: Database, runner: Runner) -> int:
    """A task that ran twenty minutes ago and is dead since ten minutes; its queue was paused just now."""
    id = await put(database, queue="mail", key="order-1")
    (claimed,) = await runner.claim()
    await shift(database, 600)
    await runner.end(claimed, Dead(failure=Failure("OSError", "no route", "")))
    await shift(database, 600)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    return id


async def at(operator: Operator, text: str, *shown: str) -> None:
    await operator.command(f"at {text}")
    await operator.sees(*shown)


@pytest.mark.slow
async def test_the_console_shows_a_past_time_and_returns(watch: Watch, id: int) -> None:
    async with watch() as operator:
        await operator.sees("mail")
        await at(operator, "15m ago", " AT ", "RUNNING", "As of", "mail")
        assert "paused for" not in operator.text
        await operator.press("2")
        await operator.sees("running", "order-1", "1 task.")
        assert "dead" not in operator.text
        await at(operator, "7m", "As of", "mail")
        await operator.press("2")
        await operator.sees("dead", "no route")
        await operator.press("enter")
        await operator.sees(f"Task {id} work was dead at", "It had ended")
        await at(operator, "0s", "paused for")
        await at(operator, "now", "NEEDS ATTENTION")
        assert " AT " not in operator.text


@pytest.mark.slow
async def test_the_filter_and_the_open_task_stay_at_a_past_time(database: Database, watch: Watch, id: int) -> None:
    other = await put(database, queue="other", key="order-2")
    await shift(database, 1200)
    async with watch("tasks", filter_text="queue:other", task_id=other) as operator:
        await operator.sees("order-2")
        await at(operator, "7m", "As of", "mail")
        await operator.press("2")
        await operator.sees("As of", "Filter: queue:other", "order-2")
        await operator.press("3")
        await operator.sees("As of", f"Task {other} work")
        await operator.command(f"task {id}")
        await operator.sees("As of", f"Task {id} work")
        await at(operator, "now", "NEEDS ATTENTION")
        await operator.press("3")
        await operator.sees(f"{id}  work", "order-1")


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_a_state_that_is_not_known_exactly_is_shown_in_full(
    database: Database, watch: Watch, runner: Runner, size: tuple[int, int]
) -> None:
    await put(database, queue="mail", key="order-1")
    (claimed,) = await runner.claim()
    await runner.end(claimed, Snooze("1h"))
    await shift(database, 600)
    async with watch(size=size) as operator:
        await operator.sees("mail")
        await at(operator, "5m", "As of", "mail")
        await operator.press("2")
        await operator.sees("waiting or running", "order-1")


async def test_the_key_of_a_change_at_a_past_time_names_the_time_as_its_reason(watch: Watch, id: int) -> None:
    async with watch() as operator:
        await at(operator, "7m", "As of", "mail")
        for screen, key in (("2", "R"), ("1", "P"), ("6", "X")):
            await operator.press(screen)
            operator.console.notices.clear()
            await operator.press(key)
            await operator.sees_notice("it shows a past time; :at now returns to the present")
            assert "is a key of" not in operator.notices


async def test_escape_returns_to_the_queues_of_a_past_time(watch: Watch, id: int) -> None:
    async with watch() as operator:
        await at(operator, "7m", "As of", "mail")
        await operator.press("enter")
        await operator.sees("Filter: queue:mail", "order-1")
        await operator.press("escape")
        await operator.sees("As of", "UNSURE")


@pytest.mark.slow
async def test_keys_step_through_the_time(watch: Watch, id: int) -> None:
    async with watch() as operator:
        await at(operator, "7m", "As of", "mail")
        session = operator.console.session
        start = session.at
        assert start is not None
        for key, distance in (("[", -1), ("{", -11), ("]", -10), ("}", 0)):
            await operator.press(key)
            await operator.until(lambda expected=start + timedelta(minutes=distance): session.at == expected)
        await operator.press("}")
        await operator.sees_notice("is in the future")
        assert session.at == start


async def test_the_badge_has_seconds_if_the_time_has(watch: Watch) -> None:
    async with watch() as operator:
        session = operator.console.session
        midnight = session.now().astimezone(session.zone).replace(hour=0, minute=0, second=0, microsecond=0)
        for seconds, badge in ((0, "AT 00:00"), (5, "AT 00:00:05")):
            session.at = midnight + timedelta(seconds=seconds)
            assert session.lock_label(0.0) == badge


@pytest.mark.slow
async def test_no_action_is_possible_at_a_past_time(watch: Watch, id: int) -> None:
    async with watch(size=NARROW) as operator:
        await at(operator, "7m", " AT ")
        session = operator.console.session
        assert not session.writable
        with pytest.raises(ReadOnly, match=":at now returns"):
            await session.write(put, id)
        for mode in MODES.values():
            await operator.press(mode.key)
            await operator.until(lambda title=mode.title: operator.screen.title == title)
            await operator.sees(" AT ", "As of")
            actions = {active.binding.action for active in operator.screen.active_bindings.values()}
            assert not {f"act('{name}')" for name in ACTIONS} & actions, mode.title
            if mode.module in ("failures", "schedules", "reports", "audit"):
                await operator.sees(f"{mode.title} cannot be shown for a past time.")
        for command in ("write 10m mend", "pause mail", "submit work"):
            operator.console.notices.clear()
            await operator.command(command)
            await operator.sees_notice("it shows a past time; :at now returns to the present")
        operator.console.notices.clear()
        await operator.press("h")
        await operator.sees_notice("it shows a past time")
        await operator.command("health")
        await operator.sees_notice("the health of the database is not recorded")


@pytest.mark.slow
async def test_a_past_time_is_read_once(watch: Watch, id: int) -> None:
    async with watch() as operator:
        await at(operator, "7m", "As of", "mail")
        feed = operator.screen.feed
        await operator.until(lambda: not feed.looking and not feed.due(time.monotonic() + 3600))
        read_at = feed.read_at
        assert feed.age(time.monotonic() + 3600) == ""
        await operator.pilot.pause(0.5)
        assert feed.read_at == read_at


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("text", "why"), [("soon", "is not a past time"), ("+5m", "is in the future"), ("", "name a")])
async def test_an_unknown_time_is_refused(watch: Watch, id: int, text: str, why: str) -> None:
    async with watch() as operator:
        await operator.command(f"at {text}")
        await operator.sees_notice(why)
        assert operator.console.session.at is None


@pytest.mark.slow
async def test_further_tasks_of_a_past_time_are_read_at_the_end_of_the_list(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_of, "PAGE", 3)
    ids = [await put(database, queue="mail") for _ in range(8)]
    await shift(database, 600)
    async with watch() as operator:
        await operator.sees("mail")
        await at(operator, "5m ago", "As of", "mail")
        await operator.press("2")
        await operator.sees("3+ tasks")
        table = operator.screen.query_one(Table)
        for count in (6, 8):
            await operator.press("end")
            await operator.until(lambda count=count: len(table.keys) >= count)
        assert sorted(table.keys) == ids
        await operator.sees("8 tasks.")


async def test_a_past_time_with_more_tasks_than_are_counted_shows_bounds_and_no_question_mark(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (past, as_of):
        monkeypatch.setattr(module, "CANDIDATES", 3)
    await put(database, queue="oldest")
    for _ in range(5):
        await put(database, queue="mail")
    await shift(database, 1200)
    async with watch() as operator:
        await at(operator, "15m ago", "As of", "mail", "Only the newest 3 unfinished tasks", "a + marks a lower bound")
        (row,) = [text.split() for text in operator.text.splitlines() if " mail " in text]
        assert row[2:4] == ["3+", "0"]  # ready and dead; the other states are unknown
        assert row[4].endswith("+")
        assert "?" not in " ".join(row)
        (row,) = [text.split() for text in operator.text.splitlines() if " oldest " in text]
        assert row == ["oldest", "0", "0", "0"]  # the dead, and those of the last minute and hour
