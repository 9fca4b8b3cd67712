"""The rules of queues: failing, falling behind, late."""

from collections.abc import Container, Iterator
from datetime import timedelta
from shlex import quote

from runner.model.alert import Alert, AlertRule, Severity
from runner.policy.limits import UNLIMITED
from runner.queries.alerts.facts import MAX_ERROR, AlertFacts, shown
from runner.queries.counts import QueueCounts
from runner.queries.overview import MINUTE, Slowdown
from runner.text import formatting
from runner.text.sanitize import clean, count_noun

DEPLOY_NEAR = timedelta(minutes=15)
"""The time from a deploy to failures that it may have caused."""

MOST_LATE = 3
"""Late queues that are named, the latest first."""


def failing_queues(facts: AlertFacts, behind: dict[str, QueueCounts]) -> Iterator[Alert]:
    """Most attempts of a queue fail.

    Args:
        behind: the queues that fall behind, by name; those that fail are removed, because the failures are the cause.
    """
    for name, (failed, attempts) in facts.overview.failing_from(facts.thresholds.failing).items():
        text = f"{failed:,} of {count_noun(attempts, 'attempt')} in 10 min, {_since(facts, name)}"
        if (queue := behind.pop(name, None)) is not None:
            text += f"; falls behind: {_rates(queue)}"
        advice = f"The causes: runner failures {quote(f'queue:{clean(name)}')}"
        yield Alert(AlertRule.QUEUE_FAILING, name, Severity.CRITICAL, f"{shown(name)} is failing", text, advice)


def _since(facts: AlertFacts, queue: str) -> str:
    """Since when most attempts of a queue fail, its most frequent error, and the deploy just before."""
    overview = facts.overview
    since, error = overview.failing_since(queue), overview.diagnoses.errors.get(queue)
    text = f"since {formatting.clock(since, overview.at, facts.zone)}"
    text += f": {shown(formatting.brief(error), MAX_ERROR)}" if error else ""
    for version, at in list(overview.deploys.items())[1:]:
        if -MINUTE < since - at < DEPLOY_NEAR:
            text += f", {formatting.age(max(0.0, (since - at).total_seconds()))} after deploy {shown(version, 20)}"
    return text


def queues_behind(facts: AlertFacts, behind: dict[str, QueueCounts], severity: Severity) -> Iterator[Alert]:
    """A queue falls behind without another alert that explains it.

    Args:
        behind: these queues by name.
        severity: lower if held slots are the cause.
    """
    for name, queue in behind.items():
        text = _behind(queue, facts.overview.diagnoses.slow.get(name))
        title = f"{shown(name)} falls behind"
        yield Alert(AlertRule.QUEUE_BEHIND, name, severity, title, text, _reason(name))


def _rates(queue: QueueCounts) -> str:
    return f"{queue.arrived} in, {queue.minute.finished:,} out per min"


def _behind(queue: QueueCounts, slow: Slowdown | None) -> str:
    text = _rates(queue) + (f"; limit: {queue.limits}" if queue.limits != UNLIMITED else "")
    if slow is None or slow.p95 is None:
        return text
    now, before = formatting.duration(slow.p95), formatting.duration(slow.before) if slow.before is not None else ""
    was = f", was {before}" if before not in ("", now) else ""
    return f"{text}; slowest handler {shown(slow.handler)} (p95 {now}{was})"


def late_queues(facts: AlertFacts, named: Container[str] = ()) -> Iterator[Alert]:
    """The first ready task of a queue has been due for too long; a pause is a decision of people.

    Args:
        named: the queues with another alert, which is the cause.
    """
    limit, overview = facts.thresholds.late, facts.overview
    paused, due = {queue.queue for queue in overview.queues if queue.paused}, dict[str, float]()
    for (queue, handler), age in facts.slow.due.items():
        if queue not in paused and handler not in overview.handlers:
            due[queue] = max(due.get(queue, 0.0), age)
    late = sorted((-age, queue) for queue, age in due.items() if age > limit.total_seconds())
    for age, name in [each for each in late if each[1] not in named][:MOST_LATE]:
        text = f"its first ready task has been due for {formatting.age(-age)}"
        text += f" (threshold {formatting.age(limit.total_seconds())})"
        title = f"queue {shown(name)} is late"
        yield Alert(AlertRule.QUEUE_LATE, name, Severity.WARNING, title, text, _reason(name))


def _reason(queue: str) -> str:
    return f"The reason: runner why {quote(f'queue:{clean(queue)} state:ready')}"
