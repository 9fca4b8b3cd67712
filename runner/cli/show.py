"""`runner show`: everything about one task, its log, or its stack."""

import json as jsons
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Annotated

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.follow import show_events
from runner.cli.handlers import Modules, load_handlers
from runner.cli.log import LogDocument, show_log
from runner.cli.options import DEFAULT_CONNECTION, Connection, TaskId, open_database
from runner.cli.output import (
    print_block,
    print_json,
    print_line,
    print_pairs,
    print_title,
)
from runner.cli.stack import StackDocument, show_stack
from runner.cli.stats import paused_line
from runner.db.database import Database
from runner.errors import InvalidInput
from runner.handlers.parameters import attempt_options
from runner.model.step import error_of
from runner.operations.audit_log import reveal as record_reveal
from runner.operations.results import local_actor
from runner.queries.task.attempts import checkpoint_lines, log_line
from runner.queries.task.detail import TaskDetail, task_fields
from runner.queries.task.detail import task_detail as read_detail
from runner.queries.task.steps import signal_lines, step_lines
from runner.queries.task.timeline import Event, timeline
from runner.settings import Settings
from runner.text import formatting
from runner.text.document import Flat
from runner.text.operator import local_zone
from runner.text.redact import decode, mask
from runner.text.sanitize import one_line
from runner.text.times import format_moment

MOST_LINES = 1_000
"""Log lines to print."""

JSON_TEXTS = ("payload", "result", "headers")


@dataclass(frozen=True, slots=True)
class TaskDocument:
    """Everything about one task.

    Args:
        timeline: its attempts and the operations on it, in order.
    """

    detail: Annotated[TaskDetail, Flat()]
    timeline: tuple[Event, ...]


DOCUMENTS = (TaskDocument, LogDocument, StackDocument)


