"""script: what a list executes, as SQL that a person can paste into psql or sqlite3."""

from runner.errors import NoScript
from runner.people.filters import Filter
from runner.people.redaction import masked
from runner.people.sorts import Sort
from runner.people.terminal import clean
from runner.store.observe.pages import page
from runner.store.recording import Recording
from runner.store.transaction import Transaction


async def page_script(tx: Transaction, wanted: Filter, sort: Sort, limit: int) -> str:
    """Write down how the first page of a list is read: its ids in order, then their rows, live and finished.

    Args:
        tx: an open transaction.
        wanted: the filter.
        sort: the order.
        limit: the most tasks on a page.

    Raises:
        NoScript: the filter holds what a terminal could take for keys, or looks like a secret.
        InvalidSort: see `page`.
    """
    recording, name = Recording(tx), tx.dialect.name
    await page(recording, wanted, None, limit, sort)
    # What was asked before, and the clock behind, only served to write these.
    statements = [whole.text(name) for executed in recording.executed[-4:-1] for whole in executed.complete()]
    text = "".join(f"{statement};\n" for statement in statements)
    if clean(text, newlines=True) != text or masked(text) != text:
        raise NoScript(why="the filter holds what cannot be pasted safely, or what looks like a secret")
    return text
