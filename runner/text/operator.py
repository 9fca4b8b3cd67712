"""The operator at this terminal: name, host and time zone."""

import getpass
import os
import socket
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

LOCAL_TIME = Path("/etc/localtime")


ASSISTANT: ContextVar[str] = ContextVar("assistant", default="")
"""The name of the assistant that acts for the operator; empty without one."""


def operator() -> str:
    """The name of the user who runs this process, and of the assistant that acts for them."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name
        user = "unknown"
    return f"{user} via {assistant}" if (assistant := ASSISTANT.get()) else user


def host() -> str:
    """The name of this host."""
    return socket.gethostname()


def now() -> datetime:
    """The current time, aware."""
    return datetime.now(UTC)


def local_zone() -> tzinfo:
    """The local time zone, as a named zone if possible, so that offset changes are followed.

    Returns:
        The zone; the current offset if no zone is named.
    """
    zone_name = os.environ.get("TZ", "").lstrip(":")
    try:
        if zone_name:
            return ZoneInfo(zone_name)
        with LOCAL_TIME.open("rb") as file:
            return ZoneInfo.from_file(file, key=_link_target())
    except (OSError, ValueError, KeyError):  # no such file, not a zone file, or an unknown zone
        return datetime.now().astimezone().tzinfo or UTC


def _link_target() -> str | None:
    """The zone that the system's link points to: `Europe/Berlin`."""
    _, separator, name = str(LOCAL_TIME.resolve()).partition("zoneinfo/")
    return name if separator else None
