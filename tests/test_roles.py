"""The roles of PostgreSQL: what each may and may not do, with logins of their own on a real server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from runner.columns import EARLIEST
from runner.errors import DatabaseRefused, DuplicateTask, InvalidInput, InvalidTask
from runner.migrations import ROLES, check, role, roles, unguarded
from runner.migrations.guards import watched_tables
from runner.migrations.installation import version_table
from runner.outcome import Done, Retry
from runner.policy.selection import Lane, Place
from runner.schema import tables
from runner.settings import Settings
from runner.store import intervene, observe
from runner.store.claim import Claimant, Terms, claim
from runner.store.database import Database
from runner.store.intervene.changes import FIELDS
from runner.store.prune import prune, retention_of
from runner.store.rescue import rescue
from runner.store.runners import Identity, beat, leave, register
from runner.store.settle import Settlement, settle
from runner.store.statistics import Minute, write_statistics
from runner.store.submit import COLUMNS, submit
from runner.store.transaction import Transaction
from runner.task import After, NewTask, OnDuplicate, Unique
from runner.urls import parse_url
from tests.cli.conftest import program
from tests.conftest import PostgresDatabases
from tests.postgres.logins import logins
from tests.store.rows import filtered
from tests.store.scene import DEAD, HELD, INTERVENES, LATER, RUNNER, TAKES_BACK, Verb, arrange

URL = parse_url("postgresql://app@db.example.org/app")


@pytest.fixture(scope="module")
def seen_by(postgresql: PostgresDatabases) -> Iterator[dict[str, str]]:
    """The URL of a database as each role sees it."""
    owner = postgresql.migrated(Path())
    asyncio.run(_arranged(owner))
    with logins(owner) as urls:
        yield urls | {"owner": owner}
    postgresql.remove(owner)


async def _arranged(url: str) -> None:
    database = Database.open(url)
    try:
        await arrange(database)
    finally:
        await database.dispose()


@pytest.fixture
async def database(request: pytest.FixtureRequest, seen_by: dict[str, str]) -> AsyncIterator[Database]:
    """The database as the login of the role `who` sees it."""
    opened = Database.open(seen_by[request.getfixturevalue("who")])
    yield opened
    await opened.dispose()


@dataclass(frozen=True)
class Plain:
    """Statements as somebody types them in psql."""

    statements: str

    async def __call__(self, tx: Transaction) -> None:
        for statement in self.statements.split("; "):
            await tx.execute(sa.text(statement))


sent = Plain


async def plain_entries(tx: Transaction) -> list[Any]:
    """What the triggers have written down, which else they do when the transaction ends."""
    await tx.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
    may = await tx.scalar(sa.text("SELECT has_table_privilege('task_audit', 'SELECT')"))
    audit = tx.tables.audit.c
    return list(await tx.rows(sa.select(tx.tables.audit).where(audit.verb.startswith("SQL ")))) if may else []


async def submits(tx: Transaction) -> None:
    await submit(tx, NewTask("h", "{}", "mail", "order-17", 9, delay=60.0, max_attempts=3, retry="1m", tags='["a"]'))


async def submits_after(tx: Transaction) -> None:
    """All that can be looked up: a parent by number and one by key, and whether it would wait for itself."""
    await submit(tx, NewTask("h", after=(After(("g", "k")),), key="k"))
    await submit(tx, NewTask("g", after=(After(DEAD), After(("f", "k"))), key="k2"))
    with pytest.raises(InvalidTask, match="wait for itself"):
        await submit(tx, NewTask("g", after=(After(("h", "k")),), key="k"))


async def claims(tx: Transaction) -> None:
    lanes = {Lane("mail", "h", 1): Place(tx.dialect.instant(EARLIEST), 0)}
    assert await claim(tx, Claimant(RUNNER, "here"), lanes, {"h": Terms(3, None)}, 1)


async def settles(tx: Transaction) -> None:
    await settle(tx, RUNNER, [Settlement(HELD, 1, Done(), 0.1, "30s")])


async def puts_off(tx: Transaction) -> None:
    await settle(tx, RUNNER, [Settlement(HELD, 1, Retry("1h"), 0.1, "30s")])


async def counts_minutes(tx: Transaction) -> None:
    minute = Minute(await observe.clock(tx), "mail", "h")
    await write_statistics(tx, RUNNER, [minute], {(None, "mail", "h"): 1})


async def looks(tx: Transaction) -> None:
    """Everything that the screens of the console and the reading verbs of the command line ask for."""
    await observe.counts(tx)
    await observe.page(tx, filtered(""))
    await observe.story(tx, DEAD)
    await observe.failures(tx)
    await observe.runners(tx)
    await observe.audit(tx)
    await observe.pauses(tx)
    await observe.unknown_handlers(tx)
    now = await observe.clock(tx)
    await observe.totals(tx, now - timedelta(hours=1), now)
    await observe.summary(tx, now - timedelta(hours=1))
    await observe.pulses(tx, now)
    for id in (LATER, HELD, DEAD):
        await observe.why(tx, id, UTC)
    await observe.health(tx)


RUNS = {
    "claim": claims,
    "put off": puts_off,
    "register": lambda tx: register(tx, Identity("here", 1, "1", ("h",), 1), 60),
    "beat": lambda tx: beat(tx, RUNNER, 60, 1),
    "leave": lambda tx: leave(tx, RUNNER),
    "rescue": lambda tx: rescue(tx, 5.0),
    "count minutes": counts_minutes,
    "prune": lambda tx: prune(tx, retention_of(Settings())),
}
NOBODY_MAY = {
    "forge the audit": "UPDATE task_audit SET operator = 'somebody else'",
    "empty the audit": "UPDATE task_audit SET before = NULL",
    "raise the schema": "UPDATE task_schema SET version_num = '9999'",
    "drop a table": "DROP TABLE task_audit",
    "empty a table": "TRUNCATE task_audit",
    "write under another login": "INSERT INTO task_audit (operator, host, verb, login) VALUES ('a', 'b', 'c', 'd')",
    "write under another time": "INSERT INTO task_audit (operator, host, verb, at) VALUES ('a', 'b', 'c', now())",
    "take the trigger away": "DROP TRIGGER audited ON task",
    "switch the trigger off": "ALTER TABLE task DISABLE TRIGGER ALL",
    "switch all triggers off": "SET session_replication_role = replica",
    "add a trigger": "CREATE TRIGGER t BEFORE INSERT ON task EXECUTE FUNCTION suppress_redundant_updates_trigger()",
}
RUNNERS_AND_OPERATORS = ("runner", "operator")


async def submits_once(tx: Transaction) -> None:
    for _ in range(2):
        await submit(tx, NewTask("h", bucket=7, unique=Unique("k")))
    with pytest.raises(DuplicateTask):
        await submit(tx, NewTask("h", unique=Unique("k", on_duplicate=OnDuplicate.ERROR)))


@dataclass(frozen=True)
class Case:
    """Something that can be done, and who may do it."""

    name: str
    verb: Any
    allowed: tuple[str, ...]


CASES = (
    Case("submit", submits, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("submit once", submits_once, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("ask what is unfinished", lambda tx: observe.unfinished(tx, "h", "k"), ROLES),
    Case("look", looks, ("reader", *RUNNERS_AND_OPERATORS)),
    Case("read payloads", sent("SELECT payload FROM task"), ("reader", *RUNNERS_AND_OPERATORS)),
    Case("submit after others", submits_after, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("choose a fence", sent("INSERT INTO task(handler, fence) VALUES ('h', 7)"), RUNNERS_AND_OPERATORS),
    # Whoever may terminate a task moves it to the history, which is what a settle does.
    Case("settle", settles, RUNNERS_AND_OPERATORS),
    Case("raise a fence", sent("UPDATE task SET fence = fence + 1"), ("runner",)),
    Case("rewrite the history", sent("UPDATE task_history SET state = 'succeeded'"), ("runner",)),
    Case("delete an attempt", sent("DELETE FROM task_attempt"), ("runner",)),
    Case("delete the audit", sent("DELETE FROM task_audit"), ("runner",)),
    Case("strike a runner out", sent("DELETE FROM task_runner"), ("runner",)),
    *(Case(name, verb, ("runner",)) for name, verb in RUNS.items()),
    *(Case(name, verb, ("operator",)) for name, verb in (INTERVENES | TAKES_BACK).items()),
    *(Case(name, sent(statement), ()) for name, statement in NOBODY_MAY.items()),
)


class Undone(Exception):
    """What was tried is rolled back, so that the next one finds everything as it was."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("who", ROLES)
