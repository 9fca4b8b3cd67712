"""The equivalent of a screen or an action, as a command line or SQL, and copying it."""

import shlex
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from runner.errors import InvalidInput, RunnerError
from runner.operations.pause import PauseKind, PauseTarget
from runner.settings import Settings
from runner.text.redact import MASK, mask
from runner.text.sanitize import clean
from tasktui.actions.action import Action, Confirmation
from tasktui.terminal import clipboard

if TYPE_CHECKING:
    from runner.model.schedule import ScheduleSpec
    from runner.queries.task.detail import TaskDetail
    from tasktui.actions.plan import ActionPlan

LONGEST = 4_000
"""Maximum number of characters of a command line to copy."""


def command_line(words: Iterable[object], settings: Settings, program: str = "runner") -> str | None:
    """Build a command line for a shell, with the database that it uses.

    Args:
        words: words after the program, unquoted; none if no command does the same.
        settings: settings with the database; a URL with a password is left to the environment.

    Returns:
        The line; None if there is none, or if it would be too long, contain control characters, or expose a secret to
        other users of the machine.
    """
    words = [*words]
    if not words:
        return None
    database: tuple[str, ...] = ()
    if settings.profile:
        database = ("--profile", settings.profile)
    elif not settings.url.password:
        database = ("--url", str(settings.url))
    text = " ".join(shlex.quote(str(word)) for word in (program, *words, *database))
    return text if len(text) <= LONGEST and clean(text) == text == mask(text) else None


def filter_word(text: str) -> str:
    """A filter as an argument: one that begins with a negated term would read as an option."""
    return f"!{text[1:]}" if text.startswith("-") else text


def plan_words(plan: "ActionPlan", confirmation: Confirmation) -> list[object]:
    """The command that applies a plan, to the tasks that match its filter or to its tasks by id."""
    words: list[object] = [plan.action.name]
    if plan.task_filter is not None:
        number, more = plan.eligible.at_most(confirmation.limit)
        words += [filter_word(str(plan.task_filter)), "--yes", f"{number}{'+' if more else ''}"]
    elif plan.action.verb == "signal" and plan.shards:
        return []  # its name follows one word, and no filter names tasks of several shards
    elif plan.action.verb == "signal" and len(plan.targets) > 1:
        words.append(f"id:{','.join(str(target.id) for target in plan.targets)}")
    else:
        words += [target.id for target in plan.targets]
    if confirmation.canary:
        words.append("--canary")
    if confirmation.limit is not None:
        words += ["--limit", confirmation.limit]
    return [*words, *plan.action.options(confirmation.answer), *_reason(confirmation.reason)]


def pause_words(target: PauseTarget, confirmation: Confirmation, *, resume: bool) -> list[object]:
    """The command that pauses or resumes a queue or a handler."""
    name = ["--handler", target.name] if target.kind is PauseKind.HANDLER else [target.name]
    until = ["--until", confirmation.answer] if confirmation.answer and not resume else []
    return ["resume" if resume else "pause", *name, *until, *_reason(confirmation.reason)]


def limit_words(target: PauseTarget, confirmation: Confirmation) -> list[object]:
    """The command that limits a queue or a handler: `concurrency=5 rate=none` becomes two options."""
    options = [part for word in confirmation.answer.split() for part in f"--{word}".split("=", 1)]
    return ["limit", target.kind, target.name, *options, *_reason(confirmation.reason)]


def breaker_words(handler: str, confirmation: Confirmation, *, close: bool) -> list[object]:
    """The command that opens or closes the breaker of a handler."""
    wait = [] if close else ["--for", confirmation.answer]
    action = "close" if close else "open"
    return ["limit", "handler", handler, "--breaker", action, *wait, *_reason(confirmation.reason)]


def silence_words(name: str, confirmation: Confirmation, *, ends: bool) -> list[object]:
    """The command that silences an alert, or ends its silence."""
    until = [] if ends else ["--until", confirmation.answer]
    return ["alerts", "unsilence" if ends else "silence", name, *until, *_reason(confirmation.reason)]


def runner_command_words(action: Action, runner_id: int, confirmation: Confirmation) -> list[object]:
    """The command that drains or resizes a runner: `concurrency=5 threads=2` becomes two options."""
    sizes = [part for word in confirmation.answer.split() for part in f"--{word}".split("=", 1)]
    return ["runners", action.name, runner_id, *sizes, *_reason(confirmation.reason)]


def stack_words(task_id: int, confirmation: Confirmation) -> list[object]:
    """The command that asks for the stack of a task."""
    return ["show", task_id, "--stack", *_reason(confirmation.reason)]


def schedule_words(name: str, id: str, confirmation: Confirmation) -> list[object]:
    """The command that changes a schedule; the answer is the end of a pause."""
    answer: list[object] = []
    if confirmation.answer and name == "schedules pause":
        answer = ["--until", confirmation.answer]
    group, _, action = name.partition(" ")
    return [group, action, id, *answer, *_reason(confirmation.reason)]


