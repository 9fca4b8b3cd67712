"""`--sql`: what a change would execute, printed instead of done."""

from runner.errors import NoScript
from runner.people.filters import Filter
from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import MOST_SCRIPTED, Operation, Target


async def print_script(database: Database, operation: Operation, targets: list[Target]) -> None:
    """Print the SQL that does the same to some tasks; it is safe to show on a terminal.

    Raises:
        NoScript: there is none.
    """
    print(await database.write(intervene.script, operation, targets), end="")


async def few(database: Database, wanted: Filter) -> list[Target]:
    """The tasks that a filter lets through, if they are few enough for a script.

    Raises:
        NoScript: they are too many.
    """
    found = await database.read(intervene.matching, wanted, MOST_SCRIPTED)
    if found.next is not None:
        raise NoScript(why=f"it is written for {MOST_SCRIPTED} tasks at most; narrow the filter, or let runner do it")
    return found.targets
