"""The ledger of a claim: the running tasks under the limits of queues and handlers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.schema import Tables
from runner.db.statement import Prepared, Step
from runner.db.transaction import Transaction
from runner.db.types import Instant, db_later, db_now, epoch_seconds, seconds_until
from runner.model.task import Claimed
from runner.policy.breaker import OpenBreaker, Probe
from runner.policy.claim_policy import LIMITED
from runner.policy.lanes import Lane, LimitName, limits_of
from runner.policy.limits import UNLIMITED, LimitUsage, SharedLimits, retry_in, room
from runner.policy.rate import MAX_LIMIT
from runner.store.claim.running_count import LastCount, RunningCount, by_tenant

COLUMNS = (*UNLIMITED.columns, "rate_spent")

BREAKER_COLUMNS: dict[str, Any] = {
    "breaker_probes": sa.Integer,
    "breaker_wait": sa.Float,
    "breaker_round": sa.Integer,
    "breaker_opened_at": Instant,
    "breaker_probe_at": Instant,
}
"""The state of an open breaker; the registry of queues has none of them."""

COUNTED = attrgetter("queue", "handler", "tenant")
"""The fields of a claimed task under which limits count it."""

LIMITS_TIMEOUT = "50ms"
"""Longest wait for limits that other claims hold. A claim takes milliseconds; a frozen runner holds them longer."""


class Ledger:
    """The limits that a claim holds, and the tasks that it has claimed under them.

    Args:
        usages: the limits that it holds, with their running tasks before the claim.
        busy: the queues and handlers whose limits another claim holds.
        last: the counts of the running tasks from which the next ones may continue, by limit.
    """

    def __init__(
        self,
        usages: Mapping[LimitName, LimitUsage],
        busy: frozenset[LimitName],
        last: Mapping[LimitName, LastCount] = {},
    ) -> None:
        self.usages, self.last = usages, last
        self._busy = busy
        self.starts: Counter[LimitName] = Counter()
        self._running = {key: Counter(usage.running) for key, usage in usages.items()}

    def is_busy(self, lane: Lane) -> bool:
        """True if another claim holds a limit of a lane."""
        return not self._busy.isdisjoint(limits_of(lane))

    def room_of(self, key: LimitName) -> int:
        """The number of tasks of a queue or a handler that may start now."""
        return max(0, room(self.usages[key]) - self.starts[key]) if key in self.usages else MAX_LIMIT

    def room(self, lane: Lane) -> int:
        """The number of tasks of a lane that may start now."""
        return min(self.room_of(key) for key in limits_of(lane))

    @property
    def may_charge(self) -> bool:
        """True if a claim may change the state of a limit: the tokens of a rate, or the probes of a breaker."""
        return any(usage.limits.rate or usage.breaker for usage in self.usages.values())

    def limits_tenants(self, lane: Lane) -> bool:
        """True if a lane has a limit per tenant."""
        return bool(self._per_tenant(lane))

    def tenant_room(self, lane: Lane, tenant: str) -> int:
        """The number of tasks of a tenant that may start now in a lane that limits tenants."""
        return min(most - running.get(tenant, 0) for most, running in self._per_tenant(lane))

    def full_tenants(self, lane: Lane) -> set[str]:
        """The tenants of which no task may start now in a lane."""
        per_tenant = self._per_tenant(lane)
        return {tenant for most, running in per_tenant for tenant in running if tenant and running[tenant] >= most}

    def _per_tenant(self, lane: Lane) -> list[tuple[int, Mapping[str, int]]]:
        usages = [(self._running[key], self.usages[key]) for key in limits_of(lane) if key in self.usages]
        return [(most, running) for running, usage in usages if (most := usage.limits.per_tenant) is not None]

    def count(self, claimed: Sequence[Claimed]) -> None:
        """Count claimed tasks: the next lane of this claim may have the same limits."""
        for (queue, handler, tenant), number in Counter(map(COUNTED, claimed)).items():
            for key in (("queue", queue), ("handler", handler)):
                self.starts[key] += number
                if key in self._running:
                    self._running[key][tenant or ""] += number

    def probes(self, claimed: Sequence[Claimed]) -> dict[int, Probe]:
        """The round of probes of each claimed task that probes for an open breaker, by task id."""
        opened = {key: usage.breaker for key, usage in self.usages.items() if usage.breaker is not None}
        probing = [(task.id, opened.get(("handler", task.handler))) for task in claimed] if opened else []
        return {id: Probe(breaker.opened_at, breaker.round) for id, breaker in probing if breaker is not None}

    def wait(self, lane: Lane) -> float | None:
        """Seconds until a lane without room may have some; None if it has room."""
        full = [key for key in limits_of(lane) if key in self.usages and not self.room_of(key)]
        return max((retry_in(_after(self.usages[key], self.starts[key])) for key in full), default=None)


def _after(usage: LimitUsage, starts: int) -> LimitUsage:
    """The usage after some starts."""
    rate, running = usage.limits.rate, {**usage.running, "": usage.running.get("", 0) + starts}
    spent = rate.after(usage.spent, usage.at, starts) if rate else usage.spent
    breaker = usage.breaker._replace(next_in=usage.breaker.wait) if usage.breaker and starts else usage.breaker
    return usage._replace(running=running, spent=spent, breaker=breaker)


async def hold(
    tx: Transaction,
    lanes: Sequence[Lane],
    patient: bool = False,
    counts: bool = True,
    further: Sequence[Step] = (),
    last: Mapping[LimitName, LastCount] | None = None,
) -> tuple[Ledger, list[list[Any]]]:
    """Lock the limits of some lanes that no other claim holds, and count the running tasks under them.

    Args:
        tx: a writing transaction, which holds them until its end.
        patient: if other claims hold all these limits, wait for them up to LIMITS_TIMEOUT.
        counts: True if some of these limits probably count running tasks; then one round trip locks and counts.
        further: statements to execute after the locks, in the same round trip.
        last: the last counts under these limits, from which to continue; None to count all running tasks.

    Returns:
        The ledger, and the rows of each further statement.
    """
    names = {"queue": sorted({lane.queue for lane in lanes}), "handler": sorted({lane.handler for lane in lanes})}
    parameters: dict[str, Any] = {}
    for kind, values in names.items():
        parameters |= tx.dialect.parameters(f"{kind}s", {"name": values})
    lock, wait = _holding(tx.tables, tx.driver)
    count = RunningCount(tx, parameters, lanes, last)
    # In a statement of its own: its snapshot begins after the lock, and has the tasks of every earlier claim.
    both = [Step(lock, parameters), count.step]
    first = both if counts else both[:1]
    answers = await tx.run_all([*first, *further])
    rows = answers[0]
    waits = patient and rows and not any(row[3] for row in rows)
    if waits and await tx.await_locks(wait, parameters, LIMITS_TIMEOUT):
        # Once more, although they are locked: the time of a rate is that of the statement.
        first = both
        answers = await tx.run_all([*first, *further])
    (rows, *answer), further_rows = answers[: len(first)], answers[len(first) :]
    usages: dict[LimitName, LimitUsage] = {}
    for kind, name, at, _, *columns, _ in (row for row in rows if row[3]):
        row: dict[str, Any] = dict(zip((*COLUMNS, *BREAKER_COLUMNS, "probe_in"), columns, strict=True))
        # These rows are in the form of the driver.
        row["breaker_opened_at"] = Instant().process_result_value(row["breaker_opened_at"], tx.driver)
        usage = LimitUsage(kind, name, SharedLimits.of_row(row), float(at), row["rate_spent"])
        usages[kind, name] = usage._replace(breaker=OpenBreaker.of_row(row))
    busy = frozenset((row[0], row[1]) for row in rows if not row[3])
    if not any(usage.limits.counts_running for usage in usages.values()):
        return Ledger(usages, busy), further_rows
    lock_times = {key: usage.at for key, usage in usages.items()}
    running = await count.rows(answer[0] if answer else None, lock_times)
    usages = {key: usage._replace(running=by_tenant(key, running)) for key, usage in usages.items()}
    return Ledger(usages, busy, count.last_counts(running, lock_times)), further_rows


def kept_tokens(registry: sa.Table, limits: Mapping[str, Any]) -> sa.ColumnElement[Any]:
    """The state of a token bucket after a change of limits: unchanged with the same rate, full with another one.

    Args:
        registry: the table of queues or handlers.
    """
    same = [registry.c[name] == limits.get(name) for name in ("rate_limit", "rate_period")]
    return sa.case((sa.and_(*same), registry.c.rate_spent))


async def charge(tx: Transaction, ledger: Ledger) -> None:
    """Take the tokens of the claimed tasks, and put off the next probes of a breaker after those of this claim.

    It is the last round trip of its transaction.
    """
    if steps := list(_charges(tx, ledger)):
        tx.commit_next()
        await tx.run_all(steps)


def _charges(tx: Transaction, ledger: Ledger) -> Iterator[Step]:
    for (kind, name), usage in ledger.usages.items():
        rate, starts = usage.limits.rate, ledger.starts[kind, name]
        if usage.breaker is not None and starts:
            yield Step(_putting_off(tx.tables, tx.driver), {"entry": name})
        if rate is None:
            continue
        spent = rate.after(usage.spent, usage.at, 0)
        # A time beyond a full period is from before the clock was set back.
        if starts or (usage.spent or 0.0) > spent:
            values = {"entry": name, "spent": spent, "added": starts * rate.interval}
            yield Step(_charging(tx.tables, tx.driver, kind), values)


@lru_cache
def _holding(tables: Tables, driver: sa.Dialect) -> tuple[Prepared, Prepared]:
    """The statements that lock limits, and that wait for their locks."""
    dialect, parts, waits = DIALECTS[driver.name], [], []
    names = {kind: sa.select(dialect.rows(f"{kind}s", {"name": sa.Text}).c.name) for kind in ("queue", "handler")}
    for kind, registry in (("queue", tables.queue), ("handler", tables.handler)):
        condition = registry.c.name.in_(names[kind]) & LIMITED.is_limited(registry)
        names_held = [*COLUMNS, *(name for name in BREAKER_COLUMNS if name in registry.c)]
        columns = [registry.c[name] for name in names_held]
        lock = sa.select(registry.c.name, *columns).where(condition).order_by(registry.c.name)
        locked = lock.with_for_update(skip_locked=True, key_share=True).cte(f"locked_{kind}")
        awaited = lock.with_only_columns(registry.c.name).with_for_update(key_share=True).cte(f"awaited_{kind}")
        waits.append(sa.select(sa.func.count()).select_from(awaited).scalar_subquery())
        same = registry.outerjoin(locked, locked.c.name == registry.c.name)
        flag = locked.c.name.is_not(None).label("locked")
        entry: list[Any] = [sa.literal_column(f"'{kind}'").label("kind"), registry.c.name, epoch_seconds().label("at")]
        limits = [locked.c[name] for name in COLUMNS]
        breaker = [_column_or_null(locked, name, type_) for name, type_ in BREAKER_COLUMNS.items()]
        breaker.append(seconds_until(locked.c.breaker_probe_at) if kind == "handler" else sa.cast(sa.null(), sa.Float))
        row: list[Any] = [*entry, flag, *limits, *breaker, dialect.pause_limit()]
        parts.append(sa.select(*row).select_from(same).where(condition))
    return Prepared(sa.union_all(*parts), driver), Prepared(sa.select(*waits), driver)


def _column_or_null(entry: sa.CTE, name: str, type_: Any) -> sa.ColumnElement[Any]:
    return entry.c[name] if name in entry.c else sa.cast(sa.null(), type_)


@lru_cache
def _putting_off(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The statement that begins the wait after the probes of a claim, in case that no runner reports their end."""
    handler = tables.handler
    is_open = (handler.c.name == sa.bindparam("entry", type_=sa.Text)) & handler.c.breaker_probes.is_not(None)
    later = db_later(db_now(), handler.c.breaker_wait)
    return Prepared(sa.update(handler).where(is_open).values(breaker_probe_at=later), driver)


@lru_cache
def _charging(tables: Tables, driver: sa.Dialect, kind: str) -> Prepared:
    """The statement that takes tokens. They come back from now on: a claim may last longer than a token."""
    registry = tables.queue if kind == "queue" else tables.handler
    spent, added = sa.bindparam("spent", type_=sa.Float), sa.bindparam("added", type_=sa.Float)
    charge = sa.update(registry).where(registry.c.name == sa.bindparam("entry", type_=sa.Text))
    begin = sa.case((spent > epoch_seconds(), spent), else_=epoch_seconds())
    return Prepared(charge.values(rate_spent=begin + added), driver)
