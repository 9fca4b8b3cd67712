"""What a start does without: it loads nothing that the console's first screen, or a verb that looks, does not need.

Each of these modules takes between one and eighty milliseconds. Times depend on the machine; what is loaded does not.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.store.database import Database
from runner.store.submit import submit
from runner.task import NewTask
from tests.conftest import on_sqlite

CONSOLE = """
import asyncio, sys
from tasktui.__main__ import DIVIDED
from runner.later import divide

for package in DIVIDED:
    divide(package)
from tasktui import screens
from tasktui.start import starting
from tasktui.start.arguments import Arguments

async def begin():
    arguments = Arguments(url=sys.argv[1])
    async with starting.opened(arguments, arguments.settings()) as session:
        await session.read(starting.glance)
        screens.MODES[starting._console().DEFAULT_MODE].screen

asyncio.run(begin())
"""
VERB = "import sys; from runner.cli import main; sys.argv[1:] = ['stats', '--url', sys.argv[1]]; main()"
PROGRAMS = {"console": CONSOLE, "verb": VERB}

LATER = {
    *("sqlalchemy.orm", "pydantic", "pydantic_settings", "alembic", "apscheduler", "runner.engine"),
    *("runner.schema.storage", "runner.policy.retry", "runner.store.acceptance", "runner.store.intervene.pause"),
    *("runner.store.observe.story", "runner.store.observe.audit", "runner.store.observe.why"),
    *("tasktui.obey.palette", "tasktui.screens.tasks", "tasktui.screens.edit", "textual.widgets._directory_tree"),
}
OTHERS = {
    "sqlite": {"psycopg", "sqlalchemy.dialects.postgresql"},
    "postgresql": {"aiosqlite", "sqlalchemy.dialects.sqlite"},
}
"""What is for the other database, by the kind of the one in use."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_start_loads_nothing_that_can_wait(program: str, migrated_url: str) -> None:
    code = f"{PROGRAMS[program]}\nprint(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-P", "-c", code, migrated_url], capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.split())
    assert "sqlalchemy.ext.asyncio" in loaded, ran.stderr
    assert loaded & (LATER | OTHERS[migrated_url.partition(":")[0]]) == set()


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


@on_sqlite
async def test_handlers_get_what_a_start_leaves_out(database: Database, migrated_url: str, tmp_path: Path) -> None:
    (tmp_path / "mailing.py").write_text(MAILING)
    await database.write(submit, NewTask("mailing.send", "{}"))
    program = str(Path(sys.executable).with_name("runner"))
    command = [program, "work", "-H", "mailing", "--until-idle", "--url", migrated_url]

    def work() -> str:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stderr

    said = await asyncio.to_thread(work)
    async with database.reading() as tx:
        assert await tx.scalar(sa.select(tx.tables.history.c.result)) == "[7]", said
