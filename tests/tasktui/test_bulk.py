"""Bulk operations by filter: counted, confirmed, applied in chunks, stopped midway."""

import asyncio
import re
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.filter.parse import parse_filter
from runner.model.task import Shown, State
from runner.operations import bulk, canary
from runner.operations.breaker import open_by_hand
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target, with_change_group
from runner.operations.retry import retry_now
from runner.policy.breaker import Breaker
from runner.queries.counting import Count
from runner.queries.fate import FailureCause, GroupFate
from runner.store.breaker import declare_breakers
from tasktui.actions import perform
from tasktui.actions.actions import ACTIONS
from tasktui.data import task_pages
from tasktui.dialogs import ask
from tasktui.screens.audit import fate_lines
from tests.operations.test_canary import dead, ending
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead, stored
from tests.store.table import change
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WAIT_SECONDS, WIDE, Operator, Watch
from tests.tasktui.test_actions import audited, confirm


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the rows of every confirmation, however long it was open."""
    monkeypatch.setattr(ask, "FRESH", 0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit so that twelve tasks are many."""
    monkeypatch.setattr(task_pages, "MOST_MARKED", 5)


async def many(database: Database, number: int, **values: Any) -> list[int]:
    async with database.writing() as tx:
        rows = [{"handler": "h", **values} for _ in range(number)]
        inserted = await tx.rows(sa.insert(tx.tables.task).returning(tx.tables.task.c.id), rows)
        return sorted(row.id for row in inserted)


async def states(database: Database) -> dict[str, int]:
    state_by_id: dict[str, int] = {}
    async with database.reading() as tx:
        for table in (tx.tables.task, tx.tables.history):
            count = sa.select(table.c.state, sa.func.count()).group_by(table.c.state)
            state_by_id |= {row[0]: row[1] for row in await tx.rows(count)}
    return state_by_id


async def fail_older(database: Database, id: int) -> None:
    """Let a task die of the error of the others that was submitted before them."""
    await add_past(database, id, State.DEAD)
    await add_attempt(database, id, ended_at=ahead(-1))


async def mark_all(operator: Operator) -> None:
    await operator.until(lambda: operator.screen.pages.listing.ids)
    await operator.press("asterisk")
    await operator.until(lambda: operator.screen.pages.listing.all)


async def test_all_that_match_are_counted_previewed_and_changed(database: Database, watch: Watch) -> None:
    await many(database, 12, queue="mail")
    await many(database, 3)
    await add_past(database, 99, queue="mail")
    async with watch("tasks", filter_text="queue:mail") as operator:
        await mark_all(operator)
        await operator.sees("all 13 marked")
        await operator.press("T")
        await operator.sees("Terminate 12 tasks?", "12 of 13 selected tasks will change")
        await operator.sees("1  it has succeeded", "○ 12 ready   ⊘ 1 skipped")
        await confirm(operator)
        await operator.sees_notice("Terminate: 12 changed, 1 skipped; 8 Z undoes")
        await operator.sees(" ! Terminate: 12 changed, 1 skipped")
        assert operator.screen.pages.listing.all is None
    assert await states(database) == {State.WAITING: 3, State.CANCELLED: 12, State.SUCCEEDED: 1}
    assert len(await audited(database)) == 12


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_new_values_are_set_on_all_that_match_and_undone(database: Database, watch: Watch) -> None:
    ids = await many(database, 12, queue="mail", priority=5)
    urgent = await add_live(database, queue="mail", priority=8)
    await add_past(database, 99, queue="mail")
    async with watch("tasks", filter_text="queue:mail") as operator:
        await mark_all(operator)
        await operator.press("E")
        await operator.sees("New values for all tasks that match queue:mail id<=99", "no changes yet")
        operator.screen.query_one("#priority").value = "12"
        await operator.press("ctrl+s")
        await operator.sees("priority")
        assert await audited(database) == []
        operator.screen.query_one("#priority").value = "8"
        await operator.sees("priority: 8")
        await operator.press("ctrl+s")
        await operator.sees("12 of 14 selected tasks will change", "1  it already has these values")
        await confirm(operator)
        await operator.sees_notice("Edit: 12 changed, 2 skipped")
        assert {(await stored(database, id)).priority for id in ids} == {8}
        await operator.press("8")
        await operator.sees("12 tasks")
        await operator.press("Z")
        await confirm(operator)
        await operator.sees_notice("Undo: 12 changed")
    assert {(await stored(database, id)).priority for id in ids} == {5}
    assert (await stored(database, urgent)).version == 0


