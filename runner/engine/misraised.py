"""misraised: a handler that raises what it should have returned, and is told so."""

import re
import traceback

_RAISED = re.compile(r"\braise\s+(?:\w+\.)*(Retry|Dead|Snooze)\b")
"""Outcomes are no exceptions, so Python refuses them with words that say nothing of what was meant."""

_PYTHON_SAYS = "exceptions must derive from BaseException"


def advice(error: BaseException) -> str:
    """Tell what to write instead, as the end of a message; empty when no outcome was raised, or nobody can tell.

    Args:
        error: that came out of a handler.
    """
    if type(error) is not TypeError or error.args != (_PYTHON_SAYS,):
        return ""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    found = _RAISED.search(frames[-1].line or "") if frames else None
    return f"; an outcome is returned, not raised: write return {found[1]}(...)" if found else ""
