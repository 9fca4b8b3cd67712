"""Placement: the shard of a submit, by the routes of its tasks."""

from collections.abc import Sequence

from runner.errors import InvalidTask, TwoShards
from runner.handlers.call_options import check_route
from runner.model.headers import read_headers
from runner.model.shard import CURRENT_SHARD, ROUTE, ShardId
from runner.model.task import CURRENT_TASK, DependsOn, NewTask
from runner.model.task_batch import TaskBatch
from runner.policy.shard_rule import load_shard_rule
from runner.settings import Settings


class Placement:
    """Finds the shard of submits.

    Args:
        settings: settings with shards. If they are those of one shard, as in a process of a runner, a task without a
            route belongs to it.

    Raises:
        InvalidSettings: the rule cannot be loaded.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rule = load_shard_rule(settings.shard_rule, settings.shards)

    @property
    def own(self) -> str | None:
        """The shard of the task that the current context executes; None outside of a task."""
        return CURRENT_SHARD.get() or self._settings.shard

    def place(self, tasks: Sequence[NewTask]) -> tuple[str, Sequence[NewTask]]:
        """Return the shard of tasks, and the tasks with their routes in their headers.

        Raises:
            InvalidTask: a task has no route, or one that is not valid.
            TwoShards: the tasks, or a task and one that it depends on, belong to different shards.
        """
        alike = [tasks.like] if isinstance(tasks, TaskBatch) else tasks
        routes = {self._shard(route): route for route in dict.fromkeys(task.route for task in alike)}
        if len(routes) > 1:
            (first, one), (second, other) = [*routes.items()][:2]
            raise TwoShards(why=f"route {one!r} is in {first}, and route {other!r} in {second}")
        shard = next(iter(routes), self._settings.shards[0])
        for task in alike:
            _require_parents(task, shard)
        if isinstance(tasks, TaskBatch):
            return shard, TaskBatch(_noted(tasks.like), tasks.payloads)
        return shard, [_noted(task) for task in tasks]

    def shard_of(self, route: str) -> str:
        """Return the shard of a route.

        Raises:
            InvalidTask: the route is not valid, or the rule fails.
        """
        check_route("route", route)
        return self._rule(route)

    def _shard(self, route: str | None) -> str:
        if route is not None:
            return self.shard_of(route)
        if (own := self.own) is not None:
            return own
        why = f"the profile {self._settings.called} has the shards {', '.join(self._settings.shards)}: set "
        raise InvalidTask(field="route", value=None, why=f"{why}options(route=...), or route= of its @handler")


def _require_parents(task: NewTask, shard: str) -> None:
    for dependency in task.after or ():
        parent = dependency.parent
        if isinstance(parent, ShardId) and parent.shard != shard:
            raise TwoShards(why=f"the task is in {shard}, and the task {parent} that it depends on is not")


def _noted(task: NewTask) -> NewTask:
    """Return a task with its route in its headers, by which its shard can be found again."""
    if task.after is not None:
        task = task._replace(after=tuple(map(_plain, task.after)))
    route = task.route
    if route is None and (current := CURRENT_TASK.get()) is not None:
        route = read_headers(current.headers).get(ROUTE)
    return task if route is None else task.with_headers({ROUTE: route})


def _plain(dependency: DependsOn) -> DependsOn:
    parent = dependency.parent
    return dependency._replace(parent=int(parent)) if isinstance(parent, ShardId) else dependency
