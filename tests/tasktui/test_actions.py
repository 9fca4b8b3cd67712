"""Action keys: confirmed first, compared with the displayed version, audited, and limited to the displayed tasks."""

import asyncio
import json
import re
from contextlib import nullcontext
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from textual.events import Key

from runner.db.database import Database
from runner.filter.parse import parse_filter
from runner.model.task import DependsOn, NewTask, State
from runner.operations.audit_log import reveal
from runner.operations.delay import delay
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor, Target, with_change_group
from runner.operations.retry import retry_now
from runner.operations.terminate import terminate
from runner.policy.breaker import Breaker
from runner.queries.audit import AuditRecord, audit
from runner.queries.counting import Count
from runner.queries.counts import QueueCounts
from runner.queries.registries import pauses
from runner.queries.reports import Flow
from runner.store.breaker import declare_breakers
from runner.store.submit import submit
from tasktui.actions import perform
from tasktui.actions.actions import ACTIONS
from tasktui.actions.dialogs import DIALOGS
from tasktui.actions.queues import backlog
from tasktui.app import Console
from tasktui.dialogs import ask
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.dialogs.form import EditScreen
from tasktui.shell.heading import Heading
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead, history_row, stored
from tests.store.table import change
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, Operator, Watch

ANA = Actor("ana", "web-9")


async def confirm(operator: Operator, word: str = "y", reason: str = "") -> None:
    await operator.until(lambda: isinstance(operator.screen, ConfirmScreen) and operator.screen.focused)
    operator.screen.query_one("#reason").value = reason
    operator.screen.query_one("#word").value = word
    operator.screen.query_one("#word").focus()
    await operator.pilot.pause()
    await operator.press("enter")


async def audited(database: Database) -> list[AuditRecord]:
    return await database.read(audit)


async def test_a_retry_makes_the_task_under_the_cursor_due(database: Database, watch: Watch) -> None:
    other = await add_live(database, run_at=ahead(3600))
    id = await add_live(database, run_at=ahead(3600))
    async with watch("tasks") as operator:
        await operator.sees("◔ scheduled")
        await operator.press("R")
        await confirm(operator, reason="relay is back")
        await operator.sees_notice("1 changed")
        await operator.sees("○ ready")
    (entry,) = await audited(database)
    assert (entry.task_id, entry.verb, entry.reason) == (id, "retry_now", "relay is back")
    assert (await stored(database, other)).version == 0


@ON_ONE_DATABASE
async def test_without_the_word_nothing_is_changed(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        await operator.press("T")
        await confirm(operator, "n")
        await operator.sees("Nothing was changed: type y to confirm")
        await operator.press("escape")
    assert (await stored(database, id)).state == State.WAITING
    assert await audited(database) == []


def test_every_action_has_a_dialog() -> None:
    assert DIALOGS.keys() == ACTIONS.keys()


@ON_ONE_DATABASE
async def test_the_read_for_a_dialog_begins_although_its_worker_is_cancelled(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        screen, has_begun = operator.screen, asyncio.Event()
        question = DIALOGS["terminate"](ACTIONS["terminate"], screen.session, screen.actions.targets)

        async def read() -> Any:
            has_begun.set()
            return question

        screen.actions._prepare(ACTIONS["terminate"], read())
        screen.workers.cancel_group(screen, "act")
        await operator.until(has_begun.is_set)
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))


@ON_ONE_DATABASE
async def test_a_dialog_does_not_open_in_front_of_another_screen(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        tasks, click = operator.screen, asyncio.Event()
        action = ACTIONS["terminate"]
        question = DIALOGS["terminate"](action, tasks.session, tasks.actions.targets)

        async def slow() -> Any:
            await click.wait()
            return question

        tasks.actions._prepare(action, slow())
        tasks.frame.heading.post_message(Heading.Chosen("Audit"))
        await operator.until(lambda: operator.screen.title == "Audit")
        click.set()
        await operator.sees_notice("Nothing was changed: the screen is not in front any more")
        assert operator.screen.title == "Audit"


@ON_ONE_DATABASE
async def test_marked_tasks_are_terminated_as_one_change_group_and_lose_their_marks(
    database: Database, watch: Watch
) -> None:
    past = await add_past(database, 99)
    ids = [await add_live(database) for _ in range(3)]
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == 4)
        await operator.press("space", "space", "space", "T")
        await confirm(operator)
        await operator.sees_notice("2 changed")
        await operator.sees("⊘ cancelled")
        assert list(operator.screen.pages.listing.marks) == [past]
    assert await history_row(database, ids[0]) is None
    assert [(await history_row(database, id)).state for id in ids[1:]] == [State.CANCELLED, State.CANCELLED]


