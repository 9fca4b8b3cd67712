"""Loading: when a program imports the packages of its submits, and in which thread."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from runner import TaskHandler, connect, disconnect
from runner.errors import InvalidSettings
from runner.store.submit import _prepared as prepared
from runner.urls import parse_url
from tests.conftest import on_postgresql, on_sqlite
from tests.postgres.distance import DistantServer

SETUP = """
import asyncio, os, sys, threading
import runner

async def greet(name: str) -> None: ...

GREET = runner.TaskHandler("greet", greet)

def packages() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] in {"runner", "sqlalchemy", "psycopg", "sqlite3"}}
"""

AFTER_CONNECT = """
runner.connect(url=os.environ["TASKTUI_URL"])
before = packages()
GREET.submit("Ada")
asyncio.run(GREET.submit_async("Ada"))
print(*sorted(packages() - before))
"""

FINDER = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "sqlalchemy":
            print(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Finder())
"""

ON_A_LOOP = f"""
{FINDER}
asyncio.run(GREET.submit_async("Ada"))
"""

IN_A_TRANSACTION = f"""
import aiosqlite
{FINDER}
async def main() -> None:
    async with aiosqlite.connect(os.environ["TASKTUI_URL"].removeprefix("sqlite:///")) as tx:
        await tx.execute("BEGIN")
        await GREET.options(tx=tx).submit_many_async([{{"name": "Ada"}}, {{"name": "Bob"}}])
        await tx.commit()

asyncio.run(main())
"""


def printed(code: str, url: str) -> str:
    """Run a program that submits to a database, and return its output."""
    program = [sys.executable, "-W", "error", "-c", SETUP + code]
    environment = {**os.environ, "TASKTUI_URL": url}
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_first_submit_after_connect_imports_no_package(migrated_url: str) -> None:
    assert printed(AFTER_CONNECT, migrated_url) == ""


@pytest.mark.slow
def test_a_first_submit_without_connect_imports_packages_in_a_thread(migrated_url: str) -> None:
    assert printed(ON_A_LOOP, migrated_url) == "False"


@pytest.mark.slow
@on_sqlite
def test_a_first_submit_in_a_transaction_without_connect_imports_packages_in_a_thread(migrated_url: str) -> None:
    assert printed(IN_A_TRANSACTION, migrated_url) == "False"


def test_a_url_that_is_no_keyword_argument_gets_the_line_to_write() -> None:
    with pytest.raises(InvalidSettings, match=r"a URL is a keyword argument: runner\.connect\(url="):
        connect("postgresql://user:secret@host/db")  # type: ignore[arg-type]


@pytest.mark.both_databases
def test_the_first_submit_compiles_no_statement(migrated_url: str) -> None:
    compiled = prepared.cache_info().misses
    connect(url=parse_url(migrated_url))
    try:
        assert prepared.cache_info().misses <= compiled + 1
        compiled = prepared.cache_info().misses
        GREET.submit("Ada")
        assert prepared.cache_info().misses == compiled
    finally:
        disconnect()


async def greet(name: str) -> None: ...


GREET: TaskHandler[..., Any, Any] = TaskHandler("greet", greet)


@on_postgresql
async def test_the_first_submit_opens_one_connection(migrated_url: str) -> None:
    async with DistantServer(migrated_url, 0.0).opened() as far:
        await asyncio.to_thread(connect, url=parse_url(far.url))
        assert far.round_trips == []
        await asyncio.to_thread(lambda: GREET.submit("Ada"))
        assert len(far.round_trips) == 1  # which also looks at the tables
        await asyncio.to_thread(disconnect)
