"""The rules of alerts, and all current alerts by them: causes before symptoms."""

from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING

from runner.model.alert import Alert, AlertRule, Severity
from runner.model.schedule import TickOutcome
from runner.policy.limits import UNLIMITED
from runner.queries.alerts import runners
from runner.queries.alerts.facts import MAX_ERROR, MAX_KINDS, MAX_TEXT, AlertFacts, shown
from runner.queries.counting import Count, total_of
from runner.queries.counts import QueueCounts
from runner.queries.overview import FEW, MINUTE, NEGLECTED, RECENT, Slowdown
from runner.queries.reports import Flow
from runner.queries.runners import HandlerWithoutRunner
from runner.text import formatting
from runner.text.sanitize import clean, count_noun, shell_word

if TYPE_CHECKING:  # The first data of the console do not need it.
    from runner.queries.schedules import ScheduleRow


def alerts(facts: AlertFacts) -> Iterator[Alert]:
    """List the current problems; a symptom that another alert explains is left out."""
    overview = facts.overview
    outage = list(runners.no_runner(facts))
    yield from outage
    held = list(runners.held_slots(facts))
    yield from held
    yield from runners.blocked_runners(facts)
    yield from runners.stuck_rows(facts)
    yield from runners.failing_runners(facts)
    yield from open_breakers(facts)
    behind = {queue.queue: queue for queue in overview.queues if queue.falls_behind and not outage}
    unclaimed = [without_runner(each, behind, facts.ago(each.due)) for each in overview.unknown if not outage]
    yield from (alert for alert in unclaimed if alert.severity is Severity.CRITICAL)
    failing = list(failing_queues(facts, behind))
    yield from failing
    failing_names = {alert.subject for alert in failing}
    yield from failing_handlers(facts, failing_names)
    if not outage:  # The outage has named the last one.
        yield from runners.lost_runners(facts)
    yield from runners.recently_lost(facts)
    yield from queues_behind(facts, behind, Severity.WARNING if held else Severity.CRITICAL)
    if not outage:
        waiting = {queue for each in overview.unknown for queue in each.queues}
        yield from late_queues(facts, failing_names | behind.keys() | waiting)
        yield from lost_tasks(facts)
    yield from dead_tasks(facts)
    yield from failing_tasks(facts)
    yield from blocked_tasks(facts)
    if facts.slow.schedules:
        yield from late_schedules(facts)
        yield from skipped_schedules(facts)
    yield from bloated_tables(facts)
    yield from (alert for alert in unclaimed if alert.severity is not Severity.CRITICAL)


def causes_of(handler: str) -> str:
    """The command that lists the failures of a handler."""
    return f"The causes: runner failures {quote(f'handler:{clean(handler)}')}"


def open_breakers(facts: AlertFacts) -> Iterator[Alert]:
    """The breaker of a handler is open: its tasks wait for a probe to succeed."""
    for handler, state in ((row.handler, row.state) for row in facts.overview.breakers):
        if state is None:
            continue
        probe = f"next probe in {formatting.age(state.next_in)}" if state.next_in > 0 else _probe(facts, handler)
        by = f" by {shown(state.by)}" if state.by else ""
        why = f": {shown(state.why, MAX_ERROR)}" if state.why else ""
        title = f"the breaker of {shown(handler)} is open"
        text = f"opened {state.since} ago{by}{why}; {probe}"
        advice = causes_of(handler)
        yield Alert(AlertRule.BREAKER_OPEN, handler, Severity.CRITICAL, title, text, advice, state.opened_at)


def _probe(facts: AlertFacts, handler: str) -> str:
    """The due probe of a handler, which a pause of the handler or of each of its queues holds back."""
    if handler in facts.overview.handlers:
        return "no probe while the handler is paused"
    due, recent = ({queue for queue, name in pairs if name == handler} for pairs in (facts.slow.due, facts.slow.flows))
    queues, paused = due or recent, {queue.queue for queue in facts.overview.queues if queue.paused}
    if queues and queues <= paused:
        names = shown(", ".join(sorted(queues)))
        return f"no probe while {f'queue {names} is' if len(queues) == 1 else f'queues {names} are'} paused"
    return "probes now"


