"""`runner tasks`: the tasks that match a filter."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, read_filter, warn_of_names
from runner.cli.output import NO_MATCH, note_model, print_json, print_line, print_table, print_text
from runner.cli.shard_list import ShardList, Unlisted, errors_of, print_partial
from runner.errors import InvalidInput
from runner.filter.parse import Filter
from runner.filter.sort import NEWEST, Sort, SortField, sort_by
from runner.model.task import Shown
from runner.queries.past.as_of import CANDIDATES, MISSING, UNAUDITED, PastPage, read_moment, tasks_as_of
from runner.queries.past.reconstruction import PastTask
from runner.queries.signatures import payload_remark
from runner.queries.task_list.cursor import Cursor, parse_cursor, written
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import TaskPage, page, page_script
from runner.queries.task_list.shard_page import ShardPage, ShardTask, merged, split_cursors, written_cursors
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.operator import local_zone
from runner.text.sanitize import count_noun
from runner.text.times import format_moment

MAX_LIMIT = 1_000
"""Tasks per call; `--after` continues."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class SortOptions:
    """The order of a list.

    Args:
        sort: The column to sort by.
        desc: Descending order.
        asc: Ascending order.
    """

    sort: str = SortField.ID
    desc: bool = False
    asc: bool = False

    def parsed(self) -> Sort:
        """The order; raise InvalidInput if the column is unknown or both directions are given."""
        if self.asc and self.desc:
            raise InvalidInput(why="choose --asc or --desc")
        return sort_by(self.sort, descending=self.desc if self.asc or self.desc else None)


BY_ID = SortOptions()
"""The default order."""


