"""The rule of tables: space that no row uses."""

from collections.abc import Iterator

from runner.model.alert import Alert, AlertRule, Severity
from runner.queries.alerts.facts import AlertFacts, shown
from runner.text import formatting

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
