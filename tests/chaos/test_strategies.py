"""Random strategies, changed while they are in force, under kills and freezes: no limit and no order is broken.

`pytest -m chaos tests/chaos/test_strategies.py` runs one storm on each database; see test_storm.py for the variables.
"""

import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import NewTask
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.policy.claim_conditions import InOrder, NotExpired
from runner.policy.rate import MAX_LIMIT
from runner.store.claim import ledger as limits
from runner.store.claim import limited as claim_limited
from runner.store.claim import plain as claim
from runner.store.claim import survey as lanes
from runner.store.submit import submit_many
from tests.chaos import claim_log
from tests.chaos.claim_log import Entry
from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.chaos.handlers import NARROW
from tests.chaos.journal import Event
from tests.chaos.proxy import Proxy
from tests.chaos.storm import PostgresFaults
from tests.chaos.strategies import check_narrow, check_strategies
from tests.chaos.strategy_storm import StrategyStorm, violations
from tests.chaos.test_storm import SECONDS, SEED
from tests.conftest import SqliteDatabases
from tests.postgres import Server
from tests.store import runners
from tests.store.runners import Runner

RATE = 60.0
"""Tasks per second that are offered: limits hold them up."""


@pytest.mark.chaos
def test_random_strategies_hold_on_sqlite(sqlite: SqliteDatabases, tmp_path: Path, report: Report) -> None:
    with Deployment(sqlite.migrated(tmp_path), tmp_path) as deployment:
        run_storm(deployment, None, report)


