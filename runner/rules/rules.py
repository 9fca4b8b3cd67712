"""rules: what an author says once for all calls of a handler, and what follows from it for each call."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, Self

from runner.rules.buckets import Bucket, bucket_of
from runner.rules.derived import require_names
from runner.rules.once import Once, UniqueKey
from runner.signature import Signature
from runner.task import NewTask


class Rules(NamedTuple):
    """What follows from the arguments of a call.

    Args:
        once: what makes its task unique; None when nothing does.
        bucket: where its task stands; None for anywhere.
    """

    once: Once | None = None
    bucket: Bucket | None = None

    @classmethod
    def read(
        cls, unique_key: UniqueKey | None, unique: str | None, on_duplicate: str | None, bucket: Bucket | None
    ) -> Self:
        """Read what an author said.

        Raises:
            InvalidTask: a value is not valid.
        """
        silent = unique_key is None and unique is None and on_duplicate is None
        return cls(None if silent else Once.read(unique_key, unique, on_duplicate), bucket)

    def over(self, general: "Rules") -> "Rules":
        """These rules, with what they leave open taken from more general ones."""
        once = self.once.over(general.once) if self.once and general.once else self.once or general.once
        return Rules(once, general.bucket if self.bucket is None else self.bucket)

    def require(self, signature: Signature) -> None:
        """Refuse rules that do not fit a handler.

        Raises:
            InvalidHandler: a function asks for arguments that the handler does not take.
            InvalidTask: how to be unique is said, but not by which key.
        """
        if self.once:
            self.once.require(signature)
        if callable(self.bucket):
            require_names("bucket", self.bucket, signature)

    def applied(self, task: NewTask, arguments: Callable[[], Mapping[str, Any]]) -> NewTask:
        """A task with what follows for it.

        Args:
            task: with its payload.
            arguments: gives the call's arguments, as the handler would get them; asked once, if at all.

        Raises:
            InvalidPayload: a function found nothing valid in the arguments.
        """
        asked = cache(arguments)
        unique = self.once.of(task.handler, asked) if self.once else None
        return task._replace(unique=unique, bucket=bucket_of(self.bucket, task.handler, asked))


NO_RULES = Rules()
"""Nothing follows."""
