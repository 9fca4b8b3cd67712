"""Attention: the alerts of a database as lines of the overview, with pauses and hidden queues after them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from types import MappingProxyType
from typing import NamedTuple

from runner.db.transaction import Transaction, clock
from runner.errors import RunnerError
from runner.model.alert import Alert, AlertRule, Severity, Silence
from runner.queries.alerts.facts import MAX_ERROR, MAX_TEXT, AlertFacts, shown
from runner.queries.alerts.rules import alerts
from runner.queries.alerts.thresholds import Thresholds
from runner.queries.deaths import dead_by_handler
from runner.queries.overview import Overview, read_overview
from runner.queries.registries import Pause
from runner.queries.reports import Flow
from runner.text import formatting
from tasktui.render.render import line
from tasktui.session.session import Alarm, Session


class Attention(NamedTuple):
    """One line that needs attention.

    Args:
        role: state whose sign and colour it has: `dead` is broken, `retrying` is worth watching, `lost`, `paused`.
        title: sanitized subject and verb: `mail falls behind`.
        text: sanitized rest of the sentence; figures come first, because a narrow screen cuts its end.
        key: the key that leads to the cause; empty if there is none.
        label: the view that the key opens.
        name: the beginning of the title that a narrow screen may shorten; empty for none.
        alert: the name of the alert; empty for a line that is none.
    """

    role: str
    title: str
    text: str = ""
    key: str = ""
    label: str = ""
    name: str = ""
    alert: str = ""

    @property
    def sentence(self) -> str:
        """Title and text."""
        return f"{self.title}: {self.text}" if self.text else self.title


NO_FLOWS: Mapping[tuple[str, str], Flow] = MappingProxyType({})

SIGNS = {"dead": "✗", "retrying": "!", "lost": "◌", "paused": "‖"}
"""The sign of an alert by its role."""

ROLES = {Severity.CRITICAL: "dead", Severity.WARNING: "retrying", Severity.NOTE: "retrying"}
"""The role of an alert by its severity."""

LOST = {AlertRule.RUNNER_LOST, AlertRule.TASKS_LOST}
"""Rules whose alerts have the role `lost`."""

FAILURES, RUNNERS, TASKS, QUEUE = ("4", "failures"), ("5", "runners"), ("2", "tasks"), ("↵", "tasks")

WAYS: dict[AlertRule, tuple[str, str]] = {
    AlertRule.BREAKER_OPEN: FAILURES,
    AlertRule.QUEUE_FAILING: FAILURES,
    AlertRule.HANDLER_FAILING: FAILURES,
    AlertRule.TASKS_DEAD: FAILURES,
    AlertRule.TASKS_BLOCKED: TASKS,
    AlertRule.QUEUE_BEHIND: QUEUE,
    AlertRule.QUEUE_LATE: QUEUE,
}
"""The key that leads to the cause of an alert, and its view; RUNNERS for the other rules."""


def screen_of(rule: AlertRule) -> str:
    """The screen on which the cause of an alert is."""
    if rule.subject == "schedule":
        return "schedules"
    return WAYS.get(rule, RUNNERS)[1]


KEYS = {AlertRule.TASKS_BLOCKED: "; R retries, U unblocks"}
"""Keys of that view that end the problem."""


def attention(
    facts: AlertFacts, silences: Iterable[Silence] = (), flows: Mapping[tuple[str, str], Flow] = NO_FLOWS
) -> Iterator[Attention]:
    """List the problems, causes first, then the silenced ones and the pauses. A cause has its effects at its end.

    Args:
        flows: results of the last ten minutes by queue and handler, which tell effects from causes.
    """
    overview = facts.overview
    for cause in causes(alerts(facts), facts._replace(flows=flows), silences):
        shown_cause = cause_line(cause, overview.at, facts.zone)
        effects = ", ".join(effect.title for effect in cause.effects)
        yield shown_cause._replace(text=f"{shown_cause.text}; so {effects}") if effects else shown_cause
    for queue in overview.queues:
        if queue.paused:
            yield _paused(line(queue.queue, MAX_TEXT), queue.paused, facts)
    yield from _hidden(overview)
    for handler, pause in overview.handlers.items():
        yield _paused(f"handler {line(handler, MAX_TEXT)}", pause, facts)


def as_attention(alert: Alert) -> Attention:
    """An alert with its sign, and the key that leads to its cause."""
    role = "lost" if alert.rule in LOST else ROLES[alert.severity]
    text = alert.text + KEYS.get(alert.rule, "")
    name = shown(alert.subject)
    name = name if alert.subject and alert.title.startswith(name) else ""
    return Attention(role, alert.title, text, *WAYS.get(alert.rule, RUNNERS), name, alert.name)


async def read_alarm(session: Session) -> Alarm:
    """Count the problems of a database; the first one decides the role."""
    try:
        facts = await session.read(_alarm_facts, session)
    except RunnerError as error:
        return Alarm.of(error)
    problems = [as_attention(alert) for alert in alerts(facts)]
    return Alarm(f"! {len(problems)}", problems[0].role) if problems else Alarm("✓", "succeeded")


async def _alarm_facts(tx: Transaction, session: Session) -> AlertFacts:
    thresholds = Thresholds.of(session.settings)
    at = await clock(tx)
    overview, dead = await tx.gather(read_overview(tx), dead_by_handler(tx, at - thresholds.span))
    return AlertFacts(overview, session.zone, thresholds, dead=dead)


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


def cause_line(cause: AlertCause, at: datetime, zone: tzinfo) -> Attention:
    """A cause with its sign; a silenced one names the end of its silence."""
    shown_alert = as_attention(cause.alert)
    if cause.silence is None:
        return shown_alert
    until = formatting.clock(cause.silence.until, at, zone)
    return shown_alert._replace(role="paused", text=f"silenced until {until}; {shown_alert.text}")


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
    failed = {key: flow.failed for key, flow in facts.flows.items() if key[0] == effect.subject}
    return failed.get((effect.subject, cause.subject), 0) * 2 > sum(failed.values())


def unavailable_databases(sessions: Iterable[Session]) -> Iterator[Attention]:
    """The other databases of the console that cannot be read, each with its error."""
    for session in sessions:
        if session.alarm.error:
            title = f"{line(session.name, MAX_TEXT)} is unavailable, retrying"
            yield Attention("lost", title, line(session.alarm.error, MAX_ERROR), "d", "next")


def _hidden(overview: Overview) -> Iterator[Attention]:
    """There are more queues than a list has room for."""
    if overview.hides_queues:
        text = "listed are those with pauses, limits, lost tasks and failures, and the first by name"
        yield Attention("paused", f"{len(overview.queues):,} queues or more", text)


def _paused(target: str, pause: Pause, facts: AlertFacts) -> Attention:
    at = facts.overview.at
    until = f"until {formatting.clock(pause.until, at, facts.zone)}" if pause.until else "until resumed"
    who, since = line(pause.by, MAX_TEXT), formatting.since(pause.since, at)
    why = f": {line(pause.why, MAX_TEXT)}" if pause.why else ""
    return Attention("paused", f"{target} is paused", f"{until}, by {who} {since} ago{why}", "P", "resume", target)