@ON_ONE_DATABASE
async def test_a_task_that_has_changed_is_skipped_and_listed(database: Database, watch: Watch) -> None:
    id = await add_live(database, run_at=ahead(60))
    async with watch("tasks") as operator:
        await operator.sees("◔ scheduled")
        await operator.press("D")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await database.write(edit, id, None, Changes(priority=9), ANA)
        before = await stored(database, id)
        await confirm(operator)
        await operator.sees_notice(f"task {id} has changed: it is now waiting, version 1")
        await operator.sees(" ✗ Delay: 0 changed, 1 conflict")
    assert await stored(database, id) == before


@ON_ONE_DATABASE
async def test_more_than_a_few_tasks_require_their_count_typed(database: Database, watch: Watch) -> None:
    for _ in range(21):
        await add_live(database, run_at=ahead(60))
    async with watch("tasks") as operator:
        await operator.press("asterisk")
        await operator.sees_notice("Marked 21 tasks")
        await operator.press("R")
        await confirm(operator, "y")
        await operator.sees("type 21 to confirm")
        await confirm(operator, "21")
        await operator.sees_notice("21 changed")


@pytest.mark.slow
async def test_a_retry_of_a_blocked_task_names_the_key_that_unblocks_it(database: Database, watch: Watch) -> None:
    parent = await add_past(database, 5, State.DEAD)
    blocked = await database.write(submit, NewTask("mail.send", after=(DependsOn(parent),)))
    async with watch("task", NARROW, task_id=blocked) as operator:
        await operator.sees("Waits for other tasks")
        await operator.press("R")
        await operator.sees_notice("it is blocked by other tasks: retry those, or unblock it with U")
        await operator.press("U")
        await operator.sees("Unblock")
        await confirm(operator)
        await operator.sees_notice("Unblock: 1 changed")
    assert (await stored(database, blocked)).state == State.WAITING


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_an_action_explains_why_it_does_not_apply(database: Database, watch: Watch) -> None:
    await add_past(database, 5)
    await add_past(database, 6)
    async with watch("tasks") as operator:
        await operator.sees("✓ succeeded")
        await operator.press("R")
        await operator.sees_notice("it has succeeded and is not waiting, dead or cancelled")
        await operator.press("asterisk")
        await operator.sees_notice("Marked 2 tasks")
        await operator.press("E")
        await operator.sees("New values for 2 tasks")
        await operator.press("escape", "Z")
        await operator.sees_notice("Undo applies to one change of a task: 2 are marked, \\ clears the marks")


async def test_an_edit_is_previewed_saved_and_undone(database: Database, watch: Watch) -> None:
    id = await add_live(database, max_attempts=4, retry="1m,5m")
    async with watch("task", task_id=id) as operator:
        await operator.sees("○ ready")
        for key in ("E", "+", "1", "5", "m", "tab", "6"):  # faster than the form is there, and than its lines change
            operator.console.post_message(Key(key, key if len(key) == 1 else None))
        await operator.sees("✓ was 4; 0 used, 6 left", "before   ◇", "runs if every attempt fails immediately: ")
        await operator.press("ctrl+s")
        await operator.sees_notice("Edit: 1 changed")
        await operator.sees("0/6")
        assert (await stored(database, id)).max_attempts == 6
        await operator.press("Z")
        await operator.sees("Undo edit of task", "max attempts   4, now 6")
        await confirm(operator)
        await operator.sees_notice("Undo: 1 changed")
    assert (await stored(database, id)).max_attempts == 4


