"""The statements of a runner on PostgreSQL for a small batch: one claims it, one settles it."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import pytest

from runner.db.loop_statements import LoopStatements
from runner.engine.runner import Engine
from runner.engine.settling import dependency_resolver
from runner.engine.settling.dependency_resolver import DependencyResolver
from runner.model.task import DependsOn, NewTask
from runner.policy.polling import Pace
from runner.store.submit import submit
from tests.engine.harness import Harness, until

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

BATCHES = 12

KINDS = ("claim and look", "claim", "settle", "survey", "look for dependents")


def kind(sql: str) -> str:
    if "claimed AS" in sql:
        return "claim and look"
    if "deletion" in sql:
        return "settle"
    if sql.startswith("WITH lane"):
        return "claim"
    if sql.startswith("WITH RECURSIVE walk"):
        return "survey"
    return "look for dependents" if sql.startswith("SELECT EXISTS") and "task_dependency" in sql else "of a tick"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The statements of all runners in this process."""
    statements: Counter[str] = Counter()
    run = LoopStatements.run

    async def counting(self: LoopStatements, sql: str, values: Any) -> Any:
        statements[kind(sql)] += 1
        return await run(self, sql, values)

    monkeypatch.setattr(LoopStatements, "run", counting)
    monkeypatch.setattr(dependency_resolver, "CHECK_INTERVAL", inf)
    monkeypatch.setattr(DependencyResolver, "sweep", sweep_nothing)
    return statements


async def sweep_nothing(_: DependencyResolver) -> None:
    """A sweep looks for dependents too, every few seconds."""


async def one_by_one(harness: Harness, number: int = BATCHES) -> None:
    for _ in range(number):
        await harness.wait_for(await harness.submit("mail.send"))


async def warm(harness: Harness, runner: Engine, counted: Counter[str]) -> None:
    """Let the runner know its lane; from now on no survey is due by its time."""
    await one_by_one(harness, 2)
    await until(lambda: runner.metrics.verbs["succeed"] == 2)
    await until(lambda: runner.claimer.idle and runner.dependency_resolver.idle)
    runner.claimer.survey.pace = Pace(every=inf)
    runner.claimer.survey.pace.record(0.0, 0.0)
    counted.clear()


async def test_a_small_batch_costs_a_claim_and_a_settle(harness: Harness, counted: Counter[str]) -> None:
    @harness.handler("mail.send")
    async def send() -> None: ...

    async with harness.running(poll_interval="1h") as runner:
        await warm(harness, runner, counted)
        await one_by_one(harness)
        assert {name: counted[name] for name in KINDS} == dict.fromkeys(KINDS, 0) | {
            "claim and look": BATCHES,
            "settle": BATCHES,
        }


async def test_a_task_in_another_lane_is_seen_by_the_claim_and_surveyed(
    harness: Harness, counted: Counter[str]
) -> None:
    @harness.handler("mail.send")
    async def send() -> None: ...

    @harness.handler("mail.fetch")
    async def fetch() -> None: ...

    async with harness.running(poll_interval="1h") as runner:
        await warm(harness, runner, counted)
        await harness.wait_for(await harness.submit("mail.fetch"))
        await until(lambda: counted["survey"] == 2)  # one finds the lane, and one follows its claim
        await one_by_one(harness)
        assert counted["survey"] == 2


async def test_a_task_that_is_due_soon_is_seen_by_the_claim_and_starts_in_time(harness: Harness) -> None:
    @harness.handler("mail.send")
    async def send() -> None: ...

    async with harness.running(poll_interval="1h") as runner:
        await warm(harness, runner, Counter())
        later = await harness.submit("mail.send", run_at=datetime.now(UTC) + timedelta(seconds=0.5))
        await harness.wait_for(await harness.submit("mail.send"), later)


async def test_tasks_that_no_runner_here_takes_do_not_make_each_claim_look(
    harness: Harness, counted: Counter[str]
) -> None:
    @harness.handler("mail.send")
    async def send() -> None: ...

    async with harness.running(poll_interval="1h") as runner:
        await warm(harness, runner, counted)
        await harness.submit("of.others")
        await one_by_one(harness)
        assert counted["claim and look"] < BATCHES
        assert counted["claim"] > 0


@pytest.mark.parametrize("before", [True, False], ids=["open before the settle", "open while it runs"])
async def test_dependents_start_after_a_settle_that_looks_for_them(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    held = asyncio.Event()

    @harness.handler("mail.send")
    async def send() -> None:
        await held.wait()

    @harness.handler("mail.count")
    async def count() -> None: ...

    async with harness.running(poll_interval="1h"):
        parent = await harness.submit("mail.send")
        if before:
            child = await harness.submit("mail.count", after=(DependsOn(parent),))
            held.set()
        else:
            # The submit has read that its parent lives, and commits after the settle has begun.
            async with harness.database.writing() as tx:
                child = await submit(tx, NewTask("mail.count", "{}", after=(DependsOn(parent),)))
                held.set()
                await harness.wait_for(parent)
        await harness.wait_for(parent, child)
