"""A lock of a whole table stops claims until it ends, and the log names its session."""

import asyncio
import logging

import psycopg
import pytest

from tests.conftest import on_postgresql
from tests.engine.harness import Harness

pytestmark = on_postgresql

TABLES = ["task_handler", *(pytest.param(f"task_{name}", marks=pytest.mark.slow) for name in ("queue", "runner"))]


@pytest.mark.parametrize("table", TABLES)
async def test_the_log_names_the_session_that_locks_a_table_and_claims_go_on_after_it(
    harness: Harness, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    caplog.set_level(logging.WARNING)

    @harness.handler("work")
    async def work() -> None:
        pass

    async with harness.running():
        await harness.wait_for(await harness.submit("work"))
        with psycopg.connect(harness.url, application_name="alter") as holder:
            holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            fact = f"table {table} is locked, held by process {holder.info.backend_pid} (alter, "
            task = await harness.submit("work")
            async with asyncio.timeout(90):
                while not any(fact in each.getMessage() for each in caplog.records if each.name == "runner.claim"):
                    await asyncio.sleep(0.05)
        await harness.wait_for(task)
