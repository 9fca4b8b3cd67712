"""A faulty handler affects neither other handlers nor the runner."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from runner import Dead, Retry, Snooze
from runner.errors import InvalidHandler, InvalidRetryPlan
from runner.handlers.registry import Handler, Options
from tests.engine.workshop import Workshop

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_context_variables_of_a_task_are_invisible_to_others(workshop: Workshop) -> None:
    seen: list[str] = []

    @workshop.handler("work")
    async def work() -> None:
        seen.append(TENANT.get())
        TENANT.set("somebody")
        await asyncio.sleep(0)

    tasks = [await workshop.submit("work") for _ in range(5)]
    async with workshop.running(concurrency=1):
        await workshop.ended(*tasks)
    assert seen == ["nobody"] * 5


@pytest.mark.parametrize("kind", [Dead, lambda why: Retry("1h", why), lambda why: Snooze("1h", why)])
async def test_a_reason_that_is_no_text_is_made_one(workshop: Workshop, kind: Any) -> None:
    @workshop.handler("odd")
    async def odd() -> Any:
        return kind(ValueError("\0 odd"))

    @workshop.handler("plain")
    async def plain() -> None: ...

    await workshop.submit("odd")
    plain_one = await workshop.submit("plain")
    async with workshop.running():
        await workshop.ended(plain_one)


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"timeout": 0.0}, {"timeout": -1.0}, {"priority": 10}])
def test_options_that_no_row_can_hold_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidHandler):
        Handler("work", lambda: None, Options(**options))


async def test_a_retry_plan_of_the_settings_that_is_none_is_refused_at_the_start(workshop: Workshop) -> None:
    @workshop.handler("work")
    async def work() -> None: ...

    with pytest.raises(InvalidRetryPlan):
        workshop.runner(retry="oops")


async def test_a_pause_counts_before_the_next_survey(workshop: Workshop) -> None:
    ran: list[int] = []

    @workshop.handler("work", queue="mail")
    async def work() -> None:
        ran.append(1)

    first = await workshop.submit("work", queue="mail")
    async with workshop.running(poll_interval="1h") as runner:
        await workshop.ended(first)
        await workshop.pause("mail")
        await workshop.submit("work", queue="mail")
        await runner.claimer.scan(submitted=True)
        await runner.claimer.scan(submitted=True)
    assert ran == [1]


EXITS = [SystemExit(3), KeyboardInterrupt("enough"), GeneratorExit("gone"), asyncio.CancelledError("not ours")]


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("form", ["async", "thread"])
async def test_a_handler_that_exits_fails_and_the_runner_lives_on(
    workshop: Workshop, form: str, error: BaseException
) -> None:
    async def on_loop() -> None:
        raise error

    def in_thread() -> None:
        raise error

    workshop.handler("exits", max_attempts=1)(on_loop if form == "async" else in_thread)

    @workshop.handler("plain")
    async def plain() -> None: ...

    exits = await workshop.submit("exits")
    async with workshop.running():
        await workshop.ended(exits)
        await workshop.ended(await workshop.submit("plain"))
    row = await workshop.row(exits)
    assert row.state == "dead"
    assert type(error).__name__ in row.error


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("form", ["async", "thread"])
async def test_an_on_error_that_exits_fails_the_attempt_and_the_runner_lives_on(
    workshop: Workshop, form: str, error: BaseException
) -> None:
    def judge(_: Exception) -> None:
        raise error

    async def on_loop() -> None:
        raise ValueError("wrong")

    def in_thread() -> None:
        raise ValueError("wrong")

    workshop.handler("fails", max_attempts=1, on_error=judge)(on_loop if form == "async" else in_thread)

    @workshop.handler("plain")
    async def plain() -> None: ...

    fails = await workshop.submit("fails")
    async with workshop.running():
        await workshop.ended(fails)
        await workshop.ended(await workshop.submit("plain"))
    row = await workshop.row(fails)
    assert row.state == "dead"
    assert row.error.startswith("ValueError: wrong; on_error raised ")
    assert type(error).__name__ in row.error


async def test_a_result_that_exits_while_it_is_read_is_not_kept(workshop: Workshop) -> None:
    def leave() -> int:
        raise SystemExit(3)

    @workshop.handler("odd")
    async def odd() -> Any:
        return (leave() for _ in range(1))

    task = await workshop.submit("odd")
    async with workshop.running():
        await workshop.ended(task)
    row = await workshop.row(task)
    assert (row.state, row.result) == ("succeeded", None)
