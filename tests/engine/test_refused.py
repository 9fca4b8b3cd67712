"""Tasks that no claim takes: the others run, and an operator learns of them."""

import logging
from typing import Any

import pytest
import sqlalchemy as sa

from runner.cli.check import CheckStatus, Finding, run_checks
from runner.engine.claiming import survey
from runner.model.task import HIGHEST_FENCE, MOST_ATTEMPTS
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.settings import Settings
from runner.urls import parse_url
from tests.engine.harness import Harness, until

REFUSED: dict[str, dict[str, Any]] = {
    "attempts used up": {"attempt": 3, "max_attempts": 3},
    "attempts at their bound": {"attempt": MOST_ATTEMPTS},
    "fence at its bound": {"fence": HIGHEST_FENCE},
}


async def refused(harness: Harness, values: dict[str, Any], **options: Any) -> int:
    task_id = await harness.submit("work", **options)
    task = harness.database.tables.task
    await harness.change(sa.update(task).where(task.c.id == task_id).values(values))
    return task_id


async def checked(harness: Harness) -> list[Finding]:
    findings = [finding async for finding in run_checks(Settings(url=parse_url(harness.url)))]
    return [finding for finding in findings if finding.topic == "tasks"]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED.keys())
async def test_others_run_and_the_log_and_the_check_name_the_task(
    harness: Harness, values: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    bad = await refused(harness, values)
    others = [await harness.submit("work", queue=queue) for queue in ("default", "mail")]
    with caplog.at_level(logging.WARNING):
        async with harness.running() as runner:
            await harness.wait_for(*others)
            await runner.claimer.scan()
            await runner.claimer.scan()
    messages = [record.getMessage() for record in caplog.records if record.name == "runner.claim"]
    assert messages == [
        f"task {bad} (work) in queue default is never claimed: `runner why {bad}` names the reason and the remedy"
    ]
    (finding,) = await checked(harness)
    assert finding.verdict is CheckStatus.WRONG
    assert finding.found == f"task {bad} (work) waits first in queue default and is never claimed"
    assert finding.advice.endswith(f"runner why {bad}")


async def test_a_retry_lets_a_task_at_a_bound_run(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    bad = await refused(harness, {"attempt": MOST_ATTEMPTS, "fence": HIGHEST_FENCE})
    async with harness.running():
        await harness.database.write(retry_now, [Target(bad, None)], Actor("ana", "desk", "a script wrote the fence"))
        await harness.wait_for(bad)
    assert await harness.state(bad) == "succeeded"
    assert await checked(harness) == []


async def test_lanes_behind_many_that_are_never_claimed_get_their_turn(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey returns only the first lanes."""

    @harness.handler("work")
    async def work() -> None: ...

    monkeypatch.setattr(survey, "MANY", 2)
    for number in range(5):
        await refused(harness, {"fence": HIGHEST_FENCE}, queue=f"q{number}", priority=9)
    others = [await harness.submit("work", queue=f"r{number}") for number in range(5)]
    async with harness.running():
        await harness.wait_for(*others)
        await until(lambda: harness_is_quiet(harness))


async def harness_is_quiet(harness: Harness) -> bool:
    return await harness.count(harness.database.tables.task) == 5
