"""workflow: submits tasks that depend on each other in one transaction, under one name."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast

from runner.client.client import get_client, refuse_event_loop
from runner.client.results import TaskHandle, handles
from runner.errors import InvalidTask
from runner.handlers.context import Context
from runner.handlers.dependencies import FAILURE_RULES, dependencies, parent_list
from runner.handlers.dependencies import Parent as StoredParent
from runner.model.task import BatchMember, DependsOn, NewTask, NewWorkflow, OnFailure, PreparedTask, SubmitResult

R = TypeVar("R")
"""Type of the result of a task."""


class WorkflowTask(Generic[R]):
    """A task of a workflow, to name as a parent of later ones; `handle` has its id after the block."""

    __slots__ = ("_handle", "_workflow", "position")

    _handle: TaskHandle[R] | None

    def __init__(self, workflow: "Workflow", position: int) -> None:
        self._workflow, self._handle = workflow, None
        self.position = position
        """Index of the task in its workflow."""

    @property
    def handle(self) -> TaskHandle[R]:
        """The task handle.

        Raises:
            InvalidTask: the workflow is not submitted yet.
        """
        if self._handle is None:
            why = "the workflow submits its tasks at the end of its block; read the handle after it"
            raise InvalidTask(field="workflow", value=self._workflow.name, why=why)
        return self._handle


After: TypeAlias = WorkflowTask[Any] | StoredParent | Iterable[WorkflowTask[Any] | StoredParent] | None
"""The parents of a task in a workflow: tasks of the workflow, and any others as in `options(after=...)`."""


class Workflow:
    """A workflow, made with `workflow`. It collects tasks in its block, and submits them at the end.

    Args:
        name: its name; None without one.
        tx: connection of the application, whose transaction the tasks join; None for a separate transaction.
        of: the context of the task whose workflow it continues; None for a workflow of its own.
    """

    def __init__(self, name: str | None = None, *, tx: object = None, of: Context | None = None) -> None:
        if of is not None and tx is None:
            why = "pass the connection of ctx.transaction() as tx: the tasks then commit with the success of this one"
            raise InvalidTask(field="tx", value=None, why=why)
        self.name = name
        self._kind = NewWorkflow(name, None if of is None else of.id)
        self.id: int | None = None
        """Its id after the block; None before."""
        self._tx, self._state = tx, "new"
        self._calls: list[NewTask] = []
        self._tasks: list[WorkflowTask[Any]] = []

    @property
    def tasks(self) -> list[TaskHandle[Any]]:
        """The task handles, in the order of `add`, after the block."""
        return [task.handle for task in self._tasks]

    def add(
        self, task: PreparedTask[R], *, after: After = None, on_failure: OnFailure | None = None
    ) -> WorkflowTask[R]:
        """Add a task.

        Args:
            task: a task made with `new`, for any handler.
            after: its parents: earlier tasks of the workflow, or others as in `options(after=...)`; one or several.
            on_failure: the effect of a dead or cancelled parent: "wait" (default), "cancel" or "run". A DependsOn in
                `after` has its own.

        Returns:
            The task, to name in `after` of later ones.

        Raises:
            InvalidTask: a parent is not a task of this workflow, or the block has not begun or has ended.
        """
        if self._state != "open":
            why = "add tasks inside its block: `with workflow(...) as w:` or `async with workflow(...) as w:`"
            raise InvalidTask(field="workflow", value=self.name, why=why)
        if not isinstance(task, NewTask):
            raise InvalidTask(field="call", value=task, why="pass a call made with handler.new(...)")
        if on_failure is not None and on_failure not in FAILURE_RULES:
            why = f"on_failure must be one of {', '.join(FAILURE_RULES)}"
            raise InvalidTask(field="after", value=on_failure, why=why)
        parents = self._parents(after, on_failure)
        both = {item.parent: item for item in (*(task.after or ()), *parents)}
        self._calls.append(task._replace(after=tuple(both.values()) or None, workflow=self._kind))
        added: WorkflowTask[R] = WorkflowTask(self, len(self._tasks))
        self._tasks.append(added)
        return added

    def _parents(self, after: After, on_failure: OnFailure | None) -> list[DependsOn]:
        parents: list[DependsOn] = []
        for item in parent_list(after):
            inner, rule = item if isinstance(item, DependsOn) else (item, on_failure or "wait")
            if not isinstance(inner, WorkflowTask):
                parents += (DependsOn(parent.parent, rule) for parent in dependencies(cast("StoredParent", inner)))
                continue
            if inner._workflow is not self:  # noqa: SLF001 - of this file
                why = f"it is a task of the workflow {inner._workflow.name!r}: pass its handle"  # noqa: SLF001
                raise InvalidTask(field="after", value=f"task {inner.position}", why=why)
            parents.append(DependsOn(BatchMember(inner.position), rule))
        return parents

    def __enter__(self) -> Self:
        """Begin the block."""
        if self._tx is None:
            refuse_event_loop("with workflow(...)", "async with workflow(...)")
        return self._begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Submit the tasks, unless the block has raised."""
        if (calls := self._end(error)) is not None:
            client, tx = get_client(), self._tx
            self._take(client.submit(calls) if tx is None else client.submit_within(tx, calls))

    async def __aenter__(self) -> Self:
        """Begin the block."""
        return self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Submit the tasks, unless the block has raised."""
        if (calls := self._end(error)) is not None:
            client, tx = get_client(), self._tx
            self._take(await (client.submit_async(calls) if tx is None else client.submit_within_async(tx, calls)))

    def _begin(self) -> Self:
        if self._state != "new":
            why = "its block has begun already: make another one with workflow(...)"
            raise InvalidTask(field="workflow", value=self.name, why=why)
        self._state = "open"
        return self

    def _end(self, error: BaseException | None) -> list[NewTask] | None:
        """The tasks to submit; None after an exception."""
        self._state = "ended"
        if error is not None:
            return None
        if not self._calls:
            raise InvalidTask(field="workflow", value=self.name, why="it has no task: add at least one")
        return self._calls

    def _take(self, result: SubmitResult) -> None:
        self.id = result.workflow
        submitted: list[TaskHandle[Any]] = handles(result.ids, result.duplicates)
        for task, handle in zip(self._tasks, submitted, strict=True):
            task._handle = handle  # noqa: SLF001 - of this file


def workflow(name: str | None = None, *, tx: object = None, of: Context | None = None) -> Workflow:
    """Make a workflow: tasks that depend on each other, submitted in one transaction at the end of its block.

    A block that raises submits nothing. On an event loop, use `async with`.

    Args:
        name: its name, for people; several workflows may have the same one.
        tx: your connection or session; the tasks join its open transaction. See docs/transactions.md.
        of: the context of a handler, with its `ctx.transaction()` as `tx`: the tasks join the workflow of its task, and
            the tasks that wait for that one wait for them too. With a name they are a workflow of their own.

    Raises:
        InvalidTask: the block added no task, or one is not valid; see also Submission.submit. With `of`, the task has
            no workflow and the new one no name, or a task would depend on itself.
        WouldBlock: `with` on an event loop without `tx`.

    Examples:
        >>> with workflow("order 17") as w:
        ...     paid = w.add(charge.new(order=17))
        ...     w.add(ship.new(order=17), after=paid)
    """
    return Workflow(name, tx=tx, of=of)
