"""What an operator answered who was asked whether something is meant."""

from typing import NamedTuple

from runner.errors import InvalidInput

ALL = "all"


class Consent(NamedTuple):
    """The answers of an operator who said yes.

    Args:
        answer: to what the action asks; empty for nothing.
        reason: why; None when none was given.
        amount: how many tasks it is to be done to at most; None for all.
    """

    answer: str = ""
    reason: str | None = None
    amount: int | None = None


def amount_of(typed: str) -> int | None:
    """Read how many tasks something is to be done to; None for all.

    Raises:
        InvalidInput: it is neither a number from 1 on nor the word for all.
    """
    text = typed.replace(",", "").strip().lower()
    if text in ("", ALL):
        return None
    if not text.isdecimal() or not 1 <= int(text[:12]) < 10**9:
        raise InvalidInput(why=f"{typed[:20]!r} is not a number of tasks; write {ALL}, or 1 to try it on one first")
    return int(text)