def without_runner(unknown: HandlerWithoutRunner, behind: dict[str, QueueCounts], since: datetime | None) -> Alert:
    """A handler that no live runner takes, in one line with the queues that fall behind because of it.

    Args:
        behind: the queues that fall behind, by name; those that this handler explains are removed.
        since: when its first task became due.
    """
    name = shown(unknown.handler)
    name += shown(f" on {' or '.join(unknown.hosts)}", MAX_TEXT) if unknown.hosts else ""
    wait = formatting.age(abs(unknown.due))
    text = f"{f'due for {wait}' if unknown.due >= 0 else f'due in {wait}'}, queue "
    text += shown(", ".join(unknown.queues), MAX_ERROR)
    caused = [behind.pop(queue) for queue in unknown.queues if queue in behind and not behind[queue].minute.finished]
    if caused:
        text += f": {total_of(queue.ready for queue in caused)} ready, none ends"
    severity = Severity.CRITICAL if unknown.due >= NEGLECTED else Severity.NOTE
    advice = "Start a runner with the module that defines it (-H), or terminate these tasks."
    if unknown.hosts:
        advice = "Start a runner on such a host, or let any host take them: runner edit 'hosts:*' --hosts any."
    title = f"no live runner takes {name}"
    return Alert(AlertRule.HANDLER_UNCLAIMED, unknown.handler, severity, title, text, advice, since)


def failing_handlers(facts: AlertFacts, named: Container[str] = ()) -> Iterator[Alert]:
    """Most attempts of a handler fail.

    Args:
        named: the queues whose alert covers their attempts.
    """
    flows: dict[str, Flow] = {}
    for (queue, handler), flow in facts.slow.flows.items():
        if queue not in named:
            flows[handler] = flows.get(handler, Flow()) + flow
    share = facts.thresholds.failing
    for handler, flow in sorted(flows.items()):
        failed, attempts = flow.failed, flow.failed + flow.succeeded
        if failed > FEW and failed > share * attempts:
            of, period = f"{failed:,} of {count_noun(attempts, 'attempt')}", formatting.age(RECENT.total_seconds())
            text = f"{of} in {period} failed (threshold {share:.0%})"
            title = f"{shown(handler)} is failing"
            yield Alert(AlertRule.HANDLER_FAILING, handler, Severity.CRITICAL, title, text, causes_of(handler))


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
        title, since = f"{shown(name)} is failing", facts.overview.failing_since(name)
        yield Alert(AlertRule.QUEUE_FAILING, name, Severity.CRITICAL, title, text, advice, since)


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
        since = facts.ago(-age - limit.total_seconds())
        yield Alert(AlertRule.QUEUE_LATE, name, Severity.WARNING, title, text, _reason(name), since)


def _reason(queue: str) -> str:
    return f"The reason: runner why {quote(f'queue:{clean(queue)} state:ready')}"


def lost_tasks(facts: AlertFacts) -> Iterator[Alert]:
    """Tasks whose runner is lost, and no longer listed."""
    overview = facts.overview
    lost = {shown(queue.queue): queue.lost for queue in overview.queues if queue.lost.number}
    listed = sum(runner.running_tasks for runner in overview.runners if not runner.alive)
    if sum(each.number for each in lost.values()) <= listed:  # The alerts of the lost runners name these tasks.
        return
    count = total_of(lost.values())
    are, them = ("is", "it") if count == Count(1) else ("are", "them")
    title = f"{count.of('task')} of {', '.join(lost)} {are} lost"
    text = f"the lease of the runner expired; a live runner will rescue {them}"
    yield Alert(AlertRule.TASKS_LOST, "", Severity.WARNING, title, text, "The tasks: runner tasks state:lost")


def dead_tasks(facts: AlertFacts) -> Iterator[Alert]:
    """Tasks that died recently, and are still dead as far as that is known."""
    span = formatting.age(facts.thresholds.span.total_seconds())
    advice = f"The causes: runner failures since:{span}. When these are mended: runner retry state:dead."
    total = total_of(facts.slow.dead.values())
    if total.number > facts.thresholds.dead:
        names = [f"{shown(name)} {count}" for name, count in facts.slow.dead.items()]
        text = f"{_listed(names)} (threshold {facts.thresholds.dead:,})"
        title = f"{total.of('task')} died in the last {'hour' if span == '1h' else span}"
        yield Alert(AlertRule.TASKS_DEAD, "", Severity.CRITICAL, title, text, advice)