@ON_ONE_DATABASE
async def test_a_key_before_the_task_is_read_does_not_change_the_previous_one(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await add_live(database), await add_live(database)
    async with watch("task", task_id=first) as operator:
        await operator.sees("○ ready")
        read, answer = operator.screen.read, asyncio.Event()

        async def slowly() -> object:
            await answer.wait()
            return await read()

        monkeypatch.setattr(operator.screen, "read", slowly)
        await operator.command(f"task {second}")
        await operator.press("T")
        await operator.sees_notice(f"Task {second} is not read yet: press the key again")
        answer.set()
        await operator.sees(f"ready   {second}  ")
        await operator.press("T")
        await confirm(operator)
        await operator.sees_notice("Terminate: 1 changed")
    assert await stored(database, first) is not None
    assert await stored(database, second) is None


def unwrapped(text: str) -> str:
    """The words of a screen, in which a long path may have wrapped a message."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_payload_is_edited_in_the_editor_of_the_operator(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    id = await add_live(database, payload='{"n": 1, "token": "geheim"}')
    editor, copy = tmp_path / "editor", tmp_path / "seen"
    monkeypatch.setenv("VISUAL", str(editor))
    monkeypatch.setattr(Console, "suspend", lambda _: nullcontext())

    def edits(script: str) -> None:
        editor.write_text(f'#!/bin/sh\ncp "$1" {copy}\n{script}\n')
        editor.chmod(0o700)

    async with watch("task", task_id=id) as operator:
        await operator.sees("○ ready")
        await operator.press("E")
        await operator.until(lambda: isinstance(operator.screen, EditScreen) and operator.screen.focused)
        payload = operator.screen.query_one("#payload")
        edits("""sed -i 's/"n": 1,/"n": 1/' "$1" """)
        await operator.press("ctrl+e")
        await operator.sees("invalid JSON")
        assert '"n": 1 "token"' in payload.value
        edits("""sed -i 's/"n": 1/"n": 2,/' "$1"; exit 1""")
        await operator.press("ctrl+e")
        await operator.until(lambda: "ended with code 1; the text is as before" in unwrapped(operator.text))
        edits("""sed -i 's/"n": 1/"n": 2,/' "$1" """)
        await operator.press("ctrl+e")
        await operator.sees("payload: n: 1 -> 2")
        editor.unlink()
        await operator.press("ctrl+e")
        await operator.sees("cannot start")
        await operator.press("ctrl+s")
        await operator.sees_notice("Edit: 1 changed")
    assert "geheim" not in copy.read_text()
    assert json.loads((await stored(database, id)).payload) == {"n": 2, "token": "geheim"}


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_dead_task_is_requeued_with_another_payload(database: Database, watch: Watch) -> None:
    await add_past(database, 5, State.DEAD, payload='{"wieght": 2}', attempt=3, max_attempts=3)
    async with watch("task", task_id=5) as operator:
        await operator.sees("✗ dead")
        await operator.press("E")
        await operator.until(lambda: isinstance(operator.screen, EditScreen) and operator.screen.focused)
        operator.screen.query_one("#payload").value = '{"weight": 2}'
        await operator.sees("Edit and requeue task 5", "saving requeues it with all its attempts")
        await operator.press("ctrl+s")
        await operator.sees_notice("Edit: 1 changed")
    task = await stored(database, 5)
    assert (task.state, task.attempt, task.payload) == (State.WAITING, 0, '{"weight": 2}')


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_change_group_is_undone_as_a_whole(database: Database, watch: Watch) -> None:
    ids = [await add_live(database, run_at=ahead(600)) for _ in range(3)]
    by = with_change_group(ANA)
    await database.write(terminate, [Target(id) for id in ids], by)
    await database.write(retry_now, [Target(ids[0])], ANA)
    await database.write(reveal, ids[0], ANA)
    async with watch("audit") as operator:
        await operator.sees("reveal")
        await operator.press("Z")
        await operator.sees_notice("it revealed secrets, and changed nothing")
        await operator.press("B")
        await operator.sees_notice("does not belong to a group")
        await operator.sees("3 tasks", "enter lists changes")
        assert "one of 3:" not in operator.text
        await operator.press("down", "down", "enter")
        await operator.sees("change group ", *(f"task {id}" for id in ids))
        await operator.press("escape")
        await operator.sees("3 tasks", "reveal")
        await operator.press("down", "down")
        await operator.sees(f"task {ids[-1]}, one of 3:")
        await operator.press("Z")
        await operator.sees("2 to undo", "1 skipped: it has changed since and is now waiting")
        await confirm(operator)
        await operator.sees_notice("Undo: 2 changed")
        await operator.until(lambda: re.search(r"undo +2 tasks", operator.text))
    assert [(await stored(database, id)).state for id in ids] == ["waiting"] * 3


@ON_ONE_DATABASE
async def test_a_change_group_stays_selected_while_it_grows(database: Database, watch: Watch) -> None:
    ids = [await add_live(database, run_at=ahead(600)) for _ in range(5)]
    await database.write(delay, [Target(ids[0])], 60.0, ANA)
    by = with_change_group(ANA)
    await database.write(terminate, [Target(id) for id in ids[1:3]], by)
    async with watch("audit") as operator:
        await operator.until(lambda: re.search(r"▌.* 2 tasks ", operator.text))
        await database.write(terminate, [Target(id) for id in ids[3:]], by)
        await operator.press("r")
        await operator.until(lambda: re.search(r"▌.* 4 tasks ", operator.text))
        await operator.press("Z")
        await operator.sees("4 to undo")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_audit_selects_the_change_that_its_notice_offers_to_undo(database: Database, watch: Watch) -> None:
    first, second = [await add_live(database, run_at=ahead(3600)) for _ in range(2)]
    for id in (first, second):
        await database.write(delay, [Target(id)], 60.0, ANA)
    async with watch("audit") as operator:
        await operator.sees(f"task {first}", f"task {second}")
        await operator.press("down")
        await operator.press("2")
        await operator.sees("◔ scheduled")
        await operator.press("R")
        await confirm(operator)
        await operator.sees_notice("Retry: 1 changed; 8 Z undoes")
        await operator.press("8")
        await operator.until(lambda: re.search(r"▌.* retry ", operator.text))
        await operator.press("Z")
        await operator.sees("Undo retry of task")
        await confirm(operator)
        await operator.sees_notice("Undo: 1 changed")
        await operator.until(lambda: re.search(r"▌.* retry .*\n|▌.*undo of", operator.text))
    changes = await audited(database)
    assert [(entry.verb, entry.task_id, entry.undo_of) for entry in changes[:2]] == [
        ("edit", second, changes[1].id),
        ("retry_now", second, None),
    ]


@ON_ONE_DATABASE
async def test_an_edit_over_another_change_is_a_conflict(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("task", task_id=id) as operator:
        await operator.sees("○ ready")
        await operator.press("E")
        await operator.until(lambda: isinstance(operator.screen, EditScreen) and operator.screen.focused)
        await database.write(edit, id, None, Changes(priority=9, key="theirs"), ANA)
        operator.screen.query_one("#priority").value = "3"
        await operator.press("ctrl+s")
        await operator.sees(
            "Nothing was saved: the task has changed", "version 1", "Priority: 1 -> 9", "Key: none -> theirs"
        )
        await operator.until(lambda: "was 9; 9 runs first" in operator.text)
        assert (await stored(database, id)).priority == 9
        await operator.press("ctrl+s")
        await operator.sees_notice("1 changed")
    left = await stored(database, id)
    assert (left.priority, left.key, left.version) == (3, "theirs", 2)


async def test_a_queue_is_paused_and_resumed_from_the_overview(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail")
    async with watch() as operator:
        await operator.sees("mail")
        await operator.press("P")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await operator.sees("✓ until ", ", in 30m")
        operator.screen.query_one("#answer").value = "soon"
        await operator.sees("✗ 30m, or an end: 14:30")
        operator.screen.query_one("#answer").value = ""
        await operator.sees("✓ until it is resumed")
        operator.screen.query_one("#answer").value = "9h"
        await confirm(operator, reason="restore of db-2")
        await operator.sees("mail ‖", "restore of db-2")
        end = (await database.read(pauses)).queues["mail"].until
        assert end is not None
        await operator.sees(f"‖ {end:%H:%M}")
        await operator.press("w")
        await operator.sees("queue mail is paused until ", f"{end:%H:%M}")
        await operator.press("escape", "P")
        await operator.sees("Resume queue mail?", "↵ resume")
        await confirm(operator)
        await operator.sees_notice("Queue mail resumed")
    assert [entry.verb for entry in await audited(database)] == ["resume", "pause"]


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_each_limit_has_an_input_and_only_edited_ones_change(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail")
    target = PauseTarget(PauseKind.QUEUE, "mail")
    await database.write(set_limits, target, LimitEdit({"concurrency": "16"}), Actor("li", "ops-2"))
    async with watch("overview", size=NARROW) as operator:
        await operator.sees("mail")
        await operator.press("M")
        await operator.sees("Limit queue mail?", "at most 16 running", "Concurrency", "Per tenant", "Rate")
        assert operator.screen.focused.id == "answer-concurrency"
        await confirm(operator)
        await operator.sees("every value is the one in force")
        operator.screen.query_one("#answer-rate").value = "5/parsec"
        await operator.sees("✗ 5/s, 100/min, none")
        operator.screen.query_one("#answer-rate").value = "100 / min"
        await operator.sees("✓ was none")
        # Another operator changes the other limit: the edit of the rate keeps it.
        await database.write(set_limits, target, LimitEdit({"concurrency": "20"}), Actor("ana", "ops-1"))
        await confirm(operator)
        await operator.sees_notice("Queue mail: at most 20 running, 100/min started")


@pytest.mark.slow
async def test_a_handler_is_paused_and_resumed_from_a_task(database: Database, watch: Watch) -> None:
    await add_live(database, "mail.send")
    async with watch("tasks") as operator:
        await operator.sees("mail.send")
        await operator.press("H")
        await operator.sees("Pause handler mail.send")
        await confirm(operator, reason="relay is down")
        await operator.sees_notice("Handler mail.send paused")
        await operator.press("H")
        await operator.sees("Resume handler mail.send", "relay is down")
        await confirm(operator)
        await operator.sees_notice("Handler mail.send resumed")
    assert [entry.target for entry in await audited(database)] == ["handler mail.send"] * 2


def test_the_preview_of_a_pause_leaves_unknown_figures_out() -> None:
    none, unknown = Count(), Count(0, more=True)
    ready, running = Count(1_000, more=True), Count(1)
    queue = QueueCounts("mail", ready, none, none, none, running, none, none, 9.0, none, Flow(), Flow(), None)
    assert backlog(queue) == "1,000+ ready and 0 retrying tasks wait, 1 running task finishes"
    assert backlog(queue._replace(retrying=unknown)) == "1,000+ ready tasks wait, 1 running task finishes"
    assert backlog(queue._replace(ready=unknown, retrying=unknown)) == "1 running task finishes"


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_handler_is_paused_by_command(database: Database, watch: Watch) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.handler).values(name="mail.send"))
    async with watch() as operator:
        await operator.command("pause handler:mail.send 30m deploy")
        await confirm(operator, reason="deploy")
        await operator.sees_notice("Handler mail.send paused")
        await operator.command("resume handler:mail.send")
        await confirm(operator)
        await operator.sees_notice("Handler mail.send resumed")
        await operator.command("pause nothing:at.all")
        await operator.sees_notice("name a queue, or a handler")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_task_is_rewound_and_a_running_one_is_asked_for_its_stack(database: Database, watch: Watch) -> None:
    runner = await add_runner(database)
    id = await add_live(database)
    running = await add_live(database, state=State.RUNNING.value, runner_id=runner, attempt=1)
    other = await add_live(database)
    async with database.writing() as tx:
        for number in (1, 2, 3):
            row = {"task_id": id, "number": number, "fence": 1, "attempt": 1, "state": f"{number}"}
            await tx.execute(sa.insert(tx.tables.checkpoint).values(row))
    async with watch("tasks", filter_text=f"id:{id},{other}") as operator:
        await operator.sees("○ ready")
        await operator.press("*", "W")
        await operator.sees_notice("Rewind applies to one task")
        await operator.press("\\", "home", "W")
        await operator.sees_notice(f"Rewind: task {other} (h) has neither a checkpoint nor a step")
    async with watch("tasks", filter_text=f"id:{id}") as operator:
        await operator.sees("○ ready")
        await operator.press("V")
        await operator.sees_notice(f"Stack: task {id} is ready, not running")
        await operator.press("W")
        await operator.sees("Rewind 1 task?", "✓ continues from checkpoint 2")
        operator.screen.query_one("#answer").value = "3"
        await operator.sees("✗ checkpoint 3 is its last one already")
        operator.screen.query_one("#answer").value = "7"
        await operator.sees("✗ no checkpoint 7: it has 1, 2, 3")
        await confirm(operator)
        await operator.sees("Nothing was changed: Continue from '7' is refused: no checkpoint 7: it has 1, 2, 3")
        operator.screen.query_one("#answer").value = "1"
        await confirm(operator)
        await operator.sees_notice("1 changed; 8 Z undoes")
    assert [(entry.verb, entry.task_id) for entry in await audited(database)] == [("rewind", id)]
    async with watch("tasks", filter_text=f"id:{running}") as operator:
        await operator.sees("running")
        await operator.press("V")
        await confirm(operator)
        await operator.sees_notice(f"Runner {runner} receives 'stack={running}' at its next heartbeat")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_runners_are_drained_and_resized(database: Database, watch: Watch) -> None:
    id = await add_runner(database, capacity=24, threads=4)
    await add_live(database, "smtp.send", key="order-7", state=State.RUNNING, runner_id=id, claimed_at=ahead(-100))
    async with watch("runners") as operator:
        await operator.sees(f"runner {id} (web-1:7) RUNS 1", "queues all", "1m4", "smtp.send", "order-7")
        await operator.sees("1 alive")
        await operator.press("S")
        await operator.sees(f"Resize runner {id} (web-1:7)?", "Concurrency", "20", "Threads", "4")
        operator.screen.query_one("#answer-concurrency").value = "0"
        await operator.sees("✗ 1 to ")
        operator.screen.query_one("#answer-concurrency").value = "7"
        await operator.sees("✓ was 20")
        await confirm(operator, reason="too few")
        await operator.until(lambda: "concurrency=7" in operator.text and "Resize" not in operator.text)
        await operator.press("L")
        await operator.sees("claims no more tasks, finishes those that run, and exits")
        await confirm(operator)
        await operator.sees("drain ", "● web-1:7")
    assert [(entry.verb, entry.reason) for entry in await audited(database)] == [
        ("command", None),
        ("command", "too few"),
    ]


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_queue_is_paused_by_command(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail")
    async with watch() as operator:
        await operator.command("pause mail 30m deploy of tonight")
        await operator.sees("Pause queue mail", "1 ready", "deploy of tonight")
        await confirm(operator, reason="deploy of tonight")
        await operator.sees_notice("Queue mail paused until 20")
    (entry,) = await audited(database)
    assert (entry.target, entry.reason) == ("queue mail", "deploy of tonight")


@ON_ONE_DATABASE
async def test_the_tasks_of_a_failure_group_are_retried(database: Database, watch: Watch) -> None:
    for id in (7, 8):
        await add_past(database, id, State.DEAD)
        await add_attempt(database, id, started_at=ahead(-2), ended_at=ahead(-1))
    async with watch("failures") as operator:
        await operator.sees("ValueError: no")
        await operator.press("R")
        await operator.sees("ctrl+t  all at once")
        await operator.press("ctrl+t")
        await operator.sees("1 tries one, canary in")
        await confirm(operator)
        await operator.sees_notice("2 changed")
    assert [(await stored(database, id)).state for id in (7, 8)] == [State.WAITING, State.WAITING]


@ON_ONE_DATABASE
async def test_production_requires_its_name_and_a_reason(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks", production=True, profile="orders") as operator:
        await operator.sees("PRODUCTION", "○ ready")
        await operator.press("T")
        await operator.sees("─ Production ─")
        await confirm(operator, "y")
        await operator.sees("type orders to confirm")
        await confirm(operator, "orders")
        await operator.sees("enter a reason")
        await confirm(operator, "orders", "asked by ana")
        await operator.sees_notice("1 changed")
    assert (await history_row(database, id)).state == State.CANCELLED


@pytest.mark.representatives(2)
@ON_ONE_DATABASE
@pytest.mark.parametrize(
    ("keys", "production", "first"),
    [
        ("R", False, "word"),
        ("T", False, "word"),
        ("D", False, "answer"),
        ("R", True, "reason"),
        ("T", True, "reason"),
        ("D", True, "answer"),
        ("*R", False, "word"),
        ("*T", False, "word"),
        ("*T", True, "reason"),
    ],
)
async def test_a_dialog_starts_at_its_first_input_without_a_usable_default(
    database: Database, watch: Watch, keys: str, production: bool, first: str
) -> None:
    for _ in range(2):
        await add_live(database, run_at=ahead(600))
    async with watch("tasks", production=production) as operator:
        await operator.sees("◔ scheduled")
        if "*" in keys:
            await operator.press("asterisk")
            await operator.sees("2 marked")
        await operator.press(keys[-1])
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen) and operator.screen.focused)
        assert operator.screen.focused.id == first


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_time_for_an_open_breaker_is_refused_and_does_not_close_it(database: Database, watch: Watch) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.handler).values(name="sms"))
    await database.write(declare_breakers, ["sms"], {"sms": Breaker("1/s").columns})
    for _ in range(3):
        await add_live(database, "sms", run_at=ahead(-5))
    async with watch("overview") as operator:
        await operator.command("breaker sms 10m the gateway is down")
        await confirm(operator)
        await operator.sees_notice("Breaker of sms opened")
        await operator.command("breaker sms 1h")
        await operator.sees_notice("The breaker of sms is open already; close it first with :breaker sms")
        await operator.command("breaker sms")
        await operator.sees("All its tasks may start: 3 tasks ready")
        await confirm(operator)
        await operator.sees_notice("Breaker of sms closed")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_queue_is_limited_by_key_and_a_handler_by_command(database: Database, watch: Watch) -> None:
    await add_live(database, "mail.send", queue="mail")
    async with watch("overview") as operator:
        await operator.sees("mail")
        await operator.press("M")
        await operator.sees("Limit queue mail?", "no limit now", "running tasks go on")
        operator.screen.query_one("#answer-concurrency").value = "3"
        await confirm(operator, reason="relay limits us")
        await operator.sees_notice("Queue mail: at most 3 running (before: no limit)")
        await operator.command("limit mail")
        await operator.sees("at most 3 running; 0 running", "relay limits us", "Per tenant       none")
        await operator.press("escape")
        await operator.command("limit handler:mail.send rate=100/min as agreed")
        await operator.sees("Limit handler mail.send?", "as agreed", "100/min", "✓ was none")
        await confirm(operator, reason="as agreed")
        await operator.sees_notice("Handler mail.send: 100/min started")
        await operator.command("limit handler:mail.send default")
        await operator.sees("Limit handler mail.send?", "Return to the limits of the handler's code")
        await confirm(operator)
        await operator.sees_notice("Handler mail.send: no limit (before: 100/min started)")
        await operator.command("limit mial concurrency=3")
        await operator.sees_notice("queue mial has never been used")
        await operator.command("limit mail 3")
        await operator.sees("write :limit mail concurrency=3")
    assert [(entry.target, entry.reason) for entry in await audited(database)] == [
        ("handler mail.send", None),
        ("handler mail.send", "as agreed"),
        ("queue mail", "relay limits us"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("production", [True, False])
async def test_the_edit_form_keeps_its_version_and_its_keys_beside_a_scroll_bar(
    production: bool, database: Database, watch: Watch
) -> None:
    name = "payments.capture_authorized_amount"
    id = await add_live(database, name, key="order-88127-capture", state="waiting", attempt=1, max_attempts=4)
    async with watch("task", NARROW, task_id=id, production=production) as operator:
        await operator.sees("order-88127")
        await operator.press("E")
        version = (await stored(database, id)).version
        await operator.sees(f"version {version} ", "esc  cancel")
        for field, text in {"run_at": "+15m", "max_attempts": "6", "retry": "1m,5m", "timeout": "20s"}.items():
            operator.screen.query_one(f"#{field}").value = text
        await operator.sees("was 4; 1 used, 5 left", f"version {version} ", "ctrl+s  save", "What will happen")
        assert operator.screen.query_one(".dialog").show_vertical_scrollbar is production


async def test_more_than_a_thousand_tasks_are_not_production(database: Database, watch: Watch) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.task), [{"handler": "h"}] * 1_001)
    async with watch("tasks", profile="orders") as operator:
        await operator.press("asterisk")
        await operator.sees_notice("Marked 1,001 tasks")
        await operator.press("T")
        await operator.sees("Terminate 1,001 tasks?", "─ Confirm ─", "required", "Type orders")
        assert "Production" not in operator.text


@pytest.mark.slow
async def test_a_retry_of_one_task_has_no_spread(database: Database, watch: Watch) -> None:
    for _ in range(2):
        await add_live(database, run_at=ahead(60))
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == 2)
        await operator.press("R")
        await operator.sees("Retry 1 task?", "Type y")
        assert "Spread over" not in operator.text
        await confirm(operator)
        await operator.sees_notice("Retry: 1 changed")
        await operator.press("asterisk", "R")
        await operator.sees("Retry 2 tasks?", "Spread over")


async def test_a_delay_shows_the_new_due_time(database: Database, watch: Watch) -> None:
    await add_live(database, run_at=ahead(3 * 3600))
    async with watch("tasks") as operator:
        await operator.sees("◔ scheduled")
        await operator.press("D")
        await operator.sees("Delay 1 task?", "✓ until ", ", in 3h")
        operator.screen.query_one("#answer").value = "soon"
        await operator.sees("✗ a duration such as 10m")


async def test_a_termination_names_the_running_tasks_that_end_by_request(database: Database, watch: Watch) -> None:
    await add_live(database, state="running", runner_id=await add_runner(database))
    async with watch("tasks") as operator:
        await operator.sees("► running")
        await operator.press("T")
        await operator.sees("1  end by request, at the next heartbeat of the runner")


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the rows of every confirmation, however long it was open."""
    monkeypatch.setattr(ask, "FRESH", 0)


async def test_a_confirmation_shows_that_its_task_has_changed_since(
    database: Database, watch: Watch, stale: None
) -> None:
    id = await add_live(database, run_at=ahead(60))
    async with watch("tasks") as operator:
        await operator.sees("◔ scheduled")
        await operator.press("T")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await database.write(edit, id, None, Changes(priority=9), ANA)
        await confirm(operator)
        await operator.sees("Nothing was changed yet", f"task {id} has changed: it is now waiting", "escape cancels")
        await operator.back("Tasks")
    assert (await stored(database, id)).state == State.WAITING


async def test_a_confirmation_of_several_tasks_counts_those_that_have_changed(
    database: Database, watch: Watch, stale: None
) -> None:
    ids = [await add_live(database, run_at=ahead(60)) for _ in range(3)]
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == 3)
        await operator.press("space", "space", "space", "T")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await database.write(terminate, [Target(ids[0], None)], ANA)
        await confirm(operator)
        await operator.sees("1 of 3 tasks have changed and stay as they are:", "1 now cancelled")
        await operator.press("enter")  # however long the operator reads
        await operator.sees_notice("2 changed, 1 conflict")


