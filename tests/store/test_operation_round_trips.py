"""The round trips to a far PostgreSQL server of each operation, as docs/performance-methods.md lists them."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import TaskHandler, connect, disconnect, handler
from runner.db.database import Database
from runner.db.dialects.postgresql import PREPARE_AFTER
from runner.handlers.registry import REGISTRY
from runner.model.outcome import Retry
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.store.claim.limited import LimitedLanes, claim_limited
from runner.store.claim.next_due import claim_with_next_due
from runner.store.dependencies.resolve import any_open
from runner.store.heartbeat import heartbeat, running_tasks
from runner.urls import parse_url
from tests.postgres.distance import DistantServer
from tests.store.runners import LEASE, Runner, settle_done, settlement
from tests.store.table import put_many

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

WAY = 0.02
"""Seconds of each direction: long enough for the statements of one round trip."""

DOCS = Path(__file__).parents[2] / "docs" / "performance-methods.md"
MANY = 1_000

Operation = Callable[[], Awaitable[object]]


@pytest.fixture
async def far(migrated_url: str) -> AsyncIterator[DistantServer]:
    async with DistantServer(migrated_url, WAY).opened() as far:
        yield far


@pytest.fixture
async def distant(far: DistantServer) -> AsyncIterator[Database]:
    database = Database.open(far.url)
    yield database
    await database.dispose()


@pytest.fixture
def work() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("work")
    def work(number: int) -> None: ...

    yield work
    disconnect()
    REGISTRY._handlers.pop(work.name)


async def trips(far: DistantServer, operation: Operation) -> int:
    """The round trips of an operation on connections that have prepared its statements."""
    for _ in range(PREPARE_AFTER + 1):
        await operation()
    before = sum(far.round_trips)
    await operation()
    return sum(far.round_trips) - before


def listed() -> dict[str, int]:
    """The table of the documentation."""
    part = DOCS.read_text(encoding="utf-8").split("| operation on PostgreSQL |", 1)[1].split("\n\n", 1)[0]
    return {name: int(number) for name, number in re.findall(r"^\| ([^|]+) \| (\d+) \|$", part, re.MULTILINE)}


async def claims_under_limits(far: DistantServer, database: Database, distant: Database) -> dict[str, int]:
    """The round trips of claims of one task under each kind of limit."""
    limits = {
        "a claim under a concurrency limit": {"concurrency": "1000"},
        "a claim under a limit per tenant, after one that found no task without a tenant": {"per-tenant": "1000"},
        "a claim under a rate": {"rate": "1000/s"},
    }
    measured = {}
    for number, (name, values) in enumerate(limits.items()):
        queue = f"limited {number}"
        await database.write(
            set_limits, PauseTarget(PauseKind.QUEUE, queue), LimitEdit(values, new=True), Actor("ana", "web-1")
        )
        await put_many(database, 20, queue=queue, tenant="acme")
        runner = await Runner.enter(distant)
        await runner.survey()
        own = [lane for lane in runner.lanes.limited.due if lane.queue == queue]
        request = LimitedLanes(own, runner.start, with_tenants=own, walks=dict.fromkeys(own, MANY))

        async def claim(runner: Runner = runner, request: LimitedLanes = request) -> None:
            result = await distant.write(claim_limited, runner.who, request, runner.terms, 1)
            assert len(result.claimed) == 1

        measured[name] = await trips(far, claim)
    return measured


async def test_each_operation_costs_the_round_trips_of_the_documentation(
    far: DistantServer, database: Database, distant: Database, work: TaskHandler[Any, Any, Any]
) -> None:
    await asyncio.to_thread(connect, url=parse_url(far.url))
    calls = [{"number": number} for number in range(MANY)]
    measured = {
        "a submit, in a thread": await trips(far, lambda: asyncio.to_thread(work.submit, number=1)),
        "a submit of a coroutine": await trips(far, lambda: work.submit_async(number=1)),
        "`submit_many` of 1,000 tasks": await trips(far, lambda: work.submit_many_async(calls)),
    }
    runner = await Runner.enter(distant)
    await put_many(database, 500)
    lanes = dict(await runner.survey())
    measured["a survey"] = await trips(far, runner.survey)
    measured["a claim of a batch"] = await trips(far, lambda: runner.claim_on(10))

    async def look() -> object:
        return await distant.write(claim_with_next_due, runner.who, lanes, runner.terms, 10)

    measured["a claim that looks for other lanes"] = await trips(far, look)
    measured |= await claims_under_limits(far, database, distant)
    claimed = iter([await runner.claim_on(10) for _ in range(2 * PREPARE_AFTER + 4)])

    async def succeed() -> object:
        return await distant.write(settle_done, runner.id, [settlement(task) for task in next(claimed)])

    async def fail() -> object:
        return await runner.settle(*(settlement(task, Retry("1h")) for task in next(claimed)))

    measured["a settle of successes"] = await trips(far, succeed)
    measured["a settle of failures"] = await trips(far, fail)
    measured["a look for dependents"] = await trips(far, lambda: distant.read(any_open))
    measured["a heartbeat"] = await trips(far, lambda: distant.write(heartbeat, runner.id, LEASE, 150, LEASE))
    measured["a look for running tasks after it"] = await trips(far, lambda: distant.read(running_tasks, runner.id))
    assert measured == listed()
