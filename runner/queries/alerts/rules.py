"""The rules together: all current alerts, causes before symptoms."""

from collections.abc import Iterator

from runner.model.alert import Alert, Severity
from runner.queries.alerts import handlers, queues, runners, schedules, tables, tasks
from runner.queries.alerts.facts import AlertFacts


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
    yield from handlers.open_breakers(facts)
    behind = {queue.queue: queue for queue in overview.queues if queue.falls_behind and not outage}
    unclaimed = [handlers.without_runner(each, behind) for each in overview.unknown if not outage]
    yield from (alert for alert in unclaimed if alert.severity is Severity.CRITICAL)
    failing = list(queues.failing_queues(facts, behind))
    yield from failing
    failing_names = {alert.subject for alert in failing}
    yield from handlers.failing_handlers(facts, failing_names)
    if not outage:  # The outage has named the last one.
        yield from runners.lost_runners(facts)
    yield from runners.recently_lost(facts)
    yield from queues.queues_behind(facts, behind, Severity.WARNING if held else Severity.CRITICAL)
    if not outage:
        waiting = {queue for each in overview.unknown for queue in each.queues}
        yield from queues.late_queues(facts, failing_names | behind.keys() | waiting)
        yield from tasks.lost_tasks(facts)
    yield from tasks.dead_tasks(facts)
    yield from tasks.failing_tasks(facts)
    yield from tasks.blocked_tasks(facts)
    if facts.slow.schedules:
        yield from schedules.late_schedules(facts)
        yield from schedules.skipped_schedules(facts)
    yield from tables.bloated_tables(facts)
    yield from (alert for alert in unclaimed if alert.severity is not Severity.CRITICAL)
