"""The part `profile`: where the time of a task goes, in the runner and in the database."""

from collections.abc import Iterator
from dataclasses import replace

from runner.bench.draining import MICRO, drained
from runner.bench.ground import Ground
from runner.bench.orders import Account
from runner.bench.report import Cost, Measurement
from runner.bench.statements import Statements
from runner.bench.stopwatch import STEPS


async def profile(ground: Ground) -> Measurement:
    """Run a backlog with a stopwatch at each step; its own cost is the difference of its CPU to that of `drain`."""
    async with ground.loaded() as load:
        statements = Statements(load.database, ground.place.settings)
        await statements.begin()
        measurement, (account,) = await drained(ground, load, 1, watched=True)
        costs = [*_costs(account), *await statements.costs(load, ground.plan.tasks)]
        return replace(measurement, costs=costs)


def _costs(account: Account) -> Iterator[Cost]:
    """What each step cost, and what is left over."""
    per_task = MICRO / account.hits
    for name, words in STEPS.items():
        step = account.steps[name]
        took = per_task * step.took if step.took else None
        yield Cost(name, words, per_task * step.cpu, took, step.calls)
    rest = account.loop_cpu - sum(step.cpu for step in account.steps.values())
    yield Cost("rest", "event loop, connections, ticks", per_task * rest, None, 0)
    threads = max(0.0, account.cpu - account.loop_cpu)
    yield Cost("threads", "other threads: SQLite and its driver", per_task * threads, None, 0)