async def test_a_role_may_do_what_it_is_for_and_nothing_else(who: str, case: Case, database: Database) -> None:
    if who in case.allowed:
        with pytest.raises(Undone):
            await tried(database, case.verb)
    else:
        with pytest.raises(DatabaseRefused, match=r"permission denied|must be owner"):
            await tried(database, case.verb)


async def tried(database: Database, verb: Verb) -> None:
    async with database.writing() as tx:
        done = await verb(tx)
        if isinstance(done, intervene.Result):
            assert done.changed
        # Who is no runner, and settles, is taken for somebody who does it by hand.
        if not isinstance(verb, Plain) and verb is not settles:
            assert await plain_entries(tx) == []
        raise Undone


FIRST_ENTRIES = 2
"""The scene itself was set by the owner, and left so many."""

EDIT = "UPDATE task SET priority = 7, version = version + 1 WHERE id = 2"
OWN_ENTRY = "INSERT INTO task_audit (operator, host, verb, task_id) VALUES ('nobody', 'x', 'y', %d)"
WRITTEN: dict[str, tuple[str, list[tuple[str, int | None, str | None, Any, Any]]]] = {
    "an edit": (EDIT, [("SQL UPDATE", 2, None, {"priority": 5, "version": 1}, {"priority": 7, "version": 2})]),
    "a payload": (
        """UPDATE task SET payload = '{"a": [1]}' WHERE id = 1""",
        [("SQL UPDATE", 1, None, {"payload": {}}, {"payload": {"a": [1]}})],
    ),
    "nothing": ("UPDATE task SET priority = priority", []),
    "two edits": (
        "UPDATE task SET priority = 7 WHERE id = 2; UPDATE task SET priority = 8 WHERE id = 2",
        [
            ("SQL UPDATE", 2, None, {"priority": 5}, {"priority": 7}),
            ("SQL UPDATE", 2, None, {"priority": 7}, {"priority": 8}),
        ],
    ),
    "a task that goes": ("DELETE FROM task WHERE id = 1", [("SQL DELETE", 1, None, ANY, {})]),
    "a task that never was": (
        "INSERT INTO task_history (id, handler, queue, state) VALUES (90, 'h', 'q', 'succeeded')",
        [("SQL INSERT", 90, None, {}, ANY)],
    ),
    "a task of the past": ("DELETE FROM task_history WHERE id = 11", [("SQL DELETE", 11, None, ANY, {})]),
    "letting go": (
        "UPDATE task_dependency SET satisfied_by = 'me' WHERE task_id = 4",
        [("SQL UPDATE", 4, None, {"satisfied_by": None}, {"satisfied_by": "me"})],
    ),
    "a pause": (
        "UPDATE task_queue SET paused_why = 'so' WHERE name = 'slow'",
        [("SQL UPDATE", None, "queue slow", {"paused_why": "relay is back"}, {"paused_why": "so"})],
    ),
    "a queue": ("INSERT INTO task_queue (name) VALUES ('new')", [("SQL INSERT", None, "queue new", {}, ANY)]),
    "a handler": ("INSERT INTO task_handler (name) VALUES ('new')", [("SQL INSERT", None, "handler new", {}, ANY)]),
    "a wish": (
        "UPDATE task_runner SET wish = 'drain' WHERE id = 1",
        [("SQL UPDATE", None, "runner 1", {"wish": None}, {"wish": "drain"})],
    ),
    "a unique key": ("DELETE FROM task_unique WHERE task_id = 2", [("SQL DELETE", 2, None, ANY, {})]),
    "a change beside an entry about another task": (f"{EDIT}; {OWN_ENTRY % 1}", [("SQL UPDATE", 2, None, ANY, ANY)]),
    "a change beside an entry that looks like one of the trigger": (
        f"{EDIT}; INSERT INTO task_audit (operator, host, verb, task_id) VALUES ('nobody', 'x', 'SQL UPDATE', 2)",
        [("SQL UPDATE", 2, None, None, None), ("SQL UPDATE", 2, None, ANY, ANY)],
    ),
    # It proves who, when and which; what was changed is what the entry says.
    "a change that its own entry tells of": (f"{EDIT}; {OWN_ENTRY % 2}", []),
}
"""What an operator does with psql, and what the audit then holds."""


