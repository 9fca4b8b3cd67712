"""Whatever happens to the rows meanwhile: what is acted upon is what is shown."""

import re
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import By, Changes, Kind, Place
from tasktui.screens.confirm import ConfirmScreen
from tests.store.rows import add_live, add_past
from tests.tasktui.conftest import ON_ONE_DATABASE, Operator, Watch
from tests.tasktui.test_acting import audited, say_yes

BY = By("somebody", "else")
TASKS = 8

EVENTS = ("nothing", "come", "edit", "go", "end")
"""What may happen to the rows at any moment."""

KEYS = ("up", "down", "down", "down", "home", "end", "r", "space", "v", "backslash")

Step = tuple[str, int, str]
steps = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 50), st.sampled_from(KEYS)), min_size=3, max_size=8)
"""An event, the task that it happens to, and the key that is pressed then."""

UNHURRIED = settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes; the steps are few enough to read
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # every example clears the tables by itself
)


def displayed(operator: Operator) -> set[int]:
    """The ids that a person takes an action to be about: those of marked lines, or else the one with the cursor."""
    marked = re.findall(r"^[▶ ]● *(\d+) ", operator.text, re.MULTILINE)
    return {int(id) for id in marked or re.findall(r"^▶[ ●] *(\d+) ", operator.text, re.MULTILINE)}


async def happen(database: Database, event: str, ids: list[int], number: int) -> None:
    """Let a task come, change, go, or end."""
    id, task = ids[number % len(ids)], database.tables.task
    match event:
        case "come":
            ids.append(await add_live(database))
        case "edit":
            await database.write(intervene.edit, id, None, Changes(priority=1 + number % 9), BY)
        case "go" | "end":
            async with database.writing() as tx:
                gone = await tx.rows(sa.delete(task).where(task.c.id == id).returning(task.c.id))
            if gone and event == "end":
                await add_past(database, id)


async def begin_anew(database: Database) -> list[int]:
    """Let there be some tasks, and nothing else."""
    tables = database.tables
    async with database.writing() as tx:
        for table in (tables.task, tables.history, tables.audit):
            await tx.execute(sa.delete(table))
    return [await add_live(database) for _ in range(TASKS)]


async def acted_upon(database: Database) -> set[int]:
    """The tasks that the operator in front of the console has changed."""
    return {entry.task_id or 0 for entry in await audited(database) if entry.operator != BY.operator}


async def follow(operator: Operator, database: Database, ids: list[int], steps: Sequence[Step]) -> None:
    """Let things happen and press keys; then act, while things go on happening, and compare."""
    for event, number, key in steps:
        await happen(database, event, ids, number)
        await operator.press(key)
        await operator.until(lambda: not operator.screen._load)
    before, shown = await acted_upon(database), displayed(operator)
    await operator.press("T")
    await operator.pilot.pause()
    if isinstance(operator.screen, ConfirmScreen):
        event, number, _ = steps[0]
        await happen(database, event, ids, number)
        operator.console.clear_notifications()
        await say_yes(operator)
        await operator.is_told("Terminate: ")
    assert await acted_upon(database) - before <= shown


async def act_on_what_stands_still(operator: Operator, database: Database) -> None:
    """While nothing happens, exactly what is shown is acted upon."""
    second, newest = [await add_live(database) for _ in range(2)]
    await operator.press("backslash", "r")
    await operator.until(lambda: displayed(operator) == {newest})
    await operator.press("down")
    await operator.until(lambda: displayed(operator) == {second})
    before = await acted_upon(database)
    await operator.press("T")
    await say_yes(operator)
    await operator.sees(f"{second} ⊘ cancelled")
    assert await acted_upon(database) - before == {second}


async def check_identity(database: Database, watch: Watch, steps: Sequence[Step]) -> None:
    ids = await begin_anew(database)
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.listing.ids) == TASKS)
        await follow(operator, database, ids, steps)
        await act_on_what_stands_still(operator, database)


@ON_ONE_DATABASE
@given(steps=steps)
@settings(UNHURRIED)
async def test_what_is_acted_upon_is_what_is_shown(steps: list[Step], database: Database, watch: Watch) -> None:
    await check_identity(database, watch, steps)


@pytest.mark.slow
@given(steps=steps)
@settings(UNHURRIED, max_examples=60)
async def test_so_it_is_after_many_more_steps(steps: list[Step], database: Database, watch: Watch) -> None:
    await check_identity(database, watch, steps)


@ON_ONE_DATABASE
async def test_a_cursor_whose_line_goes_away_points_at_nothing(database: Database, watch: Watch) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.queue), [{"name": name} for name in ("first", "second")])
    async with watch() as operator:
        await operator.sees("first", "second")
        assert operator.screen.place(Kind.QUEUE) == Place(Kind.QUEUE, "first")
        async with database.writing() as tx:
            await tx.execute(sa.delete(tx.tables.queue).where(tx.tables.queue.c.name == "first"))
        await operator.until(lambda: "first" not in operator.text)
        assert operator.screen.place(Kind.QUEUE) is None
        await operator.press("P")
        await operator.is_told("put the cursor on one")
