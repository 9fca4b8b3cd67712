"""The command table of `runner` and the application built from it."""

import gc
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args

from cyclopts import App, Group, Parameter, Token, convert

from runner.cli.exit_codes import MEANINGS, PROGRAM
from runner.cli.shards import positionals, run_in_shards
from runner.errors import InvalidInput
from runner.filter.fields import suggestion

RUN, INSPECT, OPERATE, MAINTAIN = "Run", "Inspect", "Operate", "Maintain"


class CliCommand(NamedTuple):
    """One command.

    Args:
        group: the heading in the help.
        place: the module of runner.cli with a function of this name; empty for the module of the same name.
        reads: the actions that change nothing, the default one first, of a command with others.
        each: True if it runs in each shard of a profile; of a command with `reads`, these actions only.
    """

    name: str
    group: str
    help: str
    place: str = ""
    reads: tuple[str, ...] = ()
    each: bool = False

    @property
    def module(self) -> str:
        """The module of runner.cli with a function of this name."""
        return self.place or self.name

    @property
    def reads_shards(self) -> bool:
        """True if it changes nothing when it runs in each shard."""
        return self.group == INSPECT or self.name == "check"


COMPLETION = "--install-completion"

ALONE = ("--help", "--version", COMPLETION)
"""Options that need no command."""

ONE_FILE = ("--html", "--output", "--archive")
"""Options that name a file or a folder of one database."""

FOLDERS = "prune"
"""The command whose folder has one for each shard."""

CLI_COMMANDS = (
    CliCommand("demo", RUN, "Fill a queue with sample tasks and run them."),
    CliCommand("work", RUN, "Run tasks until stopped."),
    CliCommand("serve", RUN, "Hand tasks to executors that pull them over HTTP."),
    CliCommand("metrics", RUN, "Print the metrics of the database for Prometheus, or serve them."),
    CliCommand("submit", RUN, "Submit a task, or a file of tasks."),
    CliCommand("mcp", RUN, "Offer the commands to an assistant, over the Model Context Protocol."),
    CliCommand("tasks", INSPECT, "List the tasks that match a filter.", each=True),
    CliCommand("show", INSPECT, "Show everything about one task, its log or its stack."),
    CliCommand("workflows", INSPECT, "List the workflows: states, counts, critical paths.", each=True),
    CliCommand("workflow", INSPECT, "Show the graph of a workflow, as text or as a picture."),
    CliCommand("why", INSPECT, "Explain why tasks are not running.", each=True),
    CliCommand("stats", INSPECT, "Summarize the queues: states, ages, rates.", each=True),
    CliCommand("runners", INSPECT, "List, drain or resize runners.", reads=("list",), each=True),
    CliCommand(
        "schedules",
        INSPECT,
        "List, preview, add, edit, pause, run, free or delete schedules.",
        reads=("list", "show", "preview"),
        each=True,
    ),
    CliCommand("reports", INSPECT, "Report success, attempts, durations and volume over a period.", each=True),
    CliCommand("capacity", INSPECT, "Report when each queue is drained, or simulate other settings.", each=True),
    CliCommand("incident", INSPECT, "Report an incident as Markdown, ready to paste.", each=True),
    CliCommand("alerts", INSPECT, "List the alerts that fire, or silence them.", reads=("list",), each=True),
    CliCommand("failures", INSPECT, "Group failed attempts by cause.", each=True),
    CliCommand("audit", INSPECT, "List the changes: who, when and why.", each=True),
    CliCommand("views", INSPECT, "List, show, save or delete saved filters.", reads=("show",)),
    CliCommand("retry", OPERATE, "Run tasks again now."),
    CliCommand("terminate", OPERATE, "Terminate tasks: waiting ones now, running ones by request."),
    CliCommand("delay", OPERATE, "Postpone tasks."),
    CliCommand("signal", OPERATE, "Send a signal to tasks that wait for it."),
    CliCommand("unblock", OPERATE, "Release tasks from their dependencies."),
    CliCommand("rewind", OPERATE, "Make a task continue from an earlier checkpoint or step."),
    CliCommand("copy", OPERATE, "Submit a copy of a task, with the same or another payload."),
    CliCommand("edit", OPERATE, "Change when and how tasks run."),
    CliCommand("pause", OPERATE, "Stop starting the tasks of a queue or a handler.", each=True),
    CliCommand("resume", OPERATE, "End a pause.", each=True),
    CliCommand("limit", OPERATE, "Limit a queue or a handler over all runners; open or close breakers.", each=True),
    CliCommand("undo", OPERATE, "Undo a change or a whole change group."),
    CliCommand("migrate", MAINTAIN, "Create or upgrade the tables.", each=True),
    CliCommand("prune", MAINTAIN, "Delete or archive finished tasks past their retention.", each=True),
    CliCommand("rebalance", MAINTAIN, "Move waiting tasks to the shards of their routes."),
    CliCommand("pull", MAINTAIN, "Copy tasks into a local SQLite file, for a debugger."),
    CliCommand("erase", MAINTAIN, "Remove the contents of finished tasks for good."),
    CliCommand("rekey", MAINTAIN, "Encrypt tasks again with the first key, after a rotation."),
    CliCommand("restore", MAINTAIN, "Return archived tasks to the database."),
    CliCommand("check", MAINTAIN, "Check the installation and advise on problems.", each=True),
    CliCommand("bench", MAINTAIN, "Measure submit and run throughput on this machine.", "bench.verb"),
)

