"""Rows inserted with the shells of the databases: valid ones are submits, invalid ones are rejected, none can stop the
queue.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import EARLIEST
from runner.model.outcome import Dead, Done, Failure, Outcome, Retry
from runner.model.task import Claimed, NewTask
from runner.policy.positions import LanePosition
from runner.store.claim.plain import Claimant, HandlerDefaults, claim
from runner.store.claim.survey import survey
from runner.store.registration import Identity, register
from runner.store.rescue import Rescuer, rescue
from runner.store.settle import Settled, Settlement, settle
from runner.store.submit import submit
from tests.shells import Refused, Shell, shell_of

pytestmark = pytest.mark.one_database

on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("databases", ["sqlite"], indirect=True)

KNOWN = {"mail": HandlerDefaults(3, 60.0)}
FAILURE = Failure("ValueError", "no")
ENDS: list[tuple[Outcome, str]] = [
    (Done(), "succeed"),
    (Retry(failure=FAILURE), "retry"),
    (Dead(failure=FAILURE), "die"),
]

ODD_NAMES = [
    "späti ☃",
    "a'; DROP TABLE task; --",
    "line\nbreak",
    "[red]x[/]",
    "%s %(x)s :name",
    " ",
    '"',
    "\\",
    "\x1b[2J",
]

ODD_PAYLOADS = [
    r'{"nul": "\u0000"}',
    r'{"half a pair": "\ud800"}',
    '{ "spaces" :  1 }',
    '{"same": 1, "same": 2}',
    '{"huge": 1e400, "long": 123456789012345678901234567890, "": null}',
    '{"deep": ' + "[" * 900 + "]" * 900 + "}",
    '{"long": "' + "ü" * 1_000_000 + '"}',
]

ODD_ROWS = [
    {"retry": "''"},
    {"key": "'" + "k" * 1_000 + "'"},
    {"timeout": "1e-300"},
    {"max_attempts": "2147483647"},
    {"releases": "1000000000"},
    {"runner_id": "777", "host": "'elsewhere'", "claimed_at": "CURRENT_TIMESTAMP"},
    {"tags": "'7'", "headers": '\'{"a": [1], "b": "c"}\'', "error": "'old'"},
]

IDLE_ROWS: list[dict[str, str]] = [
    {"handler": "'nobody knows it'"},
    {"state": "'blocked'"},
    {"attempt": "5", "max_attempts": "3"},
    {"run_at": "'9998-12-31 23:59:59'"},
    {"state": "'running'", "runner_id": "777"},
]
"""Rows that no runner claims."""

WRONG_VALUES = {
    "payload": ["'{\"a\": '", "'[1]'", "'1'", "'null'", "''", "'{\"a\": NaN}'", "NULL"],
    "priority": ["0", "99", "-1", "'abc'", "NULL"],
    "handler": ["''", "NULL", f"'{'x' * 201}'"],
    "queue": ["''", "NULL", f"'{'x' * 201}'"],
    "headers": ["'nonsense'", "'[\"a\"]'", "'7'", f'\'{{"a": "{"x" * 8_192}"}}\''],
    "state": ["'nonsense'", "'dead'", "'WAITING'", "NULL"],
    "max_attempts": ["0", "-1"],
    "timeout": ["0", "-1", "1e9", "'abc'"],
    "run_at": ["'infinity'", "'20000-01-01 00:00:00'", "'2026-13-01 00:00:00'", "'soon'", "''", "NULL"],
    "attempt": ["-1"],
    "fence": ["-1"],
    "rescues": ["-5", "2147483647"],
    "releases": ["2147483647"],
    "nonsense": ["1"],
}
"""SQL values that the column rejects on both databases."""

WRONG_ON_POSTGRESQL = {
    "run_at": ["'-infinity'", "'1969-12-31 23:59:59Z'"],
    "timeout": ["'infinity'", "'nan'"],
    "key": ["(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) AS i)"],
}

WRONG_ON_SQLITE = {
    "priority": ["5.5"],
    "timeout": ["9e999"],
    "payload": ["'{\"deep\": ' || replace(hex(zeroblob(5000)), '00', '[') || '}'"],
    "run_at": [
        "'2026-11-20T10:00:00'",
        "'2026-11-20 10:00:00Z'",
        "'2026-11-20 10:00:00+01:00'",
        "'2026-11-20 10:00'",
        "'2026-02-30 10:00:00'",
        "'2026-11-20 24:00:00'",
        "'0000-01-01 00:00:00'",
        "'now'",
        "date('now')",
        "time('now')",
        "1763600000",
        "X'00'",
    ],
}


STOPPERS = {
    "no retry plan": "INSERT INTO task(handler, retry) VALUES ('mail', 'nonsense')",
    "no maximum": "INSERT INTO task(handler, state, runner_id) VALUES ('mail', 'running', 777)",
    "the last fence": "INSERT INTO task(handler, fence) VALUES ('mail', 9223372036854775807)",
    "the last version": "INSERT INTO task(handler, version) VALUES ('mail', 9223372036854775807)",
    "the last attempt": "INSERT INTO task(handler, attempt) VALUES ('mail', 2147483647)",
    "the last rescue": "INSERT INTO task(handler, state, rescues) VALUES ('mail', 'running', 2147483647)",
}
"""Rows that are accidents, but possible."""

STOPPERS_BY_DATABASE = {
    "postgresql": STOPPERS
    | {
        "claimed at no time": "INSERT INTO task(handler, state, claimed_at) VALUES ('mail', 'running', 'infinity')",
    },
    "sqlite": STOPPERS
    | {
        "claimed at no time": "INSERT INTO task(handler, state, claimed_at) VALUES ('mail', 'running', 'nonsense')",
        "a word as maximum": "INSERT INTO task(handler, max_attempts) VALUES ('mail', 'abc')",
        "a word as attempt": "INSERT INTO task(handler, attempt) VALUES ('mail', 'abc')",
        "bytes as queue": "INSERT INTO task(handler, queue) VALUES ('mail', X'ff')",
        "latin-1 as queue": "INSERT INTO task(handler, queue) VALUES ('mail', CAST(X'ff' AS TEXT))",
        "latin-1 as payload": (
            """INSERT INTO task(handler, payload) VALUES ('mail', '{"a": "' || CAST(X'ff' AS TEXT) || '"}')"""
        ),
    },
}


def each_stopper() -> Iterator[Any]:
    for database, stoppers in STOPPERS_BY_DATABASE.items():
        for name, statement in stoppers.items():
            yield pytest.param(database, statement, id=f"{database}-{name}")


@pytest.fixture
def shell(migrated_url: str) -> Shell:
    """Run a statement in the shell of the database, and return its output."""
    return shell_of(migrated_url)


def insertion(row: dict[str, str]) -> str:
    """The INSERT statement of a row, with values in SQL."""
    row = {"handler": "'mail'"} | row
    return f"INSERT INTO task({', '.join(row)}) VALUES ({', '.join(row.values())})"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def take(database: Database, **limits: Any) -> tuple[int, list[Claimed]]:
    """Claim everything due for a runner with one handler."""
    me = await database.write(register, Identity("here", 1, "1", sorted(KNOWN), 9), 60.0)
    heads = await database.read(survey)
    start = LanePosition(database.dialect.position(EARLIEST), 0)
    lanes = {head.lane: start for head in heads if head.lane.handler in KNOWN}
    return me, await database.write(claim, Claimant(me, "here", **limits), lanes, KNOWN, 100)


async def work(database: Database, outcome: Outcome) -> tuple[list[Claimed], Settled]:
    """Claim everything due, settle each task with the same outcome, and rescue."""
    me, claimed = await take(database)
    settled = await database.write(settle, me, [Settlement(task.id, task.fence, outcome) for task in claimed])
    await database.write(rescue, Rescuer(me, 0.0), 5.0)
    return claimed, settled


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_a_payload_that_is_no_utf8_is_claimed_with_the_others_by_one_call(
    database: Database, shell: Shell
) -> None:
    shell("""INSERT INTO task(handler, payload) VALUES ('mail', '{"a": "' || CAST(X'ff' AS TEXT) || '"}')""")
    shell("""INSERT INTO task(handler, payload) VALUES ('mail', '{"a": 1}')""")
    me = await database.write(register, Identity("here", 1, "1", sorted(KNOWN), 9), 60.0)
    heads = await database.read(survey)
    lanes = {head.lane: LanePosition(database.dialect.position(EARLIEST), 0) for head in heads}
    claimed = await database.write(claim, Claimant(me, "here"), lanes, KNOWN, 100)
    assert {(task.payload, task.attempt) for task in claimed} == {('{"a": 1}', 1), ('{"a": "\ufffd"}', 1)}
    assert shell("SELECT attempt, fence FROM task") == "1|1\n1|1"


async def test_a_row_inserted_by_hand_is_a_submit(database: Database, shell: Shell) -> None:
    shell("""INSERT INTO task(handler, payload) VALUES ('mail', '{"a": 1}')""")
    claimed, settled = await work(database, Done())
    assert [(task.handler, task.payload, task.attempt) for task in claimed] == [("mail", '{"a": 1}', 1)]
    assert settled.verbs == {claimed[0].id: "succeed"}
    assert shell("SELECT state, attempt, payload FROM task_history") == 'succeeded|1|{"a": 1}'
    assert shell("SELECT count(*) FROM task") == "0"


async def test_a_payload_over_the_limit_of_the_runner_is_not_handed_out(database: Database, shell: Shell) -> None:
    fits, large = '{"a": "ü"}', '{"a": "üü"}'
    for payload in (fits, large):
        shell(f"INSERT INTO task(handler, payload) VALUES ('mail', '{payload}')")
    _, claimed = await take(database, payload_limit=len(fits.encode()))
    assert [(task.payload, task.oversize) for task in claimed] == [(fits, None), (None, len(large.encode()))]


async def test_a_row_needs_only_a_handler(database: Database, shell: Shell) -> None:
    shell("INSERT INTO task(handler) VALUES ('mail')")
    columns = "queue, payload, priority, state, attempt, fence, version, max_attempts, run_at = submitted_at"
    assert shell(f"SELECT {columns} FROM task") in {"default|{}|1|waiting|0|0|0||1", "default|{}|1|waiting|0|0|0||t"}
    assert [task.payload for task in (await take(database))[1]] == ["{}"]


async def test_rows_of_one_statement_are_claimed_by_priority_and_time(database: Database, shell: Shell) -> None:
    shell(
        "INSERT INTO task(handler, priority, key, run_at) VALUES ('mail', 1, 'late', '2020-01-02 00:00:00'), "
        "('mail', 1, 'early', '2020-01-01 00:00:00'), ('mail', 9, 'first', '2020-01-03 00:00:00')"
    )
    assert [task.key for task in (await take(database))[1]] == ["first", "early", "late"]


async def test_rows_inserted_by_hand_and_submitted_ones_share_their_numbers(database: Database, shell: Shell) -> None:
    first = await database.write(submit, NewTask("mail"))
    shell("INSERT INTO task(handler) VALUES ('mail')")
    second = await database.write(submit, NewTask("mail"))
    assert [task.id for task in (await take(database))[1]] == [first, first + 1, second]


@pytest.mark.representatives(4)
@pytest.mark.parametrize("column", WRONG_VALUES)
async def test_a_wrong_value_is_refused(database: Database, shell: Shell, column: str) -> None:
    await refuse(database, shell, column, WRONG_VALUES[column])


@on_postgresql
@pytest.mark.parametrize("column", WRONG_ON_POSTGRESQL)
async def test_postgresql_refuses_what_it_alone_could_hold(database: Database, shell: Shell, column: str) -> None:
    await refuse(database, shell, column, WRONG_ON_POSTGRESQL[column])


@on_sqlite
@pytest.mark.parametrize("column", WRONG_ON_SQLITE)
async def test_sqlite_refuses_what_it_alone_could_hold(database: Database, shell: Shell, column: str) -> None:
    await refuse(database, shell, column, WRONG_ON_SQLITE[column])


async def refuse(database: Database, shell: Shell, column: str, values: Sequence[str]) -> None:
    """Every value is rejected, and nothing breaks."""
    shell(insertion({"key": "'neighbour'"}))
    for value in values:
        assert not accepts(shell, insertion({"key": "'wrong'"} | {column: value})), value
    assert [task.key for task in (await work(database, Done()))[0]] == ["neighbour"]


def accepts(shell: Shell, statement: str) -> bool:
    try:
        shell(statement)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("change", ["priority = 99", "state = 'nonsense'", "run_at = NULL", "payload = '7'"])
async def test_a_wrong_edit_is_refused_too(database: Database, shell: Shell, change: str) -> None:
    shell(insertion({}))
    with pytest.raises(Refused):
        shell(f"UPDATE task SET {change}")
    assert len((await take(database))[1]) == 1


@on_sqlite
@pytest.mark.parametrize(
    "moment",
    [
        "datetime('now', '+1 hour')",
        "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hour')",
        "strftime('%Y-%m-%d %H:%M:%S', 'now', '+1 hour')",
    ],
)
async def test_sqlite_takes_its_own_ways_to_write_a_time(database: Database, shell: Shell, moment: str) -> None:
    await run_later(database, shell, moment)


@on_postgresql
@pytest.mark.parametrize(
    "moment",
    [
        "now() + interval '1 hour'",
        "(now() + interval '1 hour')::text::timestamptz",
        "to_char((now() + interval '1 hour') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')::timestamptz",
    ],
)
async def test_postgresql_takes_its_own_ways_to_write_a_time(database: Database, shell: Shell, moment: str) -> None:
    await run_later(database, shell, moment)


async def run_later(database: Database, shell: Shell, moment: str) -> None:
    """A row is accepted, waits for an hour, and is claimed when due."""
    shell(insertion({"run_at": moment}))
    (head,) = await database.read(survey)
    assert 3_000 < head.wait <= 3_600
    assert (await take(database))[1] == []
    shell("UPDATE task SET run_at = '2020-01-01 00:00:00'")
    assert len((await take(database))[1]) == 1


@pytest.mark.parametrize("moment", ["CURRENT_TIMESTAMP", "'2020-02-29 23:59:59'", "'1970-01-02 00:00:00.250'"])
async def test_a_time_in_the_past_is_due_immediately(database: Database, shell: Shell, moment: str) -> None:
    shell(insertion({"run_at": moment}))
    assert len((await take(database))[1]) == 1


@pytest.mark.parametrize("payload", ODD_PAYLOADS, ids=range(len(ODD_PAYLOADS)))
async def test_an_odd_payload_is_claimed_unchanged(database: Database, shell: Shell, payload: str) -> None:
    shell(insertion({"payload": quoted(payload)}))
    claimed, settled = await work(database, Done())
    assert [task.payload == payload for task in claimed] == [True]
    assert list(settled.verbs.values()) == ["succeed"]


async def test_odd_queues_are_served_like_any_other(database: Database, shell: Shell) -> None:
    for name in ODD_NAMES:
        shell(insertion({"queue": quoted(name), "key": quoted(name)}))
    claimed, _ = await work(database, Done())
    assert [(task.queue, task.key) for task in claimed] == [(name, name) for name in ODD_NAMES]


async def test_tasks_of_unknown_handlers_wait_and_block_no_others(database: Database, shell: Shell) -> None:
    for name in ODD_NAMES:
        shell(insertion({"handler": quoted(name), "priority": "9"}))
    shell(insertion({}))
    assert [task.handler for task in (await work(database, Done()))[0]] == ["mail"]
    assert sorted(head.lane.handler for head in await database.read(survey)) == sorted(ODD_NAMES)


@pytest.mark.parametrize(("outcome", "verb"), ENDS)
async def test_odd_rows_end_like_any_other(database: Database, shell: Shell, outcome: Outcome, verb: str) -> None:
    for row in [{}, *ODD_ROWS]:
        shell(insertion(row))
    claimed, settled = await work(database, outcome)
    assert len(claimed) == 1 + len(ODD_ROWS)
    assert settled.verbs == dict.fromkeys([task.id for task in claimed], verb)
    assert not settled.fenced


@pytest.mark.parametrize("row", IDLE_ROWS)
async def test_a_row_that_cannot_run_blocks_no_other_task(
    database: Database, shell: Shell, row: dict[str, str]
) -> None:
    shell(insertion({"key": "'idle'"} | row))
    neighbour = await database.write(submit, NewTask("mail"))
    claimed, _ = await work(database, Done())
    assert [task.id for task in claimed] == [neighbour]
    assert shell("SELECT key FROM task") == "idle"


@pytest.mark.representatives(3)
@pytest.mark.parametrize(("databases", "statement"), list(each_stopper()), indirect=["databases"])
async def test_no_row_stops_the_queue(database: Database, shell: Shell, statement: str) -> None:
    for outcome, verb in ENDS:
        accepts(shell, statement)
        neighbour = await database.write(submit, NewTask("mail"))
        _, settled = await work(database, outcome)
        assert settled.verbs[neighbour] == verb


@pytest.mark.parametrize(("started", "attempt"), [({}, 1), ({"started_at": "CURRENT_TIMESTAMP"}, 2)])
async def test_a_row_that_claims_to_run_is_rescued(
    database: Database, shell: Shell, started: dict[str, str], attempt: int
) -> None:
    shell(insertion({"state": "'running'", "runner_id": "777", "max_attempts": "3", "attempt": "1"} | started))
    me, _ = await take(database)
    assert [back.verb for back in (await database.write(rescue, Rescuer(me, 0.0), 5.0)).values()] == ["rescue"]
    assert [task.attempt for task in (await take(database))[1]] == [attempt]


@pytest.mark.parametrize(
    "options",
    [
        *(pytest.param(options, marks=pytest.mark.slow) for options in ({"prefix": "jobs_"}, {"schema": "work"})),
        {"prefix": "jobs_", "schema": "user"},
    ],
)
async def test_a_prefix_and_a_schema_hold_from_submit_to_settle(database_url: str, options: dict[str, Any]) -> None:
    database, elsewhere = Database.open(database_url, **options), Database.open(database_url, prefix="other_")
    await database.migrate()
    await elsewhere.migrate()
    for outcome, verb in ENDS:
        async with database.writing() as tx:
            await tx.execute(sa.insert(tx.tables.task).values(handler="mail"))
        submitted = await database.write(submit, NewTask("mail"))
        assert (await work(elsewhere, outcome))[0] == []
        _, settled = await work(database, outcome)
        assert settled.verbs == {submitted - 1: verb, submitted: verb}
    for opened in (database, elsewhere):
        await opened.dispose()


@on_sqlite
async def test_the_checks_of_a_row_build_no_table(database: Database) -> None:
    """SQLite would put the values of an IN into a table for each row: more than half the cost of an insert."""
    async with database.reading() as tx:
        for table in tx.tables.metadata.sorted_tables:
            steps = await tx.rows(sa.text(f"EXPLAIN INSERT INTO {table.name} DEFAULT VALUES"))
            assert not [step for step in steps if step.opcode == "OpenEphemeral"], table.name
