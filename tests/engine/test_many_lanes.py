"""Many queues: no statement and no step of the event loop takes all of them at a time."""

from typing import Any

import pytest

from runner.engine.claiming import scans
from runner.engine.claiming import survey as surveying
from runner.policy import lanes as policy
from runner.policy.positions import LanePosition
from runner.store.claim.plain import claim, claim_suspect
from runner.store.claim.survey import survey
from tests.engine.harness import Harness, at_work

QUEUES, SURVEYED, CLAIMED = 60, 20, 8


class Sizes:
    """Records how many lanes the statements of a claimer take or return."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.surveyed: list[int] = []
        self.dense: list[bool] = []
        self.claimed: list[int] = []

    async def read(self, verb: Any, *arguments: Any) -> Any:
        answer = await self._database.read(verb, *arguments)
        if verb is survey:
            self.surveyed.append(len(answer))
            self.dense.append(bool(arguments[0].dense))
        return answer

    async def write(self, verb: Any, *arguments: Any) -> Any:
        if verb in (claim, claim_suspect):
            self.claimed.append(len(arguments[1]))
        return await self._database.write(verb, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


async def test_a_runner_works_through_many_queues_a_part_at_a_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []

    @harness.handler("work")
    async def work(priority: int) -> None:
        order.append(priority)

    for module in (scans, surveying):
        monkeypatch.setattr(module, "MANY", SURVEYED)
    monkeypatch.setattr(policy, "CLAIMED", CLAIMED)
    tasks = [
        await harness.submit("work", {"priority": priority}, queue=f"q{number}", priority=priority)
        for number, priority in ((number, 9 if number % 10 == 0 else 5) for number in range(QUEUES))
    ]
    runner = harness.runner(concurrency=4, prefetch=0)
    sizes = Sizes(runner.database)
    runner.claimer._database = runner.claimer.survey._database = sizes  # type: ignore[assignment]
    async with at_work(runner):
        await harness.wait_for(*tasks)
    assert max(sizes.surveyed) == SURVEYED
    assert max(sizes.claimed) <= CLAIMED
    assert sizes.dense[0] is False
    assert True in sizes.dense, "many short lanes are read"
    assert sorted(order, reverse=True) == order, "the higher priority comes first, in whatever queue it is"


@pytest.mark.parametrize("queues", [1, 3])
async def test_a_claim_starts_after_the_tasks_of_the_full_claim_before(harness: Harness, queues: int) -> None:
    @harness.handler("work")
    async def work(number: int) -> None: ...

    tasks = [await harness.submit("work", {"number": each}, queue=f"q{each % queues}") for each in range(24)]
    runner = harness.runner(concurrency=6, prefetch=0)
    last: dict[str, LanePosition] = {}
    starts: list[bool] = []
    read, write = runner.database.read, runner.database.write

    async def looked(verb: Any, *arguments: Any, **options: Any) -> Any:
        answer = await read(verb, *arguments, **options)
        if verb is survey:  # claims after a survey start at the first tasks
            last.clear()
        return answer

    async def watched(verb: Any, *arguments: Any) -> Any:
        if verb is claim:
            starts.extend(at >= last[lane.queue] for lane, at in arguments[1].items() if lane.queue in last)
        answer = await write(verb, *arguments)
        if verb is claim and len(answer) == arguments[3]:
            last.update({task.queue: LanePosition(task.run_at, task.id) for task in answer})
        elif verb is claim:
            last.clear()
        return answer

    runner.database.read = looked  # type: ignore[method-assign] # it watches the surveys
    runner.database.write = watched  # type: ignore[assignment, method-assign] # it watches the claims
    async with at_work(runner):
        await harness.wait_for(*tasks)
    assert starts
    assert all(starts)
