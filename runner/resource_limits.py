"""Resource limits: the limit of the operating system that an error has reached."""

import errno
import mmap
import os
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

MOST_LINKS = 10
"""Maximum number of causes of an error that are searched."""

ENOUGH = 8
"""Descriptors that a connection and its files need at most."""

NO_THREAD = "can't start new thread"

SPARE_THREADS = 4
"""Threads that the system must still allow after those of a task: the runner needs them for the database."""

STACKS = 10
"""Stacks of the threads that a start needs at most. Those of the threads that had started may be free again."""

STARTS_OF_PROCESSES = ("_execute_child", "_fork_exec", "fork", "_launch", "spawn", "posix_spawn")
"""Functions in which EAGAIN means that no process could be started; of a socket it means to try again."""


def reached_limit(error: BaseException) -> str:
    """Describe the limit that an error has reached, in one line; empty for any other error.

    Args:
        error: the error; its causes are searched too.
    """
    for each in _chain(error):
        match each:
            case RuntimeError() if NO_THREAD in str(each):
                return _threads(f"{NO_THREAD}: {threading.active_count()} run")
            case OSError(errno=errno.EAGAIN) if _starts_process(each):
                return _threads(f"errno {errno.EAGAIN}, no further process could be started")
            case OSError(errno=errno.EMFILE):
                return _descriptors(f"errno {errno.EMFILE}, {os.strerror(errno.EMFILE)}")
            case OSError(errno=errno.ENFILE):
                fact = f"errno {errno.ENFILE}, {os.strerror(errno.ENFILE)}"
                return f"{fact}{_limits({'fs.file-max': _file('/proc/sys/fs/file-max')})}. Raise it on the host"
            case MemoryError() | OSError(errno=errno.ENOMEM):
                return _memory()
    return ""


def require_threads(number: int) -> None:
    """Start threads that end at once.

    Raises:
        RuntimeError: the system allows fewer.
    """
    end = threading.Event()
    try:
        for _ in range(number):
            threading.Thread(target=end.wait, daemon=True).start()
    finally:
        end.set()


def few_descriptors() -> str:
    """Describe the limit on descriptors if fewer than ENOUGH are left, in one line; empty otherwise."""
    free: list[int] = []
    try:
        for _ in range(ENOUGH):
            free.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return _descriptors(f"probably no descriptor was left: {len(free)} are free now")
    finally:
        for descriptor in free:
            os.close(descriptor)
    return ""


def _descriptors(fact: str) -> str:
    limits = _limits({"RLIMIT_NOFILE": _rlimit("RLIMIT_NOFILE")})
    return f"{fact}{limits}. Raise it with ulimit -n or LimitNOFILE=, or lower `concurrency`"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, and the errors of a group."""
    queue = [error]
    for _ in range(MOST_LINKS):
        if not queue:
            return
        each = queue.pop(0)
        yield each
        queue += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            queue += each.exceptions


def _starts_process(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].name in STARTS_OF_PROCESSES


def _threads(fact: str) -> str:
    if _has_no_memory_for_a_stack():
        limits = {"RLIMIT_AS": _size(_rlimit("RLIMIT_AS"))}
        return f"{fact}{_limits(limits)}. Raise it with ulimit -v, or lower `threads`"
    limits = {"pids.max": _cgroup("pids", "pids.max"), "RLIMIT_NPROC": _rlimit("RLIMIT_NPROC")}
    advice = "Raise it with --pids-limit, TasksMax= or ulimit -u, or lower `threads` and `processes`"
    return f"{fact}{_limits(limits)}. {advice}"


def _has_no_memory_for_a_stack() -> bool:
    """True if the stacks of the threads that a start needs would exceed RLIMIT_AS."""
    limit, size = _rlimit("RLIMIT_AS"), _file("/proc/self/statm").partition(" ")[0]
    stack = int(_rlimit("RLIMIT_STACK") or 8 << 20)
    return bool(limit and size) and int(size) * mmap.PAGESIZE + STACKS * stack > int(limit)


def _memory() -> str:
    limits = {
        "RLIMIT_AS": _size(_rlimit("RLIMIT_AS")),
        "RLIMIT_DATA": _size(_rlimit("RLIMIT_DATA")),
        "memory.max": _size(_cgroup("memory", "memory.max") or _cgroup("memory", "memory.limit_in_bytes")),
    }
    return f"errno {errno.ENOMEM}, {os.strerror(errno.ENOMEM)}{_limits(limits)}. Raise it, or lower `concurrency`"


def _limits(values: dict[str, str]) -> str:
    known = [f"{name} is {value}" for name, value in values.items() if value]
    return f"; {', '.join(known)}" if known else ""


def _rlimit(name: str) -> str:
    """The soft limit; empty if there is none."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return ""
    soft, _ = resource.getrlimit(getattr(resource, name))
    return "" if soft == resource.RLIM_INFINITY else str(soft)


def _size(number: str) -> str:
    return f"{int(number) / 1024 / 1024:,.0f} MiB" if number and int(number) < 1 << 60 else ""


def _cgroup(controller: str, name: str) -> str:
    """A limit of the process's control group, of version 2 or 1; empty if there is none."""
    for line in _file("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", controller):
            folder = Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
            if (value := _file(str(folder / name))) and value != "max":
                return value
    return ""


def _file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
