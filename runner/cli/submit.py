"""`runner submit`: one task from the command line, or many from lines of JSON."""

import json as jsons
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from cyclopts import Group, Parameter

from runner.cli.drafts import BadLine, Drafts, Intake, open_input, parse_option, read_lines
from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.handlers import HandlerRegistry, Modules, load_handlers, require_loaded
from runner.cli.options import (
    DEFAULT_CONNECTION,
    NO_WAIT,
    Connection,
    WaitOptions,
    set_options,
    with_task_options,
)
from runner.cli.output import print_answer, print_block, print_json, progress
from runner.cli.submit_databases import submit_databases
from runner.client.client import connect, disconnect
from runner.client.results import kept, wait_for_end
from runner.errors import InvalidInput, NoResult, ResultNotKept
from runner.handlers.options import SETTABLE
from runner.model.shard import ShardId
from runner.model.task import NewTask, OnFailure, State, SubmitResult
from runner.settings import Settings
from runner.text.document import Treatment
from runner.text.operator import local_zone, now, operator
from runner.text.sanitize import count_noun

LINE_OVERHEAD = 64 * 1024
"""Bytes allowed in a line in addition to its payload."""


@Parameter(name="*", group=Group("Task", sort_key=50))
@dataclass(frozen=True)
@with_task_options(SETTABLE)
class TaskOptions:
    """Options of a task. An omitted option takes its value from the handler, the settings or the table.

    Args:
        on_failure: If a parent is dead or cancelled: wait until it is retried, cancel this task too, or run it
            anyway.
        unchecked: Do not compare the payload with the signature that runners stored.
    """

    on_failure: OnFailure | None = None
    unchecked: bool = False

    def values(self) -> dict[str, Any]:
        """The options that are set, by name."""
        options = set_options(self, SETTABLE)
        if "after" in options:
            options["after"] = [parse_option(word, self.on_failure or "wait") for word in options["after"]]
        elif self.on_failure:
            raise InvalidInput(why="--on-failure needs --after")
        return options


NO_OPTIONS = TaskOptions()


class SubmitDocument(NamedTuple):
    """A submitted task.

    Args:
        duplicate: True if a task with its unique key existed.
        replaced: True if the values of that task were replaced.
        shard: its shard; null without shards.
    """

    id: int
    duplicate: bool
    replaced: bool
    shard: str | None


class LinesDocument(NamedTuple):
    """The tasks of a file.

    Args:
        submitted: the number of submitted tasks.
        duplicates: the number of tasks whose unique key existed.
        first_id: the id of the first submitted task; None without any.
        bad: the lines that were not submitted.
    """

    submitted: int
    duplicates: int
    first_id: int | None
    last_id: int | None
    bad: Sequence[BadLine]


class EndDocument(NamedTuple):
    """The end of a task that was waited for.

    Args:
        attempts: the number of its attempts.
        result: the result of its handler.
        error: its last error, if it failed.
    """

    id: int
    state: State
    attempts: int
    result: Annotated[str | None, Treatment.JSON]
    error: str | None


DOCUMENTS = (SubmitDocument, LinesDocument, EndDocument)


class RegistryOptions(NamedTuple):
    """How a command uses the registry of handlers; see HandlerRegistry."""

    has_modules: bool
    checks: bool

    @classmethod
    def of(cls, modules: Modules, name: str | None, drafts: Drafts, *, checks: bool) -> "RegistryOptions":
        """The options of a command line; a handler that its modules lack is refused before a database is opened."""
        if modules and name is not None:
            require_loaded(name, drafts.handlers)
        return cls(bool(modules), checks)


