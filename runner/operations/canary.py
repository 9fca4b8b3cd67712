"""The canary: an operation on 1, 10, 100 and all tasks of a filter, as long as none fails again."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.operations.audit_log import AuditEntry, record
from runner.operations.bulk import BulkOptions, DatabaseAccess, Operation, to_all, to_each
from runner.operations.results import Actor, Result, Target
from runner.queries.audit import CANARY
from runner.queries.fate import FailureCause, GroupFate, fate_of, last_causes
from runner.text.formatting import reason
from runner.text.sanitize import count_noun

STAGES = (1, 10, 100)
"""The tasks of each stage before the rest."""

PAUSE = 1.0
"""Seconds between two queries for the tasks of a stage."""


def ignore(_fate: GroupFate) -> None:
    """The default of `on_wait`."""


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """The result of a canary.

    Args:
        result: the tasks of all stages.
        causes: the failures that stopped it; empty if it reached the end or the operator stopped it.
        stages: the number of stages that began.
    """

    result: Result
    causes: tuple[FailureCause, ...] = ()
    stages: int = 0

    def words(self, *, stopped: bool) -> str:
        """The result in words, for the audit."""
        if self.failure:
            return reason(self.failure)
        number = count_noun(len(self.result.changed), "task")
        return f"stopped by the operator after {number}" if stopped else f"changed {number}; no stage failed"

    @property
    def failure(self) -> str:
        """The reason why it stopped, as a sentence; empty if nothing failed."""
        if not self.causes:
            return ""
        cause = self.causes[0]
        how = "with the same error" if cause.repeated else "with another error"
        return f"stopped after {len(self.result.changed):,}: task {cause.task_id} failed again {how}, {cause.error}"


async def canary(
    database: DatabaseAccess,
    operation: Operation,
    by: Actor,
    task_filter: Filter,
    options: BulkOptions,
    on_wait: Callable[[GroupFate], object] = ignore,
) -> CanaryResult:
    """Apply an operation in stages, see `_in_stages`, and record the result in the audit.

    The entry names the change group and the task that failed. It is not in the group, because it changed nothing.

    Args:
        by: the operator of the operation, with its change group.
    """
    result = await _in_stages(database, operation, task_filter, options, on_wait)
    if result.result.changed:
        after = {"result": result.words(stopped=options.stop())}
        task_id = result.causes[0].task_id if result.causes else None
        entry = AuditEntry(CANARY, {}, after, task_id, f"group {by.change_group}")
        await database.write(record, by._replace(change_group=None), [entry])
    return result


async def _in_stages(
    database: DatabaseAccess,
    operation: Operation,
    task_filter: Filter,
    options: BulkOptions,
    on_wait: Callable[[GroupFate], object],
) -> CanaryResult:
    """Apply an operation in stages; each stage begins when all tasks of the one before have ended without a failure.

    A stage goes on from the newest task to the oldest, below the tasks of the stage before. The last one does not wait.
    The tasks of a failure group whose last failure had another cause come last: they prove nothing about the group.

    Args:
        operation: the operation on a chunk, such as a retry.
        options: the options of the bulk operation; `stop` also ends the wait between two stages.
        on_wait: called with the fate of a stage while it waits.
    """
    total, later = Result(), _OtherCauses(operation, task_filter)
    for number, size in enumerate((*STAGES, None), 1):
        since = await database.read(clock)
        remaining = None if options.limit is None else options.limit - len(total.changed)
        limit = remaining if size is None else min(size, remaining if remaining is not None else size)
        own = replace(options, limit=limit, on_progress=None)
        stage = await to_all(database, later if size else operation, task_filter, own)
        others = [skipped.id for skipped in stage.skipped] + [conflict.id for conflict in stage.conflicts]
        others += [stuck.id for stuck in stage.stuck]
        touched = [*stage.changed, *others, *later.targets]
        task_filter = Filter((*task_filter.terms, Term("id", Operator.LT, min(touched)))) if touched else task_filter
        if size is None or not stage.changed:
            stage.add(await to_each(database, operation, later.take(limit, stage), own))
        total.add(stage)
        if options.on_progress:
            options.on_progress(total)
        if not stage.changed or size is None:
            return CanaryResult(total, (), number)
        fate = await _settled(database, stage.changed, since, options, on_wait)
        if fate.causes or options.is_done(total):
            return CanaryResult(total, fate.causes, number)
    return CanaryResult(total, (), len(STAGES) + 1)


class _OtherCauses:
    """An operation that postpones the tasks of a failure group whose last failure had another cause."""

    def __init__(self, operation: Operation, task_filter: Filter) -> None:
        terms = [term for term in task_filter.terms if term.field == "failure" and not term.negated]
        values = [term.value if isinstance(term.value, tuple) else (term.value,) for term in terms]
        self._causes = {str(cause) for each in values for cause in each}
        self._operation = operation
        self.targets: dict[int, Target] = {}

    async def __call__(self, tx: Transaction, targets: Sequence[Target]) -> Result:
        """Apply the operation to the tasks whose last failure has the cause."""
        last = await last_causes(tx, [target.id for target in targets]) if self._causes else {}
        self.targets |= {target.id: target for target in targets if not {last.get(target.id)} <= {None, *self._causes}}
        own = [target for target in targets if target.id not in self.targets]
        return await self._operation(tx, own) if own else Result()

    def take(self, limit: int | None, so_far: Result) -> Sequence[Target]:
        """Remove and return the newest targets, at most as many as a stage may still change."""
        most = None if limit is None else limit - len(so_far.changed)
        taken = sorted(self.targets.values(), reverse=True)[:most]
        for target in taken:
            del self.targets[target.id]
        return taken


async def _settled(
    database: DatabaseAccess,
    ids: list[int],
    since: datetime,
    options: BulkOptions,
    on_wait: Callable[[GroupFate], object],
) -> GroupFate:
    """Wait until each task has ended or one of them has failed."""
    while True:
        fate = await database.read(fate_of, ids, since)
        on_wait(fate)
        if fate.causes or not fate.pending or options.stop():
            return fate
        await asyncio.sleep(PAUSE)


def check_canary(targets: list[int] | Filter, spread: float) -> None:
    """Check that a canary is possible.

    Raises:
        InvalidInput: the tasks are not those of a filter, or are spread over time.
    """
    if isinstance(targets, list):
        raise InvalidInput(why="a canary goes through the tasks of a filter, not through single ids")
    if spread:
        raise InvalidInput(why="a canary waits for each stage, so it cannot spread its tasks; leave one of the two out")
