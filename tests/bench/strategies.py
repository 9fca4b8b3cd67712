"""The strategy parts: the rate of a drain under a strategy, beside that of a plain drain in the same part.

Each part drains a backlog four times: plain and under the strategy, with one runner and with two. No limit is ever
reached, so that the ratios are the costs of the strategies and not their effects.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from runner.cli.bench.exchange import HANDLER
from runner.cli.bench.load import TaskCounts
from runner.cli.bench.plan import BenchReport, Measurement
from runner.cli.bench.workers import COMMAND, BenchContext, Workers
from runner.handlers.registry import Options
from runner.model.task import NewTask, OrderKey, Scope, UniqueKey
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.policy.breaker import Breaker
from runner.text.operator import host
from tests.bench.traced import with_position

RUNNERS = {1: "ratio_1", 2: "ratio_2"}
"""The figure for each number of runners."""

Change = Callable[[NewTask, int], NewTask]
"""Gives a task of the backlog its options, from its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A strategy whose cost is measured.

    Args:
        words: its name in the documentation.
        settings: settings of the runners; {index} and {count} are the number of a runner and of all.
        options: options of the handler.
        limit: limits of the handler, as `runner limit` takes them.
        task: gives each task its options.
        command: arguments of Python that start a runner.
        is_plain: True if the plain drain has the same tasks.
    """

    words: str
    settings: Mapping[str, Any] | None = None
    options: Options | None = None
    limit: Mapping[str, str] | None = None
    task: Change | None = None
    command: Sequence[str] = COMMAND
    is_plain: bool = False


def _in_lanes(task: NewTask, number: int) -> NewTask:
    return task._replace(queue=f"queue {number % 2}", priority=1 + number % 3)


TENANTS = 50
HOUR = 3_600.0
PER_KEY = 10
"""Tasks with the same order key."""

STRATEGIES = {
    "limit": Strategy(words="concurrency limit", limit={"concurrency": "1000000"}),
    "narrow": Strategy(words="limit per runner", options=Options(limit_per_runner=1_000)),
    "tenants": Strategy(
        words="limit per tenant",
        limit={"per-tenant": "1000000"},
        task=lambda task, number: task._replace(tenant=f"tenant {number % TENANTS}"),
    ),
    "rate": Strategy(words="rate limit", limit={"rate": "10000000/s"}),
    "breaker": Strategy(words="breaker", options=Options(breaker=Breaker("10/min"))),
    "fresh": Strategy(words="fresh first", settings={"claim_order": "fresh"}, task=_in_lanes, is_plain=True),
    "aged": Strategy(words="aged priority", settings={"claim_order": "aged"}, task=_in_lanes, is_plain=True),
    "weighted": Strategy(
        words="weighted queues",
        settings={"claim_order": "weighted:queue 0=3,queue 1=1"},
        task=_in_lanes,
        is_plain=True,
    ),
    "order": Strategy(
        words="order key", task=lambda task, number: task._replace(order_key=OrderKey(f"key {number // PER_KEY}"))
    ),
    "unique": Strategy(
        words="unique until started",
        task=lambda task, number: task._replace(unique_key=UniqueKey(f"key {number}", Scope.UNTIL_STARTED)),
    ),
    "expiry": Strategy(words="expiry", task=lambda task, _: task._replace(expires=HOUR)),
    "hosts": Strategy(words="hosts", task=lambda task, _: task._replace(hosts=host())),
    "spread": Strategy(words="spread scans", settings={"poll_mode": "spread"}),
    "tiers": Strategy(words="tiers of scans", settings={"poll_mode": "tiers"}),
    "scans": Strategy(words="own scans", settings={"scans": (f"{HANDLER}=250ms",)}),
    "buckets": Strategy(words="buckets", settings={"buckets": "0-999"}),
    "slices": Strategy(words="static slices", settings={"slice": "{index}/{count}"}),
}
"""The strategies with a cost per task, by the name of their part."""

TRACES = {
    "headers": Strategy(words="header `traceparent`", task=with_position),
    "traces": Strategy(words="traces of 1 %", task=with_position, command=("-P", "-m", "tests.bench.traced")),
}
"""The cost per task of traces, measured in the same way."""

PLAIN = Strategy(words="none")


async def strategy(context: BenchContext, part: str) -> Measurement:
    """Measure a part of STRATEGIES or TRACES."""
    measured = (STRATEGIES | TRACES)[part]
    plain = Strategy(words="none", task=measured.task) if measured.is_plain else PLAIN
    figures: dict[str, float] = {}
    proofs: list[TaskCounts] = []
    for count, figure in RUNNERS.items():
        rates = [await _drain(context, each, count, proofs) for each in (plain, measured)]
        figures[figure] = rates[1] / rates[0]
    tasks = sum(proof.tasks for proof in proofs)
    hits, ends, unfinished = (sum(values) for values in zip(*(proof[1:] for proof in proofs), strict=True))
    return Measurement(figures, tasks, len(RUNNERS), TaskCounts(tasks, hits, ends, unfinished))


async def _drain(context: BenchContext, strategy: Strategy, count: int, proofs: list[TaskCounts]) -> float:
    """Drain a backlog under a strategy, and return the tasks per second."""
    tasks = context.plan.tasks
    async with context.create_load() as load:
        if strategy.limit is not None:
            target, edit = PauseTarget(PauseKind.HANDLER, HANDLER), LimitEdit(strategy.limit, new=True)
            await load.database.write(set_limits, target, edit, Actor("bench", host()))
        await load.many(tasks, strategy.task)
        await load.analyze()
        settings = [_settings(strategy.settings or {}, index, count) for index in range(count)]
        options, command = strategy.options, strategy.command
        async with Workers(context, count, settings=settings, options=options, command=command) as workers:
            await workers.wait_for_starts(tasks)
            finished_at = await load.wait_until_done()
            first_start = workers.first
            reports = await workers.stop()
        proofs.append(await load.proof(sum(report.hits for report in reports)))
    return tasks / (finished_at - first_start)


def _settings(settings: Mapping[str, Any], index: int, count: int) -> dict[str, Any]:
    return {
        name: value.format(index=index, count=count) if isinstance(value, str) else value
        for name, value in settings.items()
    }


def markdown(report: BenchReport) -> Iterator[str]:
    """The lines of a Markdown table: the median ratio of each measured strategy."""
    values: dict[tuple[str, str], Sequence[float]] = {}
    for each in report.measurements:
        for figure in RUNNERS.values() if each.part in STRATEGIES | TRACES else ():
            values[each.part, figure] = [*values.get((each.part, figure), ()), each.figures[figure]]
    if values:
        yield "| strategy | drain with 1 runner | drain with 2 runners |"
        yield "|---|---:|---:|"
    for part, measured in (STRATEGIES | TRACES).items():
        if part in report.plan.parts:
            ratios = " | ".join(f"{median(values[part, figure]):.2f}" for figure in RUNNERS.values())
            yield f"| {measured.words} | {ratios} |"
