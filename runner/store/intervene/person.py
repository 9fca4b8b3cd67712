"""person: the one at this terminal, as what is changed will name them."""

import secrets

from runner.people import person
from runner.store.intervene.answers import By


def who(reason: str | None) -> By:
    """Who intervenes, from where, and why."""
    return By(person.operator(), person.host(), reason)


def together(by: By) -> By:
    """The same person, whose next changes can be taken back together."""
    return by._replace(batch=secrets.token_hex(4))
