"""limits: how many tasks of a queue, a handler or a tenant run at the same time, and how many start per period.

All runners share a limit. Its values are in the registry row of the queue or the handler. A claim from a limited lane
locks that row, counts the running tasks, and takes no more than `room` allows; see runner.store.claim.limited. A new
limit is one class here and one entry in LIMITS, its field in SharedLimits, its columns in LIMIT_COLUMNS of
runner.db.schema.records and in a migration, its option in runner.operations.limit, and its change in
runner.queries.simulation. Claims, the audit and the rights of the roles follow LIMIT_COLUMNS, for limits of a whole
queue or handler. A limit per value of a task also changes runner.store.claim.ledger and runner.store.claim.tenants.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from shlex import quote
from typing import Any, ClassVar, NamedTuple, Self

import sqlalchemy as sa

from runner.db.schema.records import LIMIT_COLUMNS
from runner.db.schema.task import Condition
from runner.policy.breaker import OpenBreaker
from runner.policy.claim_conditions import ClaimCondition
from runner.policy.claim_facts import ClaimFacts, CommonCause, Explanation, RemedyStep
from runner.policy.rate import MAX_LIMIT, Rate, checked
from runner.text.document import JsonProperty
from runner.text.formatting import age, sentence_of
from runner.text.sanitize import count_noun, one_line


class SharedLimits(NamedTuple):
    """The limits of a queue or a handler, over all runners; None for no limit.

    Args:
        running: maximum number of tasks that run at the same time.
        per_tenant: maximum number of tasks of a tenant that run at the same time.
        rate: maximum rate of starts.
    """

    running: int | None = None
    per_tenant: int | None = None
    rate: Rate | None = None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Read the columns of a registry row."""
        rate = Rate(row["rate_limit"], row["rate_period"]) if row["rate_limit"] and row["rate_period"] else None
        return cls(row["max_running"], row["max_per_tenant"], rate)

    @property
    def counts_running(self) -> bool:
        """True if one of them depends on the number of running tasks."""
        return self.running is not None or self.per_tenant is not None

    @property
    def columns(self) -> dict[str, Any]:
        """The values for a registry row."""
        return dict(zip(LIMIT_COLUMNS, (self.running, self.per_tenant, *(self.rate or (None, None))), strict=True))

    def __str__(self) -> str:
        parts = [limit.words(self) for limit in LIMITS if limit.value(self) is not None]
        return ", ".join(parts) or "no limit"


UNLIMITED = SharedLimits()
"""No limits."""


SHORTEST = 0.05
"""The shortest wait for tokens in seconds, so that a fast rate does not cost a claim per task."""


def read_limits(limit: int | None, per_tenant: int | None, rate: str | None) -> dict[str, Any]:
    """Read the limits of a handler's code.

    Returns:
        The values for its registry row; empty without limits.

    Raises:
        InvalidEdit: a value is not valid.
    """
    speed = None if rate is None else Rate.parse(str(rate))
    limits = SharedLimits(checked("limit", limit), checked("limit_per_tenant", per_tenant), speed)
    return limits.columns if any(limits) else {}


class LimitUsage(NamedTuple):
    """The limits of a queue or handler, and how far they are used.

    Args:
        kind: "queue" or "handler".
        at: the database's time in seconds since 1970.
        spent: state of the token bucket; see Rate.
        running: its running tasks by tenant; "" for tasks without one.
        holders: its running tasks by runner, described in words.
        since: how long ago an operator set the limits, in words; empty for those of the handler's code.
        breaker: the open breaker of a handler; None if it is closed.
    """

    kind: str
    name: str
    limits: SharedLimits
    at: float = 0.0
    spent: float | None = None
    running: Mapping[str, int] = {}
    holders: Mapping[str, int] = {}
    since: str = ""
    by: str | None = None
    why: str | None = None
    breaker: OpenBreaker | None = None

    @JsonProperty
    def total(self) -> int:
        """The number of running tasks."""
        return sum(self.running.values())

    @JsonProperty
    def full(self) -> tuple[str, ...]:
        """The names of the limits that let no task start now."""
        return tuple(limit.name for limit in LIMITS if limit.full(self, None))

    @property
    def words(self) -> str:
        """The kind and the name."""
        return f"{self.kind} {one_line(self.name)}"


