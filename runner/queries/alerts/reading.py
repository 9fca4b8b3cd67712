"""Reading the facts of all rules."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, timedelta, tzinfo
from typing import TypeVar

from runner.db.transaction import Transaction, clock
from runner.model.alert import Alert, Severity
from runner.policy.lanes import Head
from runner.queries.alerts.facts import AlertFacts
from runner.queries.alerts.rules import alerts
from runner.queries.alerts.schedules import TICKS
from runner.queries.alerts.thresholds import DEFAULT_THRESHOLDS, Thresholds
from runner.queries.counting import lane_heads
from runner.queries.deaths import dead_by_handler
from runner.queries.health import health
from runner.queries.lost_runners import lost_runners
from runner.queries.overview import MINUTE, RECENT, Overview, counted_overview, diagnoses
from runner.queries.registries import Pauses
from runner.queries.repeated_failures import repeated_failures
from runner.queries.reports import Flow, flows_by_work_key, results_by_runner
from runner.queries.rows import as_text
from runner.queries.schedules import schedules
from runner.queries.task.parents import stuck_tasks

T = TypeVar("T")

DAY = timedelta(days=1)
"""The period of the failed attempts of tasks that are not dead."""


async def current_alerts(
    tx: Transaction, thresholds: Thresholds = DEFAULT_THRESHOLDS, zone: tzinfo = UTC
) -> list[Alert]:
    """Read the facts, and list the problems that an operator should hear of; notes are left out."""
    found = alerts(await read_facts(tx, thresholds, zone))
    return [alert for alert in found if alert.severity is not Severity.NOTE]


async def read_facts(tx: Transaction, thresholds: Thresholds = DEFAULT_THRESHOLDS, zone: tzinfo = UTC) -> AlertFacts:
    """Read the figures that the rules judge.

    Args:
        tx: an open transaction; about thirty statements are executed, each along an index and up to a limit.
        zone: time zone of displayed times.
    """
    await tx.keep_to_indexes()

    async def since(span: timedelta, read: Callable[..., Awaitable[T]], *arguments: object) -> T:
        return await read(tx, await clock(tx) - span, *arguments)

    counts = tx.gather(
        since(thresholds.span, dead_by_handler), since(DAY, repeated_failures, thresholds.failures), _flows(tx)
    )
    overview, (dead, repeated, by_work_key), results, lost, planned, (vitals, blocked) = await tx.gather(
        _overview(tx, thresholds),
        counts,
        since(RECENT, results_by_runner),
        since(RECENT, lost_runners),
        schedules(tx, runs=TICKS),
        tx.gather(health(tx), stuck_tasks(tx)),
    )
    return AlertFacts(
        overview,
        zone,
        thresholds,
        results=results,
        blocked=blocked,
        dead=dead,
        repeated=repeated,
        lost=lost,
        schedules=planned,
        health=vitals,
        flows=by_work_key,
        due=_due(await tx.once(lane_heads), _paused(overview)),
    )


async def _overview(tx: Transaction, thresholds: Thresholds) -> Overview:
    """The overview, with the diagnoses of its problems."""
    overview = await counted_overview(tx)
    behind = [queue.queue for queue in overview.queues if queue.falls_behind]
    failing = tuple(overview.failing_from(thresholds.failing))
    if not behind and not failing:
        return overview
    return overview._replace(diagnoses=await diagnoses(tx, behind, failing))


async def _flows(tx: Transaction) -> dict[tuple[str, str], Flow]:
    at = await clock(tx)
    return await flows_by_work_key(tx, at - RECENT, at + MINUTE)


def _paused(overview: Overview) -> Pauses:
    queues = {queue.queue: queue.paused for queue in overview.queues if queue.paused is not None}
    return Pauses(queues, overview.handlers)


def _due(heads: Sequence[Head], paused: Pauses) -> dict[str, float]:
    """Seconds since the first ready task of each queue became due; a pause is a decision of people."""
    ages: dict[str, float] = {}
    for head in heads:
        queue, handler = as_text(head.lane.queue), as_text(head.lane.handler)
        if head.wait < 0 and queue not in paused.queues and handler not in paused.handlers:
            ages[queue] = max(ages.get(queue, 0.0), -head.wait)
    return ages
