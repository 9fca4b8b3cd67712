"""person: the one at this terminal, as what is changed will name them."""

from runner.people import person
from runner.store.intervene.answers import By


def who(reason: str | None) -> By:
    """Who intervenes, from where, and why."""
    return By(person.operator(), person.host(), reason)