def submit(
    name: str | None = None,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    lines: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    handlers: Modules = (),
    json: bool = False,
    options: TaskOptions = NO_OPTIONS,
    wait: WaitOptions = NO_WAIT,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Submit a task, or a file of tasks.

    If the handler is loaded, from -H or the configuration, the payload is checked
    against its signature, and the handler supplies queue, priority, bucket and
    unique key unless options set them. Otherwise the signature and the options
    count that its runners stored last; a bucket or key that its code derives from
    the payload is missing then, and a warning names it.

    With --lines each line is {"handler": ..., "payload": {...}} and may contain
    the options of a task, with run_at for --at and a list of tags for --tag; with
    NAME it is only the payload.
    Bad lines are reported on standard error. All others are submitted, in
    transactions of up to 2,000, sooner when a pipe pauses.

    With --wait the handler's result is printed as JSON, including secrets. The
    exit code is 8 if the task fails for good or is terminated, and 9 after
    --wait-timeout; the task then continues.

    Args:
        name: The handler's name.
        payload: Its arguments, a JSON object; - reads standard input.
        lines: A file with one task per line as JSON; - reads standard input.
        handlers: A module that defines handlers; may be repeated.
        json: Print one JSON document.
        options: Options of the tasks.
        wait: Whether to wait for the task.
        connection: The database.
    """
    settings = connection.settings(handlers=handlers or None)
    drafts = Drafts(
        load_handlers(settings), int(settings.payload_limit), operator(), now(), local_zone(), options.values()
    )
    registry = RegistryOptions.of(handlers, name, drafts, checks=not options.unchecked)
    if lines is not None:
        if wait:
            raise InvalidInput(why="--wait works with a single task, not with --lines")
        if payload is not None:
            raise InvalidInput(why="a payload cannot be combined with --lines, whose lines contain the payloads")
        return _submit_lines(settings, drafts, registry, LinesInput(lines, name), json=json)
    if payload is not None and payload.startswith("--"):
        raise InvalidInput(why=f"unknown option {payload}; see runner submit --help")
    if name is None:
        raise InvalidInput(why="name a handler and its payload, or a file with --lines")
    text = sys.stdin.read() if payload == "-" else payload or "{}"
    drafts.task(name, text)  # A refused task must not leave a new file.
    with _submitting(settings, drafts, registry) as submitting:
        result = submitting.submit([submitting.drafts.task(name, text)])
    return _report(settings, result, wait, json)


def _report(settings: Settings, result: SubmitResult, wait: WaitOptions, json: bool) -> int:
    """Print the outcome of a submit, and wait for the task on request."""
    (task_id,) = result.ids
    if wait:
        print_stderr(_sentence(task_id, result))
        return wait_for_task(settings, task_id, wait, json=json)
    shard = task_id.shard if isinstance(task_id, ShardId) else None
    document = SubmitDocument(task_id, bool(result.duplicates), bool(result.replaced), shard)
    print_answer(document, _sentence(task_id, result), json=json)
    return Exit.OK


def _sentence(task_id: int, result: SubmitResult) -> str:
    if result.replaced:
        return f"Task {task_id} has this unique key; its values were replaced."
    if result.duplicates:
        return f"Task {task_id} has this unique key; nothing was submitted."
    return f"Submitted task {task_id}."


class LinesInput(NamedTuple):
    """Lines of tasks: their file, and the handler of all of them if they are payloads."""

    path: str
    handler: str | None


def _submit_lines(
    settings: Settings, drafts: Drafts, registry: RegistryOptions, lines: LinesInput, *, json: bool
) -> int:
    limit = drafts.payload_limit + LINE_OVERHEAD
    with (
        open_input(lines.path) as descriptor,
        _submitting(settings, drafts, registry) as submitting,
        progress(descriptor) as update,
    ):
        intake = Intake(lambda text: submitting.drafts.line(text, lines.handler), submitting.submit)
        try:
            for line in read_lines(descriptor, limit):
                intake.take(line)
                update()
            intake.flush()
        except BaseException:
            print_stderr(f"stopped: {count_noun(intake.submitted, 'task')} submitted, up to line {intake.last_line}")
            raise
    first, last = intake.ids or (None, None)
    span = "" if first is None else f" ({first})" if first == last else f" ({first} to {last})"
    duplicates = f"; {count_noun(intake.duplicates, 'duplicate')}" if intake.duplicates else ""
    bad = f"; {count_noun(len(intake.bad), 'bad line')}" if intake.bad else ""
    document = LinesDocument(intake.submitted, intake.duplicates, first, last, intake.bad)
    print_answer(document, f"Submitted {count_noun(intake.submitted, 'task')}{span}{duplicates}{bad}.", json=json)
    if not intake.bad:
        return Exit.OK
    return Exit.PARTIAL if intake.submitted else Exit.BAD_INPUT


class Submitting(NamedTuple):
    """A command that submits: its drafts with the registry of handlers, and a synchronous submit function."""

    drafts: Drafts
    submit: Callable[[list[NewTask]], SubmitResult]


@contextmanager
def _submitting(settings: Settings, drafts: Drafts, options: RegistryOptions) -> Iterator[Submitting]:
    """Open the database, or the shards of a profile."""
    with submit_databases(settings) as databases:
        note = databases.keyring.note
        registry = HandlerRegistry(databases.read, drafts.handlers, on_codec=note, **options._asdict())
        yield Submitting(replace(drafts, registry=registry), databases.submit)


def wait_for_task(settings: Settings, id: int, wait: WaitOptions, *, json: bool) -> int:
    """Wait for a task and print its result.

    Args:
        json: print one JSON document.

    Raises:
        TimedOut: the task did not finish in time.
        TaskFailed: the task is dead.
        TaskCancelled: the task was cancelled.
    """
    connect(settings)
    try:
        ending = wait_for_end(id, wait.wait_timeout)
    finally:
        disconnect()
    failure: NoResult | None = None
    try:
        result = kept(ending)
    except NoResult as error:
        result, failure = None, error
    value = jsons.loads(result) if result else None
    if json:
        print_json(EndDocument(id, State(ending.state), ending.attempt, result, ending.error if failure else None))
    elif value is not None:
        print_block(jsons.dumps(value, indent=2, ensure_ascii=False), indent="")
    if failure is not None:
        print_stderr(f"runner: {failure}")
    return Exit.OK if failure is None or isinstance(failure, ResultNotKept) else Exit(failure.exit_code)
