"""Constraints, triggers and timeouts of users on the tables: the row that fails is set apart, all others proceed."""

from collections.abc import Iterator

import psycopg
import pytest

from runner.model.stuck_row import StuckCause, StuckVerb
from runner.text.stuck_row import LONGEST_FACT, stuck_advice
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until
from tests.postgres.databases import login
from tests.triggers import execute

pytestmark = on_postgresql

NOT_VALID = (
    "INSERT INTO task (handler, key) VALUES ('other', 'bad')",
    "ALTER TABLE task ADD CONSTRAINT calm CHECK (key <> 'bad' OR state <> 'running') NOT VALID",
)
DOMAIN = (
    "CREATE DOMAIN calm AS text CHECK (value <> 'bad running')",
    "ALTER TABLE task ADD COLUMN note calm GENERATED ALWAYS AS (key || ' ' || state) STORED",
)
REFERENCE = (
    "CREATE TABLE invoice (task bigint REFERENCES task (id) ON DELETE RESTRICT)",
    "INSERT INTO invoice SELECT id FROM task WHERE key = 'bad'",
)
FUNCTION = (
    "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF old.key = 'bad' THEN {}; END IF; "
    "RETURN coalesce(new, old); END $$"
)
CANCEL = "PERFORM pg_cancel_backend(pg_backend_pid())"
LARGE = "RAISE EXCEPTION '%', repeat('x', 1000000)"


def trigger(event: str, statement: str) -> tuple[str, str]:
    when = f"BEFORE {event} ON task FOR EACH ROW EXECUTE FUNCTION audit()"
    return FUNCTION.format(statement), f"CREATE TRIGGER audit {when}"


FAULTS: dict[str, tuple[StuckVerb, tuple[str, ...], str, str]] = {
    "a check that is not valid": ("claim", NOT_VALID, "23514 ", "change the constraint"),
    "a domain": ("claim", DOMAIN, "23514 ", "change the "),
    "a foreign key": ("settle", REFERENCE, "23", "change the constraint"),
    "a large text": ("claim", trigger("UPDATE", LARGE), "P0001 xxx", "change the "),
    "a cancelled claim": ("claim", trigger("UPDATE", CANCEL), "57014 ", "change the trigger"),
    "a cancelled settle": ("settle", trigger("DELETE", CANCEL), "57014 ", "change the trigger"),
}


async def check(harness: Harness, verb: StuckVerb, statements: tuple[str, ...], fact: str, advice: str) -> None:
    @harness.handler("work")
    async def work() -> str:
        return "done"

    bad = await harness.submit("work", key="bad", priority=9)
    await execute(harness.database, *statements)
    others = [await harness.submit("work") for _ in range(20)]
    async with harness.running(claim_batch_size=50) as runner:
        await harness.wait_for(*others)
        await until(lambda: {row.task: row.cause for row in runner.stuck.rows(verb)} == {bad: StuckCause.REFUSED})
        (row,) = runner.stuck.rows(verb)
        assert row.fact.startswith(fact)
        assert len(row.fact) <= LONGEST_FACT + 1
        assert stuck_advice(row).startswith(advice)
        await harness.wait_for(*[await harness.submit("work") for _ in range(3)])


@pytest.mark.representatives(2)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_constraint_of_a_user_stops_no_other_task(
    harness: Harness, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    await check(harness, *FAULTS[fault])
    assert max(len(record.getMessage()) for record in caplog.records) < 1_000


@pytest.fixture
def impatient(harness: Harness) -> Iterator[str]:
    """The URL of a login whose statements may take half a second."""
    with login(harness.url, "pg_read_all_data, pg_write_all_data") as url:
        role = psycopg.conninfo.conninfo_to_dict(url)["user"]
        with psycopg.connect(harness.url, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE {role} SET statement_timeout = '500ms'")
        yield url


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "event"), [("claim", "UPDATE"), ("settle", "DELETE")])
async def test_the_statement_timeout_of_a_role_is_named(
    harness: Harness, impatient: str, verb: StuckVerb, event: str
) -> None:
    harness.url, owner = impatient, harness.url
    await check(harness, verb, trigger(event, "PERFORM pg_sleep(5)"), "57014 ", "change the statement_timeout")
    harness.url = owner
