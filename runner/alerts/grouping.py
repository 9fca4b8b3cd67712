"""Grouping: many alerts of one rule become one, so that an outage sends one notice and not a hundred."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.model.alert import Alert

MOST_OF_RULE = 5
"""Alerts of one rule that each send a notice of their own."""

NAMED = 3
"""Alerts that are named in the alert of a group."""


def grouped(alerts: Sequence[Alert]) -> Iterator[Alert]:
    """Put one alert of the rule in the place of more than MOST_OF_RULE alerts of it."""
    numbers = Counter(alert.rule for alert in alerts)
    done = set()
    for alert in alerts:
        if numbers[alert.rule] <= MOST_OF_RULE:
            yield alert
        elif alert.rule not in done:
            done.add(alert.rule)
            yield _group([each for each in alerts if each.rule is alert.rule])


def _group(alerts: Sequence[Alert]) -> Alert:
    titles = "; ".join(alert.title for alert in alerts[:NAMED])
    title, text = f"{len(alerts):,} alerts of the rule {alerts[0].rule}", f"{titles}; {len(alerts) - NAMED:,} more"
    advice = f"All of them: runner alerts --rule {alerts[0].rule}"
    return replace(alerts[0], subject="", title=title, text=text, advice=advice)
