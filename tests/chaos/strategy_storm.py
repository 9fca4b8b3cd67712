"""StrategyStorm: limits, orders, selections and breakers change while runners are killed and frozen."""

import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import StoreError
from runner.model.task import State
from runner.operations.breaker import close_by_hand, open_by_hand
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor, Target
from runner.operations.unblock import unblock
from tests.chaos.check import check
from tests.chaos.claim_log import acknowledge
from tests.chaos.deployment import Deployment
from tests.chaos.dump import Dump
from tests.chaos.evidence import Evidence, Violation, token_of
from tests.chaos.handlers import OUTAGE
from tests.chaos.journal import Event
from tests.chaos.relations import reports
from tests.chaos.storm import Fault, PostgresFaults, Storm
from tests.chaos.work import HOST
from tests.chaos.workload import HOSTS, WINDOW

BY = Actor("storm", "chaos")
BRITTLE = "chaos.brittle"
PLACES = [PauseTarget(PauseKind.QUEUE, name) for name in ("a", "b")] + [
    PauseTarget(PauseKind.HANDLER, f"chaos.{name}") for name in ("work", "thread", "narrow", "brittle", "flaky")
]
UNLIMITED = {"concurrency": "none", "per-tenant": "none", "rate": "none"}

CHOICES: dict[str, Sequence[str]] = {
    HOST: HOSTS,
    "TASKTUI_CLAIM_ORDER": ("strict", "aged:1s", "weighted:a=3,b=1"),
    "TASKTUI_POLL_MODE": ("fixed-rate", "fixed-delay", "spread", "tiers:0=100ms,2=1s", "throttle"),
    "TASKTUI_PREFETCH": ("0", "2000"),
    "TASKTUI_SCANS": ("", "chaos.narrow=500ms"),
}
"""Settings of the runners."""

SELECTIONS: Sequence[Mapping[str, str]] = (
    {},
    {"TASKTUI_BUCKETS": "0-499"},
    {"TASKTUI_BUCKETS": "500-999"},
    {"TASKTUI_SLICE": "live"},
    {"TASKTUI_SLICE": "live"},
)


class StrategyStorm(Storm):
    """Faults and changes of strategies on one deployment; the arguments are those of a Storm."""

    mix = "strategies"
    pause = (0.1, 1.0)

    def __init__(self, deployment: Deployment, seed: int, rate: float, postgres: PostgresFaults | None) -> None:
        super().__init__(deployment, seed, rate, postgres)
        self._settings = random.Random(seed + 1)
        self._fleet.draw_settings = self._draw_settings
        self._outage = self._fleet.home / OUTAGE

    def _faults(self) -> list[tuple[str, Fault]]:
        others = ("operator killed", "task submitted that kills its runner")
        changes: list[tuple[str, Fault]] = [
            *[("limits changed", self._change_limits)] * 8,
            *[("blocked tasks unblocked", self._unblock)] * 2,
            *[("runner restarted with other strategies", self._restart_runner)] * 2,
            ("service down or up", self._toggle_service),
            ("breaker opened by hand", self._open_breaker),
            ("breaker closed by hand", self._close_breaker),
        ]
        faults = [fault for fault in super()._faults() if fault[0] not in others]
        return [*faults, *faults, *changes]

    def _operate(self) -> None:
        """The operator of this storm is the storm itself."""

    def _draw_settings(self) -> Mapping[str, str]:
        draw = self._settings
        return {name: draw.choice(values) for name, values in CHOICES.items()} | dict(draw.choice(SELECTIONS))

    def _change_limits(self) -> None:
        draw = self._draw
        values = {
            "concurrency": draw.choice(["none", "1", "3", "8"]),
            "per-tenant": draw.choice(["none", "none", "1", "2"]),
            "rate": draw.choice(["none", "none", "5/s", "20/s", "100/s"]),
        }
        name = draw.choice([*UNLIMITED])
        edit = UNLIMITED if draw.random() < 0.2 else {name: values[name]}
        self._set_limits(draw.choice(PLACES), edit)

    def _set_limits(self, target: PauseTarget, values: Mapping[str, str]) -> None:
        async def change(database: Database) -> None:
            await database.write(set_limits, target, LimitEdit(values, new=True), BY)
            await acknowledge(database, target.kind.value, target.name)

        self._try(change)

    def _unblock(self) -> None:
        async def change(database: Database) -> None:
            await database.write(_unblock_stopped)

        self._try(change)

    def _open_breaker(self) -> None:
        wait = timedelta(seconds=self._draw.uniform(1.0, 3.0))
        self._try(lambda database: database.write(open_by_hand, BRITTLE, BY, wait))

    def _close_breaker(self) -> None:
        self._try(lambda database: database.write(close_by_hand, BRITTLE, BY))

    def _toggle_service(self) -> None:
        if self._outage.exists():
            self._outage.unlink()
        else:
            self._outage.touch()

    def _restart_runner(self) -> None:
        self._draw.choice(self._fleet.runners).send_signal(signal.SIGTERM)  # a new one follows when it has ended

    def _mend(self) -> None:
        super()._mend()
        self._unblock()

    def _repair(self) -> None:
        self._outage.unlink(missing_ok=True)
        hosts = iter(HOSTS * 100)
        self._fleet.draw_settings = lambda: {HOST: next(hosts)}
        for timer in self._frozen.values():
            timer.join()
        for runner in [*self._fleet.runners]:
            self._fleet.kill(runner)
            self._fleet.start_runner()
        self._close_breaker()
        for target in PLACES:
            self._set_limits(target, UNLIMITED)
        super()._repair()

    def _try(self, change: Callable[[Database], Awaitable[Any]]) -> None:
        """Try a change once; a fault may keep it from its answer."""
        with suppress(StoreError):
            self._deployment.do(change)


async def _unblock_stopped(tx: Transaction) -> None:
    """Unblock the tasks whose predecessor failed."""
    task, dependency = tx.tables.task.c, tx.tables.dependency.c
    failed = dependency.parent_state.in_([State.DEAD.value, State.CANCELLED.value])
    stopped = sa.select(task.id, task.version).where(
        task.state == State.BLOCKED.value,
        sa.exists().where(dependency.task_id == task.id, dependency.satisfied_at.is_(None), failed),
    )
    rows = await tx.rows(stopped.limit(100))
    await unblock(tx, [Target(row.id, row.version) for row in rows], BY)


def violations(history: Sequence[Event], dump: Dump) -> list[Violation]:
    """Check the promises; those about single submits without the debounced tasks, whose payloads are replaced."""
    window = {row.id for row in dump.rows if str(token_of(row)).startswith(WINDOW)}

    def is_other(event: Event) -> bool:
        return event.data.get("task") not in window and not str(event.data.get("token")).startswith(WINDOW)

    def without_scope(row: Any) -> Any:
        return row if str(row.unique_key).startswith("finished") else row._replace(unique_key=None)

    others = replace(
        dump,
        live=tuple(without_scope(row) for row in dump.live if row.id not in window),
        history=tuple(without_scope(row) for row in dump.history if row.id not in window),
        attempts=tuple(attempt for attempt in dump.attempts if attempt.task_id not in window),
    )
    broken = check([event for event in history if is_other(event)], others)
    counted = reports(Evidence(history, dump))
    return [*(each for each in broken if each.promise != 19), *counted]
