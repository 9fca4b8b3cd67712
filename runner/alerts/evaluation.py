"""Evaluation: one runner finds the alerts in each period, and submits a delivery of each notice to each receiver."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from urllib.request import Request

from runner.alerts.notice import AlertNotice
from runner.alerts.sending import MAX_CALLS, in_own_thread
from runner.alerts.webhook import fetch
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import DatabaseUnavailable
from runner.model.alert import DELIVER, QUEUE, Alert, AlertRecord, Severity
from runner.queries.alerts.facts import AlertFacts
from runner.queries.alerts.reading import read_facts
from runner.queries.alerts.rules import alerts
from runner.queries.alerts.thresholds import Thresholds
from runner.settings import Settings
from runner.settings.receivers import parse_receiver
from runner.settings.types import Masked, value_text
from runner.store.alerts import AlertChanges, claim_evaluation, record_alerts
from runner.store.submit import submit_many

log = logging.getLogger("runner.alerts")


async def ping(address: Masked | str) -> None:
    """Call the address once. A failure is a line of the log: the next evaluation calls again."""
    request = Request(address, headers={"User-Agent": "tasktui"})  # noqa: S310 - the scheme is checked with the settings
    try:
        await in_own_thread("alert_ping", MAX_CALLS, fetch, request, value_text(address))
    except Exception as error:
        log.warning("could not call the setting alert_ping: %s", error)


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
    return alerts[0]._replace(subject="", title=title, text=text, advice=advice)


class Evaluation:
    """The evaluations of one runner. All runners try, and one succeeds in each period.

    It is a tick and no task: when a handler holds all slots, an evaluation must still run.

    Args:
        settings: the period, the thresholds and the receivers.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._every = settings.alert_interval.total_seconds()
        self._thresholds = Thresholds.of(settings)
        self._receivers = [parse_receiver(text).name for text in settings.alert_receivers]
        self._notify = settings.notify
        self._ping = settings.alert_ping
        self._name = settings.called

    async def run(self) -> None:
        """Evaluate the rules, unless a runner has done so within the period."""
        with suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            if await self._database.write(claim_evaluation, self._every):
                facts = without_deliveries(await self._database.read(read_facts, self._thresholds))
                found = [alert for alert in alerts(facts) if alert.severity is not Severity.NOTE]
                _log(await self._database.write(self._record, list(grouped(found)), facts.overview.at))
                if self._ping is not None:
                    await ping(self._ping)

    async def _record(self, tx: Transaction, found: Sequence[Alert], at: datetime) -> AlertChanges:
        """Store the alerts, and submit the deliveries of their notices in the same transaction."""
        changes = await record_alerts(tx, found, at, self._every)
        notices = [AlertNotice.of(record, self._name) for record in (*changes.fired, *changes.resolved)]
        if tasks := [notice.task(receiver) for notice in notices for receiver in self._receivers]:
            await submit_many(tx, tasks, notify=self._notify)
        return changes


def without_deliveries(facts: AlertFacts) -> AlertFacts:
    """Leave out the deliveries: one that fails must not cause a notice, whose delivery would fail too."""
    overview, slow = facts.overview, facts.slow
    return replace(
        facts,
        overview=overview._replace(
            queues=tuple(queue for queue in overview.queues if queue.queue != QUEUE),
            pulses={queue: flows for queue, flows in overview.pulses.items() if queue != QUEUE},
            unknown=tuple(each for each in overview.unknown if each.handler != DELIVER),
            breakers=[row for row in overview.breakers if row.handler != DELIVER],
        ),
        slow=replace(
            slow,
            results={
                runner: {handler: flow for handler, flow in flows.items() if handler != DELIVER}
                for runner, flows in slow.results.items()
            },
            dead={handler: count for handler, count in slow.dead.items() if handler != DELIVER},
            flows={names: flow for names, flow in slow.flows.items() if names[1] != DELIVER},
            due={names: age for names, age in slow.due.items() if names[0] != QUEUE},
            repeated=[each for each in slow.repeated if each.handler != DELIVER],
        ),
    )


def _log(changes: AlertChanges) -> None:
    for record in changes.fired:
        log.warning("alert %s: %s", record.name, _sentence(record))
    for record in changes.resolved:
        log.info("alert %s is over: %s", record.name, record.title)


def _sentence(record: AlertRecord) -> str:
    return f"{record.title}: {record.text}" if record.text else record.title
