"""Submitting from the command line and waiting for what comes of it."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from runner.cli.ending import Exit
from runner.outcome import RESULT_NOT_KEPT, Dead, Done, Failure, Outcome
from runner.store.database import Database
from tests.cli.conftest import Call, Store
from tests.store.runners import Runner

WAITED = ("submit", "a.b", "--wait", "--wait-timeout", "1m")
LOST = f"{RESULT_NOT_KEPT}: it has 70,000 bytes, more than the 65,536 of result_limit"


@contextmanager
def ending(store: Store, outcome: Outcome) -> Iterator[None]:
    """Run the next task that comes, in a thread, and let it end so."""

    async def run(database: Database) -> None:
        runner = await Runner.enter(database, "a.b", host="web-1")
        while not (claimed := await runner.claim()):
            await asyncio.sleep(0.01)
        await runner.end(claimed[0], outcome)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(store.use, run)
        yield
        running.result(timeout=60)


def test_a_result_is_printed_and_nothing_else(called: Call, store: Store) -> None:
    with ending(store, Done('{"sent": 3, "token": "t"}')):
        told = called(*WAITED)
    assert (told.code, json.loads(told.out)) == (Exit.OK, {"sent": 3, "token": "t"})
    assert told.err.startswith("Submitted task ")


def test_no_result_is_no_output(called: Call, store: Store) -> None:
    with ending(store, Done()):
        told = called(*WAITED)
    assert (told.code, told.out) == (Exit.OK, "")


def test_a_failure_is_told_with_its_reason(called: Call, store: Store) -> None:
    with ending(store, Dead(failure=Failure("ValueError", "no \x1b[31mshop"))):
        told = called(*WAITED)
    assert (told.code, told.out) == (Exit.FAILED, "")
    assert "failed for good in attempt 1: ValueError: no" in told.err
    assert "\x1b" not in told.err


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
def test_everything_in_one_document(
    called: Call, store: Store, outcome: Outcome, code: Exit, expected: dict[str, object]
) -> None:
    with ending(store, outcome):
        told = called(*WAITED, "--json")
    assert told.code == code
    assert {name: told.document[name] for name in expected} == expected


def test_who_waits_too_long_is_told_that_it_goes_on(called: Call, store: Store) -> None:
    told = called("submit", "a.b", "--wait-timeout", "10ms")
    assert (told.code, told.out) == (Exit.UNFINISHED, "")
    assert "It goes on" in told.err
    assert len(store.tasks()) == 1


@pytest.mark.parametrize("words", [("a.b", "--wait-timeout", "soon"), ("--lines", "lines", "--wait")])
def test_a_wait_that_cannot_be_is_refused_before_anything_is_submitted(
    called: Call, store: Store, words: tuple[str, ...]
) -> None:
    assert called("submit", *words).code == Exit.BAD_INPUT
    assert store.tasks() == []
