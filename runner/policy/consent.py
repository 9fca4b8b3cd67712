"""Consent: what a person has to say before something is changed; the more it touches, the more."""

from dataclasses import dataclass

FEW = 20
"""Up to so many tasks a plain y is enough; for more the number has to be typed."""

MANY = 1_000
"""For more tasks than that the name of the database has to be typed, and a reason given."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What has to be said before something is done.

    Args:
        word: that has to be typed.
        reason: a reason has to be given.
    """

    word: str
    reason: bool = False


def demand(count: int, *, production: bool, name: str) -> Demand:
    """Tell what has to be said.

    Args:
        count: how many things would be changed.
        production: the database is one where a mistake hurts.
        name: what the database is called.
    """
    if production or count > MANY:
        return Demand(name, reason=True)
    return Demand(str(count) if count > FEW else "y")
