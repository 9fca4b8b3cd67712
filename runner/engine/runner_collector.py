"""collect_runner: the metrics of a runner, collected when they are scraped."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from runner.engine.exposition import Family, MetricKind
from runner.policy.histogram import ExportedTimes
from runner.policy.work_keys import WorkKey

if TYPE_CHECKING:
    from runner.engine.runner import Engine
    from runner.engine.shards import ShardEngines

WORK_KEY = ("queue", "handler")


def gauge(name: str, text: str, value: float) -> Family:
    """A gauge without labels."""
    return Family(MetricKind.GAUGE, f"tasktui_{name}", text, (), {(): value})


def gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Family:
    """A gauge with one label."""
    return Family(MetricKind.GAUGE, f"tasktui_{name}", text, (label,), {(value,): number for value, number in values})


def collect_runner(runner: "Engine") -> Iterator[Family]:
    """Read what the parts of a runner count anyway; any thread may collect."""
    text, labels = "Attempts that ended, by outcome: the move of the task.", (*WORK_KEY, "outcome")
    yield Family(MetricKind.COUNTER, "tasktui_attempts", text, labels, dict(runner.metrics.ended))
    left_out = "Pairs of queue and handler that count together as other."
    yield gauge("work_keys_left_out", left_out, runner.metrics.work_keys.left_out)
    pools = runner.worker.in_flight.pools
    yield gauges("slots", "Slots, by pool.", "pool", [(pool.name, pool.limit) for pool in pools])
    used = [(pool.name, pool.in_use) for pool in pools]
    yield gauges("slots_used", "Slots in which a task runs, by pool.", "pool", used)
    waiting = [(pool.name, len(pool.waiting)) for pool in pools]
    yield gauges("tasks_prefetched", "Claimed tasks that wait for a slot, by pool.", "pool", waiting)
    yield gauge("outcomes_buffered", "Outcomes that wait for the database.", len(runner.worker.buffer))
    yield gauge("stuck_rows", "Rows of tasks that the runner could not change.", len(runner.stuck))
    age = runner.lease.renewal_age if runner.lease.id else 0.0
    yield gauge("lease_renewal_age_seconds", "Seconds since the last renewal of the lease.", age)
    blocked = runner.watchdog.blocked_for
    yield gauge("event_loop_blocked_seconds", "Seconds without a response of the loop.", blocked)
    yield from histograms("attempt", runner.metrics.exported_times())


def collect_shards(runners: "ShardEngines") -> Iterator[Family]:
    """Read what the runners of all shards count, with the label `shard`."""
    families: dict[str, Family] = {}
    for shard, runner in runners.by_shard.items():
        for family in collect_runner(runner):
            labelled = {(shard, *labels): value for labels, value in family.samples.items()}
            first = families.setdefault(family.name, family._replace(labels=("shard", *family.labels), samples={}))
            families[family.name] = first._replace(samples={**first.samples, **labelled})
    yield from families.values()


def histograms(name: str, times: Mapping[WorkKey, ExportedTimes]) -> Iterator[Family]:
    """The histograms of run times and waits by queue and handler."""
    runs = {work_key: each.runs for work_key, each in times.items()}
    text = "Run times of attempts."
    yield Family(MetricKind.HISTOGRAM, f"tasktui_{name}_run_seconds", text, WORK_KEY, runs)
    waits = {work_key: each.waits for work_key, each in times.items()}
    text = "Times from the due time to the start of attempts."
    yield Family(MetricKind.HISTOGRAM, f"tasktui_{name}_wait_seconds", text, WORK_KEY, waits)
