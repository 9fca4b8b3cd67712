"""Delivery: the task that sends a notice to one receiver, retried as every task is."""

import logging

from runner.alerts.mail import MailAddress, new_mail, send_mail
from runner.alerts.message import Message
from runner.alerts.notice import AlertNotice
from runner.alerts.receivers import Receivers
from runner.alerts.sending import in_own_thread
from runner.alerts.webhook import post
from runner.client.handler import handler
from runner.handlers.resources import injected
from runner.model.alert import DELIVER, QUEUE
from runner.settings.receivers import Receiver

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
        Exception: the receiver does not take it for now.
    """
    to = receivers.find(receiver)
    await in_own_thread(send, to, notice)
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
        from runner.alerts.apprise import notify

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
        from runner.alerts.apprise import service_of

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
