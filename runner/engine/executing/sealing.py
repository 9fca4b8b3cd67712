"""Sealing: decrypts the payload of an attempt before its handler runs, and encrypts what the attempt leaves."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from runner.engine.executing.attempt_outcome import redact_error
from runner.engine.running import Running
from runner.errors import CodecFailed, KeyMissing, RunnerError, Undecodable
from runner.handlers.keyring import Keyring, Vault
from runner.model.outcome import (
    RESULT_NOT_KEPT,
    Cancelled,
    Dead,
    Done,
    Failure,
    Outcome,
    Release,
    Snooze,
    Suspended,
    with_texts,
)
from runner.model.sealed import PREFIX, read_sealed
from runner.model.text_limits import ERROR_LIMIT, to_storable
from runner.store.attempts import MESSAGE_LIMIT, TRACEBACK_LIMIT

T = TypeVar("T")

KEY_WAIT = 60.0
"""Seconds until a task without a key, or whose codec does not work, is tried again; its attempt does not count."""

PLAIN = (
    "its payload is not encrypted, and handler {handler} has codec {codec}: submit it with the codec, encrypt it with "
    "runner rekey, or set codec_plain = accept while producers change over"
)


class Sealing:
    """Encrypts and decrypts the values of the attempts of a runner."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def concerns(self, running: Running) -> bool:
        """True if a task is encrypted, or its handler has a codec."""
        payload = running.task.payload
        return (payload is not None and payload.startswith(PREFIX)) or self._keyring.of(running.handler) is not None

    async def open(self, running: Running) -> Outcome | None:
        """Decrypt the payload of a task; return an outcome if its handler must not run."""
        task, codec = running.task, self._keyring.of(running.handler)
        sealed = read_sealed(task.payload)
        try:
            if sealed is not None:
                vault = self._keyring.vault(task.handler, codec or sealed.codec)
                text = await call_codec(vault, lambda: self._keyring.open(sealed, task.handler, "payload"))
                running.task = task._replace(payload=text)
            elif task.payload is not None and not self._keyring.accepts_plain:
                return Dead(failure=Failure("PlainPayload", PLAIN.format(handler=task.handler, codec=codec)))
            else:
                vault = self._keyring.vault(task.handler, codec or "")
            self._keyring.key_of(vault.codec)
        except (KeyMissing, CodecFailed, Undecodable) as error:
            return refusal_of(error)
        except asyncio.CancelledError:
            return Cancelled() if running.cancel_requested else Release("cancelled before the handler started")
        running.vault = vault
        return None

    async def seal(self, running: Running, vault: Vault, outcome: Outcome) -> Outcome:
        """Encrypt the result, or the texts of the failure, and replace the exception for logs and error trackers."""
        if type(outcome) is Done and outcome.result is None:
            return outcome
        if vault.is_fast:
            sealed = seal_outcome(vault, outcome)
        else:
            sealed = await _ended(asyncio.to_thread(seal_outcome, vault, outcome))
        if running.error is not None and not isinstance(outcome, Done):
            running.error = redact_error(running.error, sealed)
        return sealed


async def _ended(work: Coroutine[Any, Any, T]) -> T:
    """Wait for the end of a coroutine, even if this one is cancelled: the body has ended, and its outcome counts."""
    job = asyncio.ensure_future(work)
    while not job.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(job)
    return job.result()


async def call_codec(vault: Vault, function: Callable[[], T]) -> T:
    """Call a function that uses a codec; in a thread if the codec may block."""
    return function() if vault.is_fast else await asyncio.to_thread(function)


def refusal_of(error: KeyMissing | CodecFailed | Undecodable) -> Snooze | Dead:
    """Return the outcome of a task that cannot be decrypted: it waits without spending an attempt, or it is dead."""
    if isinstance(error, Undecodable):
        return Dead(failure=Failure("Undecodable", str(error)))
    return Snooze(KEY_WAIT, str(error))


def seal_done(vault: Vault | None, outcome: Done) -> Done:
    """Encrypt the result of a success; one that cannot be encrypted is not kept."""
    if vault is None or outcome.result is None:
        return outcome
    try:
        return Done(vault.seal("result", outcome.result))
    except RunnerError as error:
        return Done(why=f"{RESULT_NOT_KEPT}: {error}")


def seal_outcome(vault: Vault, outcome: Outcome) -> Outcome:
    """Encrypt the texts of an outcome that a handler wrote. Types of errors, rules and delays stay plain."""
    if isinstance(outcome, Done):
        return seal_done(vault, outcome)
    if isinstance(outcome, Suspended) and outcome.failure is None:  # the runner wrote its reason
        return outcome
    return with_texts(
        outcome, lambda why: seal_text(vault, why, ERROR_LIMIT), lambda failure: _seal_failure(vault, failure)
    )


def _seal_failure(vault: Vault, failure: Failure) -> Failure:
    if failure.is_plain:
        return failure
    message = seal_text(vault, failure.message, MESSAGE_LIMIT)
    return replace(failure, message=message, traceback=seal_text(vault, failure.traceback, TRACEBACK_LIMIT))


def seal_text(vault: Vault, text: str, limit: int) -> str:
    """Encrypt a text, cut so that what is stored has at most `limit` bytes."""
    if not text:
        return text
    part = limit // 2
    try:
        while len(sealed := vault.seal("text", to_storable(text, part))) > limit:
            part //= 2
            if part < 200:  # noqa: PLR2004 - the smallest cut; this codec makes long texts
                return "(encrypted text is too long to store)"
        return sealed
    except RunnerError as error:
        return f"(not stored: {error})"
