"""The PostgreSQL roles: the rights of each, checked with separate logins on a real server."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from runner.cli.options import DEFAULT_CONNECTION
from runner.cli.tools import assistant_tools, call_tool
from runner.db.database import Database
from runner.db.migrations.revisions import check, version_table
from runner.db.migrations.roles import ROLES, missing_grant, missing_guards, role, roles, watched_tables
from runner.db.schema import tables
from runner.db.transaction import Transaction, clock
from runner.db.types import EARLIEST
from runner.errors import DatabaseRefused, DuplicateTask, InvalidInput, InvalidTask
from runner.model.outcome import Done, Retry
from runner.model.task import HIGHEST_FENCE, DependsOn, NewTask, OnDuplicate, UniqueKey
from runner.operations.edit_values import FIELDS
from runner.operations.results import Result, Target
from runner.operations.retry import retry_now
from runner.policy.lanes import Lane
from runner.policy.limits import UNLIMITED
from runner.policy.positions import LanePosition
from runner.queries.audit import audit as read_audit
from runner.queries.counts import counts
from runner.queries.failures import failures
from runner.queries.health import health
from runner.queries.registries import pauses
from runner.queries.reports import pulses
from runner.queries.runners import runners, unknown_handlers
from runner.queries.summary import summary, totals
from runner.queries.task.detail import task_detail as read_story
from runner.queries.task.results import unfinished
from runner.queries.task.timeline import timeline
from runner.queries.task_list.search import page
from runner.queries.why.why import why
from runner.settings import Settings
from runner.store.claim.plain import Claimant, HandlerDefaults, claim
from runner.store.heartbeat import heartbeat
from runner.store.registration import Identity, leave, register
from runner.store.rescue import Rescuer, rescue
from runner.store.retention import prune, retention_of
from runner.store.settle import Settlement, settle
from runner.store.submit import COLUMNS, submit, submit_many
from runner.urls import parse_url
from tests.cli.conftest import program
from tests.conftest import PostgresDatabases
from tests.databases import database_at
from tests.postgres.logins import logins
from tests.store.every_operation import BY, DEAD, HELD, LATER, OPERATIONS, RUNNER, UNDOS, Verb, arrange
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import filtered

URL = parse_url("postgresql://app@db.example.org/app")


@pytest.fixture(scope="module")
def seen_by(postgresql: PostgresDatabases) -> Iterator[dict[str, str]]:
    """The URL of a database for each role."""
    owner = postgresql.migrated(Path())
    asyncio.run(_arranged(owner))
    with logins(owner) as urls:
        yield urls | {"owner": owner}
    postgresql.remove(owner)


async def _arranged(url: str) -> None:
    async with database_at(url) as database:
        await arrange(database)


@pytest.fixture
async def database(request: pytest.FixtureRequest, seen_by: dict[str, str]) -> AsyncIterator[Database]:
    """The database, with a login of the role `who`."""
    opened = Database.open(seen_by[request.getfixturevalue("who")])
    yield opened
    await opened.dispose()


@dataclass(frozen=True)
class Plain:
    """Statements as a user types them in psql."""

    statements: str

    async def __call__(self, tx: Transaction) -> None:
        for statement in self.statements.split("; "):
            await tx.execute(sa.text(statement))


sent = Plain


async def plain_entries(tx: Transaction) -> list[Any]:
    """The audit rows of the triggers, which otherwise run at the end of the transaction."""
    await tx.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
    may = await tx.scalar(sa.text("SELECT has_table_privilege('task_audit', 'SELECT')"))
    audit = tx.tables.audit.c
    entries = sa.select(tx.tables.audit).where(audit.verb.startswith("SQL ")).order_by(audit.id)
    return list(await tx.rows(entries)) if may else []


async def submits(tx: Transaction) -> None:
    await submit(tx, NewTask("h", "{}", "mail", "order-17", 9, delay=60.0, max_attempts=3, retry="1m", tags='["a"]'))


async def submits_after(tx: Transaction) -> None:
    """A submit that reads everything it may: a parent by id, one by key, and the check for cycles."""
    await submit(tx, NewTask("h", after=(DependsOn(("g", "k")),), key="k"))
    await submit(tx, NewTask("g", after=(DependsOn(DEAD), DependsOn(("f", "k"))), key="k2"))
    with pytest.raises(InvalidTask, match="depend on itself"):
        await submit(tx, NewTask("g", after=(DependsOn(("h", "k")),), key="k"))


async def claims(tx: Transaction) -> None:
    lanes = {Lane("mail", "h", 1): LanePosition(tx.dialect.position(EARLIEST), 0)}
    assert await claim(tx, Claimant(RUNNER, "here"), lanes, {"h": HandlerDefaults(3, None)}, 1)


async def settles(tx: Transaction) -> None:
    await settle(tx, RUNNER, [Settlement(HELD, 1, Done(), 0.1, "30s")])


async def puts_off(tx: Transaction) -> None:
    await settle(tx, RUNNER, [Settlement(HELD, 1, Retry("1h"), 0.1, "30s")])


async def retries_stuck(tx: Transaction) -> Result:
    """Retry a waiting task with the highest fence, which gets another one; operators may not update it."""
    values = {"handler": "h", "fence": HIGHEST_FENCE}
    task_id = await tx.scalar(sa.insert(tx.tables.task).values(values).returning(tx.tables.task.c.id))
    return await retry_now(tx, [Target(task_id)], BY)


async def counts_minutes(tx: Transaction) -> None:
    await write_statistics(tx, RUNNER, [Minute(await clock(tx), "mail", "h")], {})


async def all_queries(tx: Transaction) -> None:
    """All queries of the console's screens and of the read-only commands."""
    await counts(tx)
    await page(tx, filtered(""))
    await read_story(tx, DEAD)
    await failures(tx)
    await runners(tx)
    await read_audit(tx)
    await pauses(tx)
    await unknown_handlers(tx)
    now = await clock(tx)
    await totals(tx, now - timedelta(hours=1), now)
    await summary(tx, now - timedelta(hours=1))
    await pulses(tx, now)
    for id in (LATER, HELD, DEAD):
        await why(tx, id, UTC)
    await health(tx)


