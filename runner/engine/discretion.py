"""discretion: what a failure says, without the secrets of its task; a handler may have put them into the message."""

from dataclasses import replace

from runner.outcome import Dead, Failure, Outcome, Retry
from runner.people.redaction import MASK, secrets


def discreet(outcome: Outcome, payload: str) -> Outcome:
    """Mask in what is going to be stored and logged what stands under the names of secrets in the payload.

    Args:
        outcome: of an attempt.
        payload: JSON text.
    """
    if not isinstance(outcome, (Retry, Dead)):
        return outcome
    hidden = secrets(payload)
    if not hidden:
        return outcome
    told = replace(outcome, why=_without(outcome.why, hidden))
    return replace(told, failure=_silent(outcome.failure, hidden)) if outcome.failure else told


def _silent(failure: Failure, hidden: list[str]) -> Failure:
    return Failure(failure.type, _without(failure.message, hidden), _without(failure.traceback, hidden))


def _without(text: str, hidden: list[str]) -> str:
    for secret in hidden:
        text = text.replace(secret, MASK)
    return text
