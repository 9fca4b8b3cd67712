"""`runner show` and `runner why`: everything about one task, and why a task, or many tasks, are not running."""

import json as jsons
import textwrap
from datetime import datetime, tzinfo
from typing import Annotated, Any

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.handlers import Modules, load_handlers
from runner.cli.options import DEFAULT_CONNECTION, Connection, TaskId, open_database, read_targets, warn_of_names
from runner.cli.output import (
    NO_MATCH,
    TableColumn,
    console,
    plain,
    print_block,
    print_json,
    print_line,
    print_pairs,
    print_table,
    print_title,
)
from runner.cli.stats import paused_line
from runner.cli.tasks import task_document
from runner.db.database import Database
from runner.errors import InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.operations.audit_log import reveal as record_reveal
from runner.operations.results import local_actor
from runner.queries.as_of import read_moment
from runner.queries.task.attempts import checkpoint_lines, log_line
from runner.queries.task.detail import TaskDetail, task_fields
from runner.queries.task.detail import task_detail as read_detail
from runner.queries.task.timeline import timeline
from runner.queries.why.many import EXAMINED, CauseGroup, WhyMany, why_many
from runner.queries.why.remedies import sentence
from runner.queries.why.why import Why, why_as_of
from runner.queries.why.why import why as read_why
from runner.settings import Settings
from runner.text import formatting
from runner.text.operator import local_zone
from runner.text.redact import decode, decode_audit, mask
from runner.text.sanitize import count_noun, one_line
from runner.text.times import format_moment

JSON_TEXTS = ("payload", "result")