def edited_schedule_words(id: str, values: Mapping[str, str], confirmation: Confirmation) -> list[object]:
    """The command that edits a schedule.

    Args:
        values: the edited texts by column.

    Raises:
        InvalidInput: the payload has secrets.
    """
    if MASK in values.get("payload", ""):
        raise InvalidInput(why="the payload has secrets, which a command line would show")
    flags = {"timezone": "--tz", "overlap": "--overlap", "misfire": "--misfire", "payload": "--payload"}
    options = [word for name, flag in flags.items() if name in values for word in (flag, values[name])]
    rule = _rule(values["rule"]) if "rule" in values else []
    return ["schedules", "edit", id, *rule, *options, *_reason(confirmation.reason)]


def new_schedule_words(id: str, spec: "ScheduleSpec", confirmation: Confirmation) -> list[object]:
    """The command that adds a schedule."""
    zone: list[object] = ["--tz", spec.timezone] if spec.timezone != "UTC" else []
    payload: list[object] = ["--payload", spec.payload] if spec.payload != "{}" else []
    return ["schedules", "add", id, spec.handler, *_rule(spec.rule), *zone, *payload, *_reason(confirmation.reason)]


def _rule(rule: str) -> list[object]:
    word, _, length = rule.partition(" ")
    flags = {"every": "--every", "after_end": "--after-end"}
    return [flags[word], length] if word in flags else ["--cron", rule]


def new_task_words(
    action: Action,
    subject: int | str,
    payload: str | None,
    options: Mapping[str, str],
    confirmation: Confirmation,
    *,
    unchecked: bool = False,
) -> list[object]:
    """The command that submits a task of a handler, or a copy of a task.

    Args:
        action: `submit` or `copy`.
        subject: the handler, or the id of the task to copy.
        payload: the arguments; None for those of the task to copy.
        confirmation: the answers; `runner submit` takes no reason.
        unchecked: do not compare the payload with the stored signature.
    """
    named = {"at" if name == "run_at" else name: text for name, text in options.items()}
    words = [word for name, text in named.items() for word in (f"--{name.replace('_', '-')}", text)]
    reason = _reason(confirmation.reason) if action.name == "copy" else []
    checks = ["--unchecked"] if unchecked else []
    return [action.name, subject, *([] if payload is None else [payload]), *words, *checks, *reason]


def undo_words(entry: int, confirmation: Confirmation) -> list[object]:
    """The command that undoes one change."""
    return ["undo", entry, *_reason(confirmation.reason)]


def undo_group_words(group: str, count: str, confirmation: Confirmation) -> list[object]:
    """The command that undoes a change group."""
    return ["undo", "--group", group, "--yes", count, *_reason(confirmation.reason)]


def edit_words(
    detail: "TaskDetail", values: Mapping[str, str], reason: str | None, *, unchecked: bool = False
) -> list[object]:
    """The command that edits a task if it is still at the version on the screen.

    Args:
        values: edited texts by column.
        unchecked: do not compare the payload with the stored signature.
    """
    requeue = ["--requeue"] if detail.task.state.final else []
    options = [word for name, text in values.items() for word in (f"--{name.replace('_', '-')}", text)]
    checks = ["--unchecked"] if unchecked else []
    return ["edit", detail.task.id, "--version", detail.task.version, *requeue, *options, *checks, *_reason(reason)]


def _reason(reason: str | None) -> list[object]:
    return ["--reason", reason] if reason else []


SqlSource: TypeAlias = Callable[[], Awaitable[str]]
"""Returns the SQL; reads the database."""

ConsentSql: TypeAlias = Callable[[Confirmation], Awaitable[str]]
"""Returns the SQL for the answers of the operator so far."""

LONGEST_NOTICE = 300
"""Maximum number of characters of a command line to show."""

NO_COMMAND = "No command line does this, or it cannot be pasted safely"


class CopyTarget(Protocol):
    """A screen to copy from."""

    @property
    def app(self) -> Any:
        """The application, which owns the clipboard."""
        ...

    def run_worker(self, work: Coroutine[Any, Any, None], *, group: str) -> Any:
        """Run a coroutine in a worker."""
        ...

    def call_later(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Call a function between two messages, when it may touch widgets."""
        ...

    def report(self, text: str, *, bad: bool = False) -> None:
        """Show the copied text, or an error."""
        ...


def copy(target: CopyTarget, command: str | None, sql: SqlSource | None = None) -> None:
    """Copy a command line to the terminal's clipboard, or its SQL if the clipboard already holds the command line.

    Args:
        target: the screen to copy from.
        command: the command line; None if it cannot be pasted.
        sql: source of the equivalent SQL; None if there is none.
    """
    if command is None:
        target.report(NO_COMMAND, bad=True)
    elif sql is not None and target.app.clipboard == command:
        target.run_worker(_copy_sql(target, sql), group="sql")
    else:
        _put(target, command, shorten(command))


def shorten(text: str) -> str:
    """Cut a long command line: hundreds of ids would hide the dialog."""
    if len(text) <= LONGEST_NOTICE:
        return text
    return f"{text[:LONGEST_NOTICE]}… (all {len(text):,} characters copied)"


async def _copy_sql(target: CopyTarget, sql: SqlSource) -> None:
    try:
        text = await sql()
    except RunnerError as error:
        target.call_later(partial(target.report, str(error), bad=True))
    else:
        target.call_later(_put, target, text, f"Copied as SQL for psql or sqlite3:\n{text}")


def _put(target: CopyTarget, text: str, report: str) -> None:
    clipboard.copy(target.app, text)
    target.report(report)
