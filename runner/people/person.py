"""The person at this terminal: the name that changes are written down with, and what `14:30` means there."""

import getpass
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

LOCAL_TIME = Path("/etc/localtime")


def operator() -> str:
    """The name of the user who runs this."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name
        return "unknown"


def host() -> str:
    """The machine that the person sits at."""
    return socket.gethostname()


def now() -> datetime:
    """The present, aware."""
    return datetime.now(UTC)


def local_zone(environ: Mapping[str, str] | None = None, local_time: Path = LOCAL_TIME) -> tzinfo:
    """The zone of the person at this terminal, by its name where that can be found: its clocks may change meanwhile.

    Args:
        environ: the environment, for TZ; os.environ when left out.
        local_time: the system's own zone.

    Returns:
        The zone; today's offset alone where nothing names one.
    """
    chosen = (os.environ if environ is None else environ).get("TZ", "").lstrip(":")
    try:
        if chosen:
            return ZoneInfo(chosen)
        with local_time.open("rb") as file:
            return ZoneInfo.from_file(file, key=_name(local_time))
    except (OSError, ValueError, KeyError):  # there is no such file, it is none of zones, there is no such name
        return datetime.now().astimezone().tzinfo or UTC


def _name(local_time: Path) -> str | None:
    """The zone that the system's link points to: `Europe/Berlin`."""
    _, found, name = str(local_time.resolve()).partition("zoneinfo/")
    return name if found else None
