"""Payload sealing: encrypts the payloads of new tasks before a client stores them, and limits their size."""

from collections.abc import Sequence

from runner.errors import PayloadTooLarge
from runner.handlers.keyring import Keyring
from runner.model.task import NewTask
from runner.model.task_batch import TaskBatch
from runner.settings import Settings


class PayloadSealing:
    """Encrypts payloads whose handlers have a codec, and rejects those that exceed the setting payload_limit."""

    def __init__(self, settings: Settings) -> None:
        self.keyring, self._limit = Keyring(settings), int(settings.payload_limit)

    def require_size(self, handler: str, payload: str) -> None:
        """Reject a payload that is too large.

        Raises:
            PayloadTooLarge: it exceeds the setting payload_limit.
        """
        if len(payload) * 4 > self._limit and (size := len(payload.encode())) > self._limit:
            raise PayloadTooLarge(handler=handler, size=size, limit=self._limit)

    def payload(self, handler: str, payload: str) -> str:
        """Return the payload of a task as it is stored.

        Raises:
            KeyMissing, CodecFailed: it cannot be encrypted.
            PayloadTooLarge: it exceeds the setting payload_limit.
        """
        if (codec := self.keyring.of_name(handler)) is not None:
            payload = self.keyring.seal(codec, handler, "payload", payload)
        self.require_size(handler, payload)
        return payload

    def tasks(self, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        """Return tasks with their payloads as they are stored; the errors are the same."""
        alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
        if all(self.keyring.of_name(task.handler) is None for task in alike):
            return tasks
        sealed = [self.payload(task.handler, task.payload) for task in tasks]
        if isinstance(tasks, TaskBatch):
            return TaskBatch(tasks.like, sealed)
        return [task._replace(payload=payload) for task, payload in zip(tasks, sealed, strict=True)]

    def may_block(self, tasks: Sequence[NewTask]) -> bool:
        """True if a codec of the tasks may block an event loop."""
        alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
        codecs = {self.keyring.of_name(task.handler) for task in alike}
        return any(codec is not None and not self.keyring.is_fast(codec) for codec in codecs)
