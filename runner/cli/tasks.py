"""`runner tasks`: the list of tasks."""

from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import Column, plain, print_json, print_line, print_table
from runner.cli.targets import read_filter
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.filters import Filter
from runner.people.sorts import NEWEST, By, Sort, sort_by
from runner.people.terminal import counted
from runner.store.observe.bookmark import read_bookmark, written
from runner.store.observe.pages import Page, page
from runner.store.observe.script import page_script
from runner.store.observe.tasks import TaskRow

MOST = 1_000
"""Tasks that one call lists; the next call goes on behind them."""

COLUMNS = (
    Column("ID", right=True, whole=True),
    Column("STATE", whole=True),
    Column("QUEUE"),
    Column("HANDLER"),
    Column("KEY"),
    Column("TRY", right=True, whole=True),
    Column("WHEN", right=True, whole=True),
    Column("REASON"),
)


async def tasks(
    *words: Annotated[str, Parameter(name="FILTER")],
    limit: int = 50,
    after: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    sort: str = By.ID,
    desc: bool = False,
    asc: bool = False,
    sql: bool = False,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """List the tasks that a filter lets through, the newest first.

    A filter has terms that must all hold, and a comma for "or" within one:

      runner tasks 'queue:mail state:dead,retrying error~Timeout since:1h'

    Fields: id queue handler state key unique error failure host runner tag by
    attempts max_attempts priority bucket due age since until. ! before a term
    negates it; a word alone is looked for in error, key and handler; @late stands
    for the filter that was saved as late (runner save).

    A filter that no index serves is answered a stretch of rows at a time: the
    last line says where to go on.

    Sorts: id age run_at priority claimed_at finished_at attempts. run_at and
    priority list what waits, claimed_at what runs, finished_at what has ended.

    Args:
        words: The filter; none lists all tasks.
        limit: The most tasks to list.
        after: Go on behind this place, as the last line of the call before said.
        sort: What to sort by.
        desc: The greatest first.
        asc: The least first.
        sql: Only print the SQL that lists the same, for psql or sqlite3.
        json: Print one JSON document.
        connection: Which database.
    """
    if not 1 <= limit <= MOST:
        raise InvalidInput(why=f"--limit goes from 1 to {MOST}, not {limit}; go on with --after")
    if sql and after is not None:
        raise InvalidInput(why="--sql is written for the first page: leave --after out")
    if asc and desc:
        raise InvalidInput(why="--asc and --desc are opposites: only one of them makes sense")
    wanted = read_filter(words)
    order = sort_by(sort, descending=desc if asc or desc else None)
    mark = None if after is None else read_bookmark(after, order)
    async with opened(connection.settings()) as database:
        if sql:
            print(await database.read(page_script, wanted, order, limit), end="")
            return Exit.OK
        found = await database.read(page, wanted, mark, limit, order)
    print_json(_document(found, wanted, order)) if json else _print(found, order)
    return Exit.OK


def listed(task: TaskRow) -> dict[str, object]:
    """A task of a list for JSON: `state` is the stored one, `shown` what people see."""
    return {"id": task.id, "state": task.state, **plain(task)}


def _document(found: Page, wanted: Filter, sort: Sort) -> dict[str, object]:
    rest = {name: getattr(found, name) for name in ("capped", "indexed", "sorted", "at")}
    tasks = [listed(task) for task in found.tasks]
    return {"filter": str(wanted), "sort": str(sort), "tasks": tasks, "next": _next(found, sort), **rest}


def _next(found: Page, sort: Sort) -> str | None:
    return None if found.next is None else written(found.next, sort)


def _print(found: Page, sort: Sort) -> None:
    if found.tasks:
        print_table(COLUMNS, [row(task, found.at) for task in found.tasks])
    more = f"; go on with --after {_next(found, sort)}" if found.next is not None else ""
    order = "" if sort == NEWEST else f", by {sort.by}: {sort.words}"
    print_line(f"{counted(len(found.tasks), 'task')} ({found.way}{order}){more}", style="dim")


def row(task: TaskRow, at: datetime) -> list[str]:
    """The cells of a task under COLUMNS, at the database's time `at`."""
    return [
        str(task.id),
        cells.state(task.shown),
        task.queue,
        task.handler,
        cells.text(task.key),
        cells.tries(task.attempt, task.max_attempts),
        cells.distance(task.telling, at),
        cells.reason(task.remark),
    ]
