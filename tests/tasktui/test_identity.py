"""Actions apply to the displayed tasks, regardless of concurrent changes."""

import re
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runner.db.database import Database
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.widgets import table
from tests.conftest import examples
from tests.store.rows import add_live, add_past
from tests.tasktui.conftest import ON_ONE_DATABASE, Operator, Watch
from tests.tasktui.test_actions import audited, confirm

BY = Actor("somebody", "else")
TASKS = 8

EVENTS = ("nothing", "come", "edit", "go", "end")
"""Concurrent changes of the rows."""

KEYS = ("up", "down", "down", "down", "home", "end", "r", "space", "v", "backslash")

Step = tuple[str, int, str]
steps = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 50), st.sampled_from(KEYS)), min_size=3, max_size=8)
"""An event, its task, and the key pressed after it."""

UNHURRIED = settings(
    max_examples=examples(1, 2),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # Shrinking takes minutes.
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # Each example clears the tables.
)


def displayed(operator: Operator) -> set[int]:
    """Return the ids that an operator expects an action to affect: the marked rows, or the row with the cursor."""
    marked = re.findall(r"^[▌ ]● *(\d+) ", operator.text, re.MULTILINE)
    return {int(id) for id in marked or re.findall(r"^▌[ ●] *(\d+) ", operator.text, re.MULTILINE)}


async def happen(database: Database, event: str, ids: list[int], number: int) -> None:
    """Insert, change, delete or finish a task."""
    id, task = ids[number % len(ids)], database.tables.task
    match event:
        case "come":
            ids.append(await add_live(database))
        case "edit":
            await database.write(edit, id, None, Changes(priority=1 + number % 9), BY)
        case "go" | "end":
            async with database.writing() as tx:
                rows = await tx.rows(sa.delete(task).where(task.c.id == id).returning(task.c.id))
            if rows and event == "end":
                await add_past(database, id)


async def begin_anew(database: Database) -> list[int]:
    """Clear the tables and insert some tasks."""
    tables = database.tables
    async with database.writing() as tx:
        for table in (tables.task, tables.history, tables.audit):
            await tx.execute(sa.delete(table))
    return [await add_live(database) for _ in range(TASKS)]


async def acted_upon(database: Database) -> set[int]:
    """Return the ids of the tasks that the operator has changed."""
    return {entry.task_id or 0 for entry in await audited(database) if entry.operator != BY.operator}


async def follow(operator: Operator, database: Database, ids: list[int], steps: Sequence[Step]) -> None:
    """Apply events and keys, act during further events, and compare."""
    for event, number, key in steps:
        await happen(database, event, ids, number)
        await operator.press(key)
        await operator.until(lambda: not operator.screen.pages.needs_load)
    before, shown = await acted_upon(database), displayed(operator)
    await operator.press("T")
    await operator.pilot.pause()
    if isinstance(operator.screen, ConfirmScreen):
        event, number, _ = steps[0]
        await happen(database, event, ids, number)
        operator.console.clear_notifications()
        await confirm(operator)
        await operator.sees_notice("Terminate: ")
    assert await acted_upon(database) - before <= shown


async def act_on_what_stands_still(operator: Operator, database: Database) -> None:
    """Without concurrent changes, an action applies to exactly the displayed tasks."""
    second, newest = [await add_live(database) for _ in range(2)]
    await operator.press("backslash", "r")
    await operator.until(lambda: displayed(operator) == {newest})
    await operator.press("down")
    await operator.until(lambda: displayed(operator) == {second})
    before = await acted_upon(database)
    await operator.press("T")
    await confirm(operator)
    await operator.sees(f"{second}  ⊘ cancelled")
    assert await acted_upon(database) - before == {second}


async def check_identity(database: Database, watch: Watch, steps: Sequence[Step]) -> None:
    ids = await begin_anew(database)
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == TASKS)
        await follow(operator, database, ids, steps)
        await act_on_what_stands_still(operator, database)


@pytest.mark.slow
@ON_ONE_DATABASE
@given(steps=steps)
@settings(UNHURRIED)
async def test_actions_apply_to_the_displayed_tasks(steps: list[Step], database: Database, watch: Watch) -> None:
    await check_identity(database, watch, steps)


@pytest.mark.slow
@given(steps=steps)
@settings(UNHURRIED, max_examples=60)
async def test_so_it_is_after_many_more_steps(steps: list[Step], database: Database, watch: Watch) -> None:
    await check_identity(database, watch, steps)


@ON_ONE_DATABASE
async def test_a_cursor_disappears_with_its_row(database: Database, watch: Watch) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.queue), [{"name": name} for name in ("first", "second")])
    async with watch() as operator:
        await operator.sees("first", "second")
        assert operator.screen.actions.targets.pause_target(PauseKind.QUEUE) == PauseTarget(PauseKind.QUEUE, "first")
        async with database.writing() as tx:
            await tx.execute(sa.delete(tx.tables.queue).where(tx.tables.queue.c.name == "first"))
        await operator.until(lambda: "first" not in operator.text)
        assert operator.screen.actions.targets.pause_target(PauseKind.QUEUE) is None
        await operator.press("P")
        await operator.sees_notice("select one")


@ON_ONE_DATABASE
async def test_queues_keep_their_order_and_the_cursor_its_queue_while_an_operator_navigates(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "HOLD", 600.0)
    for queue in ("mail", "mail", "reports"):
        await add_live(database, queue=queue)
    async with watch("overview") as operator:
        queues = operator.screen.query_one("#queues", table.Table)
        await operator.until(lambda: queues.keys == ("mail", "reports"))
        await operator.press("j")
        for queue in ("reports", "reports", "sms", "sms", "sms", "sms"):
            await add_live(database, queue=queue)
        await operator.sees("3 queues, order held")
        assert queues.keys == ("mail", "reports", "sms")
        assert queues.cursor == "reports"
        monkeypatch.setattr(table, "HOLD", 0.0)
        await operator.until(lambda: queues.keys == ("sms", "reports", "mail"))
        assert queues.cursor == "reports"
        assert "order held" not in operator.text


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_queue_that_moves_in_the_order_stays_in_sight(database: Database, watch: Watch) -> None:
    for number in range(60):
        await add_live(database, queue=f"q{number:02}")
    async with watch("overview") as operator:
        queues = operator.screen.query_one("#queues", table.Table)
        await operator.until(lambda: len(queues.keys) == 60)
        queues.cursor = queues.keys[0]
        for name in queues.keys[1:]:
            await add_live(database, queue=name)
        await operator.until(lambda: queues.keys[-1] == queues.cursor)
        await operator.until(lambda: queues.cursor in queues.visible_keys)
