"""Registration of a runner while another transaction locks rows of the registries."""

import asyncio
import logging

import psycopg
import pytest

from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until

pytestmark = on_postgresql

ROWS = {
    "task_handler": "INSERT INTO task_handler (name) VALUES ('slow'), ('fast')",
}


@pytest.mark.parametrize("mode", ["FOR UPDATE", "FOR SHARE"])
async def test_a_runner_starts_beside_a_locked_row_of_a_handler_and_enters_it_later(
    harness: Harness, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    caplog.set_level(logging.INFO, "runner.lease")
    done = asyncio.Event()

    @harness.handler("fast")
    async def fast() -> None:
        done.set()

    @harness.handler("slow")
    async def slow() -> None:
        pass

    with psycopg.connect(harness.url, autocommit=True) as owner:
        owner.execute(ROWS["task_handler"])
    with psycopg.connect(harness.url, application_name="psql") as session:
        session.execute(f"SELECT 1 FROM task_handler WHERE name = 'slow' {mode}")
        async with harness.running(heartbeat_interval="200ms"):
            await harness.submit("fast")
            async with asyncio.timeout(90):
                await done.wait()
            await until(lambda: "row slow of" in caplog.text)
            (line,) = [each.getMessage() for each in caplog.records if "slow" in each.getMessage()]
            pid = session.info.backend_pid
            assert line.startswith(f"row slow of task_handler is locked, held by process {pid} (psql")
            session.rollback()
            async with asyncio.timeout(90):
                while not any("row no longer locked" in each.getMessage() for each in caplog.records):
                    await asyncio.sleep(0.01)
