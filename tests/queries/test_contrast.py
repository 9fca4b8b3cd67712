"""Contrast: the values that failures of a cause have and successes of its handler have not."""

import json
from typing import Any

import pytest

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.task import State
from runner.queries import contrast as contrast_query
from runner.queries.contrast import Contrast, Difference, contrast, differences_of
from runner.store.ended_runners import end_runners
from tests.queries.test_failure_groups import HOUR
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead

pytestmark = pytest.mark.both_databases


async def compared(database: Database, fingerprint: str = "f1", handler: str = "h") -> Contrast:
    async with database.reading() as tx:
        return await contrast(tx, fingerprint, handler, await clock(tx) - HOUR)


async def outage(database: Database, failures: int = 10, successes: int = 20) -> None:
    """Failures on the new version in one region, and successes on the old version in several."""
    new, old = await add_runner(database, version="2"), await add_runner(database, version="1")

    def payload(number: int, region: str) -> str:
        return json.dumps({"order": number, "region": region, "card_token": "tok_1", "big": {"x": 1}, "dry": False})

    for number in range(failures):
        arguments: dict[str, Any] = {"tenant": f"t{number % 3}", "payload": payload(number, "eu")}
        live = number % 2
        id = (
            await add_live(database, **arguments)
            if live
            else await add_past(database, 900 + number, State.DEAD, **arguments)
        )
        await add_attempt(database, id, ended_at=ahead(-60 - number), runner_id=new, host="web-1")
    for number in range(successes):
        arguments = {"tenant": f"t{number % 3}", "payload": payload(number, "eu" if number == 0 else "us")}
        await add_past(database, 2000 + number, runner_id=old, host="web-1", finished_at=ahead(-number), **arguments)
    await database.write(end_runners, [new], lost=False)


async def test_failures_are_compared_with_successes_of_their_handler(database: Database) -> None:
    await outage(database)
    for number in range(30):
        await add_past(database, 5000 + number, handler="other", payload='{"region": "eu"}', host="web-9")
    await add_attempt(database, 1, 77, ended_at=ahead(-2 * 3600), host="web-old")
    result = await compared(database)
    assert result == Contrast(
        10,
        20,
        (
            Difference("version", "2", 10, 10, 0, 20),
            Difference("argument region", '"eu"', 10, 10, 1, 20),
        ),
    )
    assert result.sentence == (
        "Only version 2: 10 of 10 failures, 0 of 20 successes; "
        'argument region "eu": 10 of 10 failures, 1 of 20 successes.'
    )


async def test_too_few_failures_or_successes_are_not_compared(database: Database) -> None:
    await outage(database, failures=4)
    assert (await compared(database)).sentence == ""
    assert (await compared(database, "unknown")).failures == 0
    for id in range(100, 106):
        await add_attempt(database, id, ended_at=ahead(-5), fingerprint="f2", handler="lone")
        await add_past(database, id, State.DEAD, handler="lone")
    assert (await compared(database, "f2", "lone")).sentence == "No recent successes to compare with."


async def test_the_search_for_successes_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await outage(database)
    for number in range(10):
        await add_past(database, 7000 + number, handler="other", finished_at=ahead(-number / 100))
    monkeypatch.setattr(contrast_query, "SCANNED", 22)
    assert (await compared(database)).successes == 7
    monkeypatch.setattr(contrast_query, "SAMPLE", 6)
    result = await compared(database)
    assert (result.failures, result.successes) == (6, 6)


def test_equal_values_and_rare_fields_are_no_difference() -> None:
    failed = [{"version": "2", "host": f"web-{n % 4}", "argument dry": "false"} for n in range(8)]
    succeeded = [{"version": "2", "host": f"web-{n % 4}", "argument dry": "false"} for n in range(8)]
    assert differences_of(failed, succeeded) == ()
    assert Contrast(8, 8).sentence == (
        "No version, host, tenant or argument sets the failures apart from the last 8 successes."
    )
    failed[0]["argument rare"] = "1"
    succeeded[0]["argument rare"] = "2"
    assert differences_of(failed, succeeded) == ()
    mostly = [{"tenant": "acme"}] * 9 + [{"tenant": "zed"}]
    (difference,) = differences_of(mostly, [{"tenant": "zed"}] * 10)
    assert Contrast(10, 10, (difference,)).sentence == "Mostly tenant acme: 9 of 10 failures, 0 of 10 successes."


def test_twenty_failures_are_set_apart_by_values_that_half_of_the_successes_have() -> None:
    """In an unfinished deploy, the new version succeeds with other arguments."""
    failed = [{"version": "2", "argument currency": "CHF", "host": f"web-{n % 2}"} for n in range(20)]
    others = (("2", "EUR"), ("2", "EUR"), ("1", "CHF"), ("1", "EUR"), ("1", "EUR"))
    succeeded = [{"version": v, "argument currency": c, "host": f"web-{n % 2}"} for n in range(4) for v, c in others]
    assert Contrast(20, 20, differences_of(failed, succeeded)).sentence == (
        "Mostly argument currency CHF: 20 of 20 failures, 4 of 20 successes; "
        "version 2: 20 of 20 failures, 8 of 20 successes."
    )
    assert differences_of(failed[1:], succeeded) == ()


async def test_payloads_of_other_programs_and_long_ones_are_left_out(database: Database) -> None:
    for id, payload in enumerate(
        ("[1]", '{"n": 1}', json.dumps({"x": "y" * 9_000}), '{"n": 1}', '"text"', '{"n": 1}'), 1
    ):
        await add_past(database, id, State.DEAD, payload=payload)
        await add_attempt(database, id, ended_at=ahead(-5))
        await add_past(database, 50 + id, payload='{"n": 2}')
    (difference,) = (await compared(database)).differences
    assert (difference.field, difference.of_failures) == ("argument n", 3)
