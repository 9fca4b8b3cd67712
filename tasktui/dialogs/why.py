"""WhyScreen and WhyManyScreen: dialogs that explain why a task, or many tasks, are not running."""

import asyncio
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content

from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term, parse_filter
from runner.model.task import Shown, State
from runner.queries.counting import Count
from runner.queries.why.many import CauseGroup, WhyMany, why_many
from runner.queries.why.remedies import RelatedView, sentence
from runner.queries.why.why import SCHEDULED, UNRECORDED, Why, why
from runner.text import formatting
from tasktui.actions.action import Targets
from tasktui.actions.remedy_key import RemedyKey, remedy_keys
from tasktui.data.task_pages import count_matches
from tasktui.dialogs.answer import AnswerScreen
from tasktui.render.plot import gauge
from tasktui.render.render import content, line, state
from tasktui.render.rows import pill, wrapped
from tasktui.session.session import Session


class WhyScreen(AnswerScreen[RelatedView | RemedyKey | None]):
    """The causes, most decisive first. It returns the cause that the operator opens, or the remedy of a key."""

    FAILING = "Cannot determine why"
    TITLE = "Why"
    ABOUT = "The causes, most decisive first. A letter opens the preview of the remedy beside it."

    _following = ""
    """The shard that the next dialog explains."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "dismiss", "Close"),
        # With priority over the text, which still scrolls by page.
        Binding("up,k", "move(-1)", "Up", priority=True),
        Binding("down,j", "move(1)", "Down", priority=True),
        Binding("enter", "open", "Open the cause", priority=True),
    ]

    def __init__(self, session: Session, id: int) -> None:
        super().__init__(session, f"Why is {id} not running?")
        self._task_id = id
        self._index = 0

    async def read(self) -> object:
        """Read the causes."""
        return await self.session.read(why, self._task_id, self.session.zone)

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the causes."""
        return why_lines(answer, width, self._view)

    def topic(self) -> str:
        """Return the title, which fits a task that has started since."""
        task = self._answer.task if isinstance(self._answer, Why) else None
        if task is None or not (task.state.final or task.state is State.RUNNING):
            return self._topic
        return f"{task.id} {'has ended' if task.state.final else 'is running'}"

    def hint(self) -> str:
        """Return the keys to show below the causes."""
        more = ", up/down select a cause" if len(self._views) > 1 else ""
        acts = "a letter acts, " if self.keys() else ""
        opens = f"enter opens ▸{more}, " if self._views else ""
        return f"{acts}{opens}escape {f'explains {self._following}' if self._following else 'closes'}"

    def on_key(self, event: events.Key) -> None:
        """Close with the remedy of a key."""
        key = next((each for each in (*self.chosen_keys(), *self.keys()) if each.key == event.key), None)
        if key is not None:
            event.stop()
            self.dismiss(key)

    def chosen_keys(self) -> Sequence[RemedyKey]:
        """Return the remedies of the selected cause, whose keys come before those of the others."""
        return ()

    def keys(self) -> Sequence[RemedyKey]:
        """Return the remedies that have keys."""
        return task_keys(self._answer) if self._answer is not None else ()

    def action_move(self, by: int) -> None:
        """Select another cause."""
        self._index = min(max(self._position + by, 0), max(0, len(self._views) - 1))
        self.draw()

    def action_open(self) -> None:
        """Open the screen that shows the selected cause."""
        if self._view is not None:
            self.dismiss(self._view)

    @property
    def _views(self) -> list[RelatedView]:
        causes = self._answer.causes if self._answer is not None else ()  # of one task, or groups of many
        return [cause.view for cause in causes if cause.view is not None]

    @property
    def _position(self) -> int:
        """Index of the selected cause; the latest answer may have fewer causes."""
        return min(self._index, max(0, len(self._views) - 1))

    @property
    def _view(self) -> RelatedView | None:
        return self._views[self._position] if self._views else None


