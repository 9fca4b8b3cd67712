"""`runner workflows`: the workflows, with the state of the whole."""

from datetime import datetime
from typing import Annotated, NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, TaskId, open_database
from runner.cli.output import print_json, print_line, print_table
from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.queries.workflows.critical import CriticalPath, critical_paths
from runner.queries.workflows.list import MOST, WorkflowRow
from runner.queries.workflows.list import workflows as read_workflows
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.formatting import stored_state_text


class WorkflowDocument(NamedTuple):
    """A workflow of the list.

    Args:
        critical_path: the chain of its tasks that takes longest; None if it has too many tasks.
    """

    workflow: Annotated[WorkflowRow, Flat()]
    total: int
    done: int
    failed: int
    critical_path: CriticalPath | None


class WorkflowList(NamedTuple):
    """The workflows, the newest one first.

    Args:
        next: the value of --before for the next page; None on the last page.
    """

    workflows: list[WorkflowDocument]
    next: int | None
    at: datetime


DOCUMENTS = (WorkflowList,)


async def workflows(
    name: str | None = None,
    /,
    *,
    unfinished: bool = False,
    limit: int = 50,
    before: TaskId | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List the workflows, the newest first.

    DONE counts the tasks that have finished in any state, FAILED those that are
    dead or cancelled. OLDEST is the time since the oldest waiting or running task
    was due. CRITICAL PATH names its next task, and counts those after it.

    A workflow is running or waiting while one of its tasks is, and blocked if only
    blocked ones are left. Filters take ID and NAME: runner tasks workflow:17,
    runner tasks 'workflow:book*'.

    Args:
        name: Only workflows with this name. * is any text: 'book*'.
        unfinished: Only workflows with a task that has not finished.
        limit: Maximum number of workflows.
        before: Only workflows before this one; the last line of output names it.
        json: Print one JSON document.
        connection: The database.
    """
    if not 1 <= limit <= MOST:
        raise InvalidInput(why=f"--limit must be between 1 and {MOST}, not {limit}; page with --before")
    async with open_database(connection.settings()) as database:
        rows, paths, at = await database.read(_read, limit, before, name=name, unfinished=unfinished)
    document = WorkflowList(
        [WorkflowDocument(row, row.total, row.done, row.failed, paths.get(row.id)) for row in rows],
        rows[-1].id if len(rows) == limit else None,
        at,
    )
    print_json(document) if json else _print(document, name)
    return Exit.OK


async def _read(
    tx: Transaction, limit: int, before: int | None, *, name: str | None, unfinished: bool
) -> tuple[list[WorkflowRow], dict[int, CriticalPath], datetime]:
    rows, at = await tx.gather(read_workflows(tx, limit, before, name=name, unfinished=unfinished), clock(tx))
    return rows, await critical_paths(tx, rows), at


def _print(document: WorkflowList, name: str | None) -> None:
    if not document.workflows:
        print_line("No workflows." if name is None else f"No workflows named {name}.")
        return
    print_table(_columns(document.at), document.workflows)
    if document.next is not None:
        print_line(f"More: --before {document.next}", style="dim")


def _columns(at: datetime) -> tuple[Column[WorkflowDocument], ...]:
    return (
        figure("ID", lambda each: each.workflow.id),
        Column("NAME", lambda each: each.workflow.name or ""),
        Column("STATE", lambda each: stored_state_text(each.workflow.state), fixed=True),
        figure("DONE", lambda each: f"{each.done:,}/{each.total:,}"),
        figure("FAILED", lambda each: each.failed),
        figure("OLDEST", lambda each: formatting.since(each.workflow.oldest, at)),
        figure("SUBMITTED", lambda each: formatting.since(each.workflow.submitted_at, at)),
        Column("CRITICAL PATH", lambda each: each.critical_path.text if each.critical_path else ""),
    )
