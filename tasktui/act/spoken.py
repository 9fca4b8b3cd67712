"""The same on the command line: what to type there to see or to do what the console shows or is about to do."""

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from runner.people.redaction import masked
from runner.people.terminal import clean
from runner.settings import Settings
from runner.store.intervene import Kind, Place
from tasktui.act.actions import EVERY, Action, Plan
from tasktui.act.consent import Consent

if TYPE_CHECKING:
    from runner.store.observe import Story  # every screen can say what it shows; few tell a story

LONGEST = 4_000
"""Characters of a command line that is still of use."""


def written(words: Iterable[object], settings: Settings) -> str | None:
    """Write a command line that a shell understands, with the database that it is about.

    Args:
        words: behind `runner`; none of them needs quotes yet.
        settings: which database; one whose URL holds a password is left to the environment.

    Returns:
        The line; None when there is none that could be pasted: it would be too long, hold characters that a terminal
        could take for keys, or show a secret to all users of the machine.
    """
    place: tuple[str, ...] = ()
    if settings.profile:
        place = ("--profile", settings.profile)
    elif not settings.url.password:
        place = ("--url", str(settings.url))
    text = " ".join(shlex.quote(str(word)) for word in ("runner", *words, *place))
    return text if len(text) <= LONGEST and clean(text) == text == masked(text) else None


def of_plan(made: Plan, consent: Consent) -> list[object]:
    """What does to tasks what was planned: to all that a filter lets through, or to tasks by their numbers."""
    words: list[object] = [made.action.name]
    if made.wanted is not None:
        words += [str(made.wanted), "--yes", f"{made.eligible.number}{'+' if made.eligible.more else ''}"]
    else:
        words += [target.id for target in made.chosen]
    if consent.amount is not None:
        words += ["--first", consent.amount]
    match made.action.name:
        case "retry" if consent.answer not in ("", "0", "0s"):
            words += ["--over", consent.answer]
        case "unblock" if consent.answer not in ("", EVERY):
            words += ["--edge", consent.answer]
        case "delay":
            words += ["--by", consent.answer]
    return words + _reason(consent.reason)


def of_pause(place: Place, consent: Consent, *, ends: bool) -> list[object]:
    """What pauses a queue or a handler, or ends the pause."""
    name = ["--handler", place.name] if place.kind is Kind.HANDLER else [place.name]
    end = ["--until", consent.answer] if consent.answer and not ends else []
    return ["resume" if ends else "pause", *name, *end, *_reason(consent.reason)]


def of_wish(action: Action, runner_id: int, consent: Consent) -> list[object]:
    """What asks a runner for something: `slots=5 threads=2` becomes two options."""
    sizes = [part for word in consent.answer.split() for part in f"--{word}".split("=", 1)]
    return [action.name, runner_id, *sizes, *_reason(consent.reason)]


def of_undo(entry: int, consent: Consent) -> list[object]:
    """What takes a change back."""
    return ["undo", entry, *_reason(consent.reason)]


def of_undo_together(batch: str, number: str, consent: Consent) -> list[object]:
    """What takes all back that was changed together."""
    return ["undo", "--batch", batch, "--yes", number, *_reason(consent.reason)]


def of_edit(story: "Story", given: Mapping[str, str], reason: str | None) -> list[object]:
    """What sets values of a task, if it is still as it was seen.

    Args:
        story: of the task as it was seen.
        given: what was typed, by column.
        reason: why.
    """
    again = ["--again"] if story.task.state.final else []
    values = [word for name, text in given.items() for word in (f"--{name.replace('_', '-')}", text)]
    return ["edit", story.task.id, "--version", story.task.version, *again, *values, *_reason(reason)]


def _reason(reason: str | None) -> list[object]:
    return ["--reason", reason] if reason else []
