"""The dialog that explains why a task is not running."""

import asyncio
from datetime import UTC

import pytest
import sqlalchemy as sa
from textual.widgets import Input

from runner.db.database import Database
from runner.errors import DatabaseLocked
from runner.filter.parse import parse_filter
from runner.model.task import DependsOn, State
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.policy.harm import harm_of
from runner.queries.task_list.row import task_rows
from runner.queries.why.why import why
from tasktui.actions.remedy_key import remedy_keys
from tasktui.data.task_pages import TaskPages
from tasktui.dialogs.why import why_lines
from tasktui.messages import MatchesFound, ReadFailed
from tasktui.session.session import Session
from tasktui.widgets.table import Table
from tests.store.rows import add_live, add_past, add_runner, ahead
from tests.store.table import change, put
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, Watch

BY = Actor("ana", "web-1", "restore of db-2")


async def test_w_explains_the_task_under_the_cursor(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["other"]')
    await add_live(database, "other")
    id = await add_live(database, "smtp.send", queue="mail")
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    async with watch("tasks", NARROW) as operator:
        await operator.sees("smtp.send")
        await operator.press("w")
        await operator.sees(
            f"Task {id} smtp.send is not running because:",
            "1. Queue mail was paused by ana",
            "2. No live",
            "→ P resume queue mail",
        )
        await operator.back("Tasks")


@pytest.mark.parametrize(
    ("advice", "keys"),
    [
        ("runner retry 7", ["R retry task 7"]),
        (
            "runner edit 7 --max-attempts 4 && runner retry 7",
            ["E edit task 7 max-attempts 4", "R retry task 7"],
        ),
        ("runner edit 7 --max-attempts 4 && runner edit 7 --priority 9", ["E edit task 7 priority 9"]),
        ("runner resume mail", ["P resume queue mail"]),
        ("runner resume --handler 'smtp send' && runner retry 7", ["H resume handler smtp send", "R retry task 7"]),
        ("runner limit queue mail --concurrency none", ["M limit queue mail concurrency=none"]),
        ("runner limit handler payments.charge --breaker close", ["C close the breaker of payments.charge"]),
        ("runner retry state:dead", ["R retry state:dead"]),
        ("runner retry 7 && runner work -H package.module", []),  # The second command has no key.
        ("runner runners resize 3 --concurrency 20", ["S resize runner 3 to concurrency=20"]),
        ("look at the runner's log", []),
        ("", []),
    ],
)
async def test_advice_has_the_keys_that_follow_it(database: Database, advice: str, keys: list[str]) -> None:
    await add_live(database, "smtp.send", id=7)
    (task,) = await database.read(task_rows, [7])
    found = remedy_keys(advice, task, lambda text: parse_filter(text, ahead(0), UTC))
    assert [f"{each.key} {each.words}" for each in found] == keys


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_key_of_the_explanation_opens_the_preview_of_its_remedy(database: Database, watch: Watch) -> None:
    """Also on a screen that does not have the key."""
    await add_runner(database, handlers='["smtp.send"]', capacity=2)
    await add_live(database, "smtp.send", queue="mail")
    await database.write(pause, PauseTarget(PauseKind.HANDLER, "smtp.send"), BY)
    await add_past(database, 900, State.DEAD, handler="fetch", queue="mail")
    async with watch("overview", NARROW) as operator:
        await operator.sees("mail")
        await operator.press("w")
        await operator.sees("→ H resume handler smtp.send", "1 task is dead and will not run again; R retries it")
        await operator.press("H")
        await operator.sees("Resume", "handler smtp.send")
        await operator.press("escape", "w")
        await operator.sees("R retries it")
        await operator.press("R")
        await operator.sees("Retry", "1 dead")
    async with watch("overview", NARROW, writable=False) as operator:
        await operator.sees("mail")
        await operator.press("w")
        await operator.sees("→ H resume handler smtp.send")
        await operator.press("H")
        await operator.sees_notice("read-only")


@ON_ONE_DATABASE
async def test_a_long_remedy_goes_on_below_its_beginning(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["smtp.send"]')
    await add_live(database, "smtp.send", queue="mail")
    await database.write(pause, PauseTarget(PauseKind.HANDLER, "smtp.send"), BY)
    await add_past(database, 900, State.DEAD, handler="fetch", queue="mail")
    async with watch("overview", (58, 24)) as operator:
        await operator.sees("mail")
        await operator.press("w")
        await operator.sees("retries it")
        inside = [line.partition("│")[2] for line in operator.text.splitlines()]
        remedy, dead = (next(at for at, line in enumerate(inside) if text in line) for text in ("→ H", "is dead"))
        begins = [len(line) - len(line.lstrip()) for line in inside]
        assert begins[remedy] == begins[remedy + 1]
        assert begins[dead] == begins[dead + 1]


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_resize_is_a_key_with_its_size_in_the_dialog(database: Database, watch: Watch) -> None:
    busy = await add_runner(database, handlers='["smtp.send"]', capacity=1)
    await add_live(database, "smtp.send", state="running", runner_id=busy)
    full = await add_live(database, "smtp.send", run_at=ahead(-9))
    async with watch("task", task_id=full) as operator:
        await operator.sees("smtp.send")
        await operator.press("w")
        await operator.sees("What helps", f"→ S resize runner {busy} to concurrency=2")
        await operator.press("S")
        await operator.sees(f"Resize runner {busy} (web-1:7)?", "1 of 1 slots in use", "✓ was 1")
        assert operator.screen.query_one("#answer-concurrency", Input).value == "2"
        await change(database, sa.delete(database.tables.runner))
        await operator.press("escape", "w")
        await operator.sees("No live runner")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_key_belongs_to_the_selected_cause(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["a", "b"]')
    for handler in ("a", "a", "b"):
        await add_live(database, handler, queue=f"of {handler}")
    for name in ("a", "b"):
        await database.write(pause, PauseTarget(PauseKind.QUEUE, f"of {name}"), BY)
    async with watch("tasks") as operator:
        await operator.press("asterisk", "w")
        await operator.sees("P resume queue of a", "P resume queue of b")
        await operator.press("down", "P")
        await operator.sees("Resume", "queue of b")
        await operator.press("escape", "w")
        await operator.sees("P resume queue of b")
        await operator.press("P")
        await operator.sees("Resume", "queue of a")


def test_the_least_harmful_change_comes_first() -> None:
    kinds = [("priority",), ("due", "priority"), ("slots",), ("paused",), ("paused", "due"), ("limit",), ("other",)]
    shuffled = [kinds[number] for number in (5, 2, 6, 1, 4, 0, 3)]
    assert sorted(shuffled, key=harm_of) == kinds


@ON_ONE_DATABASE
async def test_a_higher_priority_comes_before_more_slots(database: Database) -> None:
    runner = await add_runner(database, handlers='["smtp.send"]', capacity=2)
    await add_live(database, "smtp.send", state="running", runner_id=runner)
    for _ in range(2):
        await add_live(database, "smtp.send", run_at=ahead(-60))
    late = await add_live(database, "smtp.send", run_at=ahead(-9))
    answer = await database.read(why, late, UTC)
    assert [[step.kind for step in each.changes] for each in answer.remedies] == [["priority"], ["slots"]]


@ON_ONE_DATABASE
async def test_escape_goes_back_to_the_screen_and_the_filter_before(database: Database, watch: Watch) -> None:
    await add_past(database, 900, State.DEAD, handler="fetch")
    id = await put(database, after=(DependsOn(900),))
    async with watch("overview") as operator:
        await operator.command(f"task {id}")
        await operator.sees("waits for")
        await operator.back("Overview")
        await operator.command("tasks state:blocked")
        await operator.sees("state:", "blocked", "1 task")
        await operator.press("w")
        await operator.sees("900 fetch")
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Task")
        await operator.press("escape")
        await operator.until(lambda: operator.console.databases.opened.tasks.filter_text == "state:blocked")
        await operator.until(lambda: operator.screen.title == "Tasks")
        await operator.command("tasks state:dead")
        await operator.until(lambda: operator.screen.pages.filter_text == "state:dead")
        await operator.press("escape")
        await operator.until(lambda: operator.screen.pages.filter_text == "state:blocked")
        await operator.back("Overview")


@ON_ONE_DATABASE
@pytest.mark.parametrize(
    ("key", "shown", "title", "label"),
    [("w", "enter opens", "Why", "Open the cause"), ("exclamation_mark", "enter goes there", "Alerts", "Go")],
)
async def test_the_help_of_an_explanation_and_of_the_alerts_lists_their_keys(
    database: Database, watch: Watch, key: str, shown: str, title: str, label: str
) -> None:
    await add_live(database, queue="mail", run_at=ahead(-600))
    async with watch("overview", NARROW) as operator:
        await operator.sees("mail")
        await operator.press(key)
        await operator.sees(shown)
        await operator.press("question_mark")
        await operator.sees(f"Keys of {title}", label)
        await operator.press("escape")
        await operator.sees(shown)
        await operator.back("Overview")


@ON_ONE_DATABASE
async def test_escape_returns_to_the_screen_of_an_alert_or_an_explanation(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail", run_at=ahead(-600))
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    async with watch("overview") as operator:
        await operator.sees("mail ‖")
        await operator.press("w")
        await operator.sees("paused", "enter opens")
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Audit")
        await operator.back("Overview")
        await operator.press("enter")
        await operator.sees("queue:mail")
        await operator.press("exclamation_mark")
        await operator.sees("▸ ✗ No runner is alive")
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Runners")
        await operator.back("Tasks")
        await operator.back("Overview")


@ON_ONE_DATABASE
async def test_escape_stays_on_a_screen_that_its_key_has_opened(database: Database, watch: Watch) -> None:
    async with watch("overview") as operator:
        for key, title in (("5", "Runners"), ("8", "Audit"), ("1", "Overview")):
            await operator.press(key)
            await operator.until(lambda title=title: operator.screen.title == title)
            await operator.press("escape")
            assert operator.screen.title == title
        await operator.command("runners")
        await operator.until(lambda: operator.screen.title == "Runners")
        await operator.back("Overview")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_explanation_is_refreshed(database: Database, watch: Watch) -> None:
    id = await add_live(database, "smtp.send")
    async with watch("task", task_id=id) as operator:
        await operator.sees("smtp.send")
        await operator.press("w")
        await operator.sees("no live runner")
        await add_runner(database, handlers='["smtp.send"]', capacity=2)
        await operator.sees("such tasks")


async def test_a_remedy_is_listed_once(database: Database) -> None:
    id = await add_live(database, "smtp.send", queue="mail")
    await add_runner(database, handlers='["smtp.send"]', capacity=2)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    answer = await database.read(why, id, UTC)
    text = "\n".join(part.plain for part in why_lines(answer, 80))
    assert text.count("P resume queue mail") == 1
    assert text.index("What helps") < text.index("P resume queue mail")


async def test_a_task_without_an_obstacle_has_no_cross(database: Database, watch: Watch) -> None:
    await add_past(database, 900, State.SUCCEEDED)
    async with watch("tasks", filter_text="id:900") as operator:
        await operator.sees("✓ succeeded")
        await operator.press("w")
        await operator.sees("It succeeded", "─ 900 has ended ─")
        assert "✗" not in operator.text


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_enter_opens_the_cause(database: Database, watch: Watch) -> None:
    idle = await add_runner(database, lease=30, handlers='["other"]', host="web-9")
    busy = await add_runner(database, handlers='["smtp.send"]', capacity=1)
    holder = await add_live(database, "smtp.send", state="running", runner_id=busy, key="in hand")
    full = await add_live(database, "smtp.send", run_at=ahead(-9))
    paused = await add_live(database, "other", queue="mail")
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    await database.write(pause, PauseTarget(PauseKind.HANDLER, "elsewhere"), BY)
    await change(
        database, sa.update(database.tables.runner).where(database.tables.runner.c.id == idle).values(command="drain")
    )
    async with watch("task", task_id=full) as operator:
        await operator.sees("smtp.send")
        await operator.press("w")
        await operator.sees(f"It would start now if: runner {busy} had 2 slots.", "▸ Runner")
        await operator.press("enter")
        await operator.sees("state:running", f"runner:{busy}", "in hand")
        await operator.press("enter")
        await operator.until(lambda: operator.console.databases.opened.task.id == holder)
        await operator.press("w")
        await operator.sees("It has been running on runner", f"─ {holder} is running ─")
        await operator.press("enter")
        await operator.sees(f"runner {busy} (web-1:7) RUNS 1", "queues all")
        await operator.command(f"task {paused}")
        await operator.sees(f"{paused}  other")
        await operator.press("w")
        await operator.sees("▸1. Queue mail was paused", "2. Runner")
        await operator.press("enter")
        await operator.sees("pause by ana@web-1", "OPERATION")
        assert operator.screen.query_one("#entries", Table).cursor == 1
        await operator.press("3", "w")
        await operator.sees("▸1.")
        await operator.press("down")
        await operator.sees("▸2. Runner")
        await operator.press("enter")
        await operator.sees(f"runner {idle} (", ") RUNS 0")


@ON_ONE_DATABASE
async def test_enter_opens_the_parent_task(database: Database, watch: Watch) -> None:
    await add_past(database, 900, State.DEAD, handler="fetch")
    id = await put(database, after=(DependsOn(900),))
    async with watch("task", task_id=id) as operator:
        await operator.sees("waits for")
        await operator.press("w")
        await operator.sees("▸ It depends on task 900 fetch")
        operator.screen.post_message(ReadFailed(DatabaseLocked(url="here", why="busy")))
        await operator.sees("Cannot determine why", "▸ It depends on task 900 fetch")  # on which enter acts
        await operator.press("enter")
        await operator.until(lambda: operator.console.databases.opened.task.id == 900)
        await operator.sees("900  fetch")


@ON_ONE_DATABASE
async def test_without_a_task_there_is_nothing_to_ask(watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("w")
        await operator.sees_notice("No task under the cursor")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_w_explains_many_tasks_by_their_causes(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["smtp.send"]', host="web-9")
    for _ in range(3):
        await add_live(database, "smtp.send", queue="mail")
    await add_live(database, "missing")
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    async with watch("tasks") as operator:
        await operator.sees("missing")
        await operator.press("asterisk", "w")
        await operator.sees(
            "4 tasks are not running because:",
            "▸      3 ",
            "queue mail is paused",
            "→ P resume queue mail  frees 3",
            "no live runner has handler missing",
            "What helps most",
        )
        await operator.press("enter")
        await operator.sees("pause by ana@web-1", "OPERATION")
        await operator.press("1")
        await operator.sees("QUEUES")
        await operator.until(lambda: operator.screen.query_one("#queues", Table).cursor == "mail")
        await operator.press("down", "w")
        await operator.sees("queue:default", "no live runner has handler missing")
        await operator.press("escape")


@ON_ONE_DATABASE
async def test_a_cause_of_many_tasks_without_a_remedy_opens_one_of_them(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed, matching = asyncio.Event(), TaskPages.matching

    async def matching_late(self: TaskPages, session: Session) -> MatchesFound:
        await typed.wait()
        return await matching(self, session)

    monkeypatch.setattr(TaskPages, "matching", matching_late)
    await add_runner(database, handlers='["smtp.send"]', capacity=1)
    for _ in range(2):
        await add_live(database, "smtp.send", queue="mail", run_at=ahead(-9))
    async with watch("tasks") as operator:
        await operator.sees("smtp.send")
        await operator.press("asterisk", "w")
        typed.set()
        await operator.sees("more tasks are due than slots are free: 1 of 1", "→ enter opens task 1")
        assert "runner why" not in operator.text
        await operator.press("enter")
        await operator.sees("TIMELINE")


@ON_ONE_DATABASE
async def test_w_counts_the_dead_tasks_of_a_filter(database: Database, watch: Watch) -> None:
    await add_live(database, "mail.send", run_at=ahead(3600))
    for id in (90, 91):
        await add_past(database, id, State.DEAD, handler="mail.send")
    await put(database, "mail.send", after=(DependsOn(90),))
    async with watch("tasks", filter_text="handler:mail.send") as operator:
        await operator.sees("4 tasks")
        await operator.press("asterisk")
        await operator.sees_notice("Marked 4 tasks")
        await operator.press("w")
        await operator.sees("2 tasks are not running because", "2 tasks are dead and will not run again")
        await operator.sees("→ R retry id:91,90,2,1 state:scheduled  ", "R retries them when selected")
        await operator.press("down", "down")
        await operator.sees("▸ 2 tasks are dead", "state:scheduled when selected")
        await operator.press("R")
        await operator.sees("Retry 2 ", "✗ 2 dead")
