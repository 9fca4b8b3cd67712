"""Tasks with a retry plan of the application in their row."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC

import pytest

from runner import FailedRun, retry_plan
from runner.policy.own_retry_plan import PLANS
from runner.queries.task.detail import task_detail, task_fields
from runner.queries.task.timeline import timeline
from runner.queries.why.why import why
from tasktui.dialogs.why import why_lines
from tests.engine.harness import Harness, until


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    @retry_plan("test.patient")
    def decide(run: FailedRun) -> float | None:
        return 0.001 if run.error_type == "ConnectionError" and run.attempt < 3 else None

    yield
    del PLANS["test.patient"]


async def test_a_runner_executes_the_plan_of_the_row(harness: Harness) -> None:
    @harness.handler("work", retry="1h", max_attempts=9)
    async def work() -> None:
        raise ConnectionError

    id = await harness.submit("work", retry="test.patient")
    async with harness.running():
        await harness.wait_for(id)
    assert await harness.state(id) == "dead"
    rules = [attempt.rule for attempt in await harness.attempts(id)]
    place = f"{__name__}.patient.<locals>.decide"
    assert rules == [f"{decided}, by retry plan test.patient ({place})" for decided in ("retried", "retried", "dead")]


class Slow:
    """A plan that a handler names by its path."""

    def delay(self, run: FailedRun) -> str:
        return "1h"


@retry_plan("test.slow")
class Slower(Slow):
    """A plan that has a name."""


@pytest.mark.parametrize(
    ("plan", "title"),
    [(f"{__name__}:Slow", f"{__name__}:Slow"), ("test.slow", f"test.slow ({__name__}.Slower)")],
)
async def test_explanations_name_the_code_of_a_plan(harness: Harness, plan: str, title: str) -> None:
    @harness.handler("work", retry=plan, max_attempts=9)
    async def work() -> None:
        raise ConnectionError

    id = await harness.submit("work")
    async with harness.running():
        await until(lambda: has_failed(harness, id))
    answer = await harness.database.read(why, id, UTC)
    text = f"After attempt 1 a rule decided: retried, by retry plan {title}."
    assert text in [cause.text for cause in answer.causes]
    assert text in "\n".join(each.plain for each in why_lines(answer, 200))
    detail = await harness.database.read(task_detail, id)
    assert dict(task_fields(detail, UTC))["retry plan"] == f"{title}, from the handler"
    assert any(f"(retried, by retry plan {title})" in event.text for event in timeline(detail))


async def has_failed(harness: Harness, id: int) -> bool:
    return bool(await harness.attempts(id))


async def test_a_runner_without_the_plan_says_so_and_uses_that_of_the_handler(harness: Harness) -> None:
    @harness.handler("work", retry="1h", max_attempts=9)
    async def work() -> None:
        raise ConnectionError

    id = await harness.submit("work", retry="elsewhere.retries:Plan")
    async with harness.running():
        await until(lambda: has_failed(harness, id))
    (attempt,) = await harness.attempts(id)
    assert attempt.rule == "retried, by 1h, because retry plan elsewhere.retries:Plan is not loaded here"
    assert attempt.delay == 3600.0
    assert (await harness.row(id)).retry == "elsewhere.retries:Plan"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
async def test_a_plan_that_exits_stops_no_outcome(harness: Harness, error: BaseException) -> None:
    @retry_plan("test.exits")
    def decide(run: FailedRun) -> float:
        raise error

    @harness.handler("work", retry="1ms", max_attempts=2)
    async def work() -> None:
        raise ConnectionError

    @harness.handler("other")
    async def other() -> None: ...

    try:
        ids = [await harness.submit("work", retry="test.exits"), await harness.submit("other")]
        async with harness.running():
            await harness.wait_for(*ids)
        assert [await harness.state(id) for id in ids] == ["dead", "succeeded"]
        rule = (await harness.attempts(ids[0]))[0].rule
        place = f"{decide.__module__}.{decide.__qualname__}"
        assert f"by 1ms, because retry plan test.exits ({place}) raised {type(error).__name__}" in rule
    finally:
        del PLANS["test.exits"]


async def test_a_part_that_others_cancel_starts_again_after_a_pause(harness: Harness) -> None:
    starts = list[float]()
    runner = harness.runner()

    async def begin() -> None:
        starts.append(time.monotonic())
        if len(starts) < 3:
            raise asyncio.CancelledError

    await runner._guard("a part", begin)
    assert len(starts) == 3
    assert starts[2] - starts[0] > 0.25 * 0.75, "two pauses of the back-off"
    await runner.database.dispose()


@pytest.mark.parametrize("error", [SystemExit(7), GeneratorExit(), ValueError()])
async def test_a_part_that_fails_stops_the_runner(harness: Harness, error: BaseException) -> None:
    runner = harness.runner()

    async def begin() -> None:
        raise error

    await runner._guard("a part", begin)
    assert runner.stopping
    await runner.database.dispose()


async def test_a_task_names_the_source_of_its_plan_and_of_its_timeout(harness: Harness) -> None:
    async def work() -> None: ...

    harness.handler("own", retry="1h", timeout=30)(work)
    harness.handler("bare")(work)
    await harness.work(retry="9s", timeout="2m")
    values = []
    for name in ("own", "bare"):
        detail = await harness.database.read(task_detail, await harness.submit(name))
        fields = dict(task_fields(detail, UTC))
        values.append((fields["retry plan"], fields["timeout"]))
    assert values == [
        ("1h, from the handler", "30s, from the handler"),
        ("9s, from the settings", "2m, from the settings"),
    ]
