"""Report mail: the report of a period, sent to the receivers of e-mail by a task."""

from datetime import datetime, timedelta

from runner.alerts.mail import MailAddress, new_mail, send_mail
from runner.alerts.receivers import Receivers
from runner.alerts.sending import MAX_CALLS, in_own_thread
from runner.client.handler import handler
from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.handlers.resources import injected
from runner.model.alert import QUEUE
from runner.model.duration import parse_duration
from runner.model.outcome import Dead
from runner.queries.past.report import PeriodReport, as_page, report
from runner.settings.receivers import Receiver
from runner.text.formatting import share
from runner.text.operator import local_zone
from runner.text.sanitize import one_line

DAY = "%Y-%m-%d"


@handler("runner.alerts.report", queue=QUEUE, retry="exp:1m*2<1h", max_attempts=10, timeout="10m")
async def mail_report(since: str = "7d", receivers: Receivers = injected) -> list[str]:
    """Mail the report of the last days, as `runner reports --html` writes it, to each receiver of e-mail.

    Args:
        since: length of the period, such as 7d.
        receivers: those of the runner.

    Returns:
        The servers that took it.

    Raises:
        InvalidDuration: the length is not a duration.
        Dead: no receiver takes e-mail, or one refuses it for good.
        Exception: a receiver does not take it for now.
    """
    settings, period, to = receivers.settings, parse_duration(since), receivers.mail
    if not to:
        raise Dead("the setting alert_receivers names no receiver of e-mail, such as ops=smtp://HOST?from=A@B&to=C@D")
    database = Database.of(settings, read_only=True)
    try:
        found = await database.read(_report_since, period)
    finally:
        await database.dispose()
    for receiver in to:
        await in_own_thread(receiver.name, MAX_CALLS, _send, receiver, found, settings.called)
    return [str(receiver) for receiver in to]


async def _report_since(tx: Transaction, period: timedelta) -> PeriodReport:
    return await report(tx, await clock(tx) - period)


def _send(receiver: Receiver, found: PeriodReport, name: str) -> None:
    to, zone = MailAddress.of(receiver), local_zone()
    since, until = (at.astimezone(zone) for at in (found.handlers.since, found.handlers.until))
    title = one_line(f"[{name}] Tasks from {since:{DAY}} to {until:{DAY}}")
    mail = new_mail(to, title, _summary(found, since, until))
    page = as_page(found, name, zone)
    mail.add_attachment(page.encode(), "text", "html", filename=f"tasks-{until:{DAY}}.html")
    send_mail(to, mail)


def _summary(found: PeriodReport, since: datetime, until: datetime) -> str:
    total = found.handlers.total
    flow = total.flow
    figures = [
        f"{total.submitted.of('task')} submitted, {flow.succeeded:,} succeeded, {flow.died:,} died.",
        f"Success: {share(flow.success_rate)}, at the first attempt {share(total.first_try_rate)}.",
    ]
    worst = sorted((line for line in found.handlers.lines if line.flow.died), key=lambda line: -line.flow.died)[:10]
    dead = [f"  {one_line(line.name)}: {line.flow.died:,}" for line in worst]
    period = f"From {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M %Z}. The attached page has charts and failures."
    return "\n".join([*figures, *(["", "Dead by handler:", *dead] if dead else []), "", period, ""])
