"""What people type: completing a filter, and reading a command after the colon."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from runner.errors import InvalidInput
from runner.fields import FIELDS, STATES, Kind, Operator, suggestion
from runner.filters import Filter, Term

_LAST_TERM = re.compile(r'(?:^|\s)(?P<minus>[-!]?)(?P<term>[^\s"]*)$')
_VALUE = re.compile(r"(?P<head>(?P<field>[a-z_]+)[:=](?:[^,]*,)*)(?P<begun>[^,]*)")


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
        Spelling("task", "ID", "the story of one task"),
        Spelling("failures", "", "what goes wrong, grouped"),
        Spelling("runners", "", "who works"),
        Spelling("reports", "", "how well it went: success, tries, durations, volume"),
        Spelling("audit", "", "who changed what"),
        Spelling("pause", "QUEUE [TIME] [REASON]", "let no more tasks of a queue start: :pause mail 30m deploy"),
        Spelling("resume", "QUEUE [REASON]", "end a pause"),
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


def complete_command(text: str, queues: Iterable[str] = ()) -> str | None:
    """The command line that was begun, as it may be meant; None when nothing is known."""
    name, blank, begun = text.partition(" ")
    if not blank:
        return _first(name, COMMANDS)
    if name in ("pause", "resume") and (queue := _first(begun, queues)):
        return f"{name} {queue}"
    return None


def complete_filter(text: str, names: Mapping[str, Sequence[str]]) -> str | None:
    """The filter that was begun, as it may be meant.

    Args:
        text: what was typed so far.
        names: values that exist, by field: those of queues and handlers.

    Returns:
        The text with its last term completed; None when nothing is known.
    """
    last = _LAST_TERM.search(text)
    if not last or not last["term"]:
        return None
    kept = text[: last.start("term")]
    value = _VALUE.fullmatch(last["term"])
    if not value:
        field = _first(last["term"], [name for name in FIELDS if name != "text"])
        return f"{kept}{field}{_sign(field)}" if field else None
    field = value["field"]
    known = STATES if field in FIELDS and FIELDS[field].kind is Kind.STATE else names.get(field, ())
    found = _first(value["begun"], known) if value["begun"] else None
    return f"{kept}{value['head']}{found}" if found and not re.search(r'[\s",*]', found) else None


def filter_of(**values: str) -> str:
    """Write a filter, values quoted where they must be: fields that contain a text, or are equal to one."""
    terms = []
    for name, value in values.items():
        operator = Operator.CONTAINS if name in ("error", "text") else Operator.EQ
        terms.append(Term(name, operator, value))
    return str(Filter(tuple(terms)))


def _sign(field: str) -> str:
    first = FIELDS[field].operators[0]
    return ":" if first is Operator.EQ else first.value


def _first(begun: str, known: Iterable[str]) -> str | None:
    return next((name for name in known if name.startswith(begun) and name != begun), None)