@pytest.mark.parametrize("who", ["operator"])
@pytest.mark.parametrize(("statements", "expected"), WRITTEN.values(), ids=WRITTEN)
async def test_what_an_operator_does_with_plain_sql_is_written_down(
    database: Database,
    who: str,
    statements: str,
    expected: list[Any],
) -> None:
    async def does(tx: Transaction) -> None:
        await tx.execute(sa.text("INSERT INTO task_unique (handler, unique_key, task_id) VALUES ('h', 'u', 2)"))
        await Plain(statements)(tx)
        found = await plain_entries(tx)
        told = [(row.verb, row.task_id, row.target, *map(decoded, (row.before, row.after))) for row in found]
        assert told == expected
        audit = tx.tables.audit.c
        logins = await tx.rows(sa.select(audit.login).where(audit.id > FIRST_ENTRIES))
        assert all(row.login.startswith("test_operator_") for row in logins)
        assert all(row.host.startswith(("127.0.0.1 ", "local ")) for row in found if row.operator == row.login)
        raise Undone

    with pytest.raises(Undone):
        await database.write(does)


def decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@pytest.mark.parametrize("who", ["runner", "owner"])
async def test_runners_and_the_owner_are_not_watched(
    database: Database,
    who: str,
) -> None:
    async def does(tx: Transaction) -> None:
        await Plain(EDIT)(tx)
        assert await plain_entries(tx) == []
        raise Undone

    with pytest.raises(Undone):
        await database.write(does)


