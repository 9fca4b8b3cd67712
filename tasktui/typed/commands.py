"""Commands after the colon: their spelling, reading one, and completing one."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runner.errors import InvalidInput
from runner.people.fields import suggestion
from runner.people.sorts import SORTS
from runner.store.intervene import Kind, Place
from tasktui.typed.query import complete_filter, first_of


class Spelling(NamedTuple):
    """A command.

    Args:
        name: as it is typed after the colon.
        arguments: what may follow.
        help: one line.
    """

    name: str
    arguments: str
    help: str


COMMANDS = {
    command.name: command
    for command in (
        Spelling("overview", "", "the queues at a glance"),
        Spelling("tasks", "[FILTER]", "the tasks that a filter lets through"),
        Spelling("sort", "[BY] [asc|desc]", "the order of the list: :sort run_at; alone it turns it around"),
        Spelling("task", "ID", "the story of one task"),
        Spelling("failures", "", "what goes wrong, grouped"),
        Spelling("runners", "", "who works"),
        Spelling("reports", "", "how well it went: success, tries, durations, volume"),
        Spelling("audit", "", "who changed what"),
        Spelling("health", "", "how the database is"),
        Spelling("pause", "QUEUE [TIME] [REASON]", "let no more tasks of a queue, or of handler:NAME, start"),
        Spelling("resume", "QUEUE [REASON]", "end a pause, of a queue or of handler:NAME"),
        Spelling("view", "[NAME]", "a filter that was saved; without a name, which there are"),
        Spelling("save", "NAME", "save the filter of the list under a name"),
        Spelling("forget", "NAME", "forget a filter that was saved"),
        Spelling("stop", "", "stop what is under way after its present chunk"),
        Spelling("write", "[TIME] [REASON]", "allow changes, for a time: :write 10m mend the mail queue"),
        Spelling("lock", "", "allow no changes"),
        Spelling("help", "", "the keys of this screen"),
        Spelling("q", "", "leave"),
    )
}


class Command(NamedTuple):
    """A command that was typed: its name and the words behind it."""

    name: str
    words: tuple[str, ...]

    @property
    def rest(self) -> str:
        """The words as one text."""
        return " ".join(self.words)


def parse_command(text: str) -> Command:
    """Read a command; the beginning of its name will do where only one begins so.

    Raises:
        InvalidInput: there is none of that name.
    """
    name, *words = text.strip().removeprefix(":").split() or [""]
    if name in COMMANDS:
        return Command(name, tuple(words))
    begun = [known for known in COMMANDS if name and known.startswith(name)]
    if len(begun) != 1:
        hint = f": it may be {' or '.join(begun)}" if begun else suggestion(name, tuple(COMMANDS))
        raise InvalidInput(why=f"there is no command {name!r}{hint}; ? lists them")
    return Command(begun[0], tuple(words))


def place_of(command: Command) -> tuple[Place, tuple[str, ...]]:
    """The queue or the handler that a command names first, and the words behind it.

    Raises:
        InvalidInput: it names none.
    """
    kind, colon, name = (command.words[0] if command.words else "").partition(":")
    if not colon:
        kind, name = Kind.QUEUE, kind
    if kind not in tuple(Kind) or not name:
        raise InvalidInput(why=f"name a queue, or a handler: :{command.name} mail, :{command.name} handler:mail.send")
    return Place(Kind(kind), name), command.words[1:]


def complete_command(text: str, names: Mapping[str, Sequence[str]]) -> str | None:
    """The command line that was begun, as it may be meant; None when nothing is known.

    Args:
        text: what was typed so far.
        names: values that exist: those of queues, handlers and views.
    """
    name, blank, begun = text.partition(" ")
    if not blank:
        return first_of(name, COMMANDS)
    completed = _complete_words(name, begun, names)
    return None if completed is None else f"{name} {completed}"


def _complete_words(name: str, begun: str, names: Mapping[str, Sequence[str]]) -> str | None:
    match name:
        case "tasks":
            return complete_filter(begun, names)
        case "view" | "forget":
            return first_of(begun, names.get("view", ()))
        case "sort":
            return first_of(begun, tuple(SORTS)) if begun else None
        case "write" if not begun:
            return "10m "
        case "pause" | "resume":
            return _complete_pause(name, begun, names)
    return None


def _complete_pause(name: str, begun: str, names: Mapping[str, Sequence[str]]) -> str | None:
    place, blank, rest = begun.partition(" ")
    if blank:
        return f"{place} 30m " if name == "pause" and not rest else None
    handlers = [f"handler:{handler}" for handler in names.get("handler", ())]
    known = [*names.get("queue", ()), *handlers]
    return first_of(begun, [place for place in known if " " not in place]) if begun else None
