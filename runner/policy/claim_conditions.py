"""claim conditions: the reasons why a claim skips a task, each with its SQL, its sentence and the change that lifts it.

A new condition is one class here, and one entry in CONDITIONS of runner.policy.claim_policy. It is about a task, a
queue or a handler. Which tasks a runner takes is the subject of runner.policy.selection and runner.policy.lanes.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo
from shlex import quote
from typing import Any, ClassVar

import sqlalchemy as sa

from runner.db.schema import Tables, is_state, runs_with_order_key, waits_with_tenant
from runner.db.schema.task import Condition
from runner.db.types import NO_JOIN, db_now
from runner.model.task import HIGHEST_FENCE, MOST_ATTEMPTS, State
from runner.policy.claim_facts import ClaimFacts, ClaimScope, CommonCause, Explanation, RemedyStep
from runner.policy.suspicion import FIRST, WIDTHS, describe
from runner.text.formatting import clock, reason, sentence_of, since, when
from runner.text.sanitize import count_noun, one_line


class ClaimCondition:
    """A condition that a task must meet to be claimed."""

    name: ClassVar[str]
    persistent: ClassVar[bool] = True
    """True if a task that does not meet it waits until an operator changes something."""

    def of_registry(self, _registry: sa.Table, _locked: Condition | None) -> Sequence[Condition]:
        """The SQL that a queue or a handler stops its lanes, given by its row in a registry.

        Args:
            _registry: the table of queues or of handlers.
            _locked: the SQL that this claim has locked the entry; None for a claim that locks none.
        """
        return ()

    def of_task(self, _task: Any, _scope: ClaimScope) -> Sequence[Condition]:
        """The SQL about a task, given by its columns: a claim checks it row by row."""
        return ()

    def explain(self, _facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        """Explain why a waiting task does not meet this condition; nothing if it does."""
        yield from ()

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep] | None:
        """The changes that make a task meet this condition; None if it does not, and no change is certain to help."""
        return None if any(True for _ in self.explain(facts, UTC)) else ()


def used_up(attempt: int, max_attempts: int | None) -> bool:
    """True if a task has no attempts left; AttemptsLeft has the same rule in SQL.

    Args:
        attempt: the attempts that count.
        max_attempts: the maximum; None for no limit.
    """
    return max_attempts is not None and attempt >= max_attempts


class AttemptsLeft(ClaimCondition):
    """A task is not claimed after its last attempt."""

    name = "attempts"

    def of_task(self, task: Any, _scope: ClaimScope) -> Sequence[Condition]:
        """The SQL of `not used_up`."""
        return (task.max_attempts.is_(None) | (task.attempt < task.max_attempts),)

    def explain(self, facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        """Name the attempts that it has used."""
        task = facts.task
        if self.name in facts.refused:
            limit = count_noun(task.max_attempts or 0, "attempt")
            text = f"It has used {task.attempt} of {limit} and will not be retried."
            used, most = task.attempt, task.max_attempts
            command = f"runner edit FILTER --max-attempts {used + 1}"
            common = CommonCause(f"{used} of {limit} are used", command, f"attempts:{used} max_attempts:{most}")
            yield Explanation(self.name, text, self._command(facts), common=common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep]:
        """Allow one more attempt."""
        if self.name not in facts.refused:
            return ()
        limit = count_noun(facts.task.attempt + 1, "attempt")
        return (RemedyStep(self.name, f"it were allowed {limit}", self._command(facts)),)

    def _command(self, facts: ClaimFacts) -> str:
        return f"runner edit {facts.task.id} --max-attempts {facts.task.attempt + 1}"


class BelowBounds(ClaimCondition):
    """A task whose attempts or fence are at the bound of their column is not claimed: the claim raises both.

    One row at a bound would make the table refuse a whole claim. The comparison is an inequality, which planners expect
    of nearly every row.
    """

    name = "bounds"

    def of_task(self, task: Any, _scope: ClaimScope) -> Sequence[Condition]:
        """The SQL that neither is at its bound."""
        bounds = ((task.attempt, MOST_ATTEMPTS), (task.fence, HIGHEST_FENCE))
        return [count != sa.literal_column(str(highest)) for count, highest in bounds]

    def explain(self, facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        """Name the bound, and the operation that resets both."""
        task = facts.task
        if self.name in facts.refused:
            column = (
                f"attempts are {MOST_ATTEMPTS:,}" if task.attempt >= MOST_ATTEMPTS else f"fence is {HIGHEST_FENCE:,}"
            )
            text = f"Its {column}, the highest possible value, which only a change by another program can reach."
            common = CommonCause("the attempts or the fence are at their highest value")
            yield Explanation(self.name, text, f"runner retry {task.id}", common=common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep]:
        """Retry it."""
        if self.name not in facts.refused:
            return ()
        return (RemedyStep(self.name, "it were retried", f"runner retry {facts.task.id}"),)


class Due(ClaimCondition):
    """A task is not claimed before its time."""

    name = "due"

    def of_task(self, task: Any, scope: ClaimScope) -> Sequence[Condition]:
        """The SQL that a task waits, and that its time has come."""
        waits = waits_with_tenant(task) if scope.by_tenant else is_state(task.state, State.WAITING)
        if "only" in scope.selection:
            # A few ids are looked up by the primary key: as an expression, the state fits no partial index. A walk
            # along the index `ready` would read the entries of claimed tasks that an old snapshot keeps.
            waits = is_state(task.state.concat(sa.literal_column("''")), State.WAITING)
        return (sa.and_(waits, task.run_at <= db_now()),)

    def explain(self, facts: ClaimFacts, zone: tzinfo) -> Iterator[Explanation]:
        """Name its time, and the failure that caused the delay."""
        task = facts.task
        if self.name in facts.refused:
            is_retry = bool(task.attempt and task.error)
            failed = f", because attempt {task.attempt} failed: {reason(task.error)}" if is_retry else ""
            if task.error and not task.attempt:
                failed = f", because it was put off: {reason(task.error)}"
            text = f"It is due {when(task.run_at, facts.at, zone)}{failed}".removesuffix(".") + "."
            view: Any = ("task", str(task.id)) if is_retry else None
            phrase = "a failed attempt is retried later" if task.attempt else "the due time is in the future"
            common = CommonCause(phrase, "runner retry FILTER", f"state:{task.shown}")
            yield Explanation(self.name, text, f"runner retry {task.id}", view, common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep]:
        """Make it due."""
        return (RemedyStep(self.name, "it were due now", f"runner retry {facts.task.id}"),) if facts.later else ()


class NotExpired(ClaimCondition):
    """No attempt of a task starts after its expiry; `expire` (runner.store.expire) cancels such tasks."""

    name = "expired"
    persistent = False

    @staticmethod
    def is_expired(task: Any) -> Condition:
        """The SQL that the expiry of a task has passed; unknown for a task without one."""
        passed: Condition = task.expires_at <= db_now()
        return passed

    def of_task(self, task: Any, _scope: ClaimScope) -> Sequence[Condition]:
        """The SQL that it has not passed, in a form that planners expect to be true."""
        return (self.is_expired(task).is_not(sa.true()),)

    def explain(self, facts: ClaimFacts, zone: tzinfo) -> Iterator[Explanation]:
        """Name the expiry, if it has passed or comes before the due time."""
        task = facts.task
        if task.expires_at is None:
            return
        end = when(task.expires_at, facts.at, zone)
        if self.name in facts.refused:
            text = f"It expired {end}: no attempt starts any more, and a runner cancels it within seconds."
            yield Explanation(self.name, text, self._command(facts), common=CommonCause("the task expired"))
        elif task.run_at is not None and facts.later and task.expires_at <= task.run_at:
            text = f"It expires {end}, before it is due: it will be cancelled."
            common = CommonCause("the task expires before it is due")
            yield Explanation(self.name, text, self._command(facts), common=common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep]:
        """Remove the expiry."""
        if self.name not in facts.refused:
            return ()
        return (RemedyStep(self.name, "it had no expiry", self._command(facts)),)

    def _command(self, facts: ClaimFacts) -> str:
        return f"runner edit {facts.task.id} --expires-at none"


class NotPaused(ClaimCondition):
    """No task of a paused queue or handler is claimed."""

    name = "paused"

    @staticmethod
    def is_paused(registry: sa.Table) -> Condition:
        """The SQL that a queue or a handler is paused now; false where the registry has no row."""
        still = registry.c.paused_until.is_(None) | (registry.c.paused_until > db_now())
        return registry.c.paused_at.is_not(None) & still

    def of_registry(self, registry: sa.Table, _locked: Condition | None) -> Sequence[Condition]:
        """The SQL that it is paused."""
        return (self.is_paused(registry),)

    def pauses_of(self, lane: Any, tables: Tables) -> tuple[Condition, Condition]:
        """The SQL that the queue, and that the handler, of a task or a lane is paused."""
        queue = sa.exists().where(tables.queue.c.name == lane.queue, self.is_paused(tables.queue))
        return queue, sa.exists().where(tables.handler.c.name == lane.handler, self.is_paused(tables.handler))

    def explain(self, facts: ClaimFacts, zone: tzinfo) -> Iterator[Explanation]:
        """Name each pause that lasts until the task is due, with its operator, reason and end."""
        run_at = facts.task.run_at
        for kind, entry, pause, command in _pauses(facts):
            if pause.until is not None and run_at is not None and pause.until <= run_at:
                continue
            end = f"resumes {when(pause.until, facts.at, zone)}" if pause.until else "stays paused until it is resumed"
            operator = one_line(pause.by or "an unknown operator")
            start = f"by {operator} {since(pause.since, facts.at)} ago"
            name = one_line(entry.name)
            text = f"{kind.capitalize()} {name} was paused {start}: {sentence_of(pause.why)} It {end}."
            until = f" until {clock(pause.until, facts.at, zone)}" if pause.until else ""
            common = CommonCause(f"{kind} {name} is paused{until}", command)
            yield Explanation(self.name, text, command, ("audit", f"{kind} {name}"), common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep]:
        """Resume the queue and the handler."""
        return [
            RemedyStep("resume", f"{kind} {one_line(entry.name)} were not paused", command)
            for kind, entry, _, command in _pauses(facts)
        ]


def _pauses(facts: ClaimFacts) -> Iterator[tuple[str, Any, Any, str]]:
    """The pauses in force, each with the command that ends it."""
    for kind, option, entry in (("queue", "", facts.queue), ("handler", "--handler ", facts.handler)):
        if entry is not None and entry.pause is not None:
            yield kind, entry, entry.pause, f"runner resume {option}{quote(one_line(entry.name))}"


class Isolation(ClaimCondition):
    """A suspect is claimed by a statement of its own; see runner.policy.suspicion."""

    name = "apart"

    def of_task(self, task: Any, _scope: ClaimScope) -> Sequence[Condition]:
        """The SQL that a task is not a suspect."""
        return (~self.is_suspect(task),)

    @staticmethod
    def is_suspect(task: Any) -> Condition:
        """The SQL of runner.policy.suspicion.is_suspect."""
        twice = task.rescues >= sa.literal_column(str(FIRST))
        last = task.attempt + sa.literal_column("1") >= task.max_attempts
        # False and not unknown without a maximum: both claims would skip such a row.
        # A rescue that counted no attempt found no sign that the task had started: only a second one makes a suspect.
        counted = task.attempt > sa.literal_column("0")
        once: Condition = (task.rescues == sa.literal_column("1")) & counted & task.max_attempts.is_not(None) & last
        return sa.or_(twice, once)

    @staticmethod
    def width(task: Any) -> sa.ColumnElement[int]:
        """The SQL of runner.policy.suspicion.width."""
        attempts_left = task.max_attempts - task.attempt
        last = len(WIDTHS) - 1
        steps: list[Any] = [
            (
                (task.rescues >= sa.literal_column(str(FIRST + level)))
                | (attempts_left <= sa.literal_column(str(last + 1 - level))),
                sa.literal_column(str(WIDTHS[level])),
            )
            for level in range(last, 0, -1)
        ]
        return sa.case(*steps, else_=sa.literal_column(str(WIDTHS[0])))

    def suspects(self, task: Any) -> Sequence[Condition]:
        """The SQL that selects suspects along the index `rescued`."""
        return task.rescues > sa.literal_column("0"), self.is_suspect(task)

    def order_by(self, task: Any) -> Sequence[Any]:
        """The order in which suspects are claimed, which is that of the index `rescued`."""
        return task.run_at, task.id

    def before(self, task: Any, position: Any) -> Condition:
        """The SQL that a suspect is older than one with a given (run_at, id)."""
        earlier: Condition = sa.tuple_(task.run_at, task.id) < position
        return earlier

    def explain(self, facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        """Name the runners that it lost, and how many suspects run together."""
        task = facts.task
        if self.name in facts.refused:
            attempts_left = None if task.max_attempts is None else task.max_attempts - task.attempt
            text = f"{describe(task.rescues, attempts_left)} `runner retry {task.id}` clears it."
            common = CommonCause("the task is suspected of killing its runner")
            yield Explanation(self.name, text, f"runner retry {task.id}", ("task", str(task.id)), common)


class InOrder(ClaimCondition):
    """A task is not claimed while an earlier one with its order key is live, or another one runs.

    A submit chains each task to its predecessor by a dependency, so that usually one task per key waits and a claim
    does not walk over the others. This condition is the guarantee: it also holds for plain inserts, for concurrent
    submits, and for tasks that return from the history. Two claims that do not see each other are kept apart by the
    unique index `in_order`.
    """

    name = "order"
    persistent = False

    @staticmethod
    def earlier(other: Any, task: Any) -> Condition:
        """The SQL that another live task with the same order key came before: a search of the index `order`."""
        return sa.and_(other.order_key == task.order_key, other.id < task.id)

    @staticmethod
    def running(other: Any, task: Any) -> Condition:
        """The SQL that another task with the same order key runs: a search of the index `in_order`."""
        return sa.and_(other.order_key == task.order_key, runs_with_order_key(other))

    def of_task(self, task: Any, scope: ClaimScope) -> Sequence[Condition]:
        """The SQL that a task has no order key, or that its turn has come."""
        earlier, running = scope.tables.task.alias("earlier"), scope.tables.task.alias("rival")
        one: sa.ColumnElement[int] = sa.literal_column("1")
        # Without the offset, PostgreSQL reads all running tasks for a claim instead of one index entry for each task.
        free = [
            ~sa.select(one)
            .select_from(other)
            .where(condition(other.c, task))
            .offset(NO_JOIN)
            .correlate_except(other)
            .exists()
            for other, condition in ((earlier, self.earlier), (running, self.running))
        ]
        return (sa.or_(task.order_key.is_(None), sa.and_(*free)),)

    def explain(self, facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        """Name the task whose turn it is."""
        if self.name not in facts.refused:
            return
        rival, common = facts.predecessor, CommonCause("another task with the same order key comes first")
        if rival is None:
            text = "A task with the same order key just finished; it is claimed next."
            yield Explanation(self.name, text, common=common)
        else:
            text = f"Task {rival.id} {one_line(rival.handler)} has the same order key and is {rival.shown}."
            yield Explanation(self.name, text, f"runner why {rival.id}", ("task", str(rival.id)), common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep] | None:
        """None: the end of another task is not a change that an operator can make."""
        return None if self.name in facts.refused else ()