async def tasks(
    *words: Annotated[str, Parameter(name="FILTER")],
    limit: int = 50,
    after: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    order: SortOptions = BY_ID,
    at: str | None = None,
    archive: Path | None = None,
    sql: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List the tasks that match a filter, newest first.

    A filter is a list of terms that must all match, with a comma for "or":

      runner tasks 'queue:mail state:dead,retrying error~Timeout since:1h'

    Fields: id queue handler state key tenant unique error failure change batch
    workflow below payload.NAME host runner tag by attempts max_attempts priority
    bucket due age since until. A ! negates a term. A plain word searches error,
    key and handler. @late inserts the filter saved as late (runner views save).

    Without an index for the filter, each call scans a limited number of rows; the
    last line of output names the cursor to continue.

    Sorts: id age run_at priority claimed_at finished_at attempts. run_at and
    priority list waiting tasks, claimed_at running ones, finished_at finished ones.

    --at lists the tasks as they were at a past time: 03:12, yesterday 03:12, 20m,
    2026-11-22T03:12+01:00. Its list is sorted by id.

    --archive lists the tasks of a folder that runner prune --archive has filled,
    and not those of the database.

    Args:
        words: The filter; none lists all tasks.
        limit: Maximum number of tasks.
        after: Continue after this cursor of the last line; over shards eu:17,us:9.
        order: The order of the list.
        at: List the tasks as they were at this time.
        archive: List the tasks of this archive.
        sql: Only print equivalent SQL for psql or sqlite3.
        json: Print one JSON document.
        connection: The database.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(why=f"--limit must be between 1 and {MAX_LIMIT}, not {limit}; page with --after")
    sort = order.parsed()
    if sql and after is not None:
        raise InvalidInput(why="--sql prints the first page only; omit --after")
    if archive is not None:
        if sql or at is not None or after is not None or sort != NEWEST:
            raise InvalidInput(why="--archive lists the newest tasks; omit --after, --at, --sort, --asc and --sql")
        return await _list_archived(archive, read_filter(words), limit, json=json)
    if at is None:
        cursor = None if after is None else parse_cursor(after, sort)
        return await _list(read_filter(words), cursor, limit, sort, sql=sql, json=json, connection=connection)
    if sql or sort != NEWEST:
        raise InvalidInput(why="--at lists the newest tasks first; omit --sort, --asc and --sql")
    return await _list_as_of(words, at, limit, after, json=json, connection=connection)


async def _list(
    task_filter: Filter, cursor: Cursor | None, limit: int, sort: Sort, *, sql: bool, json: bool, connection: Connection
) -> int:
    async with open_database(connection.settings()) as database:
        if sql:
            print_text(await database.read(page_script, task_filter, sort, limit))
            return Exit.OK
        tasks_page = await database.read(page, task_filter, cursor, limit, sort)
        if remark := await database.read(payload_remark, task_filter):
            print_stderr(f"runner: {remark}")
        if not tasks_page.tasks:
            await warn_of_names(database, task_filter)
            _advise_state(task_filter)
    note_model(ListedPage(tasks_page, task_filter, sort, limit, cursor))
    print_json(_document(tasks_page, task_filter, sort)) if json else _print(tasks_page, sort)
    return Exit.OK


OTHER_STATES = {
    **dict.fromkeys(("failed", "error"), Shown.DEAD),
    **dict.fromkeys(("pending", "queued"), Shown.READY),
    **dict.fromkeys(("done", "success"), Shown.SUCCEEDED),
}
"""States of other task systems, and those to write here."""


def _advise_state(task_filter: Filter) -> None:
    """Name the filter for a state if a word of a filter without tasks is one: words search error, key and handler."""
    for term in task_filter.terms:
        word = str(term.value) if term.field == "text" else ""
        state = OTHER_STATES.get(word, word)
        if state in set(Shown):
            print_stderr(
                f"runner: {word!r} was searched in error, key and handler; by state: runner tasks state:{state}"
            )


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks that match a filter.

    Args:
        filter: the filter, with saved ones inserted.
        next: the value of --after for the next page; None on the last page.
    """

    filter: str
    sort: str
    page: Annotated[TaskPage, Flat(without=("next",))]
    next: str | None


class ListedPage(NamedTuple):
    """A page of the list, for the list over shards.

    Args:
        after: the cursor behind which it begins; None for the first page.
    """

    page: TaskPage
    filter: Filter
    sort: Sort
    limit: int
    after: Cursor | None


class ShardTaskDocument(NamedTuple):
    """A task of a list over shards."""

    shard: str
    task: Annotated[TaskRow, Flat()]


@dataclass(frozen=True, slots=True)
class ShardTaskList:
    """The tasks of several shards that match a filter.

    Args:
        filter: the filter, with saved ones inserted.
        at: the latest time of the databases.
        capped: True if the search of a shard stopped at the scan limit; a short page is then not the last one.
        partial: True if a shard has not answered.
        errors: the error of each shard that has not answered.
        next: the value of --after for the next page; None on the last page.
    """

    filter: str
    sort: str
    tasks: list[ShardTaskDocument]
    at: datetime
    capped: bool
    partial: bool
    errors: Mapping[str, str]
    next: str | None


DOCUMENTS = (TaskList, ShardTaskList, PastPage)


def _document(tasks_page: TaskPage, task_filter: Filter, sort: Sort) -> TaskList:
    return TaskList(str(task_filter), str(sort), tasks_page, _next(tasks_page, sort))


def _next(tasks_page: TaskPage, sort: Sort) -> str | None:
    return None if tasks_page.next is None else written(tasks_page.next, sort)


def _print(tasks_page: TaskPage, sort: Sort) -> None:
    if not tasks_page.tasks and tasks_page.next is None:
        print_line(NO_MATCH)
        return
    if tasks_page.tasks:
        print_table(task_columns(tasks_page.at), tasks_page.tasks)
    more = f"; continue with --after {_next(tasks_page, sort)}" if tasks_page.next is not None else ""
    order = "" if sort == NEWEST else f", by {sort.by}: {sort.words}"
    print_line(f"{count_noun(len(tasks_page.tasks), 'task')} ({tasks_page.access}{order}){more}", style="dim")


def _show_merged(listed: Mapping[str, ListedPage], missing: Mapping[str, Unlisted], as_json: bool) -> bool:
    """Print the list of all shards; True if it has a task. The list of a shard without an answer goes on as before."""
    first = next(iter(listed.values()))
    pages = {shard: each.page for shard, each in listed.items()}
    found = merged(pages, {shard: each.after for shard, each in listed.items()}, first.sort, first.limit)
    positions = [written_cursors(found.next, first.sort)] if found.next else []
    positions += [f"{shard}:{each.position}" for shard, each in missing.items()]
    if as_json:
        print_json(
            ShardTaskList(
                str(first.filter),
                str(first.sort),
                [ShardTaskDocument(*each) for each in found.tasks],
                found.at,
                any(each.capped for each in pages.values()),
                bool(missing),
                errors_of(missing),
                ",".join(positions) or None,
            )
        )
    else:
        _print_merged(found, first.sort, ",".join(positions), missing)
    return bool(found.tasks)


def _print_merged(found: ShardPage, sort: Sort, following: str, missing: Mapping[str, Unlisted]) -> None:
    if found.tasks:
        print_table(shard_task_columns(found.at), found.tasks)
    elif not following:
        print_line(NO_MATCH)
    stopped = [shard for shard, each in found.pages.items() if each.capped and shard in found.next]
    words = [f"by {sort.by}: {sort.words}"] if sort != NEWEST else []
    words += [f"{shard}: {found.pages[shard].access}" for shard in stopped]
    if found.tasks or following:
        count = f"{count_noun(len(found.tasks), 'task')} of {', '.join(found.pages)}"
        note = f" ({', '.join(words)})" if words else ""
        more = f"; continue with --after {following}" if following else ""
        print_line(f"{count}{note}{more}", style="dim")
    print_partial(missing)


MERGED = ShardList(ListedPage, _show_merged, "--after", split_cursors)


def shard_task_columns(at: datetime) -> tuple[Column[ShardTask], ...]:
    """The columns of a task list over shards."""
    id, *rest = task_columns(at)
    own = [each.of(attrgetter("task")) for each in rest]
    return (Column("SHARD", lambda row: row.shard), Column(id.title, str, right=True, fixed=True), *own)


def task_columns(at: datetime) -> tuple[Column[TaskRow], ...]:
    """The columns of a task list, at the database's time `at`."""
    return (
        figure("ID", lambda task: task.id, formatting.row_id),
        Column("STATE", lambda task: task.shown, formatting.state, fixed=True),
        Column("QUEUE", lambda task: task.queue),
        Column("HANDLER", lambda task: task.handler),
        Column("KEY", lambda task: task.key, formatting.text),
        figure("ATT", lambda task: formatting.attempts(task.attempt, task.max_attempts)),
        figure("WHEN", lambda task: formatting.distance(task.relevant_time, at)),
        Column("REASON", lambda task: task.remark, formatting.reason),
    )


async def _list_archived(folder: Path, task_filter: Filter, limit: int, *, json: bool) -> int:
    from runner.cli.archive import archived_page  # loads Alembic

    tasks_page = replace(await archived_page(folder, task_filter, limit), next=None)
    print_json(_document(tasks_page, task_filter, NEWEST)) if json else _print(tasks_page, NEWEST)
    return Exit.OK


async def _list_as_of(
    words: tuple[str, ...], at: str, limit: int, after: str | None, *, json: bool, connection: Connection
) -> int:
    """Print the tasks as they were at a past time."""
    cursor = None if after is None else parse_cursor(after, NEWEST).id
    zone = local_zone()
    async with open_database(connection.settings()) as database:
        moment = await database.read(read_moment, at, zone)
        task_filter = read_filter(words)
        past = await database.read(tasks_as_of, moment, task_filter, cursor, limit)
        if not past.tasks:
            await warn_of_names(database, task_filter)
    if json:
        print_json(past)
        return Exit.OK
    if past.tasks:
        states = {task.task.id: past_word(task) for task in past.tasks}
        id, state, *rest = task_columns(moment)
        state = state._replace(value=lambda task: states[task.id], text=str)
        print_table((id, state, *rest), [task.task for task in past.tasks])
    more = f"; continue with --after {past.next}" if past.next is not None else ""
    bound = f", of the first {CANDIDATES:,} tasks" if past.capped else ""
    print_line(f"{count_noun(len(past.tasks), 'task')} at {format_moment(moment, zone)}{bound}{more}", style="dim")
    print_line(MISSING if past.audited else f"{MISSING} {UNAUDITED}", style="dim")
    return Exit.OK


def past_word(past: PastTask) -> str:
    """The state of a task at a past time: sign and word, or words if it is not known exactly."""
    return formatting.state(past.task.shown) if past.certain else past.word
