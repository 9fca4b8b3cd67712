"""The verbs: every command with its place and its line of help, in one table."""

import gc
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

from cyclopts import App, Group, Parameter

from runner.cli.ending import MEANINGS
from runner.errors import InvalidInput
from runner.people.fields import suggestion


class Verb(NamedTuple):
    """One command.

    Args:
        name: as it is typed.
        group: under which the help lists it.
        help: one line.
        place: the module of runner.cli that holds the function of that name.
    """

    name: str
    group: str
    help: str
    place: str


ALONE = ("--help", "--version")
"""Options that stand without a verb."""

START, LOOK, CHANGE, CARE = "Start", "Look", "Change", "Care"

VERBS = (
    Verb("demo", START, "Show everything at work, on a queue filled with sample tasks.", "demo"),
    Verb("work", START, "Run tasks until told to stop.", "work"),
    Verb("submit", START, "Put a task, or a file of tasks, into the queue.", "submit"),
    Verb("tasks", LOOK, "List the tasks that a filter lets through.", "tasks"),
    Verb("show", LOOK, "Tell the whole story of one task.", "show"),
    Verb("why", LOOK, "Say why a task is not running, or what became of it.", "why"),
    Verb("stats", LOOK, "Sum up the queues: states, ages, rates.", "stats"),
    Verb("runners", LOOK, "List the live runners and what they have in hand.", "runners"),
    Verb("reports", LOOK, "Tell how well it went: success, tries, durations, volume, over some time.", "reports"),
    Verb("failures", LOOK, "Group failed attempts by what they have in common.", "failures"),
    Verb("audit", LOOK, "List who changed what, when and why.", "audit"),
    Verb("view", LOOK, "List the filters that you saved, or show one.", "views"),
    Verb("save", LOOK, "Save a filter under a name.", "views"),
    Verb("forget", LOOK, "Forget a filter that you saved.", "views"),
    Verb("retry", CHANGE, "Run tasks again, now.", "change"),
    Verb("terminate", CHANGE, "End tasks for good: waiting ones at once, running ones on request.", "change"),
    Verb("delay", CHANGE, "Put tasks off by a length of time.", "change"),
    Verb("unblock", CHANGE, "Let tasks go that wait for others.", "change"),
    Verb("edit", CHANGE, "Change when and how one task runs.", "edit"),
    Verb("pause", CHANGE, "Let no more tasks of a queue or a handler start.", "pause"),
    Verb("resume", CHANGE, "End a pause.", "pause"),
    Verb("undo", CHANGE, "Take back a change, or all that was changed together.", "undo"),
    Verb("drain", CHANGE, "Ask a runner to finish what it has, and leave.", "drain"),
    Verb("resize", CHANGE, "Ask a runner to run more or fewer tasks at once.", "drain"),
    Verb("migrate", CARE, "Create the tables, or bring them up to date.", "migrate"),
    Verb("prune", CARE, "Delete finished tasks that are old enough.", "prune"),
    Verb("check", CARE, "Find out whether all is well, and say what to do where it is not.", "check"),
    Verb("bench", CARE, "Measure how fast tasks are submitted and run here.", "bench"),
)

_PLACES = (
    "The database is the one that --url or --profile names, or else RUNNER_URL, or else the default profile of the "
    "configuration file, or else the file tasktui.db in the current directory."
)


def build(chosen: str = "") -> App:
    """Build the application; the modules of the verbs are imported when they are needed.

    Args:
        chosen: the verb that is going to be called: its own documentation is its help, not only its line.
    """
    app = App(
        name="runner",
        help="Run and mend tasks whose queue is a database table.",
        help_format="plaintext",
        help_epilogue="" if chosen in {verb.name for verb in VERBS} else f"{_PLACES}\n\n{_exit_codes()}",
        version=lambda: version("tasktui"),
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        print_error=False,
        exit_on_error=False,
    )
    groups = {name: Group(name, sort_key=place) for place, name in enumerate((START, LOOK, CHANGE, CARE))}
    for place, verb in enumerate(VERBS):
        path = f"runner.cli.{verb.place}:{verb.name}"
        line = verb.help if verb.name != chosen else None
        app.command(path, name=verb.name, help=line, group=groups[verb.group], sort_key=place)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Args:
        arguments: without the program's name.

    Returns:
        The exit code of the verb.
    """
    typed = list(arguments) or ["--help"]
    known = {verb.name: verb.place for verb in VERBS}
    if typed[0].startswith("--") and typed[0] not in ALONE:
        raise InvalidInput(why=f"options such as {typed[0].partition('=')[0]} stand behind the verb; see runner --help")
    if typed[0] not in known and not typed[0].startswith("-"):
        raise InvalidInput(why=f"there is no verb {typed[0]!r}{suggestion(typed[0], tuple(known))}; see runner --help")
    if typed[0] in known:
        import_module(f"runner.cli.{known[typed[0]]}")
    if not gc.isenabled():  # from here on garbage is looked for, but not among what was loaded, which stays
        gc.freeze()
        gc.enable()
    return int(build(typed[0])(typed) or 0)


def _exit_codes() -> str:
    return "\n".join(["Exit codes:", *(f"{code.value:5}  {meaning}" for code, meaning in MEANINGS.items())])
