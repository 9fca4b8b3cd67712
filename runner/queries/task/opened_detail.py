"""Opened detail: a task whose encrypted values an operator reveals, decrypted with the keys of the profile."""

from dataclasses import replace

from runner.errors import RunnerError
from runner.handlers.keyring import Keyring, Use
from runner.queries.task.detail import TaskDetail
from runner.queries.task.steps import StepRow


class DetailOpening:
    """Decrypts the values of one task, and collects the reasons why some stay encrypted."""

    def __init__(self, keyring: Keyring, handler: str) -> None:
        self.reasons: list[str] = []
        self._keyring, self._handler = keyring, handler

    def detail(self, detail: TaskDetail) -> TaskDetail:
        """Return the detail with the values that could be decrypted."""
        checkpoints = [replace(row, state=self._value(row.state, "checkpoint")) for row in detail.checkpoints]
        return replace(
            detail,
            payload=self._value(detail.payload, "payload"),
            result=None if detail.result is None else self._value(detail.result, "result"),
            error=None if detail.error is None else self._text(detail.error),
            checkpoints=tuple(checkpoints),
            steps=tuple(map(self._step, detail.steps)),
            log=tuple(replace(row, line=self._text(row.line)) for row in detail.log),
            attempts=tuple(
                replace(row, message=self._text(row.message), traceback=row.traceback and self._text(row.traceback))
                for row in detail.attempts
            ),
        )

    def _step(self, row: StepRow) -> StepRow:
        result = row.result and self._value(row.result, "checkpoint")
        return replace(row, result=result, error=row.error and self._text(row.error))

    def _value(self, text: str, use: Use) -> str:
        try:
            return self._keyring.opened(text, self._handler, use) or text
        except RunnerError as error:
            self.reasons.append(str(error))
            return text

    def _text(self, text: str) -> str:
        return self._keyring.open_text(text, self._handler)


def opened_detail(detail: TaskDetail, keyring: Keyring) -> tuple[TaskDetail, list[str]]:
    """Decrypt the values of a task; an own codec may block.

    Returns:
        The detail, and the reasons why values stay encrypted, each once.
    """
    opening = DetailOpening(keyring, detail.task.handler)
    opened = opening.detail(detail)
    return opened, list(dict.fromkeys(opening.reasons))
