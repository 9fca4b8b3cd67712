"""Hosts: the hosts that may run a task."""

from collections.abc import Iterable

from runner.errors import InvalidTask
from runner.model.text_limits import FAILED_HOST, require_text
from runner.text.operator import host

ANY_HOST, SAME_HOST = "any", "same"
"""The words for all hosts, and for the host that submits a task."""


NO_HOST = "name a host, same for this host, failed for the host of the last failure, or any for all hosts"


def host_list(hosts: str | Iterable[str]) -> str:
    """Return hosts in the form in which a task stores them: sorted names with commas between them; empty for all.

    Args:
        hosts: names, or one text with commas between them; `same` is this host. `any` alone means all hosts,
            and `failed` all hosts until an attempt fails.

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
    """True if a task may run on a host."""
    names = host_names(hosts)
    return not names or name in names


def host_names(hosts: str) -> list[str]:
    """The names of the hosts that may take a task, as it stores them; empty for all."""
    return [name for word in hosts.split(",") if (name := word.strip()) and name != FAILED_HOST] if hosts else []
