"""Weighted queues in a runner."""

from collections import Counter

from runner.model.task import NewTask
from runner.store.submit import submit_many
from tests.engine.harness import Harness

TASKS = 120


async def test_a_runner_starts_tasks_of_two_queues_by_their_weights(harness: Harness) -> None:
    ran: list[str] = []

    @harness.handler("work")
    async def work(queue: str) -> None:
        ran.append(queue)

    for queue in ("sms", "mail"):
        tasks = [NewTask("work", f'{{"queue": "{queue}"}}', queue=queue)] * TASKS
        await harness.database.write(submit_many, tasks)
    await harness.work(claim_order="weighted:mail=3,sms=1", concurrency=4, prefetch=0)
    counts = Counter(ran[:TASKS])
    assert 80 <= counts["mail"] <= 100, "three of four; the last claim may be cut"
    assert Counter(ran) == {"mail": TASKS, "sms": TASKS}
