"""Reading the facts of all rules."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, timedelta, tzinfo
from functools import partial
from typing import TypeVar

from runner.db.transaction import Transaction, clock
from runner.model.alert import Alert, Severity
from runner.policy.lanes import Head
from runner.queries.alerts.facts import AlertFacts, SlowFacts
from runner.queries.alerts.rules import TICKS, alerts
from runner.queries.alerts.thresholds import DEFAULT_THRESHOLDS, Thresholds
from runner.queries.counting import lane_heads
from runner.queries.deaths import dead_by_handler, repeated_failures
from runner.queries.ended_runners import ended_runners
from runner.queries.health import health
from runner.queries.overview import MINUTE, RECENT, Overview, counted_overview, diagnoses
from runner.queries.reports import Flow, flows_by_work_key, results_by_runner
from runner.queries.rows import as_text
from runner.queries.schedules import schedules
from runner.queries.task.parents import stuck_tasks

T = TypeVar("T")

DAY = timedelta(days=1)
"""The period of the failed attempts of tasks that are not dead, and of the runner that ended last."""


async def current_alerts(
    tx: Transaction, thresholds: Thresholds = DEFAULT_THRESHOLDS, zone: tzinfo = UTC
) -> list[Alert]:
    """Read the facts, and list the problems that an operator should hear of; notes are left out."""
    return heard_alerts(await read_facts(tx, thresholds, zone))


def heard_alerts(facts: AlertFacts) -> list[Alert]:
    """The problems that an operator should hear of."""
    return [alert for alert in alerts(facts) if alert.severity is not Severity.NOTE]


async def read_facts(tx: Transaction, thresholds: Thresholds = DEFAULT_THRESHOLDS, zone: tzinfo = UTC) -> AlertFacts:
    """Read the figures that the rules judge.

    Args:
        tx: an open transaction; about thirty statements are executed, each along an index and up to a limit.
        zone: time zone of displayed times.
    """
    await tx.keep_to_indexes()
    overview, slow = await tx.gather(_overview(tx, thresholds), slow_facts(tx, thresholds))
    return AlertFacts(overview, slow, zone, thresholds)


async def slow_facts(tx: Transaction, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> SlowFacts:
    """Read the figures that the overview lacks.

    Args:
        tx: an open transaction that keeps to indexes; about fifteen statements are executed, each up to a limit.
    """

    async def since(span: timedelta, read: Callable[..., Awaitable[T]], *arguments: object) -> T:
        return await read(tx, await clock(tx) - span, *arguments)

    (dead, repeated, flows), results, (lost, ended), planned, (vitals, blocked), heads = await tx.gather(
        tx.gather(
            since(thresholds.span, dead_by_handler), since(DAY, repeated_failures, thresholds.failures), _flows(tx)
        ),
        since(RECENT, results_by_runner),
        tx.gather(
            since(RECENT, partial(ended_runners, lost=True)),
            since(DAY, partial(ended_runners, most=1, attempts=False)),
        ),
        schedules(tx, runs=TICKS),
        tx.gather(health(tx), stuck_tasks(tx)),
        tx.once(lane_heads),
    )
    return SlowFacts(
        results=results,
        blocked=blocked,
        dead=dead,
        flows=flows,
        due=_due(heads),
        repeated=repeated,
        lost=lost,
        ended=ended[0] if ended else None,
        schedules=planned,
        health=vitals,
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


def _due(heads: Sequence[Head]) -> dict[tuple[str, str], float]:
    """Seconds since the first ready task of each queue and handler became due."""
    ages: dict[tuple[str, str], float] = {}
    for head in heads:
        if head.wait < 0:
            key = as_text(head.lane.queue), as_text(head.lane.handler)
            ages[key] = max(ages.get(key, 0.0), -head.wait)
    return ages
