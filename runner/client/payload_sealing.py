"""Payload sealing: encrypts the payloads of new tasks before a client stores them."""

from collections.abc import Callable, Sequence

from runner.errors import PayloadTooLarge
from runner.handlers.keyring import Keyring
from runner.model.task import NewTask
from runner.model.task_batch import TaskBatch


def require_size(limit: int) -> Callable[[str, str], None]:
    """Return a function that rejects a payload of more than `limit` bytes."""

    def require(handler: str, payload: str) -> None:
        if len(payload) * 4 > limit and (size := len(payload.encode())) > limit:
            raise PayloadTooLarge(handler=handler, size=size, limit=limit)

    return require


class PayloadSealing:
    """Encrypts payloads whose handlers have a codec.

    Args:
        require_size: rejects a stored payload that is too large.
    """

    def __init__(self, keyring: Keyring, require_size: Callable[[str, str], None]) -> None:
        self.keyring, self._require_size = keyring, require_size

    def payload(self, handler: str, payload: str) -> str:
        """Return the payload of a task as it is stored.

        Raises:
            KeyMissing, CodecFailed: it cannot be encrypted.
            PayloadTooLarge: it exceeds the setting payload_limit.
        """
        if (codec := self.keyring.of_name(handler)) is not None:
            payload = self.keyring.seal(codec, handler, "payload", payload)
        self._require_size(handler, payload)
        return payload

    def tasks(self, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        """Return tasks with their payloads as they are stored; the errors are the same."""
        sealed = self.keyring.seal_tasks(tasks)
        for task in sealed if sealed is not tasks else ():
            self._require_size(task.handler, task.payload)
        return sealed

    def may_block(self, tasks: Sequence[NewTask]) -> bool:
        """True if a codec of the tasks may block an event loop."""
        alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
        codecs = {self.keyring.of_name(task.handler) for task in alike}
        return any(codec is not None and not self.keyring.is_fast(codec) for codec in codecs)
