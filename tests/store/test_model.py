"""Random histories of tasks, compared with the model after each step."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from runner.db.database import Database
from runner.errors import DuplicateTask, InvalidTask
from runner.model.outcome import Cancelled, Dead, Done, Outcome, Release, Retry, Snooze
from runner.model.task import DependsOn, NewTask, OnDuplicate, Scope, State, SubmitResult, UniqueKey
from runner.operations.results import Actor, Target
from runner.operations.retry import requeue
from runner.operations.terminate import terminate as end
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo
from runner.policy.retention import Retention
from runner.queries.audit import audit
from runner.store.heartbeat import heartbeat
from runner.store.history import FinishedTask, finish
from runner.store.minute_statistics import NO_RUNNER
from runner.store.registration import leave
from runner.store.retention import prune
from runner.store.submit import submit, submit_with_result
from tests.store.dependencies import sweep
from tests.store.runners import LEASE, Runner, settlement
from tests.store.store_model import KNOWN, Holding, Model, Task, Wait
from tests.store.table import edit, expire, make_due
from tests.store.unique_tasks import let_time_pass

pytestmark = pytest.mark.one_database

T = TypeVar("T")

ANA = Actor("ana", "desk")
picks = st.integers(0, 999)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [Done(), Done('{"a": 1}'), Retry("0s"), Retry("0s"), Retry("1h"), Dead(), Snooze("1h"), Release(), Cancelled()]
)


class Histories(RuleBasedStateMachine):
    """Producers, runners, operators and faults in any order."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database = Database.open(self.url, synchronous="NORMAL")
        self.model = Model()
        self.runners: list[Runner] = []
        self.claims: list[tuple[Runner, Any]] = []
        self.settled: set[tuple[int, int, int]] = set()
        self.do(self._empty())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self.database.dispose())
        self.loop.close()

    @initialize()
    def begin(self) -> None:
        self.enter()
        self.submit(KNOWN, 1, '{"a":  1}', None, False)

    @rule(
        handler=st.sampled_from([KNOWN, KNOWN, KNOWN, "foreign"]),
        priority=st.integers(1, 3),
        payload=st.sampled_from(["{}", '{"a":  1}', '{"b": "\\u00e9 \U0001f600"}']),
        most=st.sampled_from([None, 1, 2, 3]),
        later=st.booleans(),
    )
    def submit(self, handler: str, priority: int, payload: str, most: int | None, later: bool) -> None:
        new = NewTask(handler, payload, priority=priority, max_attempts=most, delay=3_600.0 if later else None)
        task_id = self.do(self.database.write(submit, new))
        assert task_id not in self.model.tasks
        self.model.tasks[task_id] = Task(handler, priority, payload, most, not later)

    @rule(
        key=st.sampled_from("ab"),
        scope=st.sampled_from([*Scope, Scope.UNTIL_FINISHED]),
        answer=st.sampled_from(OnDuplicate),
        payload=st.sampled_from(["{}", '{"c": 1}']),
        later=st.booleans(),
    )
    def submit_once(self, key: str, scope: Scope, answer: OnDuplicate, payload: str, later: bool) -> None:
        unique = UniqueKey(key, scope, 3_600.0 if scope is Scope.FOR_A_TIME else None, answer)
        new = NewTask(KNOWN, payload, priority=1, delay=3_600.0 if later else None, unique_key=unique)
        holder = self.model.holder(key)
        if holder is not None and answer is OnDuplicate.ERROR:
            with pytest.raises(DuplicateTask):
                self.do(self.database.write(submit_with_result, [new]))
            return
        result = self.do(self.database.write(submit_with_result, [new]))
        (task_id,) = result.ids
        if holder is not None:
            replaced = answer is OnDuplicate.REPLACE and self.model.tasks[holder].replace(payload, not later)
            assert result == SubmitResult([holder], frozenset({0}), frozenset({0} if replaced else ()))
            return
        assert task_id not in self.model.tasks
        self.model.tasks[task_id] = Task(KNOWN, 1, payload, None, not later, unique_key=key)
        self.model.keys[key] = Holding(task_id, scope)

    @rule(
        parents=st.lists(st.one_of(picks, st.sampled_from("xyz")), max_size=2, unique=True),
        by=st.sampled_from(["wait", "cancel", "run"]),
        key=st.sampled_from([None, None, *"xyz"]),
        later=st.booleans(),
        then=st.sampled_from([None, Done(), Done(), Dead(), Cancelled()]),
    )
    def submit_after(
        self,
        parents: list[int | str],
        by: Any,
        key: str | None,
        later: bool,
        then: Outcome | None,
    ) -> None:
        """Submit a task with dependencies, if necessary on a new task, and mostly end that one."""
        if not parents:
            self.submit(KNOWN, 3, "{}", 1, False)
        parent_ids = [self._task(parent)[0] if isinstance(parent, int) else parent for parent in parents]
        named = dict.fromkeys(parent_ids or [max(self.model.tasks)])
        task = Task(KNOWN, 1, "{}", None, not later, key=key, waits=[Wait(parent, by) for parent in named])
        dependencies = tuple(DependsOn((KNOWN, parent) if isinstance(parent, str) else parent, by) for parent in named)
        new = NewTask(KNOWN, priority=1, key=key, delay=3_600.0 if later else None, after=dependencies)
        if self.model.circle(task):
            with pytest.raises(InvalidTask, match=r"depend on itself|its own handler and key"):
                self.do(self.database.write(submit, new))
            return
        self.model.block(task)
        self.model.tasks[self.do(self.database.write(submit, new))] = task
        if then is not None:
            self.enter()
            before = len(self.claims)
            self.claim(len(self.runners) - 1, 5)
            for latest in range(len(self.claims) - before):
                self.settle(latest, then)
            self.sweep()

    @rule()
    def sweep(self) -> None:
        done = self.do(sweep(self.database))
        freed, cancelled = self.model.sweep()
        assert (set(done.unblocked), {child.id for child in done.cancelled}) == (freed, cancelled)

    @rule(pick=picks)
    def unblock(self, pick: int) -> None:
        task_id, task = self._task(pick)
        answer = self.do(self.database.write(unblock, [Target(task_id)], ANA))
        assert answer.changed == ([task_id] if task.state is State.BLOCKED else [])
        if task.state is State.BLOCKED:
            task.state = State.WAITING
            for wait in task.waits:
                wait.open = False

    @rule(pick=picks, between=st.booleans())
    def terminate_and_take_back(self, pick: int, between: bool) -> None:
        """Undo restores everything, unless other tasks used the termination or took the key."""
        task_id, task = self._task(pick)
        was = task.state
        result = self.do(self.database.write(end, [Target(task_id)], ANA))
        assert bool(result.changed) == (not was.final and not task.terminated)
        if not result.changed:
            return
        gone_by = False
        if was is not State.RUNNING:
            task.state = State.CANCELLED
            waiting = self.model.open_dependencies(task_id)
            if between:
                self.sweep()
                gone_by = any(not wait.open or child.state is State.CANCELLED for child, wait in waiting)
        holder = self.model.holder(task.unique_key) if was is not State.RUNNING else None
        able = not gone_by and holder in (None, task_id)
        self._take_back(task_id, able=able)
        if able:
            task.state = was
            if was is not State.RUNNING:
                self.model.hold_again(task_id, holder)

    @rule(pick=picks)
    def unblock_and_take_back(self, pick: int) -> None:
        task_id, _ = self._task(pick)
        if self.do(self.database.write(unblock, [Target(task_id)], ANA)).changed:
            self._take_back(task_id, able=True)

    @rule(pick=picks)
    def requeue_and_take_back(self, pick: int) -> None:
        task_id, task = self._task(pick)
        was = (task.state, task.attempt, task.rescues)
        answer = self.do(self.database.write(requeue, [Target(task_id)], ANA))
        assert answer.changed == ([task_id] if self.model.requeue(task_id) else [])
        if answer.changed:
            self._take_back(task_id, able=True)
            task.state, task.attempt, task.rescues = was

    def _take_back(self, task_id: int, *, able: bool) -> None:
        (entry,) = self.do(self.database.read(audit, task_id=task_id, limit=1))
        assert self.do(self.database.write(undo, [entry.id], ANA)).changed == ([task_id] if able else [])

    @rule()
    def let_keys_run_out(self) -> None:
        self.do(let_time_pass(self.database))
        for holding in self.model.keys.values():
            holding.over |= holding.scope is Scope.FOR_A_TIME

    @rule()
    def prune_keys(self) -> None:
        self.do(self.database.write(prune, Retention()))

    @precondition(lambda self: len(self.runners) < 5)
    @rule()
    def one_more(self) -> None:
        self.enter()

    def enter(self) -> None:
        runner = self.do(Runner.enter(self.database, KNOWN))
        assert runner.id not in {other.id for other in self.runners}
        self.runners.append(runner)
        self.model.runners[runner.id] = True

    @rule(pick=picks, limit=st.integers(1, 4))
    def claim(self, pick: int, limit: int) -> None:
        runner = self._runner(pick)
        expected = self.do(self._in_order(self.model.claimable(runner.id, False), ("priority",)))[:limit]
        self._take(runner, self.do(runner.claim(limit)), expected)

    @rule(pick=picks)
    def claim_suspect(self, pick: int) -> None:
        runner = self._runner(pick)
        suspects = self.model.claimable(runner.id, True)
        widest = max((self.model.tasks[id].width for id in suspects), default=0)
        first = {id for id in suspects if self.model.tasks[id].width == widest}
        expected = self.do(self._in_order(first, ()))[:1]
        self._take(runner, self.do(runner.claim_suspect()), expected)

    @precondition(lambda self: self.claims)
    @rule(pick=picks, outcome=outcomes)
    def settle(self, pick: int, outcome: Outcome) -> None:
        """Settle any past claim, mostly a recent one."""
        runner, claimed = self.claims[-1 - pick % min(len(self.claims), 8)]
        accepted = self.model.holds(runner.id, claimed.id, claimed.fence)
        settled = self.do(runner.settle(settlement(claimed, outcome)))
        refused = settled.fenced | settled.written.keys()
        assert (set(settled.verbs), refused) == (({claimed.id}, set()) if accepted else (set(), {claimed.id}))
        claim = (runner.id, claimed.id, claimed.fence)
        assert not settled.written or claim in self.settled, "only what was accepted before was written"
        if accepted:
            self.settled.add(claim)
            self.model.tasks[claimed.id].settle(outcome)

    @rule(pick=picks)
    def expire(self, pick: int) -> None:
        runner = self._runner(pick)
        self.do(expire(self.database, runner.id))
        if runner.id in self.model.runners:
            self.model.runners[runner.id] = False

    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        runner = self._runner(pick)
        wait_for_event = self.do(
            self.database.write(heartbeat, runner.id, LEASE, 0, LEASE, tasks=list(self.model.tasks))
        )
        assert wait_for_event.alive is (runner.id in self.model.runners)
        if wait_for_event.alive:
            self.model.runners[runner.id] = True
            mine = {id for id, task in self.model.tasks.items() if task.runner == runner.id and task.terminated}
            assert wait_for_event.cancelled == mine

    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        runner = self._runner(pick)
        self.do(self.database.write(leave, runner.id))
        self.model.runners.pop(runner.id, None)

    @rule(pick=picks)
    def rescue(self, pick: int) -> None:
        asker = self._runner(pick)
        assert set(self.do(asker.rescue())) == self.model.rescue_by(asker.id)

    @rule(pick=picks, most=st.sampled_from([None, 1, 2, 4]))
    def edit_max_attempts(self, pick: int, most: int | None) -> None:
        task_id, task = self._task(pick)
        self.do(edit(self.database, task_id, max_attempts=most))
        if not task.state.final:
            task.max_attempts = most

    @rule(pick=picks)
    def terminate(self, pick: int) -> None:
        """Request the termination of running tasks, and cancel waiting ones."""
        task_id, task = self._task(pick)
        if task.state is State.RUNNING:
            self.do(edit(self.database, task_id, cancel_requested=True))
            task.terminated = True
        elif task.state in (State.WAITING, State.BLOCKED):
            ending = [FinishedTask(task_id, task.fence)]
            assert self.do(self.database.write(finish, "cancel", NO_RUNNER, ending)) == {task_id}
            task.state = State.CANCELLED

    @rule(pick=picks)
    def let_the_time_come(self, pick: int) -> None:
        task_id, task = self._task(pick)
        if task.state is State.WAITING:
            self.do(make_due(self.database, task_id))
            task.due = True

    @rule(pick=picks)
    def requeue(self, pick: int) -> None:
        task_id, _ = self._task(pick)
        answer = self.do(self.database.write(requeue, [Target(task_id)], ANA))
        assert answer.changed == ([task_id] if self.model.requeue(task_id) else [])

    @invariant()
    def every_task_is_one_row_that_stands_as_it_should(self) -> None:
        rows = self.do(self._rows())
        assert sorted(row.id for row in rows) == sorted(self.model.tasks)
        for row in rows:
            task = self.model.tasks[row.id]
            expected = (
                task.state,
                task.attempt,
                task.fence,
                task.rescues,
                task.runner,
                task.max_attempts,
                task.payload,
            )
            assert (
                row.state,
                row.attempt,
                row.fence,
                row.rescues,
                row.holder,
                row.max_attempts,
                row.payload,
            ) == expected

    def _runner(self, pick: int) -> Runner:
        return self.runners[pick % len(self.runners)]

    def _task(self, pick: int) -> tuple[int, Task]:
        task_id = list(self.model.tasks)[pick % len(self.model.tasks)]
        return task_id, self.model.tasks[task_id]

    def _take(self, runner: Runner, claimed: list[Any], expected: list[int]) -> None:
        assert [task.id for task in claimed] == expected
        for task in claimed:
            self.model.tasks[task.id].claim(runner.id, task.fence)
            assert task.attempt == self.model.tasks[task.id].attempt
            assert task.payload == self.model.tasks[task.id].payload
            self.claims.append((runner, task))

    async def _in_order(self, ids: set[int], first: tuple[str, ...]) -> list[int]:
        task = self.database.tables.task.c
        order = [*(task[name].desc() for name in first), task.run_at, task.id]
        async with self.database.reading() as tx:
            return [row.id for row in await tx.rows(sa.select(task.id).where(task.id.in_(ids)).order_by(*order))]

    async def _rows(self) -> list[Any]:
        tables = self.database.tables
        names = ("id", "state", "attempt", "fence", "rescues", "max_attempts", "payload")
        async with self.database.reading() as tx:
            live = await tx.rows(
                sa.select(*(tables.task.c[name] for name in names), tables.task.c.runner_id.label("holder"))
            )
            past = await tx.rows(sa.select(*(tables.history.c[name] for name in names), sa.null().label("holder")))
        return [*live, *past]

    async def _empty(self) -> None:
        tables = self.database.tables
        async with self.database.writing() as tx:
            for table in (tables.task, tables.history, tables.attempt, tables.runner, tables.unique, tables.dependency):
                await tx.execute(sa.delete(table))


def run(url: str, examples: int, steps: int) -> None:
    machine = type("Histories", (Histories,), {"url": url})
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    bounds = settings(max_examples=examples, stateful_step_count=steps, database=None, suppress_health_check=checks)
    run_state_machine_as_test(machine, settings=bounds)


def test_the_store_keeps_its_promises_in_random_histories(migrated_url: str) -> None:
    run(migrated_url, examples=3, steps=40)


@pytest.mark.slow
def test_the_store_keeps_its_promises_over_long_histories(migrated_url: str) -> None:
    run(migrated_url, examples=300, steps=80)
