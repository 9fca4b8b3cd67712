"""The name of a runner: `web-3:4117` in lists, and `runner 7 (web-3:4117)` with its id in sentences."""

from runner.text.sanitize import one_line

UNKNOWN_HOST = "an unknown host"


def process_name(host: str | None, pid: int | None = None) -> str:
    """The host and the process id of a runner, safe to print.

    Args:
        host: None if it is unknown.
        pid: None if it is unknown, as that of a runner whose row was pruned.
    """
    name = one_line(host) if host else UNKNOWN_HOST
    return name if pid is None else f"{name}:{pid}"


def runner_name(id: object, host: str | None, pid: int | None = None) -> str:
    """A runner with its id, for sentences; `runner 7 (web-3)` if its process id is unknown."""
    return f"runner {id} ({process_name(host, pid)})"
