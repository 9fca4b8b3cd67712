"""Apprise: sends notices to chats and other services, by the library of that name."""

from typing import Any

from runner.alerts.message import Message
from runner.errors import PackageMissing
from runner.model.outcome import Dead
from runner.settings.receivers import Receiver


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