def failing_tasks(facts: AlertFacts) -> Iterator[Alert]:
    """Tasks that failed again and again, and are not dead yet."""
    for each in facts.slow.repeated:
        verb = "keeps" if each.tasks == 1 else "keep"
        title = f"{count_noun(each.tasks, 'task')} of {shown(each.handler)} {verb} failing"
        text = f"task {each.task}, up to attempt {each.attempts} (threshold {facts.thresholds.failures:,} failures)"
        advice = f"Its errors: runner show {each.task}"
        yield Alert(AlertRule.TASKS_FAILING, each.handler, Severity.WARNING, title, text, advice, each.since)


def blocked_tasks(facts: AlertFacts) -> Iterator[Alert]:
    """Blocked tasks that only an operator frees."""
    if (blocked := facts.slow.blocked) is not None:
        title = f"{blocked.number.of('task')} blocked by failed tasks"
        text = f"{blocked.task} waits for {blocked.parent}"
        advice = f"Retry the parent: runner retry {blocked.parent}, or: runner unblock {blocked.task}"
        yield Alert(AlertRule.TASKS_BLOCKED, "", Severity.WARNING, title, text, advice, blocked.since)


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - MAX_KINDS:,} more"] if len(names) > MAX_KINDS else []
    return ", ".join([*islice(names, MAX_KINDS), *more])


OFTEN = 3
"""Skipped or missed ticks among the last ticks from which a schedule does not keep up."""

TICKS = 5
"""The last ticks of a schedule that are judged."""


def late_schedules(facts: AlertFacts) -> Iterator[Alert]:
    """A schedule that cannot run, or whose run has not started for too long; a pause is a decision of people."""
    for row in facts.slow.schedules:
        late = row.lateness(facts.overview.at)
        if row.pause is not None:
            continue
        if row.error is not None:
            title, text = f"schedule {shown(row.id)} cannot run", shown(row.error, MAX_ERROR)
            yield Alert(AlertRule.SCHEDULE_LATE, row.id, Severity.CRITICAL, title, text, row.remedy)
        elif late is not None and late > facts.thresholds.late:
            title = f"schedule {shown(row.id)} is late"
            text = f"{formatting.age(late)} (threshold {formatting.age(facts.thresholds.late)})"
            since = facts.overview.at - (late - facts.thresholds.late)
            yield Alert(AlertRule.SCHEDULE_LATE, row.id, Severity.WARNING, title, text, _show(row), since)


def skipped_schedules(facts: AlertFacts) -> Iterator[Alert]:
    """A schedule most of whose last ticks did not run: its runs take longer than its period, or no runner was up."""
    for row in facts.slow.schedules:
        outcomes = [run.outcome for run in row.runs[:TICKS]]
        skipped, missed = outcomes.count(TickOutcome.SKIPPED), outcomes.count(TickOutcome.MISSED)
        if row.pause is None and skipped + missed >= OFTEN:
            title = f"schedule {shown(row.id)} does not keep up"
            text = f"{skipped} skipped and {missed} missed of its last {len(outcomes)} ticks"
            yield Alert(AlertRule.SCHEDULE_SKIPPED, row.id, Severity.WARNING, title, text, _show(row))


def _show(row: "ScheduleRow") -> str:
    return f"Its runs: runner schedules show {shell_word(row.id)}"


MUCH_FREE = 1 << 30
"""Unused bytes of a file that are reported if they are also half of it."""


def bloated_tables(facts: AlertFacts) -> Iterator[Alert]:
    """Dead rows that outnumber the live ones, or a file of which half is unused."""
    if (health := facts.slow.health) is None:
        return
    for table in health.dead:
        if table.is_bloated:
            last = f"{formatting.age(table.vacuumed)} ago" if table.vacuumed is not None else "never"
            size = f", {formatting.size(health.tables[table.table])}" if table.table in health.tables else ""
            text = f"{table.dead:,} dead and {table.live:,} live rows{size}; last vacuum: {last}"
            title, advice = f"table {shown(table.table)} is bloated", f"Find old transactions, then: {table.remedy}"
            yield Alert(AlertRule.TABLE_BLOATED, table.table, Severity.WARNING, title, text, advice)
    if health.free is not None and health.size and MUCH_FREE < health.free > health.size / 2:
        text = f"{formatting.size(health.free)} of {formatting.size(health.size)} are unused"
        advice = "While all runners are stopped: VACUUM"
        yield Alert(AlertRule.TABLE_BLOATED, "", Severity.WARNING, "the database file is bloated", text, advice)
