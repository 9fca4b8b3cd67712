"""Migrations: they create the declared schema, can run concurrently, and apply completely or not at all."""

import asyncio
import logging
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from runner.db.database import Database
from runner.db.migrations import apply, revisions
from runner.db.migrations.apply import ensure, sql, statements, upgrade
from runner.db.migrations.context import steps
from runner.db.migrations.revisions import HEAD, REVISIONS, StoredRevision, check, current_revision
from runner.errors import (
    ConfigurationError,
    DatabaseRefused,
    LockNotReleased,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SchemaVersionMissing,
)
from tests.conftest import on_postgresql, on_sqlite
from tests.db.storage import storage_metadata
from tests.programs import CONTEXT
from tests.releases import NEXT, OUT_OF_DATE, install_next
from tests.store.rows import until_locked

pytestmark = pytest.mark.one_database

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Barrier

Open = Callable[..., Database]
Described = dict[str, list[Any]]

SCRIPT = ScriptDirectory(str(revisions.FOLDER))

COMPATIBLE_SINCE = max(number for number in REVISIONS if not SCRIPT.get_revision(number).module.additive)
"""The oldest release that can use the tables of this one: the revisions after it are additive."""

PLACES: list[dict[str, Any]] = [{}, {"prefix": "jobs_"}, {"prefix": "jobs_", "schema": "user"}]
"""Locations of an installation: default, with a prefix, and in a schema whose name needs quotes."""


LOCKED = """
    CREATE TABLE locked AS SELECT c.relname AS name FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
    WHERE l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock'
"""
"""Keeps the names of the tables that a migration has locked."""


@pytest.fixture
async def open_database(database_url: str) -> AsyncIterator[Open]:
    """Open the test's empty database, any number of times."""
    opened: list[Database] = []

    def open_it(**options: Any) -> Database:
        opened.append(Database.open(database_url, **options))
        return opened[-1]

    yield open_it
    for database in opened:
        await database.dispose()


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Add one more revision, as the next release would."""

    def install(then: str = "pass", *, additive: bool = False) -> None:
        install_next(tmp_path, monkeypatch, then, additive=additive)

    return install


@pytest.fixture
def limited_role(databases: Any, database_url: str) -> Iterator[str]:
    """The URL of a role that may only connect, with the password `hunter2`."""
    parts = urlsplit(database_url)
    role = f"limited_{parts.path.strip('/')}"
    host = parts.netloc.rpartition("@")[2]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'")
        yield parts._replace(netloc=f"{role}:hunter2@{host}").geturl()
        connection.execute(f"DROP OWNED BY {role} CASCADE")
        connection.execute(f"DROP ROLE {role}")


async def described(database: Database) -> Described:
    """The structure of an installation, as the database describes it, without the order of columns.

    A new release appends its columns, so their order depends on the first release of an installation.
    """
    async with database.reading() as tx:
        questions = SQLITE_QUESTIONS if database.engine.dialect.name == "sqlite" else POSTGRESQL_QUESTIONS
        version, schema = f"{database.tables.prefix}task_schema", database.tables.metadata.schema
        return {
            name: sorted(
                tuple(without_order(re.sub(r"\s+", " ", str(value))) for value in row)
                for row in await tx.rows(sa.text(question), {"version": version, "schema": schema})
            )
            for name, question in questions.items()
        }


def without_order(sql: str) -> str:
    """A CREATE TABLE with its columns and constraints in the order of their text; other texts as they are."""
    head, _, body = sql.partition("(")
    if not head.startswith("CREATE TABLE"):
        return sql
    parts, depth, quoted = [""], 0, False
    for sign in body.rpartition(")")[0]:
        quoted ^= sign == "'"
        depth += 0 if quoted else (sign == "(") - (sign == ")")
        if sign == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return f"{head}({', '.join(sorted(part.strip() for part in parts))})"


SQLITE_QUESTIONS = {
    "objects": "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name NOT IN (:version, 'sqlite_sequence')"
}

RELATIONS = """
    pg_class AS r JOIN pg_namespace AS n ON n.oid = r.relnamespace
        AND n.nspname = coalesce(CAST(:schema AS text), current_schema()) AND r.relname NOT LIKE :version || '%'
