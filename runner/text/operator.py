"""The operator at this terminal: name, host and time zone; and the hosts that a task may run on."""

import getpass
import os
import socket
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from runner.errors import InvalidTask
from runner.model.text_limits import require_text

LOCAL_TIME = Path("/etc/localtime")


def operator() -> str:
    """The name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name
        return "unknown"


def host() -> str:
    """The name of this host."""
    return socket.gethostname()


ANY_HOST, SAME_HOST = "any", "same"
"""The words for all hosts, and for the host that submits a task."""


NO_HOST = "name a host, same for this host, or any for all hosts"


def host_list(hosts: str | Iterable[str]) -> str:
    """Return hosts in the form in which a task stores them: sorted names with commas between them; empty for all.

    Args:
        hosts: names, or one text with commas between them; `same` is this host. `any` alone means all hosts.

    Raises:
        InvalidTask: there is no name, e.g. because a variable of a shell is empty.
    """
    if not isinstance(hosts, Iterable):
        raise InvalidTask(field="hosts", value=hosts, why=NO_HOST)
    words = hosts.split(",") if isinstance(hosts, str) else list(hosts)
    for word in words:
        require_text("hosts", word)
    names = {host() if word == SAME_HOST else word for word in (word.strip() for word in words)}
    if not any(names):
        raise InvalidTask(field="hosts", value=hosts, why=NO_HOST)
    return "" if names == {ANY_HOST} else ",".join(sorted(names))


def admits(hosts: str, name: str) -> bool:
    """True if a task may run on a host.

    Args:
        hosts: the hosts of the task as it stores them.
        name: the name of the host.
    """
    return not hosts or name in (word.strip() for word in hosts.split(","))


def now() -> datetime:
    """The current time, aware."""
    return datetime.now(UTC)


def local_zone(environ: Mapping[str, str] | None = None, local_time: Path = LOCAL_TIME) -> tzinfo:
    """The local time zone, as a named zone if possible, so that offset changes are followed.

    Args:
        environ: the environment, for TZ; os.environ by default.
        local_time: the zone file of the system.

    Returns:
        The zone; the current offset if no zone is named.
    """
    zone_name = (os.environ if environ is None else environ).get("TZ", "").lstrip(":")
    try:
        if zone_name:
            return ZoneInfo(zone_name)
        with local_time.open("rb") as file:
            return ZoneInfo.from_file(file, key=_name(local_time))
    except (OSError, ValueError, KeyError):  # no such file, not a zone file, or an unknown zone
        return datetime.now().astimezone().tzinfo or UTC


def _name(local_time: Path) -> str | None:
    """The zone that the system's link points to: `Europe/Berlin`."""
    _, separator, name = str(local_time.resolve()).partition("zoneinfo/")
    return name if separator else None
