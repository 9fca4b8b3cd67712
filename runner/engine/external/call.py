"""Call: a task as the worker of an external executor receives it."""

import pickle
from typing import NamedTuple

from runner.engine.lease.identity import release
from runner.engine.processes.messages import ProcessCall
from runner.settings import Settings


class CallLimits(NamedTuple):
    """The settings that a worker needs. None of them is a secret: it has no access to the database.

    Args:
        result: maximum size of a result in bytes.
        checkpoint: maximum size of a checkpoint in bytes.
        on_error: the rule for exceptions of handlers without their own, as in the settings.
        on_none: the rule for None in the place of a declared result, as in the settings.
    """

    result: int
    checkpoint: int
    on_error: str
    on_none: str

    @classmethod
    def of(cls, settings: Settings) -> "CallLimits":
        """Return the limits that the settings contain."""
        return cls(int(settings.result_limit), int(settings.checkpoint_limit), settings.on_error, settings.on_none)


class ExternalCall(NamedTuple):
    """A task, and the settings of its runner.

    Args:
        version: version of the runner; a worker with another one refuses the call.
        prepare: function to call before the first import of a handler, as module:function; None for none.
    """

    version: str
    call: ProcessCall
    limits: CallLimits
    prepare: str | None

    @classmethod
    def of(cls, call: ProcessCall, limits: CallLimits, prepare: str | None) -> "ExternalCall":
        """Return a call of this version."""
        return cls(release(), call, limits, prepare)

    def dumps(self) -> bytes:
        """Write it for the wire. Its first element is the version, as text that every version can read."""
        return pickle.dumps((self.version, pickle.dumps(tuple(self[1:]))))

    @classmethod
    def loads(cls, data: bytes) -> "ExternalCall":
        """Read a call of this version.

        Raises:
            ValueError: it is a call of another version.
        """
        version, rest = pickle.loads(data)  # noqa: S301 - from the runner of this worker
        if version != release():
            raise ValueError(f"its worker has tasktui {release()}, and its runner {version}")
        call, limits, prepare = pickle.loads(rest)  # noqa: S301 - from the runner of this worker
        return cls(version, call, limits, prepare)
