"""`runner submit --wait`."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from runner.cli.exit_codes import Exit
from runner.db.database import Database
from runner.model.outcome import RESULT_NOT_KEPT, Dead, Done, Failure, Outcome
from tests.cli.conftest import Call, Store
from tests.store.runners import Runner

WAITED = ("submit", "a.b", "--wait", "--wait-timeout", "1m")
LOST = f"{RESULT_NOT_KEPT}: 70,000 bytes exceed the result_limit of 65,536"


@contextmanager
def ending(store: Store, outcome: Outcome) -> Iterator[None]:
    """Run the next task in a thread and settle it with this outcome."""

    async def run(database: Database) -> None:
        runner = await Runner.enter(database, "a.b", host="web-1")
        while not (claimed := await runner.claim()):
            await asyncio.sleep(0.01)
        await runner.end(claimed[0], outcome)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(store.use, run)
        yield
        running.result(timeout=90)


def test_a_result_is_printed_and_nothing_else(cli: Call, store: Store) -> None:
    with ending(store, Done('{"sent": 3, "token": "t"}')):
        result = cli(*WAITED)
    assert (result.code, json.loads(result.out)) == (Exit.OK, {"sent": 3, "token": "t"})
    assert result.err.startswith("Submitted task ")


def test_a_missing_result_prints_nothing(cli: Call, store: Store) -> None:
    with ending(store, Done()):
        result = cli(*WAITED)
    assert (result.code, result.out) == (Exit.OK, "")


def test_a_failure_is_printed_with_its_reason(cli: Call, store: Store) -> None:
    with ending(store, Dead(failure=Failure("ValueError", "no \x1b[31mshop"))):
        result = cli(*WAITED)
    assert (result.code, result.out) == (Exit.FAILED, "")
    assert "is dead after attempt 1: ValueError: no" in result.err
    assert "\x1b" not in result.err


@pytest.mark.parametrize(
    ("outcome", "code", "expected"),
    [
        (Done("[1]"), Exit.OK, {"state": "succeeded", "attempts": 1, "result": [1], "error": None}),
        (Done(why=LOST), Exit.OK, {"state": "succeeded", "attempts": 1, "result": None, "error": LOST}),
        (
            Dead(failure=Failure("E", "no")),
            Exit.FAILED,
            {"state": "dead", "attempts": 1, "result": None, "error": "E: no"},
        ),
    ],
)
def test_json_output_has_state_result_and_error(
    cli: Call, store: Store, outcome: Outcome, code: Exit, expected: dict[str, object]
) -> None:
    with ending(store, outcome):
        result = cli(*WAITED, "--json")
    assert result.code == code
    assert {name: result.document[name] for name in expected} == expected


def test_a_timeout_reports_that_the_task_continues(cli: Call, store: Store) -> None:
    result = cli("submit", "a.b", "--wait-timeout", "10ms")
    assert (result.code, result.out) == (Exit.UNFINISHED, "")
    assert "It continues" in result.err
    assert len(store.tasks()) == 1


@pytest.mark.parametrize("words", [("a.b", "--wait-timeout", "soon"), ("--lines", "lines", "--wait")])
def test_an_invalid_wait_is_rejected_before_the_submit(cli: Call, store: Store, words: tuple[str, ...]) -> None:
    assert cli("submit", *words).code == Exit.BAD_INPUT
    assert store.tasks() == []