class Limit:
    """One kind of limit."""

    name: ClassVar[str]
    option: ClassVar[str]
    column: ClassVar[str]
    of_tenants: ClassVar[bool] = False

    def value(self, _limits: SharedLimits) -> Any:
        """The limit; None if there is none."""
        raise NotImplementedError

    def words(self, limits: SharedLimits) -> str:
        """The limit in words."""
        raise NotImplementedError

    def room(self, _usage: LimitUsage) -> int:
        """The number of tasks that may start now; MAX_LIMIT if this limit does not count them."""
        return MAX_LIMIT

    def full(self, _usage: LimitUsage, _tenant: str | None) -> str:
        """The reason why no task of a tenant starts now, as a sentence; empty if one may start."""
        raise NotImplementedError

    def explain(self, usage: LimitUsage, text: str) -> Explanation:
        """Add the author of the limit to the sentence of `full`."""
        advice = f"runner limit {usage.kind} {quote(one_line(usage.name))}"
        if not usage.since:
            return Explanation(WithinLimits.name, text, advice)
        reason = f": {sentence_of(usage.why)}" if usage.why else "."
        author = f"Set by {one_line(usage.by or 'an unknown operator')} {usage.since} ago{reason}"
        return Explanation(WithinLimits.name, f"{text} {author}", advice, ("audit", usage.words))

    def remedy(self, usage: LimitUsage) -> RemedyStep | None:
        """Remove the limit."""
        command = f"runner limit {usage.kind} {quote(one_line(usage.name))} {self.option} none"
        return RemedyStep(WithinLimits.name, f"{usage.words} had no limit on {self.name}", command)


class Concurrency(Limit):
    """At most n tasks run at the same time."""

    name, option, column = "concurrency", "--concurrency", "max_running"

    def value(self, limits: SharedLimits) -> int | None:
        """The maximum number of running tasks."""
        return limits.running

    def words(self, limits: SharedLimits) -> str:
        """The maximum in words."""
        return f"at most {limits.running:,} running"

    def room(self, usage: LimitUsage) -> int:
        """The maximum without the running tasks."""
        return MAX_LIMIT if usage.limits.running is None else max(0, usage.limits.running - usage.total)

    def full(self, usage: LimitUsage, _tenant: str | None) -> str:
        """Name the running tasks and their runners."""
        if self.room(usage):
            return ""
        most = count_noun(usage.limits.running or 0, "task")
        holders = ": " + ", ".join(f"{number:,} on {name}" for name, number in usage.holders.items())
        running = f"{usage.total:,}{holders if usage.holders else ''}"
        return f"{usage.words.capitalize()} runs at most {most} at the same time; running are {running}."


class TenantConcurrency(Limit):
    """At most n tasks of each tenant run at the same time."""

    name, option, column, of_tenants = "concurrency per tenant", "--per-tenant", "max_per_tenant", True

    def value(self, limits: SharedLimits) -> int | None:
        """The maximum number of running tasks of a tenant."""
        return limits.per_tenant

    def words(self, limits: SharedLimits) -> str:
        """The maximum in words."""
        return f"at most {limits.per_tenant:,} running per tenant"

    def full(self, usage: LimitUsage, tenant: str | None) -> str:
        """Name the tenant and its running tasks."""
        most = usage.limits.per_tenant
        if most is None or tenant is None or usage.running.get(tenant, 0) < most:
            return ""
        limit = f"{usage.words.capitalize()} runs at most {count_noun(most, 'task')} per tenant at the same time"
        return f"{limit}; tenant {one_line(tenant)} has {usage.running[tenant]:,} running."


class StartRate(Limit):
    """At most n tasks start per period."""

    name, option, column = "rate", "--rate", "rate_limit"

    def value(self, limits: SharedLimits) -> Rate | None:
        """The rate."""
        return limits.rate

    def words(self, limits: SharedLimits) -> str:
        """The rate in words."""
        return f"{limits.rate} started"

    def room(self, usage: LimitUsage) -> int:
        """The tokens in the bucket."""
        rate = usage.limits.rate
        return MAX_LIMIT if rate is None else rate.available(usage.spent, usage.at)

    def full(self, usage: LimitUsage, _tenant: str | None) -> str:
        """Name the time of the next start."""
        rate = usage.limits.rate
        if rate is None or self.room(usage):
            return ""
        wait = rate.wait(usage.spent, usage.at)
        return f"{usage.words.capitalize()} starts at most {rate}; the next task may start in {age(wait)}."