FOREIGN_COMMANDS = {
    "beat": "schedules are part of runner work",
    "enqueue": "write runner submit NAME PAYLOAD",
    "flower": "the console is tasktui",
    "info": "write runner stats",
    "inspect": "write runner stats, tasks or runners",
    "list": "write runner tasks",
    "purge": "write runner terminate state:waiting",
    "requeue": "write runner retry state:dead",
    "scheduler": "schedules are part of runner work",
    "send": "write runner submit NAME PAYLOAD",
    "status": "write runner stats",
    "worker": "write runner work -H shop.tasks",
}
"""Commands of other task systems, and those to write here."""

_DATABASE = (
    "The database comes from --url or --profile, then TASKTUI_URL, then the default profile of the configuration file. "
    "Without any of them it is the file tasktui.db in the current directory."
)


WHOLE_NUMBER = re.compile("[+-]?[0-9]+")


def build(verb_name: str = "") -> App:
    """Build the application. Each command's module is imported on demand.

    Args:
        verb_name: the command about to run; its help is its full documentation instead of one line.
    """
    app = App(
        name=PROGRAM,
        help="Run and operate tasks whose queue is a database table.",
        help_format="plaintext",
        help_epilogue="" if verb_name in {verb.name for verb in CLI_COMMANDS} else f"{_DATABASE}\n\n{_exit_codes()}",
        version=lambda: version("tasktui"),
        default_parameter=Parameter(negative=(), show_default=False, converter=_converted),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        print_error=False,
        exit_on_error=False,
    )
    app.register_install_completion_command(COMPLETION, help="Complete commands and options in your shell.")
    groups = {name: Group(name, sort_key=index) for index, name in enumerate((RUN, INSPECT, OPERATE, MAINTAIN))}
    for index, verb in enumerate(CLI_COMMANDS):
        path = f"runner.cli.{verb.module}:{verb.name}"
        line = verb.help if verb.name != verb_name else None
        app.command(path, name=verb.name, help=line, group=groups[verb.group], sort_key=index)
    return app


def _converted(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert the words of a parameter.

    Cyclopts would round 1.5 to 2, so that a command changes task 2, and take an empty path, as from an unset variable
    of a shell, for the current directory.
    """
    kinds = {*(get_args(kind) or (kind,))} - {NoneType, ...}
    for token in tokens:
        if kinds == {int} and not WHOLE_NUMBER.fullmatch(token.value):
            raise ValueError(f"{token.value} is not a whole number.")
        if kinds == {Path} and not token.value.strip():
            raise ValueError("The path is empty: give it a value, or leave it out.")
    return convert(kind, tokens)


def run(arguments: Sequence[str], on_loaded: Callable[[], object] = bool) -> int:
    """Run one command line.

    Args:
        arguments: the command line without the program's name.
        on_loaded: called when the module of the command is imported.

    Returns:
        The exit code of the command.
    """
    words = list(arguments) or ["--help"]
    modules = {verb.name: verb.module for verb in CLI_COMMANDS}
    if words[0].startswith("--") and words[0] not in ALONE:
        raise InvalidInput(why=f"put {words[0].partition('=')[0]} after the command; see runner --help")
    if words[0] not in modules and not words[0].startswith("-"):
        advice = FOREIGN_COMMANDS.get(words[0]) or f"{suggestion(words[0], tuple(modules)).strip(', ')}"
        raise InvalidInput(why=f"unknown command {words[0]!r}{advice and f', {advice}'}; see runner --help")
    module = import_module(f"runner.cli.{modules[words[0]]}") if words[0] in modules else None
    if not gc.isenabled():  # freeze first: the collector need not scan the loaded modules
        gc.freeze()
        gc.enable()
    on_loaded()

    def execute(words: Sequence[str]) -> int:
        return int(build(words[0])(words) or 0)

    reads = any(verb.name == words[0] and verb.reads_shards for verb in CLI_COMMANDS)
    whole = getattr(module, "TOTALS", None) or getattr(module, "MERGED", None)
    try:
        return run_in_shards(words, execute, in_each=_runs_in_each(words), reads=reads, whole=whole)
    except UnicodeEncodeError:
        for word in words:  # the name of a file may have such bytes
            if any("\ud800" <= character <= "\udfff" for character in word):
                why = f"{word[:80]!r} has half of a surrogate pair, or bytes that are not UTF-8: it is not text"
                raise InvalidInput(why=why) from None
        raise


def _runs_in_each(words: Sequence[str]) -> bool:
    """True if a command may run in each shard of a profile."""
    if words[0] != FOLDERS and any(word.partition("=")[0] in ONE_FILE for word in words):
        return False
    verb = next((verb for verb in CLI_COMMANDS if verb.name == words[0]), None)
    if verb is None or not verb.each or not verb.reads:
        return verb is not None and verb.each
    return next(iter(positionals(words)), verb.reads[0]) in verb.reads


def _exit_codes() -> str:
    return "\n".join(["Exit codes:", *(f"{code.value:5}  {meaning}" for code, meaning in MEANINGS.items())])