async def show(  # noqa: PLR0913 - the options of the command
    id: TaskId,
    /,
    *,
    log: bool = False,
    follow: bool = False,
    attempt: int | None = None,
    limit: int = MOST_LINES,
    stack: bool = False,
    reason: str | None = None,
    reveal: bool = False,
    handlers: Modules = (),
    archive: Path | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show everything about one task, live or finished; or its log; or its stack.

    Values of fields such as password or token, and values that look like secrets,
    are masked; --reveal shows them, and decrypts encrypted tasks if the profile has
    the key. The next runs appear if the task or its handler (-H) has a retry plan.

    runner show ID --follow          its states, failed attempts, progress and lines
    runner show ID --log [--follow]  lines that the handler wrote with ctx.logger
    runner show ID --stack           where the handler is: file, line and function

    A runner writes log lines every second. An attempt keeps at most 1,000 of them.
    It also writes the stack into the log, without the values of variables.

    Args:
        id: The id of the task.
        log: Print its log lines.
        follow: Print what happens until the task has finished; with --log lines only.
        attempt: With --log: only the lines of this attempt.
        limit: With --log: only the last lines.
        stack: Ask its runner where the handler is.
        reason: With --stack: the reason; recorded with the request.
        reveal: Show secrets and encrypted values, and record that in the audit log.
        handlers: A module that defines handlers; may be repeated.
        archive: Read the task from this folder, which runner prune --archive has filled.
        json: Print one JSON document.
        connection: The database.
    """
    of_log = attempt is not None or limit != MOST_LINES
    _refuse_combinations(log=log, stack=stack, of_log=of_log, reason=reason, follow=follow, json=json)
    if archive is not None:
        return await _show_archived(archive, id, reads_database=log or stack or reveal or follow, json=json)
    settings = connection.settings(handlers=handlers or None)
    async with open_database(settings) as database:
        if log:
            return await show_log(database, id, attempt, limit, follow=follow, json=json)
        if stack or follow:
            return await (show_stack(database, id, reason, json=json) if stack else show_events(database, id))
        detail = await _read(database, settings, id)
        if reveal:
            await database.write(record_reveal, id, local_actor(None))
            detail = _opened(settings, detail)
    print_json(TaskDocument(detail, timeline(detail, reveal=reveal)), reveal=reveal) if json else _print(detail, reveal)
    return Exit.OK


def _opened(settings: Settings, detail: TaskDetail) -> TaskDetail:
    """Decrypt the values of a task, and report those that stay encrypted."""
    from runner.handlers.keyring import Keyring  # most tasks are not encrypted
    from runner.queries.task.opened_detail import opened_detail

    opened, reasons = opened_detail(detail, Keyring(settings))
    for reason in reasons:
        print_stderr(f"runner: {one_line(reason)}")
    return opened


async def _show_archived(folder: Path, id: int, *, reads_database: bool, json: bool) -> int:
    from runner.cli.archive import archived_task  # loads Alembic

    if reads_database:
        raise InvalidInput(
            why="--log, --follow, --stack and --reveal need the database; omit --archive, or restore the task"
        )
    async with archived_task(folder, id) as database:
        detail = await database.read(read_detail, id)
    print_json(TaskDocument(detail, timeline(detail, reveal=False))) if json else _print(detail, False)
    return Exit.OK


def _refuse_combinations(*, log: bool, stack: bool, of_log: bool, reason: str | None, follow: bool, json: bool) -> None:
    if log and stack:
        raise InvalidInput(why="choose --log or --stack")
    if of_log and not log:
        raise InvalidInput(why="--attempt and --limit apply to --log")
    if follow and json:
        raise InvalidInput(why="--follow prints lines; use it without --json")
    if follow and stack:
        raise InvalidInput(why="choose --follow or --stack")
    if reason is not None and not stack:
        raise InvalidInput(why="--reason applies to --stack")


async def _read(database: Database, settings: Settings, id: int) -> TaskDetail:
    detail = await database.read(read_detail, id)
    handler = load_handlers(settings).get(detail.task.handler) if settings.handlers else None
    if handler is None:
        return detail
    limit = settings.timeout.total_seconds() if settings.timeout else 0.0
    attempts = attempt_options(handler, settings.retry, settings.max_attempts, limit)
    return await database.read(read_detail, id, attempts)


def _print(detail: TaskDetail, reveal: bool) -> None:
    print_pairs(task_fields(detail, local_zone()))
    _print_pauses(detail)
    for title, lines in detail.dependencies.sections():
        print_title(title)
        for line in lines:
            print_line(line)
    _print_same_key(detail)
    for name in JSON_TEXTS:
        value = decode(getattr(detail, name), reveal=reveal)
        if value is not None:
            print_title(name)
            print_block(jsons.dumps(value, indent=2, ensure_ascii=False))
    _print_notes(detail, reveal)
    _print_failures(detail, reveal)
    if detail.next_runs:
        print_title("next runs, if every attempt fails immediately")
        print_block("\n".join(_time_line(run, detail.at, local_zone()) for run in detail.next_runs))


def _print_same_key(detail: TaskDetail) -> None:
    if detail.same_key:
        print_title("newest other tasks with this handler and key")
    for task in detail.same_key:
        when = formatting.distance(task.relevant_time, detail.at)
        print_line(f"{task.id:>8}  {formatting.state(task.shown):<12}  {when:>11}  {formatting.reason(task.remark)}")


def _print_notes(detail: TaskDetail, reveal: bool) -> None:
    lines = {
        "checkpoints": checkpoint_lines(detail.checkpoints, detail.at, reveal=reveal),
        "steps": step_lines(detail.steps, detail.at, reveal=reveal),
        "signals": signal_lines(detail.signals, detail.at, reveal=reveal),
        "last log lines": [log_line(row, local_zone(), reveal=reveal) for row in detail.log],
    }
    for title, rows in lines.items():
        if rows:
            print_title(title)
            print_block("\n".join(rows))


def _print_pauses(detail: TaskDetail) -> None:
    if detail.task.state.final:
        return
    pauses = {f"Queue {detail.task.queue}": detail.queue_pause, f"Handler {detail.task.handler}": detail.handler_pause}
    for subject, pause in pauses.items():
        if pause is not None:
            print_line(paused_line(subject, pause, detail.at))


def _print_failures(detail: TaskDetail, reveal: bool) -> None:
    if detail.task.remark and (error := error_of(detail.error)):
        print_title("last error")
        print_block(_bounded(mask(error, reveal=reveal), detail.task.id))
    print_title("timeline")
    for event in timeline(detail, reveal=reveal, zone=local_zone()):
        print_line(f"{formatting.distance(event.at, detail.at) if event.at else '':>13}  {event.text}")
        for part in event.details:
            print_line(f"{'':15}{one_line(part)}")
    if detail.attempts and (traceback := detail.attempts[-1].traceback):
        print_title("traceback of the last failure")
        print_block(_bounded(mask(traceback, reveal=reveal), detail.task.id))


LONGEST_TEXT = 4_000
"""Characters of an error or a traceback that are printed."""

REST = "{:,} characters left out; see all with: runner show {} --json"


def _bounded(text: str, id: int) -> str:
    """The begin and the end of a long text, with the number of characters between them."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n... {REST.format(len(text) - 2 * half, id)} ...\n{text[-half:]}"


def _time_line(moment: datetime, at: datetime, zone: tzinfo) -> str:
    return f"{format_moment(moment, zone)}  {formatting.distance(moment, at)}"
