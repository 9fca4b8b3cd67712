"""misnamed: tell when a queue or a handler is named that nobody ever named before: it may be a slip."""

from runner.people.fields import Operator, suggestion
from runner.people.filters import Filter, Term
from runner.store.intervene.pause import registry_of
from runner.store.intervene.place import Place
from runner.store.observe.pauses import registered
from runner.store.observe.search import find
from runner.store.transaction import Transaction


async def misnamed(tx: Transaction, place: Place) -> str:
    """Say that a name is new, and which one may be meant.

    Args:
        tx: an open transaction.
        place: the queue or the handler.

    Returns:
        A clause; empty when a task, a runner or a pause has had the name.
    """
    known = await registered(tx, registry_of(tx, place))
    if place.name in known or (await find(tx, Filter((Term(place.kind, Operator.EQ, place.name),)), 1)).ids:
        return ""
    return f"no task and no runner has named {place} so far{suggestion(place.name, tuple(known))}"
