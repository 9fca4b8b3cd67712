"""What one handler does must not reach another one, nor the runner."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from runner import Dead, Retry, Snooze
from runner.errors import InvalidHandler, InvalidRetryPlan
from runner.handlers import Handler, Options
from tests.engine.workshop import Workshop

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_what_one_task_sets_in_its_context_no_other_sees(workshop: Workshop) -> None:
    seen: list[str] = []

    @workshop.handler("work")
    async def work() -> None:
        seen.append(TENANT.get())
        TENANT.set("somebody")
        await asyncio.sleep(0)

    tasks = [await workshop.submit("work") for _ in range(5)]
    async with workshop.running(slots=1):
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
    async with workshop.running(every="1h") as runner:
        await workshop.ended(first)
        await workshop.pause("mail")
        await workshop.submit("work", queue="mail")
        await runner.claiming.scan(news=True)
        await runner.claiming.scan(news=True)
    assert ran == [1]
