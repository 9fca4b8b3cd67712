"""The figures on the screens beside those of plain SQL, near and 150 ms away."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_now
from tests.postgres.distance import DistantServer
from tests.shop import fill
from tests.store.rows import ahead
from tests.tasktui.conftest import Watch

WAY = 0.075


@asynccontextmanager
async def far_from(database: Database, url: str) -> AsyncIterator[str]:
    """A URL of the database behind the delay; a file is never far."""
    if database.dialect.name != "postgresql":
        yield url
        return
    async with DistantServer(url, WAY).opened() as server:
        yield server.url


async def counts(database: Database, condition: Callable[[Any], Any], *, past: bool = False) -> dict[str, int]:
    """Tasks by queue."""
    table = (database.tables.history if past else database.tables.task).c
    statement = sa.select(table.queue, sa.func.count()).where(condition(table)).group_by(table.queue)
    async with database.reading() as tx:
        return {str(queue): int(number) for queue, number in await tx.rows(statement)}


async def ready(database: Database) -> dict[str, int]:
    return await counts(database, lambda task: (task.state == "waiting") & (task.run_at <= db_now()))


def column(text: str, names: Mapping[str, int], place: int) -> dict[str, int]:
    """The numbers of a column on the screen, by queue."""
    rows = {name: re.search(rf"^[▌ ] {name}(?: ‖)? +(.*)$", text, re.MULTILINE) for name in names}
    return {name: int(row[1].split()[place].replace(",", "")) for name, row in rows.items() if row}


@pytest.mark.slow
async def test_the_figures_of_the_overview_are_those_of_sql(
    database: Database, migrated_url: str, watch: Watch
) -> None:
    await fill(database)
    before = await ready(database)  # The counts of full queues may be as old as this.
    async with far_from(database, migrated_url) as url, watch("overview", (200, 60), url=url) as operator:
        await operator.until(lambda: "reading" not in operator.text and " in 1 h" in operator.text)
        await operator.press("r")
        read_at = operator.screen.feed.read_at
        await operator.until(lambda: operator.screen.feed.read_at > read_at)
        text = operator.text
        after = await ready(database)
        shown = column(text, after, 0)
        assert shown.keys() == after.keys()
        assert all(before.get(name, 0) <= shown[name] <= after[name] for name in after), (before, shown, after)
        dead = await counts(database, lambda task: task.state == "dead", past=True)
        recent = await counts(
            database, lambda task: (task.state == "dead") & (task.finished_at >= ahead(-3600)), past=True
        )
        figure = re.search(r"(\d+)  \+(\d+) in 1 h", text)
        assert figure is not None
        assert int(figure[1]) == sum(dead.values())
        assert abs(int(figure[2]) - sum(recent.values())) <= 1, "one may have died an hour ago just now"
        assert f"{figure[2]} tasks died in the last hour" in text