@ON_ONE_DATABASE
async def test_markup_in_a_filter_is_text_in_the_title_of_a_form(database: Database, watch: Watch) -> None:
    await many(database, 7, queue="[/x]")
    async with watch("tasks", filter_text="queue:[/x]") as operator:
        await mark_all(operator)
        await operator.press("E")
        await operator.sees("─ Edit all tasks that match queue:[/x] id<=7 ─")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_marked_tasks_get_new_values_as_they_were_on_the_screen(database: Database, watch: Watch) -> None:
    ids = [await add_live(database) for _ in range(3)]
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == 3)
        await operator.press("space", "space", "E")
        await operator.sees("New values for 2 tasks")
        operator.screen.query_one("#timeout").value = "5m"
        await operator.press("ctrl+s")
        await operator.sees("Edit 2 tasks?", "timeout: 300")
        await operator.press("ctrl+y")
        await operator.sees(f"runner edit {ids[2]} {ids[1]} --timeout 5m")
        await confirm(operator)
        await operator.sees_notice("Edit: 2 changed")
    assert [(await stored(database, id)).timeout for id in ids] == [None, 300.0, 300.0]


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_limit_tries_one_task_first(database: Database, watch: Watch) -> None:
    ids = await many(database, 7)
    async with watch("tasks", NARROW) as operator:
        await mark_all(operator)
        await operator.press("T")
        await operator.sees("Limit")
        operator.screen.query_one("#limit").value = "some"
        await confirm(operator)
        await operator.sees("'some' is not a number of tasks", "✗ a number, or all")
        operator.screen.query_one("#limit").value = "1"
        await confirm(operator)
        await operator.sees_notice("Terminate: 1 changed")
        assert operator.screen.pages.listing.all
    (entry,) = await audited(database)
    assert entry.task_id == ids[-1]


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_tasks_submitted_after_the_marking_are_not_changed(database: Database, watch: Watch) -> None:
    await many(database, 7)
    async with watch("tasks") as operator:
        await mark_all(operator)
        later = await add_live(database)
        await operator.press("T")
        await confirm(operator)
        await operator.sees_notice("Terminate: 7 changed")
    assert later not in [entry.task_id for entry in await audited(database)]


@pytest.mark.slow
async def test_a_bulk_operation_stops_midway_and_the_next_one_must_wait(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perform, "CHUNK", 2)
    await many(database, 12)
    go_on, begun, terminate = asyncio.Event(), asyncio.Event(), bulk.BulkOptions.step

    async def slowly(*arguments: Any) -> None:
        await terminate(*arguments)
        begun.set()
        await asyncio.wait_for(go_on.wait(), WAIT_SECONDS)

    monkeypatch.setattr(bulk.BulkOptions, "step", slowly)
    async with watch("tasks") as operator:
        await mark_all(operator)
        await operator.press("T")
        await confirm(operator)
        await asyncio.wait_for(begun.wait(), WAIT_SECONDS)
        await operator.sees("Terminate: 2 of 12 (17 %)", "ctrl+x stops it")
        await operator.press("1")
        await operator.sees("1 Overview", "Terminate: 2 of 12 (17 %)")
        await operator.press("2", "T")
        await confirm(operator)
        await operator.sees_notice("Terminate is still in progress")
        await operator.press("ctrl+x")
        await operator.sees("stopping")
        go_on.set()
        await operator.sees(" ! Terminate (stopped): 2 changed")
        await operator.until(lambda: "stops it" not in operator.text)
    assert (await states(database))[State.CANCELLED] == 2


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_whole_failure_group_is_retried_spread_over_time(database: Database, watch: Watch) -> None:
    for id in range(100, 112):
        await add_past(database, id, State.DEAD)
        await add_attempt(database, id, started_at=ahead(-2), ended_at=ahead(-1))
    await add_past(database, 120, State.DEAD)
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.handler).values(name="h"))
    await database.write(declare_breakers, ["h"], {"h": Breaker("1/s").columns})
    await database.write(open_by_hand, "h", Actor("ana", "web-1"))
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "default"), Actor("ana", "web-1"))
    async with watch("tasks", filter_text="id:120") as operator:
        await operator.sees("120  ✗ dead")
        await operator.press("R")
        await operator.sees("Retry 1 task?", "The breaker of h is open", "Queue default is paused: its tasks wait.")
    async with watch("failures") as operator:
        await operator.sees("ValueError: no")
        await operator.press("R")
        await operator.sees("The breaker of h is open: its tasks wait for the next probe.")
        await operator.sees("Queue default is paused: its tasks wait.")
        await operator.sees("Retry 12 tasks that failed in the last hour?", "Spread over", "in stages")
        await operator.press("ctrl+t")
        await operator.sees("all at once; 10m spreads them")
        operator.screen.query_one("#answer").value = "1h"
        await operator.sees("✓ about 0.0033 per second, until ")
        operator.screen.query_one("#answer").value = "+1h"
        await operator.sees("✓ about 0.0033 per second, until ", "When            ◆━", " done about ")
        await confirm(operator)
        await operator.sees_notice("Retry: 12 changed")
    assert await states(database) == {State.WAITING: 12, State.DEAD: 1}
    async with database.reading() as tx:
        times = [row[0] for row in await tx.rows(sa.select(tx.tables.task.c.run_at))]
    assert max(times) > min(times)


