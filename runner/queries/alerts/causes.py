"""causes: the alerts as causes, each with the alerts that follow from it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runner.model.alert import Alert, Silence
from runner.queries.alerts.facts import AlertFacts


class AlertCause(NamedTuple):
    """An alert with those that follow from it.

    Args:
        silence: the silence that covers it; None if it sends notices.
    """

    alert: Alert
    effects: tuple[Alert, ...] = ()
    silence: Silence | None = None


def causes(found: Iterable[Alert], facts: AlertFacts, silences: Iterable[Silence]) -> list[AlertCause]:
    """The causes with their effects, and the silenced alerts at the end.

    Args:
        found: the alerts, causes first.
    """
    listed, heard, silenced = list(silences), list[Alert](), list[AlertCause]()
    for alert in found:
        silence = next((each for each in listed if each.covers(alert.name)), None)
        if silence is None:
            heard.append(alert)
        else:
            silenced.append(AlertCause(alert, silence=silence))
    return [*folded(heard, facts), *silenced]


def folded(found: Sequence[Alert], facts: AlertFacts) -> list[AlertCause]:
    """Put each alert that follows from an earlier one below it.

    Args:
        found: the alerts, causes first.
    """
    effects: dict[Alert, list[Alert]] = {}
    for alert in found:
        cause = next((each for each in effects if _follows(alert, each, facts)), None)
        if cause is None:
            effects[alert] = []
        else:
            effects[cause].append(alert)
    return [AlertCause(alert, tuple(below)) for alert, below in effects.items()]


def _follows(effect: Alert, cause: Alert, facts: AlertFacts) -> bool:
    """True for two alerts of one subject, and for a queue most of whose failures are those of a handler."""
    if cause.rule is effect.rule:
        return False
    kinds = (cause.rule.subject, effect.rule.subject)
    if kinds[0] == kinds[1]:
        return bool(cause.subject) and cause.subject == effect.subject
    if kinds != ("handler", "queue"):
        return False
    failed = {key: flow.failed for key, flow in facts.slow.flows.items() if key[0] == effect.subject}
    return failed.get((effect.subject, cause.subject), 0) * 2 > sum(failed.values())