class WhyManyScreen(WhyScreen):
    """The causes of many tasks, each with its number, and the change that frees most.

    Args:
        place: the shard of the tasks; empty without shards.
        following: the shard that the next dialog explains; empty for none.
    """

    def __init__(self, session: Session, task_filter: Filter, place: str = "", following: str = "") -> None:
        super().__init__(session, 0)
        self._following = following
        self._topic = f"Why are these tasks not running?{f' In {place}' if place else ''}"
        self._filter = task_filter
        self._dead = Count()
        self._dead_filter = Filter((*task_filter.terms, Term("state", Operator.EQ, str(State.DEAD))))
        self._dead_view = RelatedView("tasks", str(self._dead_filter))
        self._dead_key = RemedyKey("retry", "retry dead tasks", Targets(task_filter=lambda: self._dead_filter))

    async def read(self) -> object:
        """Read the causes, and count the dead tasks, which wait for nothing."""
        self._dead, answer = await asyncio.gather(
            self.session.read(count_matches, self._dead_filter),
            self.session.read(why_many, self._filter, self.session.zone),
        )
        return answer

    def answer_lines(self, answer: Any, width: int) -> Iterable[Content]:
        """Render the causes."""
        yield from many_lines(answer, width, self._view, self._keys_of)
        if self._dead.number:
            are, them = ("is", "it") if self._dead == Count(1) else ("are", "them")
            yield content("")
            mark = "▸ " if self._view is self._dead_view else "  "
            text = f"{mark}{self._dead.of('task')} {are} dead and will not run again; "
            keys = _key_parts(self._acting([self._dead_key], f"retries {them}"))
            yield from _hanging([(text, "bold strong"), *keys], width)

    def chosen_keys(self) -> Sequence[RemedyKey]:
        """Return the remedies of the selected cause."""
        return [key for view, keys in self._remedies() if view is self._view for key in keys]

    def keys(self) -> Sequence[RemedyKey]:
        """Return the remedies that have keys, in the order of their causes; those of dead tasks are last."""
        return [key for _, keys in self._remedies() for key in keys]

    def _remedies(self) -> Iterator[tuple[RelatedView, Sequence[RemedyKey]]]:
        for group in self._answer.causes if self._answer is not None else ():
            yield group.view, remedy_keys(group.command, parse=self._parse)
        if self._dead.number:
            yield self._dead_view, [self._dead_key]

    @property
    def _views(self) -> list[RelatedView]:
        return [*super()._views, *[self._dead_view] * bool(self._dead.number)]

    def _keys_of(self, command: str) -> Sequence[RemedyKey]:
        return self._acting(remedy_keys(command, parse=self._parse))

    def _acting(self, keys: Sequence[RemedyKey], words: str = "") -> Sequence[RemedyKey]:
        """Name the condition of keys that act on another cause now."""
        acts = {key.key: key[:2] for key in (*self.keys()[::-1], *self.chosen_keys())}
        others = [" when selected" * (acts[each.key] != each[:2]) for each in keys]
        return [each._replace(words=(words or each.words) + other) for each, other in zip(keys, others, strict=True)]

    def _parse(self, text: str) -> Filter:
        return parse_filter(text, self.session.now(), self.session.zone)


EXPLAINS = re.compile(r"runner why (\d+)")
"""The advice to look at another task, which the cause opens."""

BAR = 12
"""Cells of the share of a cause."""

MOST_CAUSES = 12
"""Maximum number of causes in the dialog."""


def many_lines(
    answer: WhyMany,
    width: int,
    selected: RelatedView | None = None,
    keys_of: Callable[[str], Sequence[RemedyKey]] = remedy_keys,
) -> Iterator[Content]:
    """Render the causes of many tasks.

    Args:
        width: cells of a line.
        keys_of: returns the keys of a remedy.
    """
    yield content((line(answer.filter, width) if answer.filter else "all tasks", "muted"))
    yield content("")
    if not answer.causes:
        yield content(("No waiting or blocked task matches.", "bold strong"))
        return
    yield content((line(answer.verdict), "bold strong"))
    for number, group in enumerate(answer.causes[:MOST_CAUSES], 1):
        share = gauge([(group.tasks / answer.examined.number, "dead" if number == 1 else "retrying")], BAR)
        head = f"{'▸' if group.view is selected else ' '}{group.tasks:>7,} "
        indent = " " * (len(head) + BAR + 2)
        wrapped = textwrap.wrap(line(group.phrase), max(20, width - len(indent)))
        text = f"\n{indent}".join(wrapped)
        yield content((head, "bold strong"), *share, (f"  {text}", "bold strong" if number == 1 else "text"))
        yield from _hanging([(indent, ""), *_remedy(group.advice, keys_of(group.command)), _freed(group)], width)
    if len(answer.causes) > MOST_CAUSES:
        yield content((f"and {len(answer.causes) - MOST_CAUSES} more causes", "faint"))
    if (best := answer.frees_most) is not None:
        yield content("")
        yield content(("What helps most", "bold strong"))
        yield content(" ", *_remedy(best.command, keys_of(best.command)), _freed(best))


