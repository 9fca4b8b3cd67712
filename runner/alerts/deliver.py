"""Delivery: the task that sends a notice to one receiver, retried as every task is."""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.alerts.mail import MailAddress, new_mail, send_mail
from runner.alerts.notice import TEST, AlertNotice, Message, utc
from runner.alerts.receivers import Receivers, alert_receivers
from runner.alerts.sending import TooManyCalls, in_own_thread
from runner.alerts.webhook import post
from runner.client.handler import handler
from runner.errors import InvalidInput, InvalidSettings, PackageMissing
from runner.handlers.registry import Handler
from runner.handlers.resources import injected
from runner.model.alert import DELIVER, QUEUE, Severity, TrialResult
from runner.model.outcome import Dead, Snooze
from runner.settings import Settings
from runner.settings.receivers import Receiver
from runner.text.operator import now
from runner.text.sanitize import error_text, one_line

BUSY = "5s"
"""The pause of a notice while slow calls have the whole share of its receiver."""

log = logging.getLogger("runner.alerts")


@handler(DELIVER, queue=QUEUE, retry="exp:5s*2<15m", max_attempts=20, timeout="2m", codec="none")
async def deliver(notice: AlertNotice, receiver: str, receivers: Receivers = injected) -> str:
    """Send a notice.

    Args:
        receiver: the name of a receiver of the runner.
        receivers: those of the runner.

    Returns:
        The receiver with the host that took it.

    Raises:
        Dead: the receiver refuses it for good, or its address is not valid.
        Snooze: slow calls have the slots of this receiver; the others are for other receivers.
        Exception: the receiver does not take it for now.
    """
    to = receivers.find(receiver)
    try:
        await in_own_thread(to.name, receivers.share, send, to, notice)
    except TooManyCalls as error:
        raise Snooze(BUSY, str(error)) from None
    return str(to)


def send(receiver: Receiver, notice: AlertNotice) -> None:
    """Send a notice at once; waits for the server.

    Raises:
        Dead, Exception: see `deliver`.
    """
    message = Message.of(notice)
    if receiver.is_mail:
        _mail(receiver, message)
    elif receiver.is_web:
        post(receiver, notice)
    else:
        notify(receiver, message)


def check(receiver: Receiver) -> None:
    """Check that notices can be sent to a receiver; connects to nothing.

    Raises:
        Dead: its address is not complete, or not known.
        PackageMissing: apprise is not installed, and the receiver needs it.
    """
    if receiver.is_mail:
        MailAddress.of(receiver)
    elif not receiver.is_web:
        service_of(receiver)


def _mail(receiver: Receiver, message: Message) -> None:
    """Send a mail. All mails of one alert form a thread, which its first mail begins."""
    to = MailAddress.of(receiver)
    mail = new_mail(to, message.headline, message.text, message.html)
    first = f"<{message.thread}@tasktui>"
    if message.is_first:
        mail["Message-ID"] = first
    else:
        mail["Message-ID"] = f"<{message.thread}.end@tasktui>"
        mail["In-Reply-To"] = mail["References"] = first
    for refused in send_mail(to, mail):
        log.warning("%s refused %s; the other recipients have the mail", to, refused)


class AppriseFailed(Exception):
    """A service did not take a notice."""


def service_of(receiver: Receiver) -> Any:
    """Return the `Apprise` with the address of a receiver; connects to nothing.

    Raises:
        PackageMissing: apprise is not installed.
        Dead: apprise does not know the address.
    """
    try:
        import apprise
    except ModuleNotFoundError:
        raise PackageMissing(package="apprise", use=f"receiver {receiver}", extra="alerts", instead="") from None
    service = apprise.Apprise()
    if not service.add(receiver.url):
        raise Dead(f"apprise does not accept the address of receiver {receiver.name}: see its list of services")
    return service


def notify(receiver: Receiver, message: Message) -> None:
    """Send a message; waits for the service.

    Raises:
        AppriseFailed: the service did not take it. Apprise logs the reason at its logger `apprise`.
        PackageMissing, Dead: see `service_of`.
    """
    service = service_of(receiver)
    from apprise import NotifyType

    kind = NotifyType.WARNING if message.is_first else NotifyType.SUCCESS
    if not service.notify(title=message.headline, body=message.text, notify_type=kind):
        raise AppriseFailed(f"{receiver} did not take the notice: the logger apprise has the reason")


class RunnerWithAlerts(NamedTuple):
    """The settings, the handlers and the open resources of a runner that sends notices."""

    settings: Settings
    handlers: dict[str, Handler]
    resources: dict[str, Any]


def with_alerts(settings: Settings, handlers: Mapping[str, Handler], resources: Mapping[str, Any]) -> RunnerWithAlerts:
    """Add the handlers of alerts, their receivers, and their queue if the runner serves certain queues only.

    Raises:
        InvalidSettings: notices cannot be sent to a receiver.
        PackageMissing: a receiver needs a package that is not installed.
    """
    receivers = Receivers.of(settings)
    try:
        for receiver in receivers.by_name.values():
            check(receiver)
    except Dead as error:
        raise InvalidSettings(where=settings.origins.of("alert_receivers"), why=str(error)) from None
    queues = (*settings.queues, QUEUE) if settings.queues else ()
    return RunnerWithAlerts(
        settings.model_copy(update={"queues": queues}),
        {**handlers, deliver.name: deliver},
        {**resources, alert_receivers.name: receivers},
    )


def try_receivers(settings: Settings, name: str | None) -> list[TrialResult]:
    """Send a notice to one receiver, or to all; waits for the servers.

    Raises:
        InvalidInput: the settings name no receiver, or not this one.
    """
    receivers = Receivers.of(settings).by_name
    if not receivers:
        raise InvalidInput(why="the setting alert_receivers names no receiver, such as hook=https://HOST/PATH")
    if name is not None and name not in receivers:
        raise InvalidInput(why=f"no receiver has the name {one_line(name)}; use {', '.join(sorted(receivers))}")
    since = utc(now())
    texts = ("this notice tries the receivers", "no alert fires because of it", "")
    notice = AlertNotice("firing", TEST, "", Severity.WARNING, *texts, since, None, settings.called)
    results = []
    for receiver in receivers.values() if name is None else [receivers[name]]:
        problem = ""
        try:
            send(receiver, notice)
        except Exception as error:
            problem = one_line(error_text(error))
        results.append(TrialResult(str(receiver), problem))
    return results
