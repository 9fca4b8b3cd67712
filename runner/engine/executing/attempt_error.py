"""The exception of an attempt: its chain, and the frames that it would keep in memory."""

import gc
from collections.abc import Iterator
from types import FrameType


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the exceptions of a group; each once."""
    seen, rest = set[int](), [error]
    while rest:
        current = rest.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        rest += [each for each in (current.__cause__, current.__context__) if each is not None]
        if isinstance(current, BaseExceptionGroup):
            rest += current.exceptions


def clear_frames(error: BaseException) -> None:
    """Free the local variables of the frames that an exception and its chain refer to; the lines stay readable.

    Only frames that have ended are cleared: to clear the frame of a suspended coroutine would close the coroutine.
    """
    for each in chain(error):
        trace = each.__traceback__
        while trace is not None:
            if _has_ended(trace.tb_frame):
                trace.tb_frame.clear()
            trace = trace.tb_next


def _has_ended(frame: FrameType) -> bool:
    """True if no interpreter and no generator owns the frame: it then owns its code and its variables itself."""
    return any(each is frame.f_code for each in gc.get_referents(frame))


def drop_tracebacks(error: BaseException) -> None:
    """Remove the tracebacks of an exception and its chain.

    An exception that a module keeps and raises repeatedly would collect the frames of each raise.
    """
    for each in chain(error):
        each.__traceback__ = None
