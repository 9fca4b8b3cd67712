"""`runner check`: thresholds for dead, failing and late tasks, each with its exit code."""

import re
from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.model.outcome import Dead, Done, Failure, Outcome, Retry
from runner.model.task import NewTask
from tests.cli.conftest import Call, Store

DEAD = Dead(failure=Failure("Full", "no room"))
AGAIN = Retry(failure=Failure("Full", "no room"))


def settled(store: Store, handler: str, outcome: Outcome, tasks: int) -> list[int]:
    """Tasks with an outcome, on a live runner that takes the handler."""
    ids = store.submit(*(NewTask(handler) for _ in range(tasks)))
    store.claim(handler, outcome=outcome)
    return ids


def findings(cli: Call, *options: object) -> tuple[int, list[tuple[str, str]]]:
    """The exit code, and the topics and texts of all wrong findings."""
    result = cli("check", "--json", *options)
    return result.code, [(row["topic"], row["found"]) for row in result.document["checks"] if row["verdict"] == "wrong"]


def move_ends(store: Store, ids: Sequence[int], hours: float) -> None:
    """Let tasks have died some hours earlier."""

    async def move(tx: Transaction) -> None:
        past = tx.tables.history
        await tx.execute(
            sa.update(past).where(past.c.id.in_(ids)).values(finished_at=db_later(db_now(), -3600 * hours))
        )

    store.write(move)


@pytest.mark.slow
def test_dead_tasks_of_the_last_hour_are_an_error(cli: Call, store: Store) -> None:
    ids = settled(store, "a.b", DEAD, 2) + settled(store, "c.d", DEAD, 1)
    code, wrong = findings(cli)
    assert code == Exit.DEAD
    assert wrong == [("dead", "3 tasks died in the last hour: a.b 2, c.d 1 (threshold 0)")]
    assert findings(cli, "--max-dead", 3) == (Exit.OK, [])
    move_ends(store, ids, 2)
    assert findings(cli) == (Exit.OK, [])
    assert findings(cli, "--since", "3h")[0] == Exit.DEAD


@pytest.mark.slow
def test_a_retry_of_the_dead_tasks_ends_their_alert(cli: Call, store: Store) -> None:
    settled(store, "a.b", DEAD, 1)
    assert findings(cli)[0] == Exit.DEAD
    assert cli("retry", "state:dead", "--yes", 1).code == Exit.OK
    assert findings(cli) == (Exit.OK, [])


@pytest.mark.slow
def test_a_handler_whose_attempts_fail_is_an_error(cli: Call, store: Store) -> None:
    settled(store, "a.b", AGAIN, 11)
    settled(store, "a.b", Done(), 9)
    settled(store, "c.d", AGAIN, 10)
    code, wrong = findings(cli)
    assert code == Exit.FAILING
    assert wrong == [("failing", "a.b is failing: 11 of 20 attempts in 10m failed (threshold 50%)")]
    assert findings(cli, "--max-failing", 55) == (Exit.OK, [])


@pytest.mark.slow
def test_a_late_queue_is_an_error_unless_people_paused_it(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b", queue="mail"))
    store.claim("other.handler", "a.b", outcome=Retry("1d", failure=Failure("Full", "no room")))

    async def due(tx: Transaction) -> None:
        await tx.execute(sa.update(tx.tables.task).values(run_at=db_later(db_now(), -420)))

    store.write(due)
    code, wrong = findings(cli)
    assert code == Exit.LATE
    ((topic, text),) = wrong
    assert topic == "late"
    assert re.fullmatch(r"queue mail is late: its first ready task has been due for \d+m(\d+s)? \(threshold 5m\)", text)
    assert findings(cli, "--max-late", "1h") == (Exit.OK, [])
    cli("pause", "mail")
    assert findings(cli) == (Exit.OK, [])


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--max-dead", -1), "--max-dead must be 0 or more, not -1"),
        (("--max-refused", -1), "--max-refused must be 0 or more, not -1"),
        (("--max-failing", 101), "--max-failing must be between 0 and 100, not 101"),
        (("--max-late", "soon"), "'soon'"),
    ],
)
def test_an_invalid_threshold_is_refused(cli: Call, store: Store, options: tuple[object, ...], text: str) -> None:
    result = cli("check", *options)
    assert result.code == Exit.BAD_INPUT
    assert text in result.err


@pytest.mark.one_database
def test_a_span_is_a_duration(cli: Call, store: Store) -> None:
    settled(store, "a.b", DEAD, 1)
    assert findings(cli, "--since", "2d")[1][0][1].startswith("1 task died in the last 2d")