async def test_a_confirmation_of_a_filter_asks_again_if_more_tasks_match_or_the_risk_of_its_own_has_grown(
    database: Database, watch: Watch
) -> None:
    runner = await add_runner(database, 1e6)
    later = await add_live(database, queue="other", run_at=ahead(60))
    ids = [await add_live(database, run_at=ahead(60)) for _ in range(3)]
    task = database.tables.task
    async with watch("tasks", filter_text="queue:default") as operator:
        session = operator.console.session
        action = ACTIONS["terminate"]
        plan = await perform.preview(session, action, parse_filter("queue:default", session.now(), UTC))
        assert (await perform.changes_since(session, plan)).text == ""
        await database.write(terminate, [Target(ids[0], None)], ANA)
        assert (await perform.changes_since(session, plan)).text == ""  # fewer are no risk
        running = {"state": State.RUNNING, "runner_id": runner, "claimed_at": ahead(0)}
        await change(database, sa.update(task).where(task.c.id == ids[1]).values(running))
        text, risks = await perform.changes_since(session, plan)
        assert text == "of the 3 that will change: running 0 -> 1"
        await change(database, sa.update(task).where(task.c.id == later).values(queue="default", **running))
        assert await perform.changes_since(session, plan) == (
            "1 more task matches now and stays as it is; of the 3 that will change: running 0 -> 1",
            risks,
        )