"""

POSTGRESQL_QUESTIONS = {
    "relations": f"""
        SELECT r.relname, r.relkind, r.relpersistence, r.reloptions, pg_get_partkeydef(r.oid),
            pg_get_expr(r.relpartbound, r.oid)
        FROM {RELATIONS}
    """,
    "columns": f"""
        SELECT r.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid)
        FROM {RELATIONS} JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0
            LEFT JOIN pg_attrdef AS d ON d.adrelid = r.oid AND d.adnum = a.attnum
        WHERE r.relkind IN ('r', 'p')
    """,
    "constraints": f"""
        SELECT r.relname, c.conname, pg_get_constraintdef(c.oid)
        FROM {RELATIONS} JOIN pg_constraint AS c ON c.conrelid = r.oid
    """,
    "indexes": f"SELECT r.relname, pg_get_indexdef(r.oid) FROM {RELATIONS} WHERE r.relkind IN ('i', 'I')",
}


async def rebuild_from_the_schema(database: Database) -> None:
    """Replace the tables by those of the schema."""
    async with database.writing() as tx:
        await tx.connection.run_sync(database.tables.metadata.drop_all)
        await tx.connection.run_sync(
            storage_metadata(database.tables.prefix, database.tables.metadata.schema).create_all
        )


async def execute(database: Database, statement: str) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.text(statement))


@pytest.mark.both_databases
@pytest.mark.parametrize("options", [pytest.param(PLACES[1], marks=pytest.mark.slow), PLACES[0], PLACES[2]])
async def test_migrating_creates_the_declared_schema(open_database: Open, options: dict[str, Any]) -> None:
    database = open_database(**options)
    await upgrade(database)
    migrated = await described(database)
    await rebuild_from_the_schema(database)
    assert migrated == await described(database)
    assert len(str(migrated)) > 5_000


@pytest.mark.both_databases
@pytest.mark.parametrize("options", [pytest.param(PLACES[1], marks=pytest.mark.slow), PLACES[0], PLACES[2]])
async def test_the_sql_script_creates_the_same_tables_as_migrating(
    open_database: Open, database_url: str, options: dict[str, Any]
) -> None:
    run_script(database_url, sql(database_url, **options))
    database = open_database(**options)
    assert await check(database) == HEAD
    written = await described(database)
    await rebuild_from_the_schema(database)
    assert written == await described(database)


def run_script(url: str, script: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.executescript(script)
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(script.encode())


def test_writing_the_sql_script_needs_no_connection() -> None:
    script = sql("postgresql://nobody@host.invalid/none", "jobs_", "work")
    assert script.startswith("BEGIN;")
    assert script.rstrip().endswith("COMMIT;")
    assert "CREATE TABLE work.jobs_task_schema" in script


@on_sqlite
async def test_a_missing_alembic_is_named_with_the_remedy(open_database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "runner.db.migrations.context")
    monkeypatch.setitem(sys.modules, "alembic.runtime", None)
    monkeypatch.delitem(sys.modules, "alembic.runtime.migration")
    with pytest.raises(ConfigurationError, match=r"package alembic is not installed.*runner migrate"):
        await upgrade(open_database())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_statements_of_an_upgrade_begin_at_the_revision_of_the_database(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_next(tmp_path, monkeypatch)
    upgrading = statements(kind, [NEXT], "jobs_", start=HEAD)
    assert [statement.split()[:3] for statement in upgrading] == [
        ["ALTER", "TABLE", "jobs_task"],
        ["UPDATE", "jobs_task_schema", "SET"],
        ["UPDATE", "jobs_task_schema", "SET"],
    ]
    assert f"'{NEXT}'" in upgrading[1]


async def test_a_second_upgrade_does_nothing(open_database: Open) -> None:
    database = open_database()
    assert await upgrade(database) == list(REVISIONS)
    before = await described(database)
    assert await upgrade(database) == []
    assert await described(database) == before


@pytest.mark.both_databases
async def test_four_concurrent_upgrades_are_safe(open_database: Open) -> None:
    databases = [open_database() for _ in range(4)]
    applied = await asyncio.gather(*(upgrade(database) for database in databases))
    assert sorted(applied) == [[], [], [], list(REVISIONS)]


@pytest.mark.slow
async def test_one_process_migrates_four_installations_concurrently(open_database: Open) -> None:
    databases = [open_database(prefix=f"p{number}_") for number in range(4)]
    await asyncio.gather(*(upgrade(database) for database in databases))
    for database in databases:
        assert await check(database) == HEAD


@pytest.mark.slow
def test_four_processes_upgrade_concurrently(database_url: str) -> None:
    barrier, answers = CONTEXT.Barrier(4), CONTEXT.SimpleQueue()
    arguments = (database_url, barrier, answers)
    processes = [CONTEXT.Process(target=upgrade_together, args=arguments, daemon=True) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert sorted(answers.get() for _ in processes) == [0, 0, 0, len(REVISIONS)]


def upgrade_together(url: str, barrier: "Barrier", answers: "SimpleQueue[int]") -> None:
    async def work() -> int:
        database = Database.open(url)
        barrier.wait(60)
        applied = await upgrade(database)
        await database.dispose()
        return len(applied)

    answers.put(asyncio.run(work()))


async def test_a_database_without_tables_is_reported(open_database: Open) -> None:
    database = open_database()
    assert await current_revision(database) is None
    with pytest.raises(SchemaMissing, match="runner migrate"):
        await check(database)


async def test_a_later_release_upgrades_the_tables_and_keeps_the_rows(
    open_database: Open, next_release: Callable[..., None]
) -> None:
    database = open_database(prefix="jobs_")
    await upgrade(database)
    await execute(database, "INSERT INTO jobs_task (handler) VALUES ('mail')")
    next_release()
    with pytest.raises(SchemaTooOld, match=OUT_OF_DATE):
        await check(database)
    assert await upgrade(database) == [NEXT]
    assert await check(database) == NEXT
    async with database.reading() as tx:
        assert [*map(tuple, await tx.rows(sa.text("SELECT handler, colour FROM jobs_task")))] == [("mail", None)]


async def test_tables_without_a_revision_are_rejected(open_database: Open) -> None:
    database = open_database()
    await upgrade(database)
    for statement in ("DELETE FROM task_schema", "DROP TABLE task_schema"):
        await execute(database, statement)
        for step in (check, upgrade, ensure):
            with pytest.raises(SchemaVersionMissing, match=r"task_schema does not record .* table_prefix"):
                await step(database)


@pytest.mark.both_databases
async def test_a_failed_revision_leaves_nothing_behind(open_database: Open, next_release: Callable[..., None]) -> None:
    database = open_database()
    await upgrade(database)
    before = await described(database)
    next_release(then="op.plain.execute('INSERT INTO nowhere VALUES (1)')")
    with pytest.raises(DatabaseRefused, match="nowhere"):
        await upgrade(database)
    assert await current_revision(database) == StoredRevision(HEAD, COMPATIBLE_SINCE)
    assert await described(database) == before


@pytest.mark.slow
@on_postgresql
async def test_submits_go_on_while_a_migration_waits_for_a_long_query(
    open_database: Open, next_release: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "TRIES", 1)
    database = open_database()
    await upgrade(database)
    next_release()
    async with asyncio.timeout(90), database.reading() as query:
        await query.rows(sa.text("SELECT * FROM task"))
        pid = await query.scalar(sa.text("SELECT pg_backend_pid()"))
        migration = asyncio.create_task(upgrade(database))
        await until_locked(database)
        await execute(database, "INSERT INTO task (handler) VALUES ('mail')")
        with pytest.raises(LockNotReleased, match=f"table task is locked.*{pid}"):
            await migration
    assert await upgrade(database) == [NEXT]


@on_postgresql
async def test_a_migration_locks_its_tables_together_before_it_changes_one(
    open_database: Open, next_release: Callable[..., None]
) -> None:
    """Otherwise a transaction that uses several of them between two of its statements is a deadlock."""
    database = open_database(prefix="jobs_", schema="user")
    await upgrade(database)
    next_release(then=f"op.plain.execute({LOCKED!r}); op.plain.execute('ANALYZE \"user\".jobs_task_history')")
    assert await upgrade(database) == [NEXT]
    async with database.reading() as tx:
        locked = {name for (name,) in await tx.rows(sa.text("SELECT name FROM locked"))}
    assert locked & {f"jobs_{name}" for name in ("task", "task_history", "task_runner")} == {
        "jobs_task",
        "jobs_task_history",
    }


async def test_tables_of_a_later_release_are_not_changed(open_database: Open) -> None:
    database = open_database()
    await upgrade(database)
    await execute(database, "UPDATE task_schema SET version_num = '9999', compatible_since = '9999'")
    for step in (check, upgrade, ensure):
        with pytest.raises(SchemaTooNew, match=f"is at schema 9999.*schema {HEAD}"):
            await step(database)


@pytest.mark.parametrize("from_nothing", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_program_uses_the_tables_after_an_additive_migration(
    open_database: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    from_nothing: bool,
) -> None:
    caplog.set_level(logging.INFO, "runner.schema")
    database = open_database()
    if not from_nothing:
        await upgrade(database)
    with monkeypatch.context() as next_release:
        install_next(tmp_path, next_release, additive=True)
        await upgrade(database)
    assert await current_revision(database) == StoredRevision(NEXT, COMPATIBLE_SINCE)
    assert await check(database) == NEXT
    assert (await upgrade(database), await ensure(database)) == ([], [])
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert f"is at schema {NEXT}; this program (schema {HEAD}) can use it" in messages[0]


@pytest.mark.parametrize("from_nothing", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_program_refuses_the_tables_after_another_migration(
    open_database: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_nothing: bool
) -> None:
    database = open_database()
    if not from_nothing:
        await upgrade(database)
    with monkeypatch.context() as next_release:
        install_next(tmp_path, next_release)
        await upgrade(database)
    assert await current_revision(database) == StoredRevision(NEXT, NEXT)
    for step in (check, upgrade, ensure):
        with pytest.raises(SchemaTooNew, match=f"is at schema {NEXT}, which this program .schema {HEAD}. does not"):
            await step(database)


async def test_a_version_table_without_compatibility_supports_only_its_own_release(open_database: Open) -> None:
    database = open_database()
    await upgrade(database)
    await execute(database, "ALTER TABLE task_schema DROP COLUMN compatible_since")
    assert await check(database) == HEAD
    await execute(database, f"UPDATE task_schema SET version_num = '{NEXT}'")
    with pytest.raises(SchemaTooNew):
        await check(database)
    await execute(database, "ALTER TABLE task_schema ADD COLUMN compatible_since TEXT")
    await execute(database, f"UPDATE task_schema SET compatible_since = '{HEAD}'")
    assert await check(database) == NEXT


def test_the_sql_script_stores_the_compatibility() -> None:
    assert f"UPDATE jobs_task_schema SET compatible_since='{COMPATIBLE_SINCE}'" in sql("sqlite:///x.db", "jobs_")


def test_every_revision_declares_whether_it_is_additive() -> None:
    for number in REVISIONS:
        assert isinstance(SCRIPT.get_revision(number).module.additive, bool), number
    assert SCRIPT.get_revision(REVISIONS[0]).module.additive is False


@on_sqlite
async def test_opening_a_sqlite_file_migrates_it(open_database: Open, next_release: Callable[..., None]) -> None:
    database = open_database()
    assert await ensure(database) == list(REVISIONS)
    assert await ensure(database) == []
    next_release()
    assert await ensure(database) == [NEXT]


@on_postgresql
async def test_a_postgresql_database_is_migrated_only_on_request(open_database: Open) -> None:
    database = open_database()
    with pytest.raises(SchemaMissing):
        await ensure(database)
    assert await current_revision(database) is None
    await upgrade(database)
    assert await ensure(database) == []


@on_postgresql
async def test_an_outdated_postgresql_schema_names_the_migrate_command(
    open_database: Open, next_release: Callable[..., None]
) -> None:
    database = open_database()
    await upgrade(database)
    next_release()
    with pytest.raises(SchemaTooOld, match=OUT_OF_DATE):
        await ensure(database)


@on_postgresql
async def test_the_message_omits_the_password(limited_role: str) -> None:
    database = Database.open(limited_role)
    with pytest.raises(SchemaMissing) as refused:
        await check(database)
    await database.dispose()
    assert ":***@" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@on_postgresql
async def test_a_role_that_owns_only_its_schema_can_migrate(database_url: str, limited_role: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(f"CREATE SCHEMA work AUTHORIZATION {urlsplit(limited_role).username}")
    database = Database.open(limited_role, schema="work")
    assert await upgrade(database) == list(REVISIONS)
    await database.dispose()


@on_postgresql
async def test_a_missing_right_to_create_the_schema_is_reported(limited_role: str) -> None:
    database = Database.open(limited_role, schema="work")
    with pytest.raises(DatabaseRefused, match="permission denied for database"):
        await upgrade(database)
    await database.dispose()


@pytest.mark.slow
async def test_installations_in_one_database_are_independent(open_database: Open) -> None:
    ours, theirs = open_database(prefix="ours_"), open_database(prefix="theirs_")
    await upgrade(ours)
    assert await current_revision(theirs) is None
    await upgrade(theirs)
    await execute(theirs, "DROP TABLE theirs_task_schema")
    assert await check(ours) == HEAD


def test_revisions_are_applied_in_the_order_of_their_files() -> None:
    assert [step.from_revisions for step in steps(REVISIONS)] == [
        (),
        *((number,) for number in REVISIONS[:-1]),
    ]
    assert REVISIONS[-1] == HEAD


def test_a_released_revision_never_changes() -> None:
    for file in revisions.FOLDER.glob("versions/*.py"):
        assert "runner.db.schema" not in file.read_text()
        assert "runner.task" not in file.read_text()


def test_checking_a_database_does_not_load_alembic(migrated_url: str) -> None:
    code = (
        "import asyncio, sys; from runner.db.migrations.apply import ensure; from runner.db.database import Database\n"
        "async def main():\n"
        "    database = Database.open(sys.argv[1]); await ensure(database); await database.dispose()\n"
        "asyncio.run(main()); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code, migrated_url], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
