"""simulation: reads the work of the last hours and the present configuration for runner.policy.simulation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from math import ceil
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import NO_BIN
from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput, InvalidRetryPlan
from runner.policy.capacity import MINUTE, Pool
from runner.policy.claim_order import ClaimOrder
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.policy.rate import Rate, checked
from runner.policy.retry import Retries, RetryPlan, parse_plan
from runner.policy.simulation import Backlog, Configuration, TaskKind, Workload
from runner.policy.work_keys import WorkKey
from runner.queries.capacity import is_listed, pools_of
from runner.queries.counting import due_by_lane
from runner.queries.limits import limit_usages
from runner.queries.registries import pauses
from runner.queries.reports import Flow
from runner.queries.rows import as_int, as_text, moment, text
from runner.queries.runners import runners
from runner.queries.signatures import stored_signatures
from runner.queries.summary import totals
from runner.queries.why.facts import order_of
from runner.store.claim.survey import MANY, survey

MOST_SAMPLED = 2_000
"""Finished tasks to read for the priorities and tenants of tasks."""


class Present(NamedTuple):
    """The work of the last hours, and the present configuration.

    Args:
        workload: the arrivals and durations of the last hours, and the due tasks.
        runners: the live runners that do not drain.
    """

    at: datetime
    workload: Workload
    configuration: Configuration
    runners: int


async def present(tx: Transaction, hours: float, retry: str, max_attempts: int) -> Present:
    """Read the work of the last hours and the present configuration, for a simulation.

    Args:
        tx: an open transaction; about twenty statements are executed.
        retry: the retry plan of handlers whose runners have stored none.
        max_attempts: the same for the maximum number of attempts.
    """
    at = await clock(tx)
    since = (at - timedelta(hours=hours)).replace(second=0, microsecond=0)
    minutes = max(1, ceil((at - since).total_seconds() / MINUTE))
    past = await totals(tx, since, at)
    durations = {(each.queue, each.handler): each.durations for each in past if each.durations.number}
    arrivals = await _arrivals(tx, since, minutes)
    heads = [each for each in await survey(tx, most=MANY) if each.wait <= 0 and is_listed(as_text(each.lane.queue))]
    due = await due_by_lane(tx, [each.lane for each in heads])
    backlogs = {each.lane: Backlog(due[each.lane].number, -each.wait) for each in heads if each.lane in due}
    work_keys = {
        *durations,
        *((lane.queue, lane.handler) for lane in backlogs),
        *(work_key for _, work_key in arrivals),
    }
    live = [each for each in await runners(tx) if each.alive and not each.draining]
    current = await pauses(tx)
    paused = {("queue", name) for name in current.queues} | {("handler", name) for name in current.handlers}
    usages = await limit_usages(tx)
    limits = {(usage.kind, usage.name): usage.limits for usage in usages}
    paused |= {(usage.kind, usage.name) for usage in usages if usage.breaker is not None}
    configuration = Configuration(order_of(live), pools_of(live, sorted(work_keys)), limits, frozenset(paused))
    flows = {(each.queue, each.handler): each.flow for each in past}
    retries = await _retries(tx, flows, parse_plan(retry), max_attempts)
    workload = Workload(minutes, arrivals, backlogs, durations, await _kinds(tx), retries)
    return Present(at, workload, configuration, len(live))


async def _arrivals(tx: Transaction, since: datetime, minutes: int) -> dict[tuple[int, WorkKey], int]:
    """The submitted tasks by minute and work key."""
    column = tx.tables.minute.c
    groups = (column.minute, column.queue, column.handler)
    counts = sa.select(*groups, sa.func.sum(column.submitted)).group_by(*groups)
    rows = await tx.rows(counts.where(column.minute >= since, column.bin_ms == sa.literal_column(str(NO_BIN))))
    arrivals = {}
    for minute, queue, handler, number in rows:
        start = moment(minute)
        if start is not None and number > 0 and is_listed(as_text(queue)):
            index = int((start - since).total_seconds() // MINUTE)
            if 0 <= index < minutes:
                arrivals[index, (as_text(queue), as_text(handler))] = int(number)
    return arrivals


async def _kinds(tx: Transaction) -> dict[WorkKey, list[TaskKind]]:
    """The priorities and tenants of the tasks that finished last."""
    past = tx.tables.history.c
    columns = (past.queue, past.handler, past.priority, past.tenant)
    newest = sa.select(*columns).where(past.finished_at.is_not(None))
    sample = newest.order_by(past.finished_at.desc(), past.id.desc()).limit(MOST_SAMPLED).subquery()
    kinds: dict[WorkKey, list[TaskKind]] = defaultdict(list)
    rows = await tx.rows(sa.select(*sample.c, sa.func.count()).group_by(*sample.c))
    for queue, handler, priority, tenant, number in sorted(rows, key=lambda row: tuple(map(str, row))):
        kinds[as_text(queue), as_text(handler)].append(TaskKind(as_int(priority), text(tenant), number))
    return dict(kinds)


async def _retries(
    tx: Transaction, flows: Mapping[WorkKey, Flow], plan: RetryPlan, max_attempts: int
) -> dict[WorkKey, Retries]:
    """The retries by work key with failed attempts, by the plans that the runners of their handlers stored last."""
    attempts = {
        work_key: flow.succeeded + flow.retried + flow.died for work_key, flow in flows.items() if flow.retried > 0
    }
    stored = await _attempts(tx, sorted({handler for _, handler in attempts}))
    retries = {}
    for work_key, number in attempts.items():
        defaults = stored.get(work_key[1], {})
        most = defaults.get("max_attempts")
        try:
            own = parse_plan(as_text(defaults["retry"]))
        except (InvalidRetryPlan, KeyError):  # no runner has stored it, or another program wrote it
            own = plan
        most = most if isinstance(most, int) else max_attempts
        retries[work_key] = Retries.of(number, flows[work_key].retried, own, most)
    return retries


async def _attempts(tx: Transaction, handlers: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The stored retry plans and maximum numbers of attempts, by handler."""
    signatures = await stored_signatures(tx, tx.dialect.one_of(tx.tables.handler.c.name, handlers))
    return {name: signature.attempts for name, signature in signatures.items()}