async def show(
    id: TaskId,
    /,
    *,
    reveal: bool = False,
    handlers: Modules = (),
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show everything about one task, live or finished.

    Values of fields such as password or token, and values that look like secrets,
    are masked in payloads and errors. The next runs appear if the task or its
    handler (-H) has a retry plan.

    Args:
        id: The id of the task.
        reveal: Show secrets, and record that in the audit log.
        handlers: A module that defines handlers; may be repeated.
        json: Print one JSON document.
        connection: The database.
    """
    settings = connection.settings(handlers=handlers or None)
    async with open_database(settings) as database:
        detail = await _read(database, settings, id)
        if reveal:
            await database.write(record_reveal, id, local_actor(None))
    print_json(_document(detail, reveal), reveal=reveal) if json else _print(detail, reveal)
    return Exit.OK


async def _read(database: Database, settings: Settings, id: int) -> TaskDetail:
    detail = await database.read(read_detail, id)
    if detail.retry is not None or not settings.handlers:
        return detail
    handler = load_handlers(settings).get(detail.task.handler)
    return await database.read(read_detail, id, handler.defaults.retry or settings.retry) if handler else detail


def _document(detail: TaskDetail, reveal: bool) -> dict[str, Any]:
    document = plain(detail)
    document |= {name: decode(getattr(detail, name), reveal=reveal) for name in JSON_TEXTS}
    document |= document.pop("options")
    document["timeline"] = plain(timeline(detail, reveal=reveal))
    document["audit"] = [
        plain(entry) | {name: decode_audit(getattr(entry, name), reveal=reveal) for name in ("before", "after")}
        for entry in detail.audit
    ]
    return {**task_document(detail.task), **{name: value for name, value in document.items() if name != "task"}}


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
    if detail.error:
        print_title("last error")
        print_block(mask(detail.error, reveal=reveal))
    print_title("timeline")
    for event in timeline(detail, reveal=reveal, zone=local_zone()):
        print_line(f"{formatting.distance(event.at, detail.at) if event.at else '':>13}  {event.text}")
        for part in event.details:
            print_line(f"{'':15}{one_line(part)}")
    if detail.attempts and (traceback := detail.attempts[-1].traceback):
        print_title("traceback of the last failure")
        print_block(mask(traceback, reveal=reveal))


def _time_line(moment: datetime, at: datetime, zone: tzinfo) -> str:
    return f"{format_moment(moment, zone)}  {formatting.distance(moment, at)}"


MIN_WIDTH = 40
"""Columns for a sentence, even on a narrower terminal."""

MOST_EXAMINED = 100_000

MOST_CAUSES = 20
"""Causes to print; --json prints all."""

COLUMNS = (
    TableColumn("TASKS", right=True, no_wrap=True),
    TableColumn("CAUSE"),
    TableColumn("EXAMPLE", right=True, no_wrap=True),
    TableColumn("CHANGE"),
)


async def why(
    *words: Annotated[str, Parameter(name="TASKS")],
    limit: int = EXAMINED,
    at: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Explain why a task is not running, or why many are not.

    For one id, prints one sentence per cause, the decisive one first, with a
    remedy. The causes come from the rules that runners claim by.

    For a filter, counts its waiting and blocked tasks by their decisive cause, and
    names the change that frees most of them:

      runner why queue:mail
      runner why 'handler:smtp.* state:waiting'

    Args:
        words: The id of a task, several ids, or a filter.
        limit: Maximum number of tasks to examine, in the order of their due times.
        at: Explain one task as it was at a past time: 03:12, yesterday 03:12, 20m.
        json: Print one JSON document.
        connection: The database.
    """
    targets = read_targets(words)
    if not 1 <= limit <= MOST_EXAMINED:
        raise InvalidInput(why=f"--limit must be between 1 and {MOST_EXAMINED:,}, not {limit}")
    if at is not None and (isinstance(targets, Filter) or len(targets) != 1):
        raise InvalidInput(why="--at explains one task; name its id: runner why 123 --at 03:12")
    zone = local_zone()
    async with open_database(connection.settings()) as database:
        if isinstance(targets, list) and len(targets) == 1:
            if at is not None:
                explanation = await database.read(
                    why_as_of, targets[0], await database.read(read_moment, at, zone), zone
                )
            else:
                explanation = await database.read(read_why, targets[0], zone)
            print_json(_causes(explanation)) if json else _print_why(explanation)
            return Exit.OK
        task_filter = targets if isinstance(targets, Filter) else Filter((Term("id", Operator.IN, tuple(targets)),))
        answer = await database.read(why_many, task_filter, zone, limit)
        if not answer.causes:
            await warn_of_names(database, task_filter)
    print_json(_many_document(answer)) if json else _print_many(answer)
    return Exit.OK


def _causes(explanation: Why) -> dict[str, Any]:
    details = plain(explanation)
    remedies = [{"text": remedy.text, **plain(remedy)} for remedy in explanation.remedies]
    causes = [
        {"kind": cause.kind, "text": cause.text, "advice": cause.advice, "view": cause.view and cause.view.command}
        for cause in explanation.causes
    ]
    document = {
        "task": task_document(explanation.task),
        "at": details["at"],
        "verdict": explanation.verdict,
        "causes": causes,
    }
    return document | {"would_start_if": remedies}


def _many_document(answer: WhyMany) -> dict[str, Any]:
    groups = [plain(group) | {"view": group.view.command} for group in answer.causes]
    best = answer.best and {"command": answer.best.command, "frees": answer.best.freed}
    return {
        "filter": answer.filter,
        "at": answer.at,
        "examined": answer.examined.number,
        "complete": not answer.examined.more,
        "causes": groups,
        "frees_most": best,
    }


def _print_many(answer: WhyMany) -> None:
    if not answer.causes:
        print_line(f"{NO_MATCH} Only waiting and blocked tasks are examined.")
        return
    print_line(answer.verdict, style="bold")
    groups, rest = answer.causes[:MOST_CAUSES], answer.causes[MOST_CAUSES:]
    print_table(COLUMNS, [_row(group) for group in groups])
    if rest:
        tasks = sum(group.tasks for group in rest)
        print_line(f"and {len(rest)} more causes of {count_noun(tasks, 'task')}; --json lists them", style="dim")
    if answer.best is not None:
        print_line(f"-> {answer.best.command} frees {answer.best.freed:,}", style="bold")


def _row(group: CauseGroup) -> list[str]:
    return [f"{group.tasks:,}", group.phrase, str(group.example), group.command or f"runner why {group.example}"]


def _print_why(explanation: Why) -> None:
    print_line(explanation.verdict, style="bold")
    width = max(MIN_WIDTH, console().width - 1)
    for index, cause in enumerate(explanation.causes, 1):
        for line in textwrap.wrap(cause.text, width, initial_indent=f"  {index}. ", subsequent_indent="     "):
            print_line(line)
        if cause.advice:
            print_line(f"     -> {cause.advice}", style="dim")
        if cause.view and cause.view.command not in cause.advice:
            print_line(f"     see: {cause.view.command}", style="dim")
    for line in textwrap.wrap(sentence(explanation.remedies), width, initial_indent="  ", subsequent_indent="  "):
        print_line(line)
    for remedy in explanation.remedies:
        print_line(f"     -> {remedy.commands}", style="dim")
