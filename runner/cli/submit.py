"""`runner submit`: one task from the command line, or many from lines of JSON."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from runner.cli.awaiting import AT_ONCE, Patience, awaited
from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.drafts import Drafts
from runner.cli.ending import Exit, complain
from runner.cli.handlers import Modules, load_handlers
from runner.cli.intake import Intake, progress
from runner.cli.lines import read_lines, reading
from runner.cli.parents import typed
from runner.cli.printing import print_json, print_line
from runner.errors import InvalidInput
from runner.people.fields import suggestion
from runner.people.person import local_zone, now, operator
from runner.people.terminal import counted
from runner.settings import Settings
from runner.store.submit import hand_in
from runner.task import NewTask, OnFailure, Receipt

LINE_ROOM = 64 * 1024
"""Bytes of a line beyond its payload."""


@Parameter(name="*", group=Group("Task", sort_key=50))
@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What may be said of a task; what is left out comes from the handler, the runner or the table.

    Args:
        at: Not before this time: +15m, 14:30, tomorrow 9:00, 2026-11-20T14:30+01:00.
        delay: Not before so long from now: 30s, 10m, 2d.
        priority: 1 to 9, 9 goes first.
        key: A business key to find it by.
        queue: The lane that people name, pause and limit.
        max_attempts: How often it may be tried.
        retry: The retry plan: 1m,5m,20m or exp:10s*2<1h or sidekiq or never.
        timeout: How long an attempt may take: 30s, 5m.
        tag: A word to find it by; may be repeated.
        after: A task that it waits for, by number or as handler=key; may be repeated.
        on_failure: What it means when such a task is dead or cancelled: wait for it to be run again, cancel this one
            too, or run all the same.
        bucket: A number from 0 to 999 to spread tasks by; else one at random.
        unique_key: It is to be the only task of its handler with this key.
        unique: For how long: "until finished", forever, or "for 1h".
        on_duplicate: When another has it: skip submits nothing, replace changes the one that waits, error refuses.
    """

    at: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    delay: str | None = None
    priority: int | None = None
    key: str | None = None
    queue: str | None = None
    max_attempts: int | None = None
    retry: str | None = None
    timeout: str | None = None
    tag: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    on_failure: OnFailure | None = None
    bucket: int | None = None
    unique_key: str | None = None
    unique: str | None = None
    on_duplicate: str | None = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names of the columns."""
        renamed = {"at": "run_at", "tag": "tags"}
        said = {renamed.get(name, name): value for name, value in asdict(self).items() if value not in (None, ())}
        rule = said.pop("on_failure", None)
        if self.after:
            said["after"] = [typed(word, rule or "wait") for word in self.after]
        elif rule:
            raise InvalidInput(why="--on-failure says what a task behind --after means, and there is none")
        return said


PLAIN = TaskOptions()


def submit(
    name: str | None = None,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    lines: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    handlers: Modules = (),
    json: bool = False,
    options: TaskOptions = PLAIN,
    patience: Patience = AT_ONCE,
    connection: Connection = NOWHERE,
) -> int:
    """Put a task, or a file of tasks, into the queue.

    Where its handler is known, from -H or the configuration, a payload is
    checked against its signature, and queue, priority, bucket and unique key
    are the handler's, unless they are said here. Elsewhere they are not.

    With --lines each line is {"handler": ..., "payload": {...}} and may hold
    queue, key, priority, run_at, delay, max_attempts, retry, timeout, tags, after,
    bucket, unique_key, unique and on_duplicate; or it is the payload alone when
    NAME is given. Bad lines are listed on standard error and all others are
    submitted, in transactions of 2,000, or of what a pipe holds at the moment.

    With --wait what the handler returned is printed as JSON, secrets and all; a
    task that fails for good or is terminated ends the command with exit code 8,
    one that takes longer than --wait-timeout with 9. It goes on then.

    Args:
        name: The handler's name.
        payload: Its arguments, a JSON object; - reads it from standard input.
        lines: A file with one task a line as JSON; - is standard input.
        handlers: A module that defines handlers; may be repeated.
        json: Print one JSON document.
        options: What may be said of the tasks besides.
        patience: Whether to wait for the task.
        connection: Which database.
    """
    settings = connection.settings(handlers=handlers or None)
    drafts = Drafts(
        load_handlers(settings), int(settings.payload_limit), operator(), now(), local_zone(), options.given()
    )
    if lines is not None:
        if patience:
            raise InvalidInput(why="only a single task can be waited for, so --wait cannot stand beside --lines")
        if payload is not None:
            raise InvalidInput(why="the payloads come from the lines, so none can stand beside --lines")
        return _submit_lines(settings, drafts, lines, name, json)
    if payload is not None and payload.startswith("--"):
        raise InvalidInput(why=f"there is no option {payload}; see runner submit --help")
    if name is None:
        raise InvalidInput(why="name a handler and a payload, or a file with --lines")
    task = drafts.task(name, sys.stdin.read() if payload == "-" else payload or "{}")
    if handlers and name not in drafts.handlers:
        near = suggestion(name, tuple(drafts.handlers))
        complain(f"no handler is named {name!r} in what -H names{near}; the payload was not checked")
    return _submit_one(settings, task, patience, json)


def _submit_one(settings: Settings, task: NewTask, patience: Patience, json: bool) -> int:
    """Submit a task, say what became of it, and wait for it where that is wanted."""
    with _submitting(settings) as put:
        receipt = put([task])
    (task_id,) = receipt.ids
    if patience:
        complain(_said(task_id, receipt))
        return awaited(settings, task_id, patience, json=json)
    if json:
        print_json({"id": task_id, "duplicate": bool(receipt.duplicates), "replaced": bool(receipt.replaced)})
    else:
        print_line(_said(task_id, receipt))
    return Exit.OK


def _said(task_id: int, receipt: Receipt) -> str:
    if receipt.replaced:
        return f"Task {task_id} has the unique key; it waits, and has the new values now."
    if receipt.duplicates:
        return f"Task {task_id} has the unique key; nothing was submitted."
    return f"Submitted task {task_id}."


def _submit_lines(settings: Settings, drafts: Drafts, path: str, handler: str | None, json: bool) -> int:
    limit = drafts.payload_limit + LINE_ROOM
    with reading(path) as descriptor, _submitting(settings) as put, progress(descriptor) as shown:
        intake = Intake(lambda text: drafts.line(text, handler), put)
        try:
            for line in read_lines(descriptor, limit):
                intake.take(line)
                shown()
            intake.flush()
        except BaseException:
            complain(f"stopped: {counted(intake.submitted, 'task')} submitted, up to line {intake.last_line}")
            raise
    first, last = intake.ids or (None, None)
    if json:
        counts = {"submitted": intake.submitted, "duplicates": intake.duplicates}
        print_json({**counts, "first_id": first, "last_id": last, "bad": intake.bad})
    else:
        span = "" if first is None else f" ({first})" if first == last else f" ({first} to {last})"
        same = f"; {counted(intake.duplicates, 'duplicate')}" if intake.duplicates else ""
        bad = f"; {counted(len(intake.bad), 'bad line')}" if intake.bad else ""
        print_line(f"Submitted {counted(intake.submitted, 'task')}{span}{same}{bad}.")
    if not intake.bad:
        return Exit.OK
    return Exit.PARTLY if intake.submitted else Exit.BAD_INPUT


@contextmanager
def _submitting(settings: Settings) -> Iterator[Callable[[list[NewTask]], Receipt]]:
    """Give a way to submit without an event loop, so that reading a pipe can be interrupted between transactions."""
    with asyncio.Runner() as loop:
        way = opened(settings)
        database = loop.run(way.__aenter__())
        try:
            yield lambda tasks: loop.run(database.write(hand_in, tasks, notify=settings.notify))
        finally:
            loop.run(way.__aexit__(None, None, None))
