"""The rules of schedules: late, or kept from running by skipped or missed ticks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.model.alert import Alert, AlertRule, Severity
from runner.model.schedule import TickOutcome
from runner.queries.alerts.facts import MAX_ERROR, AlertFacts, shown
from runner.text import formatting
from runner.text.sanitize import shell_word

if TYPE_CHECKING:  # The first data of the console do not need it.
    from runner.queries.schedules import ScheduleRow

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
            yield Alert(AlertRule.SCHEDULE_LATE, row.id, Severity.WARNING, title, text, _show(row))


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
