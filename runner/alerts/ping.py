"""Ping: calls the address of a dead man's switch, which raises the alarm when the calls stop."""

import logging
from urllib.request import Request

from runner.alerts.sending import in_own_thread
from runner.alerts.webhook import fetch
from runner.settings.types import Masked, value_text

log = logging.getLogger("runner.alerts")


async def ping(address: Masked | str) -> None:
    """Call the address once. A failure is a line of the log: the next evaluation calls again."""
    request = Request(address, headers={"User-Agent": "tasktui"})  # noqa: S310 - the scheme is checked with the settings
    try:
        await in_own_thread(fetch, request, value_text(address))
    except Exception as error:
        log.warning("could not call the setting alert_ping: %s", error)
