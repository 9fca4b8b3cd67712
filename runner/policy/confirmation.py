"""Confirmation: the answer that an operator must type before a change, stricter for larger changes."""

from dataclasses import dataclass

FEW = 20
"""Up to this many tasks, `y` confirms; above it, the operator types the number of tasks."""

MANY = 1_000
"""Above this many tasks, the operator types the name of the database and gives a reason."""


@dataclass(frozen=True, slots=True)
class RequiredConfirmation:
    """The confirmation that a change requires.

    Args:
        word: word to type.
        reason: True if a reason is required.
    """

    word: str
    reason: bool = False


def required_confirmation(count: int, *, production: bool, name: str) -> RequiredConfirmation:
    """Decide the confirmation of a change.

    Args:
        count: number of rows to change.
        production: True if the database is marked as production.
        name: name of the database.
    """
    if production or count > MANY:
        return RequiredConfirmation(name, reason=True)
    return RequiredConfirmation(str(count) if count > FEW else "y")
