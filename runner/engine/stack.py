"""Stack: the place where a running handler is."""

import linecache
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from runner.engine.executing.attempt_outcome import PACKAGE
from runner.engine.resource_meter import resident_memory
from runner.engine.running import Running
from runner.text.formatting import size

REPLY_TIMEOUT = 1.0
"""Seconds for a worker process to reply, before its signal handler writes the stack."""


BEFORE = "the handler has not started, or has just ended"


MOST_FRAMES = 40
"""Maximum number of frames: the innermost ones."""


ASYNCIO = str(Path(sys.modules["asyncio"].__file__ or "").parent)


Position = tuple[CodeType, int]
"""A function and a line in it."""


async def describe_stack(running: Running) -> list[str]:
    """Describe where a running handler is, wherever it runs.

    Returns:
        A line with its executor, and a line per frame, outermost first.
    """
    if running.process is not None:
        pid = running.process.pid
        return [f"process {pid}, {_memory(pid)}", *(await running.process.stack(REPLY_TIMEOUT) or [BEFORE])]
    thread = f"thread of process {os.getpid()}" if running.thread else f"event loop of process {os.getpid()}"
    return [f"{thread}, {_memory(os.getpid())}", *(stack_of(running) or [BEFORE])]


def _memory(pid: int) -> str:
    """The memory of a process in use; only Linux shows it."""
    memory = resident_memory(pid)
    return "memory unknown" if memory is None else f"{size(memory)} of memory"


def stack_of(running: Running) -> list[str]:
    """Return the stack of a handler that runs in this process, from any thread.

    Returns:
        A text per frame, outermost first, without the frames of the runner; empty if the handler has not started.
    """
    if running.thread:
        positions = list(_thread_positions(sys._current_frames().get(running.thread)))[::-1]  # noqa: SLF001 - the only access to the frames of a thread
    elif running.job is not None:
        positions = list(_await_positions(running.job.get_coro()))
    else:
        positions = []
    own = next((at for at, (code, _) in enumerate(positions) if not _is_ours(code.co_filename)), len(positions))
    return [_text(code, line) for code, line in positions[own:][-MOST_FRAMES:]]


def _thread_positions(frame: FrameType | None) -> Iterator[Position]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _await_positions(awaited: Any) -> Iterator[Position]:
    """The frames of a coroutine and of the coroutines that it awaits; of its thread while it executes code."""
    while awaited is not None:
        frame = _attribute(awaited, "_frame")
        if not isinstance(frame, FrameType):
            return
        if _attribute(awaited, "_running"):
            yield from _executing(frame)
            return
        yield frame.f_code, frame.f_lineno
        awaited = _attribute(awaited, "_await") or getattr(awaited, "gi_yieldfrom", None)


def _executing(outer: FrameType) -> list[Position]:
    """The frames from a coroutine on that a thread executes now."""
    for inner in sys._current_frames().values():  # noqa: SLF001 - the only access to the frames of a thread
        positions: list[Position] = []
        frame: FrameType | None = inner
        while frame is not None:
            positions.append((frame.f_code, frame.f_lineno))
            if frame is outer:
                return positions[::-1]
            frame = frame.f_back
    return [(outer.f_code, outer.f_lineno)]


def _attribute(awaited: Any, name: str) -> Any:
    """An attribute of a coroutine, a generator or an async generator."""
    return next((value for kind in ("cr", "gi", "ag") if (value := getattr(awaited, f"{kind}{name}", None))), None)


def _is_ours(file: str) -> bool:
    return file.startswith((PACKAGE, ASYNCIO)) or file == threading.__file__ or "/concurrent/futures/" in file


def _text(code: CodeType, line: int) -> str:
    source = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line} in {code.co_qualname}{f': {source}' if source else ''}"