@pytest.mark.parametrize("who", ["reader"])
async def test_a_login_that_may_not_read_the_audit_is_told_so_and_sees_the_rest(
    database: Database, who: str, seen_by: dict[str, str]
) -> None:
    assert (await database.read(observe.story, LATER)).audit_seen
    with psycopg.connect(seen_by["owner"], autocommit=True) as owner:
        owner.execute("REVOKE SELECT ON task_audit FROM task_reader")
        try:
            story = await database.read(observe.story, LATER)
        finally:
            owner.execute("GRANT SELECT ON task_audit TO task_reader")
    assert (story.audit, story.audit_seen) == ((), False)
    assert observe.timeline(story)[-1].text.startswith("what operators did is not shown")


@pytest.mark.parametrize("who", ROLES)
async def test_every_role_can_tell_whether_the_tables_are_the_right_ones(who: str, database: Database) -> None:
    await check(database)
    assert await database.read(unguarded) == []


AUDITED = "CREATE CONSTRAINT TRIGGER audited AFTER DELETE ON task_runner FOR EACH ROW "
OTHERS = "WHEN (pg_has_role(session_user, 1::oid, 'MEMBER')) EXECUTE FUNCTION task_audited()"
GAPS: dict[str, tuple[str, list[str] | None]] = {
    "a trigger that is gone": ("DROP TRIGGER audited ON task_queue", ["changes of task_queue with plain SQL are not"]),
    "triggers that are off": (
        "ALTER TABLE task DISABLE TRIGGER audited; ALTER TABLE task_unique DISABLE TRIGGER USER",
        ["changes of task, task_unique with plain SQL are not"],
    ),
    "roles of another server": (
        f"DROP TRIGGER audited ON task_runner; {AUDITED}{OTHERS}",
        ["the trigger audited of task_runner knows the roles of another server"],
    ),
    "a column that was opened": (
        "GRANT INSERT (login) ON task_audit TO task_operator; GRANT UPDATE (at) ON task_audit TO task_producer",
        ["task_operator may write the column login", "task_producer may write the column at"],
    ),
    "rights that were all taken back": ("REVOKE ALL ON task FROM task_operator", None),
}
"""What an owner can do to what the script put in place, and what is then said."""


@pytest.mark.parametrize("who", ["owner"])
@pytest.mark.parametrize(("statements", "expected"), GAPS.values(), ids=GAPS)
async def test_what_the_script_put_in_place_and_is_not_there_is_noticed(
    database: Database, who: str, statements: str, expected: list[str] | None
) -> None:
    async def undoes(tx: Transaction) -> None:
        await Plain(statements)(tx)
        found = await unguarded(tx)
        assert (found is None) is (expected is None), found
        for told, start in zip(found or (), expected or (), strict=True):
            assert told.startswith(start)
        raise Undone

    with pytest.raises(Undone):
        await database.write(undoes)


