"""Start-up loads nothing that the console's first screen, or a read-only command, does not need.

Each of these modules takes 1 to 80 ms to load. The tests check the loaded modules, because times depend on the machine.
"""

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.task import NewTask
from runner.store.submit import submit
from tests.conftest import on_sqlite

CONSOLE = """
import asyncio, sys
from tasktui import screens
from tasktui.startup import startup as starting
from tasktui.startup.arguments import Arguments

async def begin():
    arguments = Arguments(url=sys.argv[1])
    async with starting.opened(arguments, arguments.settings()) as session:
        await session.read(starting.read_overview)
        screens.MODES[starting._console().DEFAULT_MODE].screen

asyncio.run(begin())
"""
VERB = "import sys; from runner.cli import main; sys.argv[1:] = ['stats', '--url', sys.argv[1]]; main()"
PROGRAMS = {"console": CONSOLE, "verb": VERB}

LATER = {
    *("sqlalchemy.orm", "tomllib", "alembic", "apscheduler"),
    *("runner.engine", "runner.handlers", "runner.policy.retry", "runner.store.validation"),
    *("runner.operations.bulk", "runner.operations.sql_export", "runner.operations.undo", "runner.db.sql_text"),
    *("runner.queries.task", "runner.queries.why"),
    *("tasktui.dialogs", "tasktui.screens.tasks", "tasktui.actions.perform"),
    *("tasktui.data.background", "tasktui.data.task_list", "tasktui.panels.failure", "tasktui.panels.schedules"),
    *("runner.queries.failures", "runner.queries.recovery", "runner.queries.task_list.compile"),
    *("runner.queries.schedules", "runner.policy.schedule", "runner.policy.polling"),
    *("runner.operations.targets", "runner.queries.audit", "configparser"),
    *("tasktui.actions.edit", "tasktui.actions.new_task", "tasktui.actions.plan", "tasktui.actions.question"),
    *("tasktui.actions.queues", "tasktui.actions.schedule", "tasktui.actions.undo"),
}
"""Modules and packages that a program loads after its first screen, or not at all."""

LATER_IN_A_VERB = {"runner.operations", "textual"}
"""The same for a command that only reads."""

OTHERS = {
    "sqlite": {"psycopg", "sqlalchemy.dialects.postgresql"},
    "postgresql": {"aiosqlite", "sqlalchemy.dialects.sqlite"},
}
"""The driver and the dialect of the other database, by the kind of the one in use."""


@pytest.mark.representatives(1)
@pytest.mark.parametrize("program", PROGRAMS)
def test_start_up_loads_no_unnecessary_module(program: str, migrated_url: str) -> None:
    code = f"{PROGRAMS[program]}\nprint(*sys.modules, file=sys.stderr)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKTUI_")}
    command = [sys.executable, "-P", "-c", code, migrated_url]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    loaded = set(ran.stderr.split())
    assert "sqlalchemy.engine" in loaded, ran.stderr
    later = LATER | OTHERS[migrated_url.partition(":")[0]] | (LATER_IN_A_VERB if program == "verb" else set())
    assert loaded & later == set()


MAILING = """
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
import sqlalchemy.ext.asyncio.session
import sqlalchemy.orm
import runner

assert AsyncSession is sqlalchemy.ext.asyncio.session.AsyncSession

class Base(sqlalchemy.orm.DeclarativeBase):
    pass

class Mail(Base):
    __tablename__ = "mail"
    id: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(primary_key=True)

@runner.handler("mailing.send")
async def send() -> list[int]:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with async_sessionmaker(engine)() as session:
        connection = await session.connection()
        await connection.run_sync(Base.metadata.create_all)
        session.add(Mail(id=7))
        await session.commit()
        found = (await session.scalars(select(Mail.id))).all()
    await engine.dispose()
    return list(found)
"""


@pytest.mark.slow
@on_sqlite
async def test_handlers_can_import_modules_that_start_up_omits(
    database: Database, migrated_url: str, tmp_path: Path
) -> None:
    (tmp_path / "mailing.py").write_text(MAILING)
    await database.write(submit, NewTask("mailing.send", "{}"))
    program = str(Path(sys.executable).with_name("runner"))
    command = [program, "work", "-H", "mailing", "--until-idle", "--url", migrated_url]

    def work() -> str:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stderr

    errors = await asyncio.to_thread(work)
    async with database.reading() as tx:
        assert await tx.scalar(sa.select(tx.tables.history.c.result)) == "[7]", errors


LOOKING = """
import sys
import runner

@runner.handler("look")
async def look() -> list[str]:
    return [*sys.modules]
"""

PROBES = {
    "runner.engine.hosting.probes",
    "runner.engine.hosting.probe_server",
    "runner.engine.hosting.service_manager",
    "runner.engine.runner_collector",
    "runner.engine.exposition",
}


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("settings", [(), ("--listen", "127.0.0.1:0")], ids=["without", "with"])
async def test_a_runner_loads_its_probes_only_if_a_setting_asks_for_them(
    database: Database, migrated_url: str, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    (tmp_path / "looking.py").write_text(LOOKING)
    task = await database.write(submit, NewTask("look", "{}"))
    program = str(Path(sys.executable).with_name("runner"))
    command = [program, "work", "-H", "looking", "--until-idle", "--url", migrated_url, *settings]
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    run = partial(subprocess.run, command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    await asyncio.to_thread(run)
    async with database.reading() as tx:
        history = tx.tables.history.c
        modules = set(json.loads(await tx.scalar(sa.select(history.result).where(history.id == task)) or "[]"))
    assert "runner.engine.metrics" in modules
    assert modules & PROBES == (PROBES if settings else set())
    assert not {name for name in modules if name.startswith(("opentelemetry", "http.server", "prometheus_client"))}
