"""Attention: the alerts of a database as lines of the overview, with pauses and hidden queues after them."""

from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from typing import NamedTuple

from runner.db.transaction import Transaction
from runner.errors import RunnerError
from runner.model.alert import Alert, AlertRule, Severity, Silence
from runner.queries.alerts.causes import AlertCause, causes
from runner.queries.alerts.facts import MAX_ERROR, MAX_KINDS, MAX_TEXT, AlertFacts, shown
from runner.queries.alerts.rules import alerts
from runner.queries.alerts.thresholds import Thresholds
from runner.queries.overview import Overview, read_overview
from runner.queries.registries import Pause
from runner.text import formatting
from tasktui.render.render import line
from tasktui.session.session import Alarm, Session


class Attention(NamedTuple):
    """One line that needs attention.

    Args:
        role: state whose sign and colour it has: `dead` is broken, `retrying` is worth watching, `lost`, `paused`.
        title: sanitized subject and verb: `mail falls behind`.
        text: sanitized rest of the sentence; figures come first, because a narrow screen cuts its end.
        key: the key that opens the view of the cause; empty if there is none, or if it acts on a selected row.
        label: the view of the cause.
        name: the beginning of the title that a narrow screen may shorten; empty for none.
        alert: the name of the alert; empty for a line that is none.
        kind: the kind of its subject, as `AlertRule.subject`, or `database`.
        subject: the exact name of its subject; empty if it has none.
        effects: the alerts that follow from it.
    """

    role: str
    title: str
    text: str = ""
    key: str = ""
    label: str = ""
    name: str = ""
    alert: str = ""
    kind: str = ""
    subject: str = ""
    effects: tuple[Alert, ...] = ()

    @property
    def sentence(self) -> str:
        """Title and text."""
        return f"{self.title}: {self.text}" if self.text else self.title

    @property
    def summary(self) -> str:
        """The text, and the titles of its effects at the end."""
        return f"{self.text}; so {', '.join(effect.title for effect in self.effects)}" if self.effects else self.text


SIGNS = {"dead": "✗", "retrying": "!", "lost": "◌", "paused": "‖"}
"""The sign of an alert by its role."""

ROLES = {Severity.CRITICAL: "dead", Severity.WARNING: "retrying", Severity.NOTE: "retrying"}
"""The role of an alert by its severity."""

LOST = {AlertRule.RUNNER_LOST, AlertRule.TASKS_LOST}
"""Rules whose alerts have the role `lost`."""

FAILURES, RUNNERS, SCHEDULES, TASKS = ("4", "failures"), ("5", "runners"), ("6", "schedules"), ("2", "tasks")
SUBJECT = ("", "tasks")
"""The tasks of the subject of an alert, which the list of alerts opens."""

WAYS: dict[AlertRule, tuple[str, str]] = {
    AlertRule.BREAKER_OPEN: FAILURES,
    AlertRule.QUEUE_FAILING: FAILURES,
    AlertRule.HANDLER_FAILING: FAILURES,
    AlertRule.TASKS_DEAD: FAILURES,
    AlertRule.TASKS_BLOCKED: TASKS,
    AlertRule.TASKS_FAILING: FAILURES,
    AlertRule.QUEUE_BEHIND: SUBJECT,
    AlertRule.QUEUE_LATE: SUBJECT,
    AlertRule.SCHEDULE_LATE: SCHEDULES,
    AlertRule.SCHEDULE_SKIPPED: SCHEDULES,
    AlertRule.TABLE_BLOATED: ("h", "health"),
}
"""The key that opens the view of the cause of an alert, and this view; RUNNERS for the other rules."""


KEYS = {AlertRule.TASKS_BLOCKED: "; R retries, U unblocks"}
"""Keys of that view that end the problem."""


def attention(facts: AlertFacts, silences: Iterable[Silence] = ()) -> list[Attention]:
    """List the problems, causes with their effects first, then the silenced ones and the pauses."""
    overview = facts.overview
    return [
        *(cause_line(cause, overview.at, facts.zone) for cause in causes(alerts(facts), facts, silences)),
        *(_paused("queue", queue.queue, queue.paused, facts) for queue in overview.queues if queue.paused),
        *_hidden(overview),
        *(_paused("handler", handler, pause, facts) for handler, pause in overview.handlers.items()),
        *_paused_schedules(facts),
    ]


