"""Sealed results: the encrypted results and errors of finished tasks, decrypted for those who wait for them."""

import logging
from typing import TYPE_CHECKING

from runner.errors import RunnerError
from runner.handlers.keyring import Keyring
from runner.model.sealed import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runner.queries.task.results import TaskResult

log = logging.getLogger("runner")


def opened(found: "Mapping[int, TaskResult | None]", keyring: Keyring) -> "dict[int, TaskResult | None]":
    """Decrypt results and errors; without the key they stay as they are. An own codec may block."""
    return {id: ending and _opened(ending, keyring) for id, ending in found.items()}


def any_sealed(found: "Mapping[int, TaskResult | None]") -> bool:
    """True if a result or an error is encrypted."""
    return any(ending is not None and _is_sealed(ending) for ending in found.values())


def _is_sealed(ending: "TaskResult") -> bool:
    return any(PREFIX in text for text in (ending.result, ending.error, ending.message) if text)


def _opened(ending: "TaskResult", keyring: Keyring) -> "TaskResult":
    if not _is_sealed(ending):
        return ending
    try:
        ending = ending._replace(result=keyring.opened(ending.result, ending.handler, "result"))
    except RunnerError as why:
        log.warning("task %d: %s", ending.id, why)
    message, traceback = (keyring.open_text(text, ending.handler) for text in (ending.message, ending.traceback))
    error = ending.error and keyring.open_text(ending.error, ending.handler)
    return ending._replace(error=error, message=message, traceback=traceback)
