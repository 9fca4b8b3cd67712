"""Many new tasks that differ only in their payload, as submit_many creates them."""

from collections.abc import Iterator, Sequence
from typing import overload

from runner.model.task import NewTask


class TaskBatch(Sequence[NewTask]):
    """New tasks stored as one template and a list of payloads, which avoids one object per task.

    Args:
        like: template; its own payload is ignored.
        payloads: JSON text per task.
    """

    __slots__ = ("like", "payloads")

    def __init__(self, like: NewTask, payloads: Sequence[str]) -> None:
        self.like = like
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> NewTask: ...

    @overload
    def __getitem__(self, index: slice) -> "TaskBatch": ...

    def __getitem__(self, index: int | slice) -> "NewTask | TaskBatch":
        if isinstance(index, slice):
            return TaskBatch(self.like, self.payloads[index])
        return self.like._replace(payload=self.payloads[index])

    def __iter__(self) -> Iterator[NewTask]:
        return map(self._task, self.payloads)

    def _task(self, payload: str) -> NewTask:
        return NewTask._make((self.like.handler, payload, *self.like[2:]))  # twice as fast as _replace
