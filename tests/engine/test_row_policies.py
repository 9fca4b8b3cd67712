"""Row-level security and deferred constraints: what they refuse is set apart, and all other tasks proceed."""

from collections.abc import Iterator

import psycopg
import pytest

from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.errors import DatabaseRefused
from runner.model.stuck_row import StuckCause, StuckVerb
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until
from tests.postgres.databases import login
from tests.triggers import execute

pytestmark = on_postgresql


@pytest.fixture
def runner_url(harness: Harness) -> Iterator[str]:
    """The URL of a login to which policies apply, unlike to a superuser."""
    with login(harness.url, "pg_read_all_data, pg_write_all_data") as url:
        yield url


async def add_policies(harness: Harness, table: str, *, check: str) -> None:
    """Let everybody see all rows of a table, and store only those that match a condition."""
    await execute(
        harness.database,
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY tenants ON {table} USING (true) WITH CHECK ({check})",
    )


async def handlers(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> str:
        return "done"

    @harness.handler("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")


CHECKS = {
    "claim": ("task", "key IS DISTINCT FROM 'bad' OR state <> 'running'", "work"),
    "settle": ("task_history", "key IS DISTINCT FROM 'bad'", "work"),
    "fail": ("task_attempt", "task_id <> (SELECT min(id) FROM task WHERE key = 'bad')", "fails"),
}


@pytest.mark.representatives(2)
@pytest.mark.parametrize("verb", CHECKS)
@pytest.mark.parametrize("number", [1, 30], ids=["alone", "among others"])
async def test_a_row_that_a_policy_refuses_stops_no_other(
    harness: Harness, runner_url: str, verb: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    await handlers(harness)
    table, check, handler = CHECKS[verb]
    bad = await harness.submit(handler, key="bad", priority=9)
    await add_policies(harness, table, check=check)
    others = [await harness.submit("work") for _ in range(number - 1)]
    stuck_verb: StuckVerb = "claim" if verb == "claim" else "settle"
    harness.url, owner = runner_url, harness.url
    async with harness.running(claim_batch_size=50) as runner:
        await harness.wait_for(*others)
        await until(lambda: {row.task: row.cause for row in runner.stuck.rows(stuck_verb)} == {bad: StuckCause.REFUSED})
        (row,) = runner.stuck.rows(stuck_verb)
        assert row.fact.startswith("42501 ")
        assert "row-level security policy" in row.fact
        assert not runner.worker.buffer.stalled
        await harness.wait_for(*[await harness.submit("work") for _ in range(3)])
    harness.url = owner
    assert "buffered, retrying" not in caplog.text


DEFERRED = """
CREATE FUNCTION balance() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF coalesce(new.key, old.key) = 'bad' {and_} THEN
        RAISE EXCEPTION 'out of balance' USING ERRCODE = '{state}';
    END IF;
    RETURN NULL;
END $$
"""
TRIGGER = (
    "CREATE CONSTRAINT TRIGGER balance AFTER {event} ON {table} DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION balance()"
)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("state", ["P0001", "08006", "40001"])
@pytest.mark.parametrize(
    ("verb", "table", "event", "and_"),
    [
        ("claim", "task", "UPDATE", "AND new.state = 'running'"),
        ("settle", "task", "DELETE", ""),
        ("settle", "task_history", "INSERT", ""),
    ],
)
async def test_a_deferred_constraint_that_raises_at_the_commit_stops_no_other(
    harness: Harness, verb: StuckVerb, table: str, event: str, and_: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    await handlers(harness)
    bad = await harness.submit("work", key="bad", priority=9)
    await execute(harness.database, DEFERRED.format(and_=and_, state=state), TRIGGER.format(event=event, table=table))
    others = [await harness.submit("work") for _ in range(20)] + [await harness.submit("fails")]
    async with harness.running(claim_batch_size=50) as runner:
        await harness.wait_for(*others)
        await until(lambda: {row.task: row.cause for row in runner.stuck.rows(verb)} == {bad: StuckCause.REFUSED})
        assert runner.stuck.rows(verb)[0].fact.startswith(f"{state} out of balance")
        await harness.wait_for(*[await harness.submit("work") for _ in range(3)])
        await execute(harness.database, f"DROP TRIGGER balance ON {table}")
        await harness.wait_for(bad)
    assert "buffered, retrying" not in caplog.text


async def test_a_missing_right_is_an_error_of_the_statement(harness: Harness) -> None:
    """Every row fails alike, so that none is set apart."""
    apart: list[int] = []
    with login(harness.url, "SELECT ON task") as url:

        async def write(_: object) -> None:
            with psycopg.connect(url) as connection:
                try:
                    connection.execute("UPDATE task SET priority = 1")
                except psycopg.Error as error:
                    raise DatabaseRefused(why=str(error)) from error

        with pytest.raises(DatabaseRefused) as failure:
            await write_in_halves([1, 2, 3], write, lambda id, _: apart.append(id))
    assert apart == []
    fault = row_fault(failure.value)
    assert fault is not None
    assert fault.of_statement
