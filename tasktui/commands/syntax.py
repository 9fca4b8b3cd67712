"""The console's commands: syntax, parsing and completion, with the filters in them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from runner.errors import InvalidInput
from runner.filter.fields import FIELDS, STATES, FieldKind, Operator, suggestion
from runner.filter.parse import Filter, Term
from runner.filter.sort import SORTS
from runner.operations.pause import PauseKind, PauseTarget
from tasktui.render.theme import THEMES

_LAST_TERM = re.compile(r'(?:^|\s)(?P<minus>[-!]?)(?P<term>[^\s"]*)$')
_VALUE = re.compile(r"(?P<head>(?P<field>[a-z_]+)[:=](?:[^,]*,)*)(?P<begun>[^,]*)")


def complete_filter(text: str, names: Mapping[str, Sequence[str]]) -> str | None:
    """Complete the last term of a filter.

    Args:
        names: existing values by field, of queues and handlers.

    Returns:
        The completed text; None without a completion.
    """
    last = _LAST_TERM.search(text)
    if not last or not last["term"]:
        return None
    prefix = text[: last.start("term")]
    value = _VALUE.fullmatch(last["term"])
    if not value:
        field = first_of(last["term"], [name for name in FIELDS if name != "text"])
        return f"{prefix}{field}{_sign(field)}" if field else None
    field = value["field"]
    candidates = STATES if field in FIELDS and FIELDS[field].kind is FieldKind.STATE else names.get(field, ())
    completion = first_of(value["begun"], candidates) if value["begun"] else None
    is_plain = completion and not re.search(r'[\s",*]', completion)
    return f"{prefix}{value['head']}{completion}" if is_plain else None


def filter_of(**values: str) -> str:
    """Write a filter from values: error and text match substrings, other fields whole values."""
    terms = []
    for name, value in values.items():
        operator = Operator.CONTAINS if name in ("error", "text") else Operator.EQ
        terms.append(Term(name, operator, value))
    return str(Filter(tuple(terms)))


def _sign(field: str) -> str:
    first = FIELDS[field].operators[0]
    return ":" if first is Operator.EQ else first.value


def first_of(prefix: str, candidates: Iterable[str]) -> str | None:
    """The first candidate that continues the prefix; None if there is none."""
    return next((name for name in candidates if name.startswith(prefix) and name != prefix), None)


class Screen(NamedTuple):
    """A screen that a command and a key open.

    Args:
        title: its title, as tabs and headings show it.
    """

    key: str
    title: str
    module: str
    name: str


class CommandSpec(NamedTuple):
    """The syntax of a command.

    Args:
        name: name after the colon.
        arguments: arguments after the name.
        screen: the screen that it opens; None for other commands.
    """

    name: str
    arguments: str
    help: str
    screen: Screen | None = None


VIEW_VERBS = ("show", "save", "delete")
"""The verbs of `:views`, which are those of `runner views`."""

COMMANDS = {
    command.name: command
    for command in (
        CommandSpec("overview", "", "show the queues", Screen("1", "Overview", "overview", "OverviewScreen")),
        CommandSpec(
            "tasks", "[FILTER]", "list the tasks that match a filter", Screen("2", "Tasks", "tasks", "TasksScreen")
        ),
        CommandSpec("sort", "[BY] [asc|desc]", "sort the list: :sort run_at; without BY, reverse the order"),
        CommandSpec("task", "ID", "show one task", Screen("3", "Task", "task", "TaskScreen")),
        CommandSpec("failures", "", "show failure groups", Screen("4", "Failures", "failures", "FailuresScreen")),
        CommandSpec("runners", "", "show the runners", Screen("5", "Runners", "runners", "RunnersScreen")),
        CommandSpec(
            "schedules",
            "",
            "show the schedules and their last runs",
            Screen("6", "Schedules", "schedules", "SchedulesScreen"),
        ),
        CommandSpec(
            "reports",
            "",
            "show success, attempts, durations and volume",
            Screen("7", "Reports", "reports", "ReportsScreen"),
        ),
        CommandSpec("audit", "", "show the changes", Screen("8", "Audit", "audit", "AuditScreen")),
        CommandSpec(
            "workflows",
            "[NAME]",
            "show the workflows and the graph of one; with a name, only those: :workflows book*",
            Screen("9", "Workflows", "workflows", "WorkflowsScreen"),
        ),
        CommandSpec("at", "TIME", "show a past time: :at 03:12, :at 20m ago; :at now returns"),
        CommandSpec("health", "", "show the state of the database"),
        CommandSpec("pause", "QUEUE [TIME] [REASON]", "stop starting tasks of a queue, or of handler:NAME"),
        CommandSpec("resume", "QUEUE [REASON]", "end a pause of a queue, or of handler:NAME"),
        CommandSpec("limit", "QUEUE LIMITS [REASON]", "limit a queue, or handler:NAME: :limit mail concurrency=5"),
        CommandSpec("breaker", "HANDLER [TIME] [REASON]", "open the breaker of a handler, or close it if it is open"),
        CommandSpec("silence", "ALERT [TIME] [REASON]", "send no notices of an alert or a rule, or end its silence"),
        CommandSpec(
            "incident", "[FROM] [TO]", "write a report as Markdown: :incident 3:00 4:00; by default the last hour"
        ),
        CommandSpec("submit", "HANDLER", "submit a new task of a handler, in a form with its parameters"),
        CommandSpec(
            "views", "[show|save|delete NAME]", "list the saved filters; apply one, save the current one, or delete one"
        ),
        CommandSpec("db", "NAME", "bring another database to the front, of a console with several"),
        CommandSpec("compare", "NAME [NAME]", "compare the queues of two databases, or of two times: :compare 03:12"),
        CommandSpec("theme", "NAME", "draw with dark, light, sixteen or none; auto chooses by the terminal"),
        CommandSpec("stop", "", "stop the running operation after its current chunk"),
        CommandSpec("write", "[TIME] [REASON]", "allow changes for a time: :write 10m mend the mail queue"),
        CommandSpec("lock", "", "forbid changes"),
        CommandSpec("help", "", "show the keys of this screen"),
        CommandSpec("q", "", "quit"),
    )
}

SCREENS = {name: command.screen for name, command in COMMANDS.items() if command.screen is not None}
"""The screens by name, which is also the command that opens the screen."""


class Command(NamedTuple):
    """A parsed command: its name and the words after it."""

    name: str
    words: tuple[str, ...]

    @property
    def rest(self) -> str:
        """The words as one text."""
        return " ".join(self.words)


def parse_command(text: str) -> Command:
    """Parse a command; an unambiguous prefix of the name is enough.

    Raises:
        InvalidInput: the name is unknown or ambiguous.
    """
    name, *words = text.strip().removeprefix(":").split() or [""]
    if name in COMMANDS:
        return Command(name, tuple(words))
    matches = [command for command in COMMANDS if name and command.startswith(name)]
    if len(matches) > 1:
        raise InvalidInput(why=f"command {name!r} is ambiguous: {', '.join(matches)}")
    if not matches:
        raise InvalidInput(why=f"unknown command {name!r}{suggestion(name, tuple(COMMANDS))}; press ? for the list")
    return Command(matches[0], tuple(words))


def target_of(command: Command) -> tuple[PauseTarget, tuple[str, ...]]:
    """Split a command's words into its queue or handler and the rest, also in the form of the command line.

    Returns:
        The target of `mail`, `handler:mail.send`, `--handler mail.send`, or with limits `queue mail`; and the rest.

    Raises:
        InvalidInput: a queue or handler is missing.
    """
    first, *rest = command.words or ("",)
    kind, colon, name = first.partition(":")
    is_kind = first == "--handler" or (command.name == "limit" and first in tuple(PauseKind))
    if is_kind and rest and "=" not in rest[0]:
        kind, name, *rest = first.removeprefix("--"), *rest
    elif not colon:
        kind, name = PauseKind.QUEUE, kind
    if kind not in tuple(PauseKind) or not name or name.startswith("--"):
        raise InvalidInput(why=f"name a queue, or a handler: :{command.name} mail, :{command.name} handler:mail.send")
    return PauseTarget(PauseKind(kind), name), _without_dashes(rest)


def _without_dashes(words: Sequence[str]) -> tuple[str, ...]:
    """The options of the command line as the console writes them: `--concurrency 5` is `concurrency=5`."""
    text = re.sub(r"(?<!\S)--(?:(?=default)|(?:until|reason)[ =])", "", " ".join(words))
    return tuple(re.sub(r"(?<!\S)--([a-z-]+)[ =](?=\S)", r"\1=", text).split())


def complete_command(text: str, names: Mapping[str, Sequence[str]]) -> str | None:
    """Complete a command line; None without a completion.

    Args:
        names: existing values by field, of queues, handlers and views.
    """
    name, blank, prefix = text.partition(" ")
    if not blank:
        return first_of(name, COMMANDS)
    completion = _complete_words(name, prefix, names)
    return None if completion is None else f"{name} {completion}"


def _complete_words(name: str, prefix: str, names: Mapping[str, Sequence[str]]) -> str | None:
    match name:
        case "tasks":
            return complete_filter(prefix, names)
        case "theme" | "db" | "silence" | "compare":
            choices = {"theme": ("auto", *THEMES), "silence": names.get("alert", ())}
            return first_of(prefix, choices.get(name, names.get("db", ())))
        case "views":
            return _complete_views(prefix, names)
        case "submit" | "sort" if prefix:
            return first_of(prefix, names.get("handler", ()) if name == "submit" else tuple(SORTS))
        case "pause" | "resume" | "limit" | "breaker":
            return _complete_pause(name, prefix, names)
    return "10m " if name == "write" and not prefix else None


def _complete_views(prefix: str, names: Mapping[str, Sequence[str]]) -> str | None:
    verb, blank, view = prefix.partition(" ")
    completion = first_of(view, names.get("view", ())) if blank else first_of(verb, VIEW_VERBS)
    return f"{verb} {completion}" if blank and completion else completion


def _complete_pause(name: str, prefix: str, names: Mapping[str, Sequence[str]]) -> str | None:
    target, blank, rest = prefix.partition(" ")
    if blank:
        examples = {"pause": "30m ", "breaker": "10m ", "limit": "concurrency="}
        return f"{target} {examples[name]}" if name in examples and not rest else None
    handlers = [handler if name == "breaker" else f"handler:{handler}" for handler in names.get("handler", ())]
    candidates = handlers if name == "breaker" else [*names.get("queue", ()), *handlers]
    return first_of(prefix, [target for target in candidates if " " not in target]) if prefix else None
