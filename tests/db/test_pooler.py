"""A pooler that gives each transaction another session: pgbouncer in transaction mode, between all programs."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_port
from tests.postgres import Server, find_programs
from tests.postgres.programs import account

pytestmark = [
    pytest.mark.one_database,
    pytest.mark.skipif(not shutil.which("pgbouncer"), reason="needs the package pgbouncer"),
]

CONFIGURATION = """
[databases]
statements = host=127.0.0.1 port={server} dbname=postgres pool_mode=statement
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 3
"""

HANDLERS = """
import runner
import sqlalchemy as sa

@runner.handler("shop.pack", max_attempts=1)
async def pack(ctx: runner.Context, order: int) -> int:
    async with ctx.transaction() as tx:
        await tx.execute(sa.text("SELECT 1"))
    await ship.submit_async(order)
    return order

@runner.handler("shop.ship")
def ship(order: int) -> int:
    return order
"""

PRODUCER = """
import asyncio, sys
from shop import pack

pack.submit_many({"order": order} for order in range(20))
for order in range(10):
    pack.submit(order)

async def main():
    await asyncio.gather(*(pack.submit_async(order) for order in range(20)))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def pooled() -> Iterator[tuple[str, Server]]:
    """The URL of a pooler with three sessions, and its server."""
    if (programs := find_programs()) is None:
        pytest.skip("no PostgreSQL")
    with Server(programs) as server:
        port, folder = free_port(), server.home
        (folder / "users").write_text('"postgres" ""\n')
        (folder / "pooler.ini").write_text(CONFIGURATION.format(server=server.port, port=port, folder=folder))
        program = shutil.which("pgbouncer") or ""
        with (folder / "pooler.log").open("wb") as log:
            pooler = subprocess.Popen([program, folder / "pooler.ini"], stdout=log, stderr=log, **account())
        url = server.url().replace(f":{server.port}/", f":{port}/")
        try:
            for _ in range(200):
                try:
                    psycopg.connect(url).close()
                    break
                except psycopg.OperationalError:
                    assert pooler.poll() is None, (folder / "pooler.log").read_text()
                    time.sleep(0.05)
            yield url, server
        finally:
            pooler.terminate()
            pooler.wait(30)


@pytest.mark.parametrize("notify", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_submits_runners_and_commands_work_behind_a_transaction_pooler(
    pooled: tuple[str, Server], tmp_path: Path, notify: str
) -> None:
    url, server = pooled
    (tmp_path / "shop.py").write_text(HANDLERS)
    (tmp_path / "produce.py").write_text(PRODUCER)
    environment = os.environ | {"TASKTUI_URL": url, "TASKTUI_NOTIFY": notify, "PYTHONWARNINGS": "error"}
    program = str(Path(sys.executable).with_name("runner"))
    for command in (
        [program, "migrate"],
        [sys.executable, "produce.py"],
        [program, "work", "-H", "shop", "--until-idle", "--log-format", "human"],
        [program, "stats"],
        [program, "check", "-H", "shop", "--max-late", "1h"],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "prepared statement" not in done.stderr
    with psycopg.connect(server.url()) as connection:
        states = connection.execute(
            "SELECT handler, state, count(*) FROM task_history GROUP BY 1, 2 ORDER BY 1"
        ).fetchall()
        sessions = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()
        connection.execute("DELETE FROM task_history")
    assert states == [("shop.pack", "succeeded", 50), ("shop.ship", "succeeded", 50)]
    assert sessions == [(0,)]


def test_a_pooler_in_statement_mode_is_named_with_the_remedy(pooled: tuple[str, Server], tmp_path: Path) -> None:
    url = pooled[0].rpartition("/")[0] + "/statements"
    program = str(Path(sys.executable).with_name("runner"))
    for command in ("check", "migrate"):
        done = subprocess.run(
            [program, command],
            cwd=tmp_path,
            env=os.environ | {"TASKTUI_URL": url},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 4, done
        output = done.stdout + done.stderr
        assert "transaction blocks not allowed in statement pooling mode. A pooler in statement mode" in output
        assert "set its pool_mode to transaction or session, or connect to the server itself" in output