@pytest.mark.parametrize("who", ["owner"])
async def test_every_table_that_the_script_watches_is_looked_at(database: Database, who: str) -> None:
    made = sa.text("SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'audited' AND tgparentid = 0")
    async with database.reading() as tx:
        assert sorted(row[0] for row in await tx.rows(made)) == sorted(
            table.name for table in watched_tables(tx.tables)
        )


def test_a_runner_and_a_producer_work_with_their_own_logins(seen_by: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own_handlers.py").write_text("import runner\n\n@runner.handler('a.b')\ndef ab() -> None: ...\n")
    for who, command in {
        "producer": ("submit", "a.b"),
        "runner": ("work", "-H", "own_handlers", "--until-idle"),
        "reader": ("tasks", "handler:a.b state:succeeded"),
        "operator": ("retry", "handler:h state:dead", "--yes", "1"),
    }.items():
        done = program(*command, cwd=tmp_path, env=_environment(tmp_path, seen_by[who]))
        assert done.returncode == 0, (who, done.stderr)


def _environment(home: Path, url: str) -> dict[str, str]:
    return {"RUNNER_URL": url, "HOME": str(home), "PATH": "/usr/bin:/bin"}


def test_the_script_knows_every_table_with_prefix_and_schema() -> None:
    written = roles(URL, "x_", "jobs")
    names = [*tables("x_", "jobs").metadata.tables, f"jobs.{version_table('x_')}"]
    for name in names:
        schema, _, table = name.partition(".")
        assert f'"{schema}"."{table}"' in written
    assert 'GRANT USAGE ON SCHEMA "jobs" TO jobs_x_task_producer' in written
    assert not re.search(r'(?<!\.)"x_task|ON task', written)


def test_a_table_that_no_role_was_thought_of_for_is_found() -> None:
    script = (Path(__file__).parent.parent / "runner" / "migrations" / "roles.sql").read_text()
    assert {name for name in tables().metadata.tables if f"{{{name}}}" not in script} == set()


def test_what_can_be_submitted_and_edited_is_granted() -> None:
    written = roles(URL)
    submitted, edited = re.findall(r"GRANT (?:INSERT|UPDATE) \(([^)]+)\) ON \"task\"", written)
    assert {*COLUMNS, "state"} - {"delay"} == {name.strip() for name in submitted.split(",")}
    assert {name.strip() for name in edited.split(",")} >= FIELDS


def test_sqlite_knows_no_roles() -> None:
    with pytest.raises(InvalidInput):
        roles(parse_url("sqlite:///x.db"))


def test_a_name_that_the_server_would_cut_off_is_refused() -> None:
    with pytest.raises(InvalidInput, match="longer than"):
        roles(URL, "p" * 20, "s" * 50)


def test_a_schema_of_its_own_gets_roles_of_its_own(postgresql: PostgresDatabases) -> None:
    url = postgresql.empty(Path())
    asyncio.run(_migrated_into(url, "x_", "jobs"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles(parse_url(url), "x_", "jobs").encode())
        may = connection.execute("SELECT has_table_privilege('jobs_x_task_reader', 'jobs.x_task', 'SELECT')")
        assert may.fetchone() == (True,)
        connection.execute("CREATE ROLE jobs_x_somebody LOGIN IN ROLE jobs_x_task_operator")
        connection.execute("INSERT INTO jobs.x_task (handler) VALUES ('h')")
        connection.execute("SET SESSION AUTHORIZATION jobs_x_somebody")
        connection.execute("UPDATE jobs.x_task SET priority = 7")
        connection.execute("RESET SESSION AUTHORIZATION")
        written = connection.execute("SELECT verb, login FROM jobs.x_task_audit").fetchall()
        assert written == [("SQL UPDATE", "jobs_x_somebody")]
        connection.execute("DROP ROLE jobs_x_somebody")
        connection.execute("DROP SCHEMA jobs CASCADE")
        for name in ROLES:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role(name, "x_", "jobs"))))
    postgresql.remove(url)


async def _migrated_into(url: str, prefix: str, schema: str) -> None:
    opened = Database.open(url, prefix=prefix, schema=schema)
    try:
        await opened.migrate()
    finally:
        await opened.dispose()
