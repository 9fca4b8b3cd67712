"""Dependencies: as applications write them, and the outcomes of parents as a handler receives them."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, get_args

from runner.errors import InvalidHandler, InvalidInput, InvalidTask, NoRunner, WouldBlock
from runner.model.shard import ShardId
from runner.model.task import DependsOn, NewTask, OnFailure
from runner.model.text_limits import LONGEST_KEY, require_name, require_storable

FAILURE_RULES = get_args(OnFailure)
MOST_PARENTS = 100_000


class NamedHandler(Protocol):
    """A handler, in place of its name."""

    name: str


Parent: TypeAlias = int | tuple[str | NamedHandler, str] | DependsOn
"""A task to depend on: its id, its handler and business key, or a DependsOn with the effect of its failure."""


def dependencies(after: Parent | Iterable[Parent] | None) -> tuple[DependsOn, ...]:
    """Convert dependencies.

    Args:
        after: one parent, several, or None.

    Returns:
        One DependsOn per parent; the first one wins if a parent is listed twice.

    Raises:
        InvalidTask: an item is not a parent.
    """
    items = [_to_dependency(parent) for parent in parent_list(after)]
    return tuple({item.parent: item for item in reversed(items)}.values())[::-1]


def parent_list(after: Any) -> list[Any]:
    """The parents that an application passed, one, several or None, as a list."""
    if after is None:
        return []
    single = (int, str, DependsOn, NewTask)  # a text and a task that is not submitted are refused as a whole
    is_single = isinstance(after, single) or _is_name(after) or not isinstance(after, Iterable)
    return [after] if is_single else [*after]


def _to_dependency(parent: Any) -> DependsOn:
    match parent:
        case DependsOn(inner, on_failure):
            return _to_dependency(inner)._replace(on_failure=on_failure)
        case bool():
            pass
        case int():
            # A plain id, even if the caller passed a task handle; a submit checks the shard of one.
            return DependsOn(parent if isinstance(parent, ShardId) else int(parent))
        case (handler, str() as key) if _is_name(parent):
            return DependsOn((getattr(handler, "name", handler), key))
    why = 'expected a task id, or a handler and a key such as ("orders.pay", "order-17")'
    raise InvalidTask(field="after", value=parent.handler if isinstance(parent, NewTask) else parent, why=why)


def _is_name(parent: Any) -> bool:
    """True for a pair of a handler and a key, False for a pair of parents."""
    return (
        isinstance(parent, tuple)
        and not isinstance(parent, DependsOn)
        and len(parent) == 2  # noqa: PLR2004 - a handler and a key
        and isinstance(getattr(parent[0], "name", parent[0]), str)
        and isinstance(parent[1], str)
    )


DECLARED = "after"
"""The name of declared dependencies among the options of a handler or a schedule that the database stores."""


class SameKey(NamedTuple):
    """The parent of a declared dependency: the task of a handler that has the key of the dependent."""

    handler: str


ParentHandler: TypeAlias = str | NamedHandler | DependsOn
"""A handler whose tasks come first: itself, its name, or a DependsOn of it with the effect of a failure."""


def declared(after: ParentHandler | Iterable[ParentHandler] | None) -> tuple[DependsOn, ...] | None:
    """Convert the dependencies between handlers that @handler declares; None for none.

    Raises:
        InvalidTask: an item is not a handler or its name, or the effect of a failure is unknown.
    """
    if after is None:
        return None
    is_single = isinstance(after, (str, DependsOn)) or hasattr(after, "name") or not isinstance(after, Iterable)
    parents: Any = [after] if is_single else after
    items = tuple({item.parent: item for item in map(_to_declared, parents)}.values())
    return items or None


def _to_declared(parent: Any) -> DependsOn:
    inner: Any
    rule: Any
    inner, rule = parent if isinstance(parent, DependsOn) else (parent, "wait")
    name = getattr(inner, "name", inner)
    if not isinstance(name, str) or not name:
        why = 'expected a handler or its name, such as "etl.extract", or a DependsOn of one'
        raise InvalidTask(field="after", value=parent, why=why)
    if rule not in FAILURE_RULES:
        raise InvalidTask(field="after", value=rule, why=f"on_failure must be one of {', '.join(FAILURE_RULES)}")
    return DependsOn(SameKey(name), rule)


def stored_declared(after: Iterable[DependsOn]) -> dict[str, OnFailure]:
    """Write declared dependencies for the options that the database stores."""
    return {item.parent.handler: item.on_failure for item in after if isinstance(item.parent, SameKey)}


def read_declared(options: Mapping[str, Any]) -> tuple[DependsOn, ...]:
    """Read declared dependencies from stored options of a handler: the rule of each parent by its name."""
    stored = options.get(DECLARED)
    rules = stored.items() if isinstance(stored, Mapping) else ()
    return tuple(DependsOn(SameKey(str(name)), rule) for name, rule in rules if rule in FAILURE_RULES)


def with_key(task: NewTask, after: Iterable[DependsOn] = ()) -> NewTask:
    """Return a task whose declared dependencies name tasks by its own key.

    Args:
        after: declared dependencies, besides those that it has.

    Raises:
        InvalidTask: it has a declared dependency and no key.
    """
    parents = {item.parent: item for item in (*(task.after or ()), *after)}
    if not any(isinstance(parent, SameKey) for parent in parents):
        return task
    if task.key is None:
        names = " and ".join(parent.handler for parent in parents if isinstance(parent, SameKey))
        why = f"{task.handler} runs after {names} with the same key: set the option key, or key= of its @handler"
        raise InvalidTask(field="key", value=None, why=why)
    named = [
        item._replace(parent=(item.parent.handler, task.key)) if isinstance(item.parent, SameKey) else item
        for item in parents.values()
    ]
    return task._replace(after=tuple({item.parent: item for item in reversed(named)}.values())[::-1])


def refuse_declared_cycle(name: str, parents: Mapping[str, Iterable[str]]) -> None:
    """Refuse declarations by which the tasks of a handler would wait for themselves.

    Args:
        parents: names of the handlers that come before, by handler.

    Raises:
        InvalidHandler: they do; the message names the cycle.
    """
    paths: list[tuple[str, ...]] = [(name,)]
    seen = set[str]()
    while paths:
        path = paths.pop()
        for parent in parents.get(path[-1], ()):
            if parent == name:
                words = ", which runs after ".join((*path[1:], name)) if path[1:] else "itself"
                raise InvalidHandler(name=name, why=f"it runs after {words}: remove one `after` of this cycle")
            if parent not in seen:
                seen.add(parent)
                paths.append((*path, parent))


def parse_parents(value: Any) -> tuple[DependsOn, ...] | None:
    """Parse the parents of a task from JSON.

    Args:
        value: a list or a single parent: an id, [handler, key], or an object with id or handler and key, and
            on_failure.

    Raises:
        InvalidInput: the value has another form.
    """
    single = not isinstance(value, (list, tuple)) or _is_json_name(value)
    return tuple(dict.fromkeys(_parse_parent(item) for item in ([value] if single else value))) or None


def _parse_parent(item: Any) -> DependsOn:
    if isinstance(item, DependsOn):
        return item
    if isinstance(item, Mapping):
        fields = dict(item)
        on_failure = fields.pop("on_failure", "wait")
        if on_failure not in FAILURE_RULES:
            raise InvalidInput(
                why=f"on_failure must be {', '.join(FAILURE_RULES[:-1])} or {FAILURE_RULES[-1]}, not {on_failure!r}"
            )
        if fields.keys() == {"id"}:
            return _parse_parent(fields["id"])._replace(on_failure=on_failure)
        if fields.keys() == {"handler", "key"}:
            return _parse_parent([fields["handler"], fields["key"]])._replace(on_failure=on_failure)
    elif isinstance(item, int) and not isinstance(item, bool):
        return DependsOn(item)
    elif _is_json_name(item):
        return DependsOn((item[0], item[1]))
    raise InvalidInput(
        why=f'after expects task ids, ["handler", "key"], or {{"id": 17, "on_failure": "run"}}, not {item!r}'
    )


def _is_json_name(item: Any) -> bool:
    """True for a handler with a key, false for a list of parents."""
    return (
        isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item)  # noqa: PLR2004 - a handler and a key
    )


def check_parents(after: tuple[DependsOn, ...]) -> None:
    """Reject dependencies that a row cannot hold.

    Raises:
        InvalidTask: there are none or too many, or one is not valid.
    """
    if not after:
        raise InvalidTask(field="after", value="nothing", why="omit it for a task without dependencies")
    if len(after) > MOST_PARENTS:
        raise InvalidTask(
            field="after", value=f"{len(after)} tasks", why=f"a task can have at most {MOST_PARENTS} parents"
        )
    for parent, on_failure in after:
        if on_failure not in FAILURE_RULES:
            raise InvalidTask(
                field="after", value=on_failure, why=f"on_failure must be one of {', '.join(FAILURE_RULES)}"
            )
        if isinstance(parent, SameKey):
            require_name("after", parent.handler)
        elif isinstance(parent, tuple):
            require_name("after", parent[0])
            require_storable("after", parent[1], LONGEST_KEY)
        elif isinstance(parent, int) and not 1 <= parent < 2**63:
            raise InvalidTask(field="after", value=parent, why="it is not a task id")


class ParentResults(Protocol):
    """Reads the results of the tasks that a task depended on."""

    async def read(self) -> list[Any]:
        """Return the result of each parent, or the error in its place, in the order of the dependencies."""

    async def headers(self, limit: int) -> list[Mapping[str, str]]:
        """Return the headers of the parents that are stored, in the order of the dependencies."""

    def submit(self, work: Callable[[], Coroutine[Any, Any, list[Any]]]) -> Future[list[Any]]:
        """Run a coroutine function on the runner's loop, from a thread."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Outcomes of the tasks that a task depended on.

    Args:
        total: number of them.
        cancelled: number that were cancelled.
        parents: reads their results; None outside a runner.
    """

    total: int
    succeeded: int
    dead: int
    cancelled: int
    parents: ParentResults | None = field(default=None, repr=False, compare=False)

    def results(self, *, return_exceptions: bool = False) -> list[Any]:
        """Read the results of these tasks, in a plain function.

        Args:
            return_exceptions: True to return errors in the place of missing results.

        Returns:
            The results in the order of the dependencies; for a callback, in the order of the batch. Each has the type
            of its handler's return annotation, or is plain JSON if the runner does not load that handler.

        Raises:
            TaskFailed: the first task without a result is dead; TaskCancelled, ResultNotKept and InvalidResult as for
                TaskHandle.result.
            TaskNotFound: it was pruned.
            NoResult: it has not finished, because an operator removed the dependency.
            WouldBlock: called on an event loop: await `results_async` there.
            NoRunner: no runner executes the task.

        Examples:
            >>> @handler("shop.total")
            ... def total(ctx: Context) -> int:
            ...     return sum(ctx.batch.results()) if ctx.batch else 0
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            parents = self._require_parents()
            return _checked(parents.submit(parents.read).result(), return_exceptions)
        raise WouldBlock(call="ctx.batch.results()", instead="await ctx.batch.results_async()")

    async def results_async(self, *, return_exceptions: bool = False) -> list[Any]:
        """Same as `results`, in an async handler."""
        return _checked(await self._require_parents().read(), return_exceptions)

    async def headers_async(self, limit: int = 100) -> list[Mapping[str, str]]:
        """Read the headers of these tasks, for middleware.

        Args:
            limit: maximum number of tasks.

        Returns:
            The headers of each task that was not pruned, in the order of the dependencies.

        Raises:
            NoRunner: no runner executes the task, or it runs in a worker process.
        """
        return await self._require_parents().headers(limit)

    def _require_parents(self) -> ParentResults:
        if self.parents is None:
            raise NoRunner(call="ctx.batch.results()")
        return self.parents

    @property
    def failed(self) -> int:
        """Number that did not succeed, including dependencies that an operator removed before they finished."""
        return self.total - self.succeeded

    @classmethod
    def read(cls, text: str | None, parents: ParentResults | None = None) -> Self | None:
        """Read the counts of a row; None if there are none or they are not readable."""
        names = [item.name for item in fields(cls) if item.name != "parents"]
        try:
            counts = json.loads(text) if text else None
            return cls(**{name: int(counts[name]) for name in names}, parents=parents) if counts else None
        except (ValueError, KeyError, TypeError):
            return None


def _checked(values: list[Any], return_exceptions: bool) -> list[Any]:
    for value in values:
        if isinstance(value, Exception) and not return_exceptions:
            raise value
    return values
