"""The list of tasks, page by page."""

from dataclasses import dataclass
from datetime import datetime

from runner.db.transaction import Transaction, clock
from runner.errors import NoSqlEquivalent
from runner.filter.fields import NEWEST, Sort
from runner.filter.parse import Filter
from runner.queries.task_list.compile import indexed
from runner.queries.task_list.cursor import SCAN_LIMIT, AccessPath, Cursor
from runner.queries.task_list.row import TaskRow, task_rows
from runner.queries.task_list.search import find
from runner.text.redact import mask
from runner.text.sanitize import clean


@dataclass(frozen=True, slots=True)
class TaskPage:
    """One page of a task list.

    Args:
        tasks: the tasks, in order.
        next: the cursor of the next page (`after`); None on the last page.
        capped: True if the search stopped at the scan limit; a short page is then not the last one.
        indexed: True if an index serves the filter, False if rows are checked one by one.
        at: the database's time, from which ages count.
        sorted: True if no index has the order: the matching tasks were sorted, only the newest ones if capped.
    """

    tasks: list[TaskRow]
    next: Cursor | None
    capped: bool
    indexed: bool
    at: datetime
    sorted: bool = False

    @property
    def access(self) -> str:
        """The access path, in words."""
        if self.sorted:
            return f"scan: sorted the newest {SCAN_LIMIT:,} rows" if self.capped else "scan: sorted all rows"
        suffix = ", stopped at the scan limit" if self.capped else ""
        return f"{'indexed' if self.indexed else 'scan'}{suffix}"


async def page(
    tx: Transaction,
    task_filter: Filter,
    after: Cursor | None = None,
    limit: int = 50,
    sort: Sort = NEWEST,
    scan_limit: int = SCAN_LIMIT,
) -> TaskPage:
    """List live and finished tasks.

    The cost of a page does not grow with the tables: without an index it reads at most `scan_limit` rows per table.

    Args:
        tx: an open transaction.
        task_filter: the filter.
        after: the cursor from the previous page; None for the first page.
        limit: maximum number of tasks on a page.
        sort: the order.
        scan_limit: maximum number of rows to check or sort in each table.

    Returns:
        The page.

    Raises:
        InvalidSort: no matching task has the sort field, or the waiting tasks have too many lanes.
    """
    result = await find(tx, task_filter, limit, after, sort, scan_limit)
    tasks = await task_rows(tx, result.ids)
    is_indexed = indexed(task_filter) or result.access_path is AccessPath.INDEX
    is_sorted = result.access_path is AccessPath.SORTED
    return TaskPage(tasks, result.next, result.capped, is_indexed, await clock(tx), is_sorted)


async def page_script(tx: Transaction, task_filter: Filter, sort: Sort, limit: int) -> str:
    """Write the SQL that reads the first page of a list: the ids in order, then the live and finished rows.

    Args:
        tx: an open transaction.
        task_filter: the filter.
        sort: the order.
        limit: maximum number of tasks on a page.

    Raises:
        NoSqlEquivalent: the filter contains control characters or text that looks like a secret.
        InvalidSort: see `page`.
    """
    from runner.db.sql_text import Recording  # Loads the dialects of both databases.

    recording, name = Recording(tx), tx.dialect.name
    await page(recording, task_filter, None, limit, sort)
    # The statements before these are preparations, and the last one reads the clock.
    statements = [whole.text(name) for executed in recording.executed[-4:-1] for whole in executed.complete()]
    text = "".join(f"{statement};\n" for statement in statements)
    if clean(text, newlines=True) != text or mask(text) != text:
        raise NoSqlEquivalent(why="the filter contains control characters, or text that looks like a secret")
    return text
