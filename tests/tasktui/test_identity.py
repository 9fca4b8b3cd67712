"""Whatever happens to the rows meanwhile: what is acted upon is what is shown."""

import random
import re

import pytest
import sqlalchemy as sa

from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import By, Changes, Kind, Place
from tasktui.screens.confirm import ConfirmScreen
from tests.store.rows import add_live, add_past
from tests.tasktui.conftest import ON_ONE_DATABASE, Operator, Watch

STEPS = 10
BY = By("somebody", "else")


def under_cursor(operator: Operator) -> int | None:
    """The id that a person reads in the line with the cursor."""
    found = re.search(r"▶[ ●] *(\d+)", operator.text)
    return int(found[1]) if found else None


async def disturb(database: Database, chance: random.Random, ids: list[int]) -> None:
    """Let a task come, go, end or change."""
    id = chance.choice(ids)
    task = database.tables.task
    match chance.randrange(4):
        case 0:
            ids.append(await add_live(database))
        case 1:
            await database.write(intervene.edit, id, None, Changes(priority=chance.randint(1, 9)), BY)
        case move:
            async with database.writing() as tx:
                gone = await tx.rows(sa.delete(task).where(task.c.id == id).returning(task.c.id))
            if gone and move == 2:
                await add_past(database, id)


@ON_ONE_DATABASE
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
async def test_what_is_acted_upon_is_what_is_shown(seed: int, database: Database, watch: Watch) -> None:
    chance, asked = random.Random(seed), 0
    ids = [await add_live(database) for _ in range(8)]
    async with watch("tasks") as operator:
        await operator.until(lambda: len(operator.screen.listing.ids) == 8)
        for _ in range(STEPS):
            await disturb(database, chance, ids)
            await operator.press(chance.choice(["up", "down", "down", "home", "end", "r"]))
            shown = under_cursor(operator)
            await operator.press("T")
            await operator.pilot.pause()
            if isinstance(operator.screen, ConfirmScreen):
                (target,) = [part for part in operator.text.splitlines() if re.search(r"│ +\d+  h  ", part)]
                assert int(target.split()[1]) == shown
                asked += 1
                await operator.press("escape")
        assert asked


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
