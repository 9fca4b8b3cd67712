"""`runner pull`: copy tasks into a local SQLite file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, read_targets, warn_of_names
from runner.cli.output import NO_MATCH, print_json, print_line
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import InvalidInput
from runner.filter.parse import Filter
from runner.operations.audit_log import reveal
from runner.operations.results import local_actor
from runner.queries.local_copy import local_copy, redacted_record
from runner.queries.task_list.search import find
from runner.store.task_records import Record, read_records, write_records
from runner.text.sanitize import count_noun

MOST = 1_000
"""Maximum number of tasks of a copy."""


class PullDocument(NamedTuple):
    """The result of `runner pull`.

    Args:
        tasks: the ids of the copied tasks.
        to: the file.
    """

    tasks: list[int]
    to: str
    redacted: bool


DOCUMENTS = (PullDocument,)


async def pull(
    *targets: Annotated[str, Parameter(name="TASKS")],
    to: Path,
    redact: bool = False,
    limit: int = 20,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Copy tasks with attempts, checkpoints, log and audit into a new SQLite file.

      runner pull 'failure:3fa9' --profile prod --to case.db --redact
      runner retry state:dead --url sqlite:///case.db
      runner work -H shop.tasks --url sqlite:///case.db --pdb

    In the file a task belongs to no runner, host or parent, and does not expire;
    the database does not change. Without --redact the copy has all secrets, and
    the audit log records that.

    Args:
        targets: Task ids, or a filter.
        to: The new file.
        redact: Mask secrets in payloads, results, errors, logs and checkpoints.
        limit: Maximum number of tasks of a filter, the newest ones.
        json: Print one JSON document.
        connection: The database.
    """
    words = read_targets(targets)
    if not 1 <= limit <= MOST:
        raise InvalidInput(why=f"--limit must be between 1 and {MOST}, not {limit}")
    if to.exists():
        raise InvalidInput(why=f"{to} exists; name a new file")
    async with open_database(connection.settings()) as database:
        ids = words if isinstance(words, list) else (await database.read(find, words, limit)).ids
        live, finished = await database.read(_read, ids)
        if not redact:
            for record in (*live, *finished):
                await database.write(reveal, record["id"], local_actor(f"pull to {to.name}"))
        if not ids and isinstance(words, Filter):
            await warn_of_names(database, words)
    tasks = sorted(record["id"] for record in (*live, *finished))
    missing = [id for id in ids if id not in tasks]
    for id in missing:
        print_stderr(f"runner: task {id} does not exist; it may have been pruned")
    if tasks:
        if redact:
            live, finished = ([redacted_record(each) for each in records] for records in (live, finished))
        await _write(to, live, finished)
    if json:
        print_json(PullDocument(tasks, str(to), redact))
    else:
        print_line(f"copied {count_noun(len(tasks), 'task')} to {to}" if tasks else NO_MATCH)
    return Exit.OK if not missing else Exit.PARTIAL if tasks else Exit.NOT_FOUND


async def _read(tx: Transaction, ids: Sequence[int]) -> tuple[list[Record], list[Record]]:
    """The live and the finished tasks."""
    live = await read_records(tx, tx.tables.task, ids)
    known = {record["id"] for record in live}
    return live, await read_records(tx, tx.tables.history, [id for id in ids if id not in known])


async def _write(to: Path, live: list[Record], finished: list[Record]) -> None:
    from runner.db.migrations.apply import upgrade

    to.touch(0o600)
    database = Database.open(f"sqlite:///{to.absolute()}")
    try:
        await upgrade(database)
        live, finished = ([local_copy(record) for record in records] for records in (live, finished))
        await database.write(_insert, live, finished)
    except BaseException:
        to.unlink(missing_ok=True)
        raise
    finally:
        await database.dispose()


async def _insert(tx: Transaction, live: list[Record], finished: list[Record]) -> None:
    await write_records(tx, tx.tables.task, live)
    await write_records(tx, tx.tables.history, finished)
