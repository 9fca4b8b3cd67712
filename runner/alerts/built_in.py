"""Built-in handlers: those of a runner that sends notices of alerts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.alerts.deliver import check, deliver
from runner.alerts.receivers import Receivers, alert_receivers
from runner.errors import InvalidSettings
from runner.handlers.registry import Handler
from runner.model.alert import QUEUE
from runner.model.outcome import Dead
from runner.settings import Settings


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