@pytest.mark.slow
async def test_rows_that_have_not_changed_are_confirmed_at_once(database: Database, watch: Watch, stale: None) -> None:
    id = await add_live(database, run_at=ahead(60))
    async with watch("tasks") as operator:
        await operator.sees("◔ scheduled")
        await operator.press("T")
        await confirm(operator)
        await operator.sees_notice("Terminate: 1 changed")
    assert (await history_row(database, id)).state == State.CANCELLED


@pytest.mark.slow
async def test_a_confirmation_asks_again_if_an_answer_changes_while_it_compares(
    database: Database, watch: Watch, stale: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_live(database, run_at=ahead(60))
    compare, asked, compared = perform.changes_since, asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        asked.set()
        await compared.wait()
        return await compare(*args)

    monkeypatch.setattr(perform, "changes_since", slowly)
    async with watch("tasks") as operator:
        await operator.sees("◔ scheduled")
        await operator.press("T")
        await confirm(operator, reason="first")
        await asked.wait()
        await operator.sees("Comparing with the database")
        operator.screen.query_one("#reason").value = "second"
        compared.set()
        await operator.sees("Nothing was changed yet: an answer has changed since. Enter again confirms the answers")
        assert await audited(database) == []
        await operator.press("enter")
        await operator.sees_notice("Terminate: 1 changed")
    assert [entry.reason for entry in await audited(database)] == ["second"]