def as_attention(alert: Alert) -> Attention:
    """An alert with its sign, and the key that leads to its cause."""
    role = "lost" if alert.rule in LOST else ROLES[alert.severity]
    text = alert.text + KEYS.get(alert.rule, "")
    name = shown(alert.subject)
    name = name if alert.subject and alert.title.startswith(name) else ""
    way, kind = WAYS.get(alert.rule, RUNNERS), alert.rule.subject
    return Attention(role, alert.title, text, *way, name, alert.name, kind, alert.subject)


async def read_alarm(session: Session) -> Alarm:
    """Count the problems of a database; the first one decides the role."""
    try:
        problems = await session.read(_problems, session)
    except RunnerError as error:
        return Alarm.of(error)
    if not problems:
        return Alarm("✓", "succeeded")
    role = problems[0].role
    return Alarm(f"{SIGNS[role] if role == 'paused' else '!'} {len(problems)}", role)


async def _problems(tx: Transaction, session: Session) -> list[Attention]:
    from runner.queries.alerts.reading import slow_facts  # none of these is needed for the first data
    from runner.queries.alerts.records import read_silences

    thresholds = Thresholds.of(session.settings)
    overview, slow, silences = await tx.gather(read_overview(tx), slow_facts(tx, thresholds), read_silences(tx))
    return attention(AlertFacts(overview, slow, session.zone, thresholds), silences)


def cause_line(cause: AlertCause, at: datetime, zone: tzinfo) -> Attention:
    """A cause with its sign and effects; a silenced one names the end of its silence."""
    shown_alert = as_attention(cause.alert)._replace(effects=cause.effects)
    if cause.silence is None:
        return shown_alert
    until = formatting.clock(cause.silence.until, at, zone)
    return shown_alert._replace(role="paused", text=f"silenced until {until}; {shown_alert.text}")


def unavailable_databases(sessions: Iterable[Session]) -> Iterator[Attention]:
    """The other databases of the console that cannot be read, each with its error."""
    for session in sessions:
        if session.alarm.error:
            title = f"{line(session.name, MAX_TEXT)} is unavailable, retrying"
            text = line(session.alarm.error, MAX_ERROR)
            yield Attention("lost", title, text, "d", "next", kind="database", subject=session.name)


def _hidden(overview: Overview) -> Iterator[Attention]:
    """There are more queues than a list has room for."""
    if overview.hides_queues:
        text = "listed are those with pauses, limits, lost tasks and failures, and the first by name"
        yield Attention("paused", f"{len(overview.queues):,} queues or more", text, *SUBJECT)


def _paused(kind: str, name: str, pause: Pause, facts: AlertFacts) -> Attention:
    at, target = facts.overview.at, line(name, MAX_TEXT)
    target = target if kind == "queue" else f"{kind} {target}"
    way = SCHEDULES if kind == "schedule" else SUBJECT
    until = f"until {formatting.clock(pause.until, at, facts.zone)}" if pause.until else "until resumed"
    who, since = line(pause.by, MAX_TEXT), formatting.since(pause.since, at)
    why = f": {line(pause.why, MAX_ERROR)}" if pause.why else ""
    text = f"{until}, by {who} {since} ago{why}"
    return Attention("paused", f"{target} is paused", text, *way, target, kind=kind, subject=name)


def _paused_schedules(facts: AlertFacts) -> Iterator[Attention]:
    """The pauses of schedules in one line: some last for months, and no task waits for their ticks."""
    pauses = {row.id: row.pause for row in facts.slow.schedules if row.pause is not None}
    if len(pauses) < 2:
        yield from (_paused("schedule", name, pause, facts) for name, pause in pauses.items())
        return
    names = [line(name, MAX_TEXT) for name in pauses]
    more = f" and {len(names) - MAX_KINDS:,} more" if len(names) > MAX_KINDS else ""
    first = min(pauses.values(), key=lambda pause: pause.since or facts.overview.at)
    since = formatting.since(first.since, facts.overview.at)
    text = f"{', '.join(names[:MAX_KINDS])}{more}; the first by {line(first.by, MAX_TEXT)} {since} ago"
    yield Attention("paused", f"{len(names):,} schedules are paused", text, *SCHEDULES, kind="schedule")
