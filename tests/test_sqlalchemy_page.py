"""docs/sqlalchemy.md: its handlers work, and Alembic's autogenerate proposes no change of our tables."""

import re
import sys
from pathlib import Path

import pytest

from runner.alembic import include_name
from tests.pages import DOCS, RUNNER, blocks, run, save
from tests.shells import shell_of

PAGE = DOCS / "sqlalchemy.md"

APPLICATION = """
import os, sqlalchemy as sa
from sqlalchemy.orm import Session
from runner import results
from shop import Base, Order, buy
import tasks

engine = sa.create_engine(os.environ["APP_URL"])
Base.metadata.create_all(engine)
with Session(engine) as session:
    with session.begin():
        buy(session, 500)
    try:
        with session.begin():
            buy(session, 600)
            raise LookupError
    except LookupError:
        pass
tasks.ship.submit(order=1)
tasks.charge.submit(order=1)
engine.dispose()
"""

ALEMBIC = """
import sys
from pathlib import Path

from alembic import command
from alembic.config import Config

url, call = sys.argv[1:]
config = Config("alembic.ini")
config.config_file_name = "alembic.ini"
command.init(config, "scripts")
env = Path("scripts/env.py")
text = env.read_text().replace("target_metadata = None", "from shop import Base\\ntarget_metadata = Base.metadata")
written = "            connection=connection, target_metadata=target_metadata\\n"
assert written in text
text = "from runner.alembic import include_name\\n" + text
env.write_text(text.replace(written, call))
config = Config("alembic.ini")
config.set_main_option("sqlalchemy.url", url)
command.revision(config, message="first", autogenerate=True)
command.upgrade(config, "head")
command.check(config)
"""


def autogenerate(folder: Path, url: str, call: str) -> str:
    """Let Alembic write, apply and check a revision for the models of the page, and return the revision."""
    model = next(block.text for block in blocks(PAGE, "python") if block.first == "# shop.py")
    (folder / "shop.py").write_text(model)
    driver = with_driver(url, "pysqlite", "psycopg")
    run(folder, sys.executable, "-c", ALEMBIC, driver, call, PYTHONPATH=str(folder))
    (revision,) = (folder / "scripts" / "versions").glob("*.py")
    return revision.read_text()


def documented_call() -> str:
    """The call of `context.configure` on the page, as the arguments that Alembic's template lacks."""
    block = next(block.text for block in blocks(PAGE, "python") if "context.configure" in block.text)
    (arguments,) = re.findall(r"context\.configure\((.*)\)", block, re.DOTALL)
    return f"            {arguments.strip()}\n"


@pytest.mark.slow
def test_autogenerate_neither_drops_nor_changes_the_task_tables(tmp_path: Path, migrated_url: str) -> None:
    revision = autogenerate(tmp_path, migrated_url, documented_call())
    operations = re.findall(r"op\.(\w+)\(['\"]?(\w*)", revision)
    assert operations == [("create_table", "customer_order"), ("drop_table", "customer_order")]
    assert shell_of(migrated_url)("SELECT count(*) FROM task_history").strip() == "0"


@pytest.mark.slow
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_without_it_autogenerate_would_drop_them(tmp_path: Path, migrated_url: str) -> None:
    call = "            connection=connection, target_metadata=target_metadata\n"
    revision = autogenerate(tmp_path, migrated_url, call)
    assert "op.drop_table('task_history')" in revision
    assert "op.drop_table('task_schema')" in revision


@pytest.mark.slow
def test_the_handlers_of_the_page_use_sessions(tmp_path: Path, migrated_url: str) -> None:
    save(PAGE, tmp_path)
    plain, awaited = (
        with_driver(migrated_url, *names) for names in (("pysqlite", "psycopg"), ("aiosqlite", "asyncpg"))
    )
    environment = {"TASKTUI_URL": migrated_url, "APP_URL": plain, "APP_ASYNC_URL": awaited, "TASKTUI_RETRY": "never"}
    run(tmp_path, sys.executable, "-c", APPLICATION, **environment)
    run(tmp_path, RUNNER, "work", "-H", "tasks", "--until-idle", **environment)
    shell = shell_of(migrated_url)
    states = shell("SELECT handler, state, result FROM task_history ORDER BY handler")
    assert [line.replace("|", " ").split()[:2] for line in states.splitlines()] == [
        ["shop.charge", "succeeded"],
        ["shop.note", "succeeded"],
        ["shop.note_shipping", "succeeded"],
        ["shop.ship", "succeeded"],
    ], states
    assert shell("SELECT cents FROM customer_order").split() == ["501"]


def with_driver(url: str, sqlite: str, postgresql: str) -> str:
    kind, _, rest = url.partition("://")
    return f"{kind}+{sqlite if kind == 'sqlite' else postgresql}://{rest}"


@pytest.mark.parametrize(
    ("name", "kind", "table", "schema", "included"),
    [
        ("jobs_task", "table", None, None, False),
        ("jobs_task_history_from_5000001", "table", None, None, False),
        ("jobs_task_history_others", "table", None, "work", False),
        ("jobs_task_key", "index", "jobs_task", None, False),
        ("jobs_task", "table", None, "public", True),
        ("task", "table", None, None, True),
        ("jobs_task_history_from_home", "table", None, None, True),
        ("jobs_tasks", "table", None, None, True),
        ("id", "column", "customer_order", None, True),
        (None, "schema", None, None, True),
        ("work", "schema", None, None, True),
    ],
)
def test_only_the_tables_of_the_installation_are_hidden(
    name: str | None, kind: str, table: str | None, schema: str | None, included: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.alembic._installation", lambda: ("jobs_", "work"))
    assert include_name(name, kind, {"table_name": table, "schema_name": schema}) is included