class BreakerLimit(Limit):
    """While the breaker of a handler is open, no task starts except probes."""

    name, option, column = "breaker", "", "breaker_probes"
    state = "the breaker is open"

    def value(self, _limits: SharedLimits) -> None:
        """None: an open breaker is a state and not a limit of the handler."""
        return

    def words(self, _limits: SharedLimits) -> str:
        """The state in words."""
        return self.state

    def room(self, usage: LimitUsage) -> int:
        """The number of tasks that may probe now."""
        return MAX_LIMIT if usage.breaker is None else usage.breaker.room

    def full(self, usage: LimitUsage, _tenant: str | None) -> str:
        """Name the reason and the time of the next probe."""
        if usage.breaker is None or usage.breaker.room:
            return ""
        *_, since, why, by = usage.breaker
        opened = f"opened {since} ago{f' by {one_line(by)}' if by else ''}"
        text = f"The breaker of {usage.words} {opened}: {sentence_of(why)}"
        return f"{text} The next probe starts in {age(usage.breaker.next_in)}; until then its tasks spend no attempts."

    def explain(self, usage: LimitUsage, text: str) -> Explanation:
        """Name the command that closes it."""
        by = usage.breaker.by if usage.breaker else None
        step = self.remedy(usage)
        advice = step.command if step else "repair the service; the next probe that succeeds closes the breaker"
        return Explanation(self.name, text, advice, ("audit", usage.words) if by else None)

    def remedy(self, usage: LimitUsage) -> RemedyStep | None:
        """Close it, if an operator opened it and no probe has failed since; otherwise its tasks would fail."""
        if usage.breaker is None or usage.breaker.by is None or usage.breaker.round > 1:
            return None
        command = f"runner limit handler {quote(one_line(usage.name))} --breaker close"
        return RemedyStep(self.name, f"the breaker of {usage.words} were closed", command)


BREAKER = BreakerLimit()

LIMITS: tuple[Limit, ...] = (Concurrency(), TenantConcurrency(), StartRate(), BREAKER)
"""Every kind of limit."""


def room(usage: LimitUsage) -> int:
    """The number of tasks that may start now, without the limits per tenant."""
    return min(limit.room(usage) for limit in LIMITS)


def retry_in(usage: LimitUsage) -> float:
    """Seconds until a full queue or handler may have room by itself; infinite if a running task must end first."""
    rate, breaker = usage.limits.rate, usage.breaker
    if Concurrency().room(usage) == 0 or (rate is None and breaker is None):
        return math.inf
    wait = rate.wait(usage.spent, usage.at) if rate else 0.0
    return max(SHORTEST, wait, breaker.next_in if breaker else 0.0)


class WithinLimits(ClaimCondition):
    """No claim exceeds the limits of a queue or a handler; a claim that does not hold them skips limited lanes."""

    name = "limit"

    @staticmethod
    def is_limited(registry: sa.Table) -> Condition:
        """The SQL that a queue or a handler has a limit."""
        columns = [registry.c[limit.column] for limit in LIMITS if limit.column in registry.c]
        return sa.or_(*(column.is_not(None) for column in columns))

    def of_registry(self, registry: sa.Table, locked: Condition | None) -> Sequence[Condition]:
        """The SQL that it has a limit, and that this claim does not hold it."""
        limited = self.is_limited(registry)
        return (limited if locked is None else limited & ~locked,)

    def explain(self, facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        """Name each limit that is full, the tasks that use it, and its author."""
        for usage, limit in () if facts.later else self._full(facts):
            tenant = f", tenant {one_line(facts.task.tenant or '')}" if limit.of_tenants else ""
            step = limit.remedy(usage)
            command = step.command if step else ""
            common = CommonCause(f"{usage.words}: {limit.words(usage.limits)}{tenant}", command)
            yield limit.explain(usage, limit.full(usage, facts.task.tenant))._replace(common=common)

    def remedies(self, facts: ClaimFacts) -> Sequence[RemedyStep] | None:
        """Remove each limit that is full; None if one of them is better kept."""
        steps = [limit.remedy(usage) for usage, limit in self._full(facts)]
        kept = [step for step in steps if step is not None]
        return kept if len(kept) == len(steps) else None

    @staticmethod
    def _full(facts: ClaimFacts) -> Iterator[tuple[LimitUsage, Limit]]:
        for usage in _usages(facts):
            for limit in LIMITS:
                if limit.full(usage, facts.task.tenant):
                    yield usage, limit

    @classmethod
    def room_after_remedies(cls, facts: ClaimFacts) -> int:
        """The number of tasks that surely start in the order of the claim, once the full limits are removed.

        With a limit per tenant, tenants take turns, so only the first task is sure of its place.
        """
        full = [(usage.kind, limit.name) for usage, limit in cls._full(facts)]
        kept = [(usage, limit) for usage in _usages(facts) for limit in LIMITS if (usage.kind, limit.name) not in full]
        turns = any(limit.of_tenants and limit.value(usage.limits) for usage, limit in kept)
        return min([1 if turns else MAX_LIMIT, *(limit.room(usage) for usage, limit in kept)])


def _usages(facts: ClaimFacts) -> list[LimitUsage]:
    """The limits among the facts. Their class is defined here, so claim_facts knows only a part of it."""
    return [usage for usage in facts.limits if isinstance(usage, LimitUsage)]