@pytest.mark.chaos
def test_random_strategies_hold_on_postgresql(
    crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    with Proxy(crashing_url, SEED) as proxy, Deployment(crashing_url, tmp_path, proxy.url) as deployment:
        run_storm(deployment, PostgresFaults(crashing_server, proxy), report)


def run_storm(deployment: Deployment, postgres: PostgresFaults | None, report: Report) -> None:
    """Run a storm, and require that nothing was lost and no strategy broken."""
    deployment.do(claim_log.install)
    storm = StrategyStorm(deployment, SEED, RATE, postgres)
    storm.run(SECONDS)
    deployment.fleet.stop()
    log, dump, history = deployment.do(claim_log.read), deployment.dump(), deployment.fleet.history()
    states = {row.id: row.state for row in dump.rows}
    unblocked = frozenset(task for verb, task in dump.audited if verb == "unblock")
    breaches = [*check_strategies(log, states, unblocked), *check_narrow(history, NARROW)]
    if folder := os.environ.get("CHAOS_REPORT"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(entry) for entry in log)
        Path(folder, f"claim-log-{'sqlite' if postgres is None else 'postgresql'}.jsonl").write_text("\n".join(lines))
    report("seed", SEED)
    report("faults and changes", dict(storm.injected))
    report("entries of the log", dict(Counter(entry.kind for entry in log)))
    report("tasks", dict(Counter(states.values())))
    assert storm.live_at_end == 0, f"{storm.live_at_end} tasks did not end; {breaches[:20]}"
    assert not breaches, "\n".join(map(str, breaches[:20]))
    assert violations(history, dump) == []


def entry(what: str, at: float, began: float | None = None, **data: Any) -> Entry:
    return Entry(what, data, at, at if began is None else began)


def claimed(at: float, task: int, began: float | None = None, **data: Any) -> Entry:
    plain = {"id": task, "fence": 1, "runner_id": 1, "queue": "a", "handler": "work", "tenant": None, "order_key": None}
    plain |= {"bucket": 7, "hosts": "", "claimed_at": at, "expires_at": None}
    return entry("claim", at, began, **plain | data)


def limited(at: float, **values: Any) -> list[Entry]:
    """Limits that an operator set, and their acknowledgement."""
    columns = dict.fromkeys(("max_running", "max_per_tenant", "rate_limit", "rate_period")) | values
    target: dict[str, Any] = {"kind": "handler", "name": "work"}
    return [entry("limits", at, **target, **columns), entry("acknowledged", at, **target)]


def runner(at: float, id: int, **values: Any) -> Entry:
    return entry(
        "runner", at, id=id, **{"host": f"h{id}", "slice": None, "buckets": None, "lease_until": 99.0} | values
    )


def submitted(at: float, task: int, **values: Any) -> Entry:
    return entry("submit", at, id=task, **{"order_key": None, "unique_key": None, "handler": "work"} | values)


def opened(at: float, probe_at: float | None = 9.0) -> Entry:
    return entry("breaker", at, name="work", breaker_probes=probe_at and 1, breaker_probe_at=probe_at)


BOTH = [runner(0, 1), runner(0, 2)]
SLICED = [runner(0, id, slice="live", buckets=buckets) for id, buckets in ((1, "0-499"), (2, "500-999"))]
TAKEN = [
    runner(0, 1, slice="live", buckets="0-499", lease_until=2.0),
    runner(0, 2, slice="live", buckets="500-999", lease_until=4.0),
    entry("buckets", 3, id=2, slice="live", buckets="0-999", lease_until=4.0),
]
"""Runner 2 takes the buckets of runner 1, whose lease has expired."""

GIVEN_UP = entry("buckets", 3.2, id=2, slice="live", buckets="500-999", lease_until=4.0)
"""Runner 2 returns them, because runner 1 renewed its lease."""


def late(at: float) -> list[Entry]:
    """Runner 1 renews its lease late and claims from its former buckets."""
    return [*TAKEN, entry("lease", at, id=1, lease_until=9.0), claimed(at + 0.1, 1, bucket=7)]


IN_ORDER = [*BOTH, submitted(1, 1, order_key="wait-1"), submitted(2, 2, order_key="wait-1")]
ENDED = [entry("end", 4, id=1, fence=1), entry("gone", 4, id=1, fence=1)]

LOGS: dict[str, tuple[str, list[Entry]]] = {
    "two tasks run under a limit of one": ("limit", [*BOTH, *limited(1, max_running=1), claimed(2, 1), claimed(3, 2)]),
    "two tasks of a tenant run under a limit of one": (
        "tenant",
        [*BOTH, *limited(1, max_per_tenant=1), claimed(2, 1, tenant="t"), claimed(3, 2, tenant="t")],
    ),
    "tasks start faster than the rate": (
        "rate",
        [*BOTH, *limited(1, rate_limit=2, rate_period=10.0), *(claimed(2 + task, task) for task in range(4))],
    ),
    "a task starts beside one of its key": (
        "order",
        [*IN_ORDER, claimed(3, 1, order_key="wait-1"), claimed(4, 2, order_key="wait-1")],
    ),
    "a task starts before an earlier one of its key": ("order", [*IN_ORDER, claimed(3, 2, order_key="wait-1")]),
    "a task starts after a dead one of its key": (
        "order",
        [*IN_ORDER, claimed(3, 1, order_key="wait-1"), *ENDED, claimed(5, 2, order_key="wait-1")],
    ),
    "a unique key has two tasks": (
        "unique",
        [submitted(1, 1, unique_key="started-1"), submitted(2, 2, unique_key="started-1")],
    ),
    "a throttled key has two tasks in a window": (
        "unique",
        [submitted(at, task, unique_key="throttle-2-1", submitted_at=at) for at, task in ((1.0, 1), (2.5, 2))],
    ),
    "a task starts after its expiry": ("expiry", [*BOTH, claimed(3, 1, expires_at=2.9)]),
    "a task starts on a foreign host": ("hosts", [*BOTH, claimed(3, 1, hosts="h2,h3")]),
    "a task is given to any host too early": ("hosts", [entry("unbind", 3, id=1, hosts_until=3.1)]),
    "two runners take one bucket": (
        "slices",
        [*SLICED, entry("buckets", 2, **dict(SLICED[0].data) | {"buckets": "0-500"})],
    ),
    "a runner claims from the bucket of another one": ("slices", [*SLICED, claimed(3, 1, bucket=700)]),
    "a runner claims from a bucket that was taken from it": ("slices", late(3.5)),
    "a task starts while a breaker is open": ("breaker", [*BOTH, opened(2), claimed(3, 1)]),
    "two tasks probe for one": ("breaker", [*BOTH, opened(2, 2.5), claimed(3, 1), claimed(3, 2)]),
}

SOUND = [
    *[*BOTH, *limited(1, max_running=1, rate_limit=2, rate_period=10.0), claimed(2, 1), *ENDED, claimed(5, 2)],
    *[entry("gone", 6, id=2, fence=1), *limited(7, max_running=4), claimed(8, 3), claimed(8, 4)],
    *[claimed(9, 5, handler="other", hosts="h1", expires_at=9.1), opened(10, 12.0), claimed(10.1, 6, began=9.9)],
    *[claimed(12, 7), opened(12, 14.0), opened(13, None)],
]


@pytest.mark.parametrize("name", list(LOGS))
def test_a_broken_strategy_is_found(name: str) -> None:
    rule, log = LOGS[name]
    assert {breach.rule for breach in check_strategies(log, {1: "dead"}, frozenset())} == {rule}


def test_sound_logs_break_nothing() -> None:
    dead_and_unblocked = LOGS["a task starts after a dead one of its key"][1]
    assert check_strategies(SOUND, {}, frozenset()) == []
    assert check_strategies(late(4.5), {}, frozenset()) == [], "the lease of the taker has expired, too"
    *before, claim = (each for each in dead_and_unblocked if each is not IN_ORDER[-1])
    assert check_strategies([*before, IN_ORDER[-1], claim], {1: "dead"}, frozenset()) == [], "submitted after the end"
    assert check_strategies([*TAKEN, GIVEN_UP, *late(3.5)[len(TAKEN) :]], {}, frozenset()) == []
    assert check_strategies(dead_and_unblocked, {1: "dead"}, frozenset({2})) == []


def test_a_runner_with_too_many_tasks_of_a_narrow_handler_is_found() -> None:
    events = [Event("enter", at, 7, {"task": at}) for at in range(NARROW + 1)]
    assert [breach.rule for breach in check_narrow(events, NARROW)] == ["runner"]
    assert check_narrow([*events[:NARROW], Event("leave", 5, 7, {}), events[NARROW]], NARROW) == []


Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _fresh_statements() -> Iterator[None]:
    """No compiled statement outlives a mutation or misses it."""
    forget_statements()
    yield
    forget_statements()


def forget_statements() -> None:
    for compiled in (claim._prepared, claim_limited._prepared, lanes._prepared):
        compiled.cache_clear()


async def claim_twice(database: Database) -> None:
    """Claim under a limit of one running task."""
    target, worker = PauseTarget(PauseKind.HANDLER, "work"), await Runner.enter(database)
    await database.write(set_limits, target, LimitEdit({"concurrency": "1"}, new=True), Actor("ana", "desk"))
    await claim_log.acknowledge(database, "handler", "work")
    await database.write(submit_many, [NewTask("work"), NewTask("work")])
    await worker.survey()
    every = claim_limited.LimitedLanes([*worker.lanes.heads], worker.start)
    await database.write(claim_limited.claim_limited, worker.who, every, worker.terms, 10)


async def claim_the_urgent(database: Database) -> None:
    """Claim one of two tasks with an order key that plain inserts submitted, of which the second is urgent."""
    worker, task = await Runner.enter(database), database.tables.task
    async with database.writing() as tx:
        rows = [{"handler": "work", "order_key": "run-1", "priority": priority} for priority in (1, 9)]
        await tx.execute(sa.insert(task), rows)
    await worker.claim(1)


async def claim_elsewhere(database: Database) -> None:
    """Claim on one host while a task of another one is due."""
    await database.write(submit_many, [NewTask("work", hosts="there")])
    await (await Runner.enter(database)).claim()


async def claim_late(database: Database) -> None:
    """Claim while an expired task is due."""
    worker, task = await Runner.enter(database), database.tables.task
    async with database.writing() as tx:
        await tx.execute(sa.insert(task).values(handler="work", expires_at=db_later(db_now(), -1.0)))
    await worker.claim()


def without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "room", lambda _: MAX_LIMIT)


def without_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InOrder, "of_task", lambda *_: ())


def without_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "admitted_by", lambda *_: sa.true())
    monkeypatch.setattr(runners, "admits", lambda *_: True)


def without_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NotExpired, "of_task", lambda *_: ())


MUTANTS: dict[str, tuple[Callable[[Database], Awaitable[None]], Break]] = {
    "limit": (claim_twice, without_limit),
    "order": (claim_the_urgent, without_order),
    "hosts": (claim_elsewhere, without_hosts),
    "expiry": (claim_late, without_expiry),
}


@pytest.mark.parametrize("rule", list(MUTANTS))
@pytest.mark.parametrize("broken", [False, True], ids=["sound", "broken"])
async def test_a_store_without_a_strategy_is_found(
    database: Database, monkeypatch: pytest.MonkeyPatch, rule: str, broken: bool
) -> None:
    await claim_log.install(database)
    scenario, mutate = MUTANTS[rule]
    if broken:
        mutate(monkeypatch)
    await scenario(database)
    log = await claim_log.read(database)
    assert [breach.rule for breach in check_strategies(log, {}, frozenset())] == [rule] * broken
