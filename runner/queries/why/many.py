"""why of many tasks: the waiting and blocked tasks that match a filter, by their decisive cause.

Tasks in the same situation have the same causes: the same queue, handler and state, and the same claim conditions that
they do not meet. So one statement counts the tasks by situation, and the rules of `why` judge one task of each.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from shlex import quote
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.db.types import db_now
from runner.errors import InvalidSort
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.filter.sort import NEWEST, Sort, SortField
from runner.model.task import State
from runner.policy.claim_facts import ClaimScope, CommonCause
from runner.policy.claim_policy import CLAIM_POLICY, DUE
from runner.policy.harm import harm_of
from runner.policy.limits import LIMITS, LimitUsage
from runner.queries.counting import Count
from runner.queries.limits import limit_usages
from runner.queries.registries import RegistryEntry, registry_entries
from runner.queries.rows import as_int, as_text
from runner.queries.runners import RunnerRow, busy_slots, runners
from runner.queries.task.parents import Parent, parents
from runner.queries.task.steps import StepRow, pending_steps, waits_for
from runner.queries.task_list.compile import scans
from runner.queries.task_list.row import TaskRow, task_rows
from runner.queries.task_list.search import Page, find
from runner.queries.task_list.sources import waiting
from runner.queries.why.blockers import blockers
from runner.queries.why.facts import MET, CandidateRunner, Facts, as_candidates, claimants_of, order_of
from runner.queries.why.remedies import Cause, RelatedView
from runner.queries.why.why import no_dependency
from runner.queries.why.why import waits_for as waits_for_parent
from runner.text.document import JsonProperty

EXAMINED = 10_000
"""The default number of tasks to examine."""

MOST_PARENTS = 5
"""Dependencies to read per blocked task, on average."""

UNCERTAIN = ("full", "behind", "now", "unknown", "queue", "draining", "bucket")
"""The kinds of causes whose command frees an unknown number of tasks."""

MOST_OTHERS = 2
"""Further causes of the tasks of a group that its phrase names, those of most tasks."""

FILTER = "FILTER"
"""The place of a filter in the command of a common cause."""


@dataclass(frozen=True, slots=True)
class CauseGroup:
    """The tasks with one decisive cause.

    Args:
        kind: the kind of the cause, see Cause.
        phrase: the cause, and further ones of its tasks; values from the database in it are safe to print.
        command: the shell command that lifts the cause; empty if no single one does.
        advice: the next step: the command, or what one of the tasks needs.
        freed: the tasks that the command frees: they have no other cause.
        example: the id of one of the tasks.
        view: where to see more.
    """

    kind: str
    phrase: str
    tasks: int
    command: str
    advice: str
    freed: int
    example: int
    view: RelatedView


@dataclass(frozen=True, slots=True)
class WhyMany:
    """The answer to "why are these tasks not running?".

    Args:
        examined: the number of tasks; `more` if it is only the first part of them, by due time.
        causes: the causes, most tasks first.
    """

    at: datetime
    filter: str
    examined: Count
    causes: tuple[CauseGroup, ...]

    @property
    def verdict(self) -> str:
        """One sentence that introduces the causes."""
        number, more = self.examined
        if number == 1 and not more:
            return "1 task is not running because:"
        return f"{'The first ' * more}{number:,} tasks{' by due time' * more} are not running because:"

    @JsonProperty
    def frees_most(self) -> CauseGroup | None:
        """The group whose command frees most tasks, of several the least harmful; None if no command frees any."""
        best = min(self.causes, key=lambda group: (-group.freed, harm_of([group.kind])), default=None)
        return best if best and best.freed else None


@dataclass(slots=True)
class _Situation:
    """The tasks with the same causes, and one of them."""

    tasks: int
    example: int
    queue: str = ""
    handler: str = ""
    refused: frozenset[str] = frozenset()
    later: bool = False
    waits: bool = False
    bucket: int = 0
    hosts: str = ""
    causes: tuple[Cause, ...] = ()


async def why_many(tx: Transaction, task_filter: Filter, zone: tzinfo, most: int = EXAMINED) -> WhyMany:
    """Find out why many tasks are not running.

    Args:
        tx: an open transaction; about twenty statements are executed, for any number of tasks.
        task_filter: the filter; only waiting and blocked tasks are examined.
        most: maximum number of tasks to examine, in the order of their due times.
    """
    (ids, blocked_ids, more), all_runners, usages, at = await tx.gather(
        _examined(tx, task_filter, most), runners(tx), limit_usages(tx), clock(tx)
    )
    surroundings = _Surroundings(at, tuple(all_runners), usages)
    waiting_tasks, blocked_tasks = await tx.gather(_waiting(tx, ids, surroundings, zone), _blocked(tx, blocked_ids))
    situations = [*waiting_tasks, *blocked_tasks]
    groups: dict[tuple[str, CommonCause], list[_Situation]] = defaultdict(list)
    for situation in situations:
        first = situation.causes[0]
        groups[first.kind, first.common or CommonCause(first.text)].append(situation)
    order = [_group(kind, common, each, task_filter) for (kind, common), each in groups.items()]
    order.sort(key=lambda group: (-group.tasks, group.phrase))
    examined = Count(sum(group.tasks for group in order), more)
    return WhyMany(at, str(task_filter), examined, tuple(order))


def _group(kind: str, common: CommonCause, situations: Sequence[_Situation], task_filter: Filter) -> CauseGroup:
    certain = bool(common.command) and kind not in UNCERTAIN
    freed = sum(each.tasks for each in situations if len(each.causes) == 1) if certain else 0
    terms = [term for term in common.terms.split() if term not in str(task_filter).split()]
    words = " ".join(part for part in (str(task_filter), *terms) if part)
    command = common.command.replace(FILTER, quote(words))
    first = situations[0]
    view = first.causes[0].view or RelatedView("task", str(first.example))
    tasks = sum(each.tasks for each in situations)
    advice = command or first.causes[0].advice or f"runner why {first.example}"
    phrase = common.phrase + _further(common.phrase, situations, tasks)
    return CauseGroup(kind, phrase, tasks, command, advice, freed, first.example, view)


def _further(phrase: str, situations: Sequence[_Situation], tasks: int) -> str:
    """The further causes of the tasks of a group, each with the number of its tasks unless all have it."""
    others: Counter[str] = Counter()
    for each in situations:
        certain = (cause.common for cause in each.causes[1:] if cause.kind not in UNCERTAIN)
        others.update({other.phrase: each.tasks for other in certain if other is not None and other.phrase != phrase})
    return "".join(
        f"; also {other}{'' if number == tasks else f' ({number:,} of them)'}"
        for other, number in others.most_common(MOST_OTHERS)
    )


async def _examined(tx: Transaction, task_filter: Filter, most: int) -> tuple[list[int], list[int], bool]:
    """The ids of the waiting and of the blocked tasks, and true if there are more."""
    pages = await tx.gather(_due_first(tx, task_filter, most), find(tx, _within(task_filter, State.BLOCKED), most))
    ids, blocked_ids = (page.ids for page in pages)
    more = len(ids) + len(blocked_ids) > most or any(page.next is not None or page.capped for page in pages)
    return ids, blocked_ids[: most - len(ids)], more


async def _due_first(tx: Transaction, task_filter: Filter, most: int) -> Page:
    """The waiting tasks, by due time."""
    if not scans(task_filter, [waiting(tx.tables)], tx.dialect):
        return Page([], None, False)
    try:
        return await find(tx, task_filter, most, sort=Sort(SortField.RUN_AT, descending=False))
    except InvalidSort:  # too many lanes for the order of the due times
        return await find(tx, _within(task_filter, State.WAITING), most, sort=NEWEST)


def _within(task_filter: Filter, state: State) -> Filter:
    return Filter((*task_filter.terms, Term("state", Operator.IN, (state.value,))))


async def _waiting(
    tx: Transaction, ids: Sequence[int], surroundings: "_Surroundings", zone: tzinfo
) -> list[_Situation]:
    """The situations of waiting tasks, with their causes."""
    if not ids:
        return []
    situations, surroundings.running = await tx.gather(
        _situations(tx, ids, surroundings.runners, surroundings.usages),
        busy_slots(tx, [runner.id for runner in surroundings.runners if runner.alive]),
    )
    rows, surroundings.pending, surroundings.queues, surroundings.handlers = await tx.gather(
        task_rows(tx, [each.example for each in situations]),
        pending_steps(tx, [each.example for each in situations if each.waits]),
        registry_entries(tx, tx.tables.queue, sorted({each.queue for each in situations})),
        registry_entries(tx, tx.tables.handler, sorted({each.handler for each in situations})),
    )
    tasks = {task.id: task for task in rows}
    situations = [each for each in situations if each.example in tasks]  # the others have ended since
    judged = [(each, surroundings.facts(tasks[each.example], each)) for each in situations]
    for situation, facts in judged:
        situation.causes = tuple(blockers(facts, zone))
        if situation.later and len(situation.causes) == 1:  # A retry makes them due: something else may hold them then.
            due_now = replace(facts, later=False, refused=facts.refused - {DUE.name})
            situation.causes += tuple(cause for cause in blockers(due_now, zone) if cause.kind not in UNCERTAIN)
    unhindered = [(each, facts) for each, facts in judged if each.causes[0].kind == "now"]
    due: Counter[tuple[int, ...]] = Counter()
    for situation, facts in unhindered:
        due[_slots(facts)] += situation.tasks
    for situation, facts in unhindered:
        if due[_slots(facts)] > sum(candidate.free for candidate in facts.candidates):
            # No more tasks than free slots start now: the others are behind them.
            situation.causes = tuple(blockers(replace(facts, ahead=Count(due[_slots(facts)] - 1)), zone))
    return situations


def _slots(facts: Facts) -> tuple[int, ...]:
    """The runners whose slots the tasks wait for, and the kind of the slots."""
    pools = sorted({hash(candidate.pool) for candidate in facts.candidates})
    return (*(candidate.runner.id for candidate in facts.candidates), *pools)


@dataclass(slots=True)
class _Surroundings:
    """The facts that all the tasks have in common, read once."""

    at: datetime
    runners: tuple[RunnerRow, ...]
    usages: Sequence[LimitUsage]
    queues: Mapping[str, RegistryEntry] = field(default_factory=dict)
    handlers: Mapping[str, RegistryEntry] = field(default_factory=dict)
    running: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    pending: Mapping[int, Sequence[StepRow]] = field(default_factory=dict)
    _candidates: dict[tuple[str, str, int, str], tuple[CandidateRunner, ...]] = field(default_factory=dict)

    def facts(self, task: TaskRow, situation: _Situation) -> Facts:
        """The facts about a task, without the tasks ahead of it."""
        candidates = self._candidates_of(task.queue, task.handler, situation.bucket, situation.hosts)
        names = {"queue": task.queue, "handler": task.handler}
        return Facts(
            task=task,
            at=self.at,
            refused=situation.refused,
            later=situation.later,
            queue=self.queues.get(task.queue),
            handler=self.handlers.get(task.handler),
            limits=tuple(usage for usage in self.usages if names[usage.kind] == usage.name),
            runners=self.runners,
            candidates=candidates,
            order=order_of([each.runner for each in candidates]),
            bucket=situation.bucket,
            pending=tuple(self.pending.get(task.id, ())),
        )

    def _candidates_of(self, queue: str, handler: str, bucket: int, hosts: str) -> tuple[CandidateRunner, ...]:
        key = queue, handler, bucket, hosts
        if key not in self._candidates:
            self._candidates[key] = as_candidates(claimants_of(self.runners, *key), handler, self.running)
        return self._candidates[key]


async def _situations(
    tx: Transaction, ids: Sequence[int], all_runners: Iterable[RunnerRow], usages: Iterable[LimitUsage]
) -> list[_Situation]:
    """Count tasks by everything that their causes depend on."""
    task = tx.tables.task
    met = CLAIM_POLICY.met(task.c, ClaimScope(tx.tables))
    flags = {f"{MET}{name}": condition for name, condition in met.items()}
    flags |= {"later": task.c.run_at > db_now(), "vain": task.c.expires_at <= task.c.run_at}
    for registry, name in ((tx.tables.queue, "queue"), (tx.tables.handler, "handler")):
        # A pause that ends before a task is due does not keep it from running.
        ends = sa.exists().where(registry.c.name == task.c[name], registry.c.paused_until <= task.c.run_at)
        flags[f"{name}_resumes"] = ends
    used_up = sa.not_(met["attempts"])
    full = sorted(
        {
            tenant
            for usage in usages
            for tenant in usage.running
            if any(limit.of_tenants and limit.full(usage, tenant) for limit in LIMITS)
        }
    )
    none: sa.ColumnElement[Any] = sa.null()
    divided = any(runner.alive and runner.buckets is not None for runner in all_runners)
    columns = {
        "queue": task.c.queue,
        "handler": task.c.handler,
        "hosts": task.c.hosts,
        "waits": waits_for(task, tx.tables),
        "tried": sa.case((task.c.attempt > 0, 1), else_=0),
        "used": sa.case((used_up, task.c.attempt), else_=0),
        "tenant": sa.case((tx.dialect.one_of(task.c.tenant, full), task.c.tenant), else_=none) if full else none,
        "bucket": task.c.bucket if divided else sa.literal_column("0"),
    }
    columns |= {name: sa.case((condition, 1), else_=0) for name, condition in flags.items()}
    each = sa.select(task.c.id, *(column.label(name) for name, column in columns.items()))
    rows = each.where(tx.dialect.one_of(task.c.id, ids)).subquery()
    groups = [rows.c[name] for name in columns]
    statement = sa.select(*groups, sa.func.count().label("tasks"), sa.func.min(rows.c.id).label("example"))
    return [
        _Situation(
            tasks=row["tasks"],
            example=row["example"],
            queue=as_text(row["queue"]),
            handler=as_text(row["handler"]),
            refused=frozenset(name.removeprefix(MET) for name in flags if name.startswith(MET) and not row[name]),
            later=bool(row["later"]),
            waits=row["waits"] is not None,
            bucket=as_int(row["bucket"]),
            hosts=as_text(row["hosts"]),
        )
        for row in (await tx.execute(statement.group_by(*groups))).mappings().all()
    ]


async def _blocked(tx: Transaction, ids: Sequence[int]) -> list[_Situation]:
    """The situations of blocked tasks, by their first open dependency."""
    if not ids:
        return []
    by_child: dict[int, list[Parent]] = defaultdict(list)
    limit = MOST_PARENTS * len(ids)
    rows = await parents(tx, *ids, limit=limit)
    for parent in rows:
        by_child[parent.child].append(parent)
    situations: dict[tuple[CommonCause | None, bool], _Situation] = {}
    for id in ids:
        if len(rows) == limit and id not in by_child:
            continue  # its dependencies were not read
        causes = tuple(map(waits_for_parent, by_child[id])) or (no_dependency(id),)
        key = causes[0].common, len(causes) == 1
        situation = situations.setdefault(key, _Situation(0, id, causes=causes))
        situation.tasks += 1
    return list(situations.values())
