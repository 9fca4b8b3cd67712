"""A faulty handler affects neither other handlers nor the runner."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Dead, Retry, Snooze
from runner.errors import InvalidHandler, InvalidRetryPlan
from runner.handlers.registry import Handler, Options
from tests.engine.harness import Harness, until

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_context_variables_of_a_task_are_invisible_to_others(harness: Harness) -> None:
    tenants: list[str] = []

    @harness.handler("work")
    async def work() -> None:
        tenants.append(TENANT.get())
        TENANT.set("somebody")
        await asyncio.sleep(0)

    tasks = [await harness.submit("work") for _ in range(5)]
    async with harness.running(concurrency=1):
        await harness.wait_for(*tasks)
    assert tenants == ["nobody"] * 5


async def test_a_payload_over_the_limit_makes_the_task_dead(harness: Harness) -> None:
    @harness.handler("work")
    async def work(text: str) -> None: ...

    # `submit` of the store checks no size, as a plain INSERT.
    large, fits = [await harness.submit("work", {"text": "x" * size}) for size in (300, 200)]
    async with harness.running(payload_limit=250):
        await harness.wait_for(large, fits)
    assert [await harness.state(id) for id in (large, fits)] == ["dead", "succeeded"]
    (attempt,) = await harness.attempts(large)
    assert (attempt.attempt, attempt.error_type) == (1, "PayloadTooLarge")
    assert attempt.message.startswith("the payload has 312 bytes, more than the setting payload_limit of the runner")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", [Dead, lambda why: Retry("1h", why), lambda why: Snooze("1h", why)])
async def test_a_reason_that_is_no_text_is_made_one(harness: Harness, kind: Any) -> None:
    @harness.handler("odd")
    async def odd() -> Any:
        return kind(ValueError("\0 odd"))

    @harness.handler("plain")
    async def plain() -> None: ...

    await harness.submit("odd")
    plain_one = await harness.submit("plain")
    async with harness.running():
        await harness.wait_for(plain_one)


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"timeout": 0.0}, {"timeout": -1.0}, {"priority": 10}])
def test_options_that_no_row_can_hold_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidHandler):
        Handler("work", lambda: None, Options(**options))


async def test_a_retry_plan_of_the_settings_that_is_none_is_refused_at_the_start(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    with pytest.raises(InvalidRetryPlan):
        harness.runner(retry="oops")


async def test_a_pause_counts_before_the_next_survey(harness: Harness) -> None:
    ran: list[int] = []

    @harness.handler("work", queue="mail")
    async def work() -> None:
        ran.append(1)

    first = await harness.submit("work", queue="mail")
    async with harness.running(poll_interval="1h") as runner:
        await harness.wait_for(first)
        await harness.pause("mail")
        await harness.submit("work", queue="mail")
        await runner.claimer.scan(submitted=True)
        await runner.claimer.scan(submitted=True)
    assert ran == [1]


EXITS = [SystemExit(3), KeyboardInterrupt("enough"), GeneratorExit("gone"), asyncio.CancelledError("not ours")]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("form", ["async", "thread"])
async def test_a_handler_that_exits_fails_and_the_runner_lives_on(
    harness: Harness, form: str, error: BaseException
) -> None:
    async def on_loop() -> None:
        raise error

    def in_thread() -> None:
        raise error

    harness.handler("exits", max_attempts=1)(on_loop if form == "async" else in_thread)

    @harness.handler("plain")
    async def plain() -> None: ...

    exits = await harness.submit("exits")
    async with harness.running():
        await harness.wait_for(exits)
        await harness.wait_for(await harness.submit("plain"))
    row = await harness.row(exits)
    assert row.state == "dead"
    assert type(error).__name__ in row.error


@pytest.mark.representatives(2)
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("form", ["async", "thread"])
async def test_an_on_error_that_exits_fails_the_attempt_and_the_runner_lives_on(
    harness: Harness, form: str, error: BaseException
) -> None:
    def judge(_: Exception) -> None:
        raise error

    async def on_loop() -> None:
        raise ValueError("wrong")

    def in_thread() -> None:
        raise ValueError("wrong")

    harness.handler("fails", max_attempts=1, on_error=judge)(on_loop if form == "async" else in_thread)

    @harness.handler("plain")
    async def plain() -> None: ...

    fails = await harness.submit("fails")
    async with harness.running():
        await harness.wait_for(fails)
        await harness.wait_for(await harness.submit("plain"))
    row = await harness.row(fails)
    assert row.state == "dead"
    assert row.error.startswith("ValueError: wrong; on_error raised ")
    assert type(error).__name__ in row.error


async def test_a_result_that_exits_while_it_is_read_is_not_kept(harness: Harness) -> None:
    def leave() -> int:
        raise SystemExit(3)

    @harness.handler("odd")
    async def odd() -> Any:
        return (leave() for _ in range(1))

    task = await harness.submit("odd")
    async with harness.running():
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.result) == ("succeeded", None)


@pytest.mark.parametrize("part", ["task", "batch"])
async def test_an_outcome_that_cannot_be_reported_stops_no_settling(
    harness: Harness, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    async with harness.running() as runner:
        with monkeypatch.context() as patch:
            if part == "task":
                patch.setattr(runner.claimer.lanes.limited, "reopen", fail)
            else:
                patch.setattr(runner.worker.buffer, "_on_settled", fail)
            await harness.wait_for(await harness.submit("work"))
            await until(lambda: "a bug" in caplog.text)
        await harness.wait_for(await harness.submit("work"))
        await until(lambda: runner.metrics.verbs["succeed"] == (2 if part == "task" else 1))
        assert not runner.stopping
        assert part == "batch" or not runner.worker.in_flight.claims


REFUSAL = {
    "sqlite": "CREATE UNIQUE INDEX own ON task_history (key) WHERE state = 'succeeded' AND key = 'bad'",
    "postgresql": "ALTER TABLE task_history ADD CONSTRAINT own "
    "CHECK (state <> 'succeeded' OR key IS DISTINCT FROM 'bad') NOT VALID",
}
"""Rules of a user for the history, which one success breaks."""


async def test_an_outcome_that_the_database_refuses_is_dead_and_stops_no_other(harness: Harness) -> None:
    @harness.handler("plain")
    async def plain() -> None: ...

    await harness.submit("plain", key="bad")
    await harness.work()
    await harness.change(sa.text(REFUSAL[harness.database.dialect.name]))
    bad, *others = [await harness.submit("plain", key=key) for key in ("bad", "good", None)]
    await harness.work()
    assert [await harness.state(task) for task in others] == ["succeeded"] * 2
    row = await harness.row(bad)
    assert row.state == "dead"
    assert row.error.startswith("DatabaseRefused: the database refused the outcome of this attempt: ")
    assert "UNIQUE" in row.error or "23514" in row.error