async def test_a_group_and_its_whole_cause_are_previewed_in_one_read(database: Database, watch: Watch) -> None:
    await add_past(database, 1, State.DEAD)
    await add_past(database, 2, State.DEAD)
    async with watch() as operator:
        session = operator.console.session
        filters = [parse_filter(text, session.now(), UTC) for text in ("id:1", "state:dead")]
        plans = await perform.previews(session, ACTIONS["terminate"], filters)
    assert [plan.groups for plan in plans] == [{(Shown.DEAD, "default"): number} for number in (1, 2)]


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_key_on_a_failure_group_takes_the_span_of_the_screen(database: Database, watch: Watch) -> None:
    for id, hours in ((1, 0), (2, 0), (3, 5), (4, 5), (5, 5)):
        await add_past(database, id, State.DEAD)
        await add_attempt(database, id, ended_at=ahead(-hours * 3600 - 60))
    await add_attempt(database, 5, 2, fingerprint="f2", handler="other", ended_at=ahead(-1))
    async with watch("failures", WIDE) as operator:
        await operator.sees("ValueError: no", "LAST HOUR")
        await operator.press("R")
        await operator.sees("Retry 2 tasks that failed in the last hour?", "ctrl+a", "retry 5 tasks of this cause")
        assert "again the SQL" not in operator.text  # a change by filter has none
        await operator.press("ctrl+y")
        await operator.until(lambda: "failed:" in operator.console.clipboard)
        await operator.press("ctrl+a")
        await operator.sees("Retry 5 tasks of this cause?", "↵ retry 5 tasks")
        assert "ctrl+a" not in operator.text
        await operator.press("escape")
        await operator.sees("LAST HOUR")
        await operator.press("enter")
        await operator.sees("2 tasks")
    async with watch("failures", WIDE) as operator:
        await operator.sees("ValueError: no")
        await operator.press("R")
        await operator.sees("Retry 2 tasks that failed in the last hour?")
        await operator.press("ctrl+t")
        await operator.sees("1 tries one, canary in")
        await confirm(operator)
        await operator.sees_notice("Retry: 2 changed")
    assert await states(database) == {State.WAITING: 2, State.DEAD: 3}


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_a_canary_is_the_default_for_a_cause_that_failed_in_the_last_ten_minutes(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    await dead(database, 9)
    async with watch("failures", size) as operator:
        await operator.sees("ValueError")
        await operator.press("R")
        await operator.sees("This cause failed", "✓ in stages", "◆ 1 ┄┄", "ctrl+t  all at once")
        assert re.search(
            r"This cause failed at \d\d:\d\d:\d\d\. ctrl\+t switches", operator.text
        )  # an age would grow with the dialog
        await operator.press("ctrl+t")
        await operator.sees("1 tries one, canary in", "ctrl+t  canary")
        operator.screen.query_one("#limit").value = "soon"
        await operator.sees("✗ a number, or all")
        assert "✗ a duration" not in operator.text
        operator.screen.query_one("#limit").value = "3"
        await operator.sees("↵ retry 3 of 9 tasks")
        operator.screen.query_one("#limit").value = "all"
        await operator.sees("↵ retry 9 tasks")
        await operator.press("ctrl+t")
        await operator.sees("✓ in stages", "ctrl+t  all at once")
        await operator.press("escape")
        await change(database, sa.update(database.tables.attempt).values(ended_at=ahead(-601)))
        await operator.press("R")
        await operator.sees("1 tries one, canary in", "ctrl+t  canary")
        assert "This cause failed" not in operator.text
        await operator.press("escape", "T")
        await operator.sees("Terminate")
        assert "ctrl+t" not in operator.text


@ON_ONE_DATABASE
async def test_the_second_enter_changes_the_tasks_of_the_preview_while_their_group_grows(
    database: Database, watch: Watch, stale: None
) -> None:
    await dead(database, 3)
    async with watch("failures") as operator:
        await operator.sees("ValueError")
        await operator.press("R")
        await operator.sees("Retry 3 tasks that failed", "✓ in stages")
        await operator.press("ctrl+t")
        await fail_older(database, 50)
        await confirm(operator)
        await operator.sees("Since this dialog opened: 1 more task matches now and stays as it is.", "Enter again")
        await fail_older(database, 60)
        await operator.press("enter")
        await operator.sees_notice("Retry: 3 changed")
    assert await states(database) == {State.WAITING: 3, State.DEAD: 2}
    assert {entry.task_id for entry in await audited(database)} == {101, 102, 103}


@ON_ONE_DATABASE
async def test_a_confirmation_asks_a_third_time_only_if_the_risk_has_grown_again(
    database: Database, watch: Watch, stale: None
) -> None:
    runner, ids, task = await add_runner(database, 1e6), await many(database, 7), database.tables.task
    running = {"state": State.RUNNING, "runner_id": runner, "claimed_at": ahead(0)}
    async with watch("tasks") as operator:
        await mark_all(operator)
        await operator.press("T")
        await operator.sees("Terminate 7 tasks?")
        for number, id in enumerate(ids[:2], 1):
            await change(database, sa.update(task).where(task.c.id == id).values(running))
            await confirm(operator)
            await operator.sees(f"of the 7 that will change: running 0 -> {number}.", "Enter again continues")
        await operator.press("enter")
        await operator.sees_notice("Terminate: 5 changed, 2 requested")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_task_that_was_skipped_in_the_preview_stays_as_it_is(database: Database, watch: Watch) -> None:
    ids = await many(database, 7, queue="mail")
    await add_past(database, 99, queue="mail")
    async with watch("tasks", filter_text="queue:mail") as operator:
        await mark_all(operator)
        await operator.press("R")
        await operator.sees("Retry 7 tasks?", "1  it has succeeded")
        await change(database, sa.update(database.tables.history).values(state=State.DEAD.value))
        await confirm(operator)
        await operator.sees_notice("Retry: 7 changed, 1 skipped")
    assert {entry.task_id for entry in await audited(database)} == {*ids}


@ON_ONE_DATABASE
async def test_a_canary_that_succeeds_offers_the_undo_of_what_has_not_started(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "PAUSE", 0.01)
    monkeypatch.setattr(canary, "STAGES", (1, 3))
    await dead(database, 5)
    async with watch("failures") as operator, ending(database, lambda _: None):
        await operator.sees("ValueError")
        await operator.press("R")
        await operator.sees("✓ in stages")
        await confirm(operator)
        await operator.sees_notice("Retry: 5 changed; 8 Z undoes what has not started")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_canary_stops_at_the_same_failure_and_the_audit_shows_its_fate(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "PAUSE", 0.01)
    monkeypatch.setattr(canary, "STAGES", (1, 3))
    last = (await dead(database, 9))[-2]  # of its stage: all others have ended before
    async with watch("failures") as operator, ending(database, lambda id: "f1" if id == last else None):
        await operator.sees("ValueError")
        await operator.press("R")
        await operator.sees("✓ in stages, until a task fails", "When            ◆ 1 ┄┄ ◆ 3 ┄┄ ━")
        operator.screen.query_one("#answer").value = "5m"
        await confirm(operator)
        await operator.sees("leave out the spread, or the canary")
        operator.screen.query_one("#answer").value = ""
        await confirm(operator)
        await operator.sees_notice(f"Canary stopped after 4: task {last} failed again with the same error")
        await operator.sees_notice("All its tasks have started: there is nothing to undo.")
        await operator.sees_notice("Retry: 4 changed")
        assert "8 Z undoes" not in "".join(operator.console.notices)
        await operator.press("8")
        await operator.sees("4 tasks", "✗ 1 dead", "1 task failed since, as before the change: ValueError: again")
        await operator.sees(f"canary    task {last}", "result stopped after 4: task")
        await operator.press("t")
        await operator.sees("change:", "4 tasks")
    assert len(await audited(database)) == 5


@ON_ONE_DATABASE
async def test_the_audit_shows_the_fate_of_a_group_of_one_task(database: Database, watch: Watch) -> None:
    """A canary that stops at its first task is such a group."""
    (id,) = await dead(database, 1)
    await database.write(retry_now, [Target(id)], with_change_group(Actor("ana", "desk-1")))
    async with watch("audit") as operator:
        await operator.sees("retry", f"task {id}", "○ 1 ready")
        await operator.press("t")
        await operator.sees("change:", "1 task")


def test_the_fate_of_a_group_marks_a_lower_bound() -> None:
    causes = (FailureCause("f1", "OSError: gone", 12, 7, repeated=True),)
    bar, cause = fate_lines(GroupFate(Count(10_000, True), {Shown.CANCELLED: 9_990}, causes, ()))
    assert bar.plain.endswith("⊘ 9,990+ cancelled  10+ deleted")
    assert cause.plain == "  12+ tasks failed since, as before the change: OSError: gone"
