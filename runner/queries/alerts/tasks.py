"""The rules of tasks: lost, dead, blocked."""

from collections.abc import Iterator
from itertools import islice

from runner.model.alert import Alert, AlertRule, Severity
from runner.queries.alerts.facts import MAX_KINDS, AlertFacts, shown
from runner.queries.counting import Count, total_of
from runner.text import formatting
from runner.text.sanitize import count_noun


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
        yield Alert(AlertRule.TASKS_FAILING, each.handler, Severity.WARNING, title, text, advice)


def blocked_tasks(facts: AlertFacts) -> Iterator[Alert]:
    """Blocked tasks that only an operator frees."""
    if (blocked := facts.slow.blocked) is not None:
        title = f"{blocked.number.of('task')} blocked by failed tasks"
        text = f"{blocked.task} waits for {blocked.parent}"
        advice = f"Retry the parent: runner retry {blocked.parent}, or: runner unblock {blocked.task}"
        yield Alert(AlertRule.TASKS_BLOCKED, "", Severity.WARNING, title, text, advice)


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - MAX_KINDS:,} more"] if len(names) > MAX_KINDS else []
    return ", ".join([*islice(names, MAX_KINDS), *more])