class LimitChange(NamedTuple):
    """A limit of a simulated configuration.

    Args:
        key: the queue or the handler.
        limits: the changed fields of its limits.
    """

    key: tuple[str, str]
    limits: Mapping[str, Any]


def read_changes(option: str, texts: Sequence[str] | None) -> list[LimitChange]:
    """Parse limits such as queue:mail=5, queue:mail=100/min or handler:sms.send=none.

    Args:
        option: limit, rate or per-tenant.

    Raises:
        InvalidInput: a text has another form.
        InvalidEdit: a value is not valid.
    """
    changes = []
    for each in texts or ():
        target, sign, value = each.rpartition("=")
        kind, colon, name = target.partition(":")
        if not (sign and colon and name) or kind not in ("queue", "handler"):
            raise InvalidInput(
                why=f"--{option} {each!r}: expected a queue or a handler and its limit, as in queue:mail=5"
            )
        number: Any = None
        if value != "none" and option == "rate":
            number = Rate.parse(value)
        elif value != "none":
            number = checked(option, int(value[:20]) if value.isdecimal() else 0)
        field = dict(zip(("limit", "per-tenant", "rate"), SharedLimits._fields, strict=True))[option]
        changes.append(LimitChange((kind, name), {field: number}))
    return changes


def changed(
    today: Present,
    order: ClaimOrder | None,
    concurrency: int | None,
    number_of_runners: int | None,
    changes: Sequence[LimitChange],
) -> Configuration:
    """Return another configuration to simulate.

    Args:
        order: the claim order; None for the present one.
        concurrency: the slots of all runners together; None for the present number.
        number_of_runners: the number of runners, each like the present ones on average; None for the present number.
    """
    setup, pools = today.configuration, list(today.configuration.pools)
    total = sum(pool.size for pool in pools)
    size = concurrency
    if number_of_runners is not None and today.runners:
        size = max(1, round(total * number_of_runners / today.runners))
    if size is not None and not pools:
        # Without a live runner, any runner is assumed to have all handlers.
        lanes = [(lane.queue, lane.handler) for lane in today.workload.backlogs]
        work_keys = frozenset([*lanes, *(work_key for _, work_key in today.workload.arrivals)])
        pools = [Pool(size, work_keys)]
    elif size is not None:
        # In proportion, so that threads and slots keep their ratio; rounding leaves the sum as it is.
        ends = [round(size * end / total) for end in accumulate(pool.size for pool in pools)]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        pools = [pool._replace(size=new) for pool, new in zip(pools, sizes, strict=True)]
    limits = dict(setup.limits)
    for key, values in changes:
        limits[key] = limits.get(key, UNLIMITED)._replace(**values)
    return Configuration(order or setup.order, pools, limits, setup.paused)