def _hanging(parts: Sequence[tuple[str, str]], width: int) -> Iterator[Content]:
    """A sentence in as many lines as it needs, each as far inside as the first."""
    for row in wrapped(list(parts), width):
        yield content(*row)


def _freed(group: CauseGroup) -> tuple[str, str]:
    return f"  frees {group.freed:,}" if group.freed else "", "strong"


def _remedy(advice: str, keys: Sequence[RemedyKey]) -> list[tuple[str, str]]:
    """A remedy as the keys that open its dialog, or as a command or a sentence if it has none."""
    if not keys and (other := EXPLAINS.fullmatch(advice)):
        return [("→ ", "muted"), ("enter", "bold accent"), (f" opens task {other[1]}", "text")]
    if not keys:
        return [(f"→ {line(advice)}", "muted")]
    return [("→ ", "muted"), *_key_parts(keys)]


def _key_parts(keys: Sequence[RemedyKey]) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    for number, each in enumerate(keys):
        then = ", then " if number else ""
        parts += [(then, "muted"), (each.key, "bold accent"), (f" {line(each.words)}", "text")]
    return parts


def task_keys(answer: Why) -> Sequence[RemedyKey]:
    """The keys of the remedies of a task: the ways to let it start, then the advice of each cause."""
    advice = [*(remedy.commands for remedy in answer.remedies), *(cause.advice for cause in answer.causes)]
    return [key for each in advice for key in remedy_keys(each, answer.task)]


def why_lines(answer: Why, width: int, selected: RelatedView | None = None) -> Iterator[Content]:
    """Render the causes and their remedies.

    Args:
        width: cells of a line.
    """
    task = answer.task
    text, role = pill(task.shown, answer.word)
    attempt = formatting.attempts(task.attempt, task.max_attempts).replace("/", " of ")
    key = f"  {line(task.key, 40)}" if task.key else ""
    head = content((text, role), (f"  {line(task.handler, 40)}", "strong"), key, (f"   attempt {attempt}", "muted"))
    yield head
    yield content("")
    yield content((line(answer.verdict), "bold strong"))
    commands = {None, "", *(remedy.commands for remedy in answer.remedies)}  # listed below, each once
    for number, cause in enumerate(answer.causes, 1):
        here = selected is not None and cause.view is selected
        mark = "▸" if here else " "
        first = f"{mark}{number}. " if len(answer.causes) > 1 else f"{mark} "
        wrapped = textwrap.wrap(line(cause.text), width - 2, initial_indent=first, subsequent_indent=" " * len(first))
        other = ("· ", "muted") if cause.kind == SCHEDULED else ("! ", "retrying")  # a schedule is no obstacle
        sign = _first_sign(task.shown) if number == 1 else other
        recorded = cause.kind != UNRECORDED
        yield content(sign if recorded else ("? ", "muted"), *_lines(wrapped, number * recorded))
        if cause.advice not in commands:
            yield content(f"  {' ' * len(first)}", *_remedy(cause.advice, remedy_keys(cause.advice, task)))
    if answer.remedies:
        yield content("")
        yield content(("What helps", "bold strong"))
        yield content("\n".join(textwrap.wrap(line(sentence(answer.remedies)), width, subsequent_indent=" ")))
    for remedy in answer.remedies:
        yield content(" ", *_remedy(remedy.commands, remedy_keys(remedy.commands, task)))


def _first_sign(shown: Shown) -> tuple[str, str]:
    """The sign of the first cause: a cross for an obstacle, the sign of the state for a task that has none."""
    if shown not in (Shown.RUNNING, Shown.SUCCEEDED):
        return "✗ ", "bold dead"
    cell = state(shown)
    return f"{cell.text[:1]} ", cell.style


def _lines(wrapped: Sequence[str], number: int) -> list[tuple[str, str]]:
    return [("\n  ".join(wrapped), "bold strong" if number == 1 else "text")]
