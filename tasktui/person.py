"""The person at this terminal: the name that changes are written down with, and the zone that times are meant in."""

import getpass
import os
import socket
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from runner.store.intervene import By

LOCAL_TIME = Path("/etc/localtime")


def who(reason: str | None) -> By:
    """Who intervenes, from where, and why."""
    try:
        operator = getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name
        operator = "unknown"
    return By(operator, socket.gethostname(), reason)


def local_zone() -> tzinfo:
    """The zone of the person at this terminal, with the days on which its clocks change where they can be known."""
    chosen = os.environ.get("TZ", "").lstrip(":")
    try:
        if chosen:
            return ZoneInfo(chosen)
        _, found, name = str(LOCAL_TIME.resolve()).partition("zoneinfo/")
        with LOCAL_TIME.open("rb") as file:
            return ZoneInfo.from_file(file, key=name if found else None)
    except (OSError, ValueError, KeyError):  # there is no such file, it is none of zones, there is no such name
        return datetime.now().astimezone().tzinfo or UTC