RUNS = {
    "claim": claims,
    "put off": puts_off,
    "register": lambda tx: register(tx, Identity("here", 1, "1", ("h",), 1), 60),
    "heartbeat_interval": lambda tx: heartbeat(tx, RUNNER, 60, 1, 60),
    "leave": lambda tx: leave(tx, RUNNER),
    "rescue": lambda tx: rescue(tx, Rescuer(RUNNER, 0.0), 5.0),
    "count minutes": counts_minutes,
    "prune": lambda tx: prune(tx, retention_of(Settings()), statistics=Settings().retention_statistics),
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
        await submit(tx, NewTask("h", bucket=7, unique_key=UniqueKey("k")))
    with pytest.raises(DuplicateTask):
        await submit(tx, NewTask("h", unique_key=UniqueKey("k", on_duplicate=OnDuplicate.ERROR)))


async def submits_in_savepoints(tx: Transaction) -> None:
    """An application's ORM opens a savepoint for each block: the task is new in the transaction nevertheless."""
    async with tx.connection.begin_nested():
        task_id = await tx.scalar(sa.text("INSERT INTO task (handler) VALUES ('h') RETURNING id"))
        async with tx.connection.begin_nested():
            await tx.execute(sa.text(f"INSERT INTO task_dependency (task_id, parent_id) VALUES ({task_id}, {DEAD})"))
    await tx.execute(sa.text(f"INSERT INTO task_dependency (task_id, parent_id) VALUES ({task_id}, {HELD})"))


async def submits_by_plain_sql(tx: Transaction) -> None:
    """The statements of docs/sql.md for a unique key, twice."""
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    (block,) = re.findall(r"-- in psql\n *BEGIN;\n( *INSERT INTO task_unique.+?)COMMIT;", page, re.DOTALL)
    before = await tx.scalar(sa.text("SELECT count(id) FROM task"))
    for _ in range(2):
        for statement in filter(str.strip, block.split(";")):
            await (await tx.connection.get_raw_connection()).driver_connection.execute(statement)  # type: ignore[union-attr]
    assert await tx.scalar(sa.text("SELECT count(id) FROM task")) == before + 1


async def submits_after_a_refusal(tx: Transaction) -> None:
    """A refused batch leaves none of its keys behind, although the transaction goes on."""
    unique = tx.tables.unique.c
    await submit(tx, NewTask("h", unique_key=UniqueKey("k")))
    batch = [NewTask("h", unique_key=UniqueKey(key, on_duplicate=OnDuplicate.ERROR)) for key in ("fresh", "k")]
    with pytest.raises(DuplicateTask):
        await submit_many(tx, batch)
    keys = await tx.rows(sa.select(unique.unique_key).where(unique.unique_key.in_(["k", "fresh"])))
    assert [row[0] for row in keys] == ["k"]
    await submit_many(tx, batch[:1])


KEY_THEFT = {
    "delete a key": "DELETE FROM task_unique",
    "lock the keys": "LOCK TABLE task_unique IN EXCLUSIVE MODE",
    "choose the holder of a new key": "INSERT INTO task_unique (handler, unique_key, task_id) VALUES ('h', 'n', 1)",
    "move a key": "UPDATE task_unique SET unique_key = 'other'",
}
"""Statements that change or lock unique keys."""

FOREIGN_DEPENDENCY = {
    "cancel the task of another": (
        f"INSERT INTO task_dependency (task_id, parent_id, on_failure) VALUES ({LATER}, {DEAD}, 'cancel')"
    ),
    "block the task of another": (
        f"INSERT INTO task_dependency (task_id, parent_handler, parent_key) VALUES ({LATER}, 'h', 'x')"
    ),
    "block a missing task": "INSERT INTO task_dependency (task_id, parent_id) VALUES (999, 1)",
    "add to its own, and to that of another": (
        "WITH own AS (INSERT INTO task (handler) VALUES ('h') RETURNING id) INSERT INTO task_dependency "
        f"(task_id, parent_id) SELECT id, 1 FROM own UNION ALL SELECT {LATER}, 1"
    ),
}
"""Statements that add a dependency to a task of an earlier transaction."""

HOLDS = {
    "free": ("until finished", 0),
    "held": ("until finished", 3600),
    "forever": ("forever", 0),
    "timed": ("for a time", 3600),
}


@pytest.fixture
def owner_with_key(request: pytest.FixtureRequest, seen_by: dict[str, str]) -> Iterator[psycopg.Connection[Any]]:
    """The owner in a transaction with a unique key of task 999, which is held or not; 1000 is another task with it."""
    scope, seconds = HOLDS[request.getfixturevalue("hold")]
    with psycopg.connect(seen_by["owner"]) as owner:
        owner.execute("INSERT INTO task (id, handler, unique_key) OVERRIDING SYSTEM VALUE VALUES (1000, 'h', 'key')")
        if seconds:
            owner.execute("INSERT INTO task (id, handler, unique_key) OVERRIDING SYSTEM VALUE VALUES (999, 'h', 'key')")
        expires = "now() + interval '1 h'" if scope == "for a time" else "NULL"
        owner.execute(
            "INSERT INTO task_unique (handler, unique_key, task_id, scope, expires_at) "
            f"VALUES ('h', 'key', 999, '{scope}', {expires})".encode()
        )
        yield owner
        owner.rollback()


@pytest.mark.parametrize("hold", HOLDS)
def test_a_producer_takes_only_free_unique_keys(
    hold: str, owner_with_key: psycopg.Connection[Any], seen_by: dict[str, str]
) -> None:
    login = parse_url(seen_by["producer"]).user or ""
    owner_with_key.execute(sql.SQL("SET LOCAL SESSION AUTHORIZATION {}").format(sql.Identifier(login)))
    where = "WHERE handler = 'h' AND unique_key = 'key'"
    refused = {
        "free it": f"UPDATE task_unique SET task_id = 0 {where}",
        "keep it for ever": f"UPDATE task_unique SET scope = 'forever', expires_at = NULL, task_id = 77 {where}",
        "hold it for a missing task": f"UPDATE task_unique SET task_id = 998 {where}",
    }
    takes = f"UPDATE task_unique SET task_id = 1000, scope = 'until finished', expires_at = NULL {where}"
    if hold != "free":
        refused["take it"] = takes
    for statement in refused.values():
        refusal = pytest.raises(psycopg.errors.InsufficientPrivilege, match="'key' of h belongs to task 999")
        with refusal, owner_with_key.transaction():
            owner_with_key.execute(statement.encode())
    if hold == "free":
        owner_with_key.execute(takes.encode())


@dataclass(frozen=True)
class Case:
    """An operation and the roles that may do it."""

    name: str
    verb: Any
    allowed: tuple[str, ...]


OF_OWNER = ("erase", "rekey")
"""The operations of the owner of the tables alone."""

CASES = (
    Case("submit", submits, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("submit once", submits_once, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("submit once by plain SQL", submits_by_plain_sql, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("submit in savepoints", submits_in_savepoints, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("submit after a refusal", submits_after_a_refusal, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("ask what is unfinished", lambda tx: unfinished(tx, "h", "k"), ROLES),
    Case("look", all_queries, ("reader", *RUNNERS_AND_OPERATORS)),
    Case("read payloads", sent("SELECT payload FROM task"), ("reader", *RUNNERS_AND_OPERATORS)),
    Case("submit after others", submits_after, ("producer", *RUNNERS_AND_OPERATORS)),
    Case("choose a fence", sent("INSERT INTO task(handler, fence) VALUES ('h', 7)"), RUNNERS_AND_OPERATORS),
    Case("settle", settles, ("runner",)),
    *(
        Case(f"read the last id of {table}", sent(f"SELECT last_value FROM {table}_id_seq"), ROLES[1:])
        for table in ("task", "task_dependency", "task_runner", "task_audit")
    ),
    Case("raise a fence", sent("UPDATE task SET fence = fence + 1"), ("runner",)),
    Case("rewrite the history", sent("UPDATE task_history SET state = 'succeeded'"), ("runner",)),
    Case("delete an attempt", sent("DELETE FROM task_attempt"), ("runner",)),
    Case("delete the audit", sent("DELETE FROM task_audit"), ("runner",)),
    Case("strike a runner out", sent("DELETE FROM task_runner"), ("runner",)),
    *(Case(name, verb, ("runner",)) for name, verb in RUNS.items()),
    *(Case(name, verb, () if name in OF_OWNER else ("operator",)) for name, verb in (OPERATIONS | UNDOS).items()),
    Case("retry a task with the highest fence", retries_stuck, ("operator",)),
    *(Case(name, sent(statement), RUNNERS_AND_OPERATORS) for name, statement in KEY_THEFT.items()),
    *(Case(name, sent(statement), RUNNERS_AND_OPERATORS) for name, statement in FOREIGN_DEPENDENCY.items()),
    *(Case(name, sent(statement), ()) for name, statement in NOBODY_MAY.items()),
)


RIGHTS = Path(__file__).with_name("rights.txt")
"""The rights of each role, for reviewers: RIGHTS=write rewrites the file."""


def test_the_rights_of_each_role_are_as_reviewed(seen_by: dict[str, str]) -> None:
    lines = [line for who in ROLES for line in rights(who, seen_by[who])]
    text = "\n".join(lines) + "\n"
    if os.environ.get("RIGHTS") == "write":
        RIGHTS.write_text(text)
    assert text == RIGHTS.read_text()


def rights(who: str, url: str) -> Iterator[str]:
    """Plan each statement on each table and column: the server checks the rights, and executes nothing."""
    with psycopg.connect(url, autocommit=True) as login:

        def allows(statement: str) -> bool:
            try:
                login.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                return False
            return True

        for table in tables().metadata.sorted_tables:
            names = [column.name for column in table.columns]
            forms = {
                "SELECT": "SELECT {0} FROM {table}",
                "INSERT": "INSERT INTO {table} ({0}) VALUES ({1})",
                "UPDATE": "UPDATE {table} SET ({0}) = ROW({1})",
            }

            def permits(form: str, columns: list[str], table: str = table.name) -> bool:
                values = ", ".join(["DEFAULT"] * len(columns))  # a generated column takes no value
                return allows("EXPLAIN " + form.format(", ".join(columns), values, table=table))

            for verb, form in forms.items():
                some = names if permits(form, names) else [name for name in names if permits(form, [name])]
                if some:
                    yield f"{who} {verb} {table.name}: {'all columns' if some == names else ', '.join(some)}"
            whole = {
                "DELETE": f"EXPLAIN DELETE FROM {table.name}",
                "TRUNCATE": f"BEGIN; TRUNCATE {table.name}; ROLLBACK",
                "LOCK EXCLUSIVE": f"BEGIN; LOCK TABLE {table.name} IN EXCLUSIVE MODE NOWAIT; ROLLBACK",
                "ALTER": f"BEGIN; ALTER TABLE {table.name} ADD more int; ROLLBACK",
            }
            for verb, statement in whole.items():
                if allows(statement):
                    yield f"{who} {verb} {table.name}"
                login.rollback()


class RolledBack(Exception):
    """Rolls back the operation, so that the next case starts from the same state."""


@pytest.mark.parametrize("who", ROLES)
async def test_a_role_has_exactly_its_rights(who: str, database: Database) -> None:
    done = {case.name for case in CASES if await may(database, case)}
    assert done == {case.name for case in CASES if who in case.allowed}


async def may(database: Database, case: Case) -> bool:
    """Do the operation, roll it back, and return whether the role has the right to do it."""
    try:
        await tried(database, case.verb)
    except RolledBack:
        return True
    except DatabaseRefused as refusal:
        if re.search("permission denied|must be owner", str(refusal)):
            return False
        raise
    except Exception as error:
        error.add_note(f"The operation is {case.name!r}.")
        raise
    raise AssertionError(f"{case.name!r} was not rolled back")


async def tried(database: Database, verb: Verb) -> None:
    """Do an operation, and raise RolledBack."""
    async with database.writing() as tx:
        done = await verb(tx)
        if isinstance(done, Result):
            assert done.changed
        # A settle by a login that is not a runner counts as plain SQL.
        if not isinstance(verb, Plain) and verb is not settles:
            assert await plain_entries(tx) == []
        raise RolledBack


FIRST_ENTRIES = 7
"""Audit rows from the setup by the owner."""

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
    "a new dependency": (
        "INSERT INTO task_dependency (task_id, parent_id) VALUES (1, 2)",
        [("SQL INSERT", 1, None, {}, ANY)],
    ),
    "a signal": (
        "INSERT INTO task_signal (task_id, name, payload) VALUES (1, 'approved', '7')",
        [("SQL INSERT", 1, None, {}, ANY)],
    ),
    "a new task with a dependency": (
        (
            "WITH own AS (INSERT INTO task (handler) VALUES ('h') RETURNING id) "
            "INSERT INTO task_dependency (task_id, parent_id) SELECT id, 1 FROM own"
        ),
        [],
    ),
    "a pause": (
        "UPDATE task_queue SET paused_why = 'so' WHERE name = 'slow'",
        [("SQL UPDATE", None, "queue slow", {"paused_why": "relay is back"}, {"paused_why": "so"})],
    ),
    "a queue": ("INSERT INTO task_queue (name) VALUES ('new')", [("SQL INSERT", None, "queue new", {}, ANY)]),
    "a handler": ("INSERT INTO task_handler (name) VALUES ('new')", [("SQL INSERT", None, "handler new", {}, ANY)]),
    "a command": (
        "UPDATE task_runner SET command = 'drain' WHERE id = 1",
        [("SQL UPDATE", None, "runner 1", {"command": None}, {"command": "drain"})],
    ),
    "a unique key": ("DELETE FROM task_unique WHERE task_id = 2", [("SQL DELETE", 2, None, ANY, {})]),
    "a change beside an entry about another task": (f"{EDIT}; {OWN_ENTRY % 1}", [("SQL UPDATE", 2, None, ANY, ANY)]),
    "a change beside an entry that all_queries like one of the trigger": (
        f"{EDIT}; INSERT INTO task_audit (operator, host, verb, task_id) VALUES ('nobody', 'x', 'SQL UPDATE', 2)",
        [("SQL UPDATE", 2, None, None, None), ("SQL UPDATE", 2, None, ANY, ANY)],
    ),
    # The audit proves the login, the time and the task; it trusts the entry for the change itself.
    "a change that its own entry tells of": (f"{EDIT}; {OWN_ENTRY % 2}", []),
}
"""Statements of an operator in psql, and the resulting audit rows."""


@pytest.mark.parametrize("who", ["operator"])
async def test_plain_sql_of_an_operator_is_audited(database: Database, who: str) -> None:
    async def change(tx: Transaction, statements: str, expected: list[Any]) -> None:
        await tx.execute(sa.text("INSERT INTO task_unique (handler, unique_key, task_id) VALUES ('h', 'u', 2)"))
        await Plain(statements)(tx)
        rows = await plain_entries(tx)
        entries = [(row.verb, row.task_id, row.target, *map(decoded, (row.before, row.after))) for row in rows]
        assert entries == expected, statements
        audit = tx.tables.audit.c
        logins = await tx.rows(sa.select(audit.login).where(audit.id > FIRST_ENTRIES))
        assert all(row.login.startswith("test_operator_") for row in logins)
        assert all(row.host.startswith(("127.0.0.1 ", "local ")) for row in rows if row.operator == row.login)
        raise RolledBack

    for statements, expected in WRITTEN.values():
        with pytest.raises(RolledBack):
            await database.write(partial(change, statements=statements, expected=expected))


def decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@pytest.mark.parametrize("who", ["runner", "owner"])
async def test_plain_sql_of_runners_and_the_owner_is_not_audited(
    database: Database,
    who: str,
) -> None:
    async def does(tx: Transaction) -> None:
        await Plain(EDIT)(tx)
        assert await plain_entries(tx) == []
        raise RolledBack

    with pytest.raises(RolledBack):
        await database.write(does)


@pytest.mark.parametrize("who", ["reader"])
async def test_a_login_without_access_to_the_audit_sees_the_rest(
    database: Database, who: str, seen_by: dict[str, str]
) -> None:
    assert (await database.read(read_story, LATER)).audit_seen
    with psycopg.connect(seen_by["owner"], autocommit=True) as owner:
        owner.execute("REVOKE SELECT ON task_audit FROM task_reader")
        try:
            story = await database.read(read_story, LATER)
        finally:
            owner.execute("GRANT SELECT ON task_audit TO task_reader")
    assert (story.audit, story.audit_seen) == ((), False)
    assert timeline(story)[-1].text.startswith("operations are hidden")


@pytest.mark.parametrize("who", ROLES)
async def test_every_role_can_check_the_schema(who: str, database: Database) -> None:
    await check(database)
    assert await database.read(missing_guards) == []
    assert await database.read(missing_grant) is None


AUDITED = "CREATE CONSTRAINT TRIGGER audited AFTER DELETE ON task_runner FOR EACH ROW "
OTHERS = "WHEN (pg_has_role(session_user, 1::oid, 'MEMBER')) EXECUTE FUNCTION task_audited()"
GAPS: dict[str, tuple[str, list[str] | None]] = {
    "a trigger that is gone": (
        "DROP TRIGGER audited ON task_queue",
        ["changes of task_queue through plain SQL are not"],
    ),
    "triggers that are off": (
        "ALTER TABLE task DISABLE TRIGGER audited; ALTER TABLE task_unique DISABLE TRIGGER USER",
        ["changes of task, task_unique through plain SQL are not", "task_producer may take unique keys"],
    ),
    "roles of another server": (
        f"DROP TRIGGER audited ON task_runner; {AUDITED}{OTHERS}",
        ["the trigger audited of task_runner names the roles of another server"],
    ),
    "a column that was opened": (
        "GRANT INSERT (login) ON task_audit TO task_operator; GRANT UPDATE (at) ON task_audit TO task_producer",
        ["task_operator may write the audit column login", "task_producer may write the audit column at"],
    ),
    "keys without a guard": (
        "DROP TRIGGER key_guard ON task_unique",
        ["task_producer may take unique keys from other tasks: the trigger key_guard is missing"],
    ),
    "dependencies without a guard": (
        "DROP TRIGGER dependency_guard ON task_dependency",
        ["task_producer may block or cancel tasks of other applications: the trigger dependency_guard is missing"],
    ),
    "rights that were all taken back": ("REVOKE ALL ON task FROM task_operator", None),
}
"""Changes by the owner that disable the script's protection, and the resulting findings."""


@pytest.mark.parametrize("who", ["owner"])
async def test_missing_protection_of_the_script_is_reported(database: Database, who: str) -> None:
    async def break_and_check(tx: Transaction, statements: str, expected: list[str] | None) -> None:
        await Plain(statements)(tx)
        findings = await missing_guards(tx)
        assert (findings is None) is (expected is None), (statements, findings)
        for finding, start in zip(findings or (), expected or (), strict=True):
            assert finding.startswith(start), statements
        raise RolledBack

    for statements, expected in GAPS.values():
        with pytest.raises(RolledBack):
            await database.write(partial(break_and_check, statements=statements, expected=expected))


@pytest.mark.parametrize("who", ["owner"])
async def test_a_missing_right_to_read_a_sequence_is_reported(database: Database, who: str) -> None:
    async def revoke_and_check(tx: Transaction) -> None:
        await Plain("REVOKE SELECT ON SEQUENCE task_dependency_id_seq FROM task_runner")(tx)
        grant = await missing_grant(tx)
        assert grant == "GRANT SELECT ON SEQUENCE public.task_dependency_id_seq TO task_runner"
        assert await missing_grant(tx, own=True) is None
        await Plain(grant)(tx)
        assert await missing_grant(tx) is None
        raise RolledBack

    with pytest.raises(RolledBack):
        await database.write(revoke_and_check)


@pytest.mark.parametrize("who", ["owner"])
async def test_every_audited_table_is_checked(database: Database, who: str) -> None:
    triggers = sa.text("SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'audited' AND tgparentid = 0")
    async with database.reading() as tx:
        assert sorted(row[0] for row in await tx.rows(triggers)) == sorted(
            table.name for table in watched_tables(tx.tables)
        )


@pytest.mark.slow
def test_commands_work_with_the_login_of_their_role(seen_by: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own_handlers.py").write_text("import runner\n\n@runner.handler('a.b')\ndef ab() -> None: ...\n")
    for who, command in (
        ("producer", ("submit", "a.b")),
        ("runner", ("work", "-H", "own_handlers", "--until-idle")),
        ("reader", ("tasks", "handler:a.b state:succeeded")),
        # Of its own task: the others of the database belong to other tests.
        ("producer", ("submit", "a.b", "--delay", "1h")),
        ("operator", ("terminate", "handler:a.b state:scheduled", "--yes", "1")),
    ):
        done = program(*command, cwd=tmp_path, env=_environment(tmp_path, seen_by[who]))
        assert done.returncode == 0, (who, done.stderr)
        unread = who == "producer"
        assert ("the arguments of a.b are not checked" in done.stderr) == unread, (who, done.stderr)


@pytest.mark.slow
def test_the_tools_of_an_assistant_work_with_the_login_of_a_reader(
    seen_by: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_URL", seen_by["reader"])
    tools = assistant_tools(operations=True)
    values: dict[str, dict[str, object]] = {"show": {"id": LATER}, "why": {"tasks": [LATER]}, "workflow": {"id": 1}}
    for name in assistant_tools(operations=False):
        result = call_tool(tools[name], values.get(name, {}), DEFAULT_CONNECTION, "probe")
        assert result.document is not None, (name, result.messages)
    refused = call_tool(tools["pause"], {"queue": "mail", "reason": "trial"}, DEFAULT_CONNECTION, "probe")
    assert (refused.document, "permission denied" in refused.messages[0]) == (None, True), refused.messages


def _environment(home: Path, url: str) -> dict[str, str]:
    return {"TASKTUI_URL": url, "HOME": str(home), "PATH": "/usr/bin:/bin"}


def test_the_script_names_every_table_with_prefix_and_schema() -> None:
    written = roles(URL, "x_", "jobs")
    names = [*tables("x_", "jobs").metadata.tables, f"jobs.{version_table('x_')}"]
    for name in names:
        schema, _, table = name.partition(".")
        assert f'"{schema}"."{table}"' in written
    assert 'GRANT USAGE ON SCHEMA "jobs" TO jobs_x_task_producer' in written
    assert not re.search(r'(?<!\.)"x_task|ON task', written)


def test_the_script_covers_every_table() -> None:
    script = (Path(__file__).parents[2] / "runner" / "db" / "migrations" / "roles.sql").read_text()
    assert {name for name in tables().metadata.tables if f"{{{name}}}" not in script} == set()


def test_all_submit_and_edit_columns_are_granted() -> None:
    written = roles(URL)
    submitted, edited = re.findall(r"GRANT (?:INSERT|UPDATE) \(([^)]+)\) ON \"task\"", written)
    assert {*COLUMNS, "state", "hosts_until"} - {"delay", "expires", "hosts_for"} == {
        name.strip() for name in submitted.split(",")
    }
    assert {name.strip() for name in edited.split(",")} >= FIELDS


def test_all_columns_of_limits_exist_and_are_granted() -> None:
    for registry in (tables().queue, tables().handler):
        (granted,) = re.findall(r"GRANT UPDATE \(([^)]+max_running[^)]+)\) ON [^;]*" + f'"{registry.name}"', roles(URL))
        assert {name.strip() for name in granted.split(",")} >= UNLIMITED.columns.keys()
        assert {column.name for column in registry.c} >= UNLIMITED.columns.keys()


def test_sqlite_has_no_roles() -> None:
    with pytest.raises(InvalidInput):
        roles(parse_url("sqlite:///x.db"))


def test_a_role_name_that_is_too_long_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="longer than"):
        roles(URL, "p" * 20, "s" * 50)


@pytest.mark.slow
def test_each_schema_has_its_own_roles(postgresql: PostgresDatabases) -> None:
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
    async with database_at(url, prefix=prefix, schema=schema) as opened:
        await opened.migrate()
