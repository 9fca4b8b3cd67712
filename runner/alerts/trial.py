"""Trial: a notice that is sent to the receivers at once, so that a person sees if it arrives."""

from datetime import UTC

from runner.alerts.deliver import send
from runner.alerts.message import TEST
from runner.alerts.notice import AlertNotice
from runner.alerts.receivers import Receivers
from runner.errors import InvalidInput
from runner.model.alert import Severity, TrialResult
from runner.settings import Settings
from runner.text.operator import now
from runner.text.sanitize import error_text, one_line


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
    since = now().astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
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
