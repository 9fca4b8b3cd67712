"""What the store promises, as a model in memory: tasks, runners' leases, and what each verb makes of them."""

from dataclasses import dataclass, field

from runner.outcome import Cancelled, Dead, Done, Outcome, Release, Retry, Snooze
from runner.task import Scope, State
from tests.store.runners import TERMS

KNOWN = "work"
"""The handler that runners know."""


@dataclass
class Wait:
    """That a task waits for another one, by its id or by the key that it has among the tasks of KNOWN."""

    parent: int | str
    rule: str
    open: bool = True


@dataclass
class Task:
    """A task as it should stand."""

    handler: str
    priority: int
    payload: str
    max_attempts: int | None
    due: bool
    state: State = State.WAITING
    attempt: int = 0
    fence: int = 0
    rescues: int = 0
    terminated: bool = False
    runner: int | None = None
    unique_key: str | None = None
    key: str | None = None
    waits: list[Wait] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)
    """Every fence that a claim handed out."""

    @property
    def used_up(self) -> bool:
        return self.max_attempts is not None and self.attempt >= self.max_attempts

    @property
    def suspect(self) -> bool:
        last = self.max_attempts is not None and self.attempt + 1 >= self.max_attempts
        return self.rescues > 1 or (self.rescues == 1 and last)

    @property
    def claimable(self) -> bool:
        return self.state is State.WAITING and self.due and self.handler == KNOWN and not self.used_up

    def claim(self, runner: int, fence: int) -> None:
        assert self.claimable
        assert not self.terminated
        assert fence > max([0, *self.granted])
        self.granted.append(fence)
        self.state, self.runner, self.fence = State.RUNNING, runner, self.fence + 1
        self.attempt += 1
        self.max_attempts = self.max_attempts or TERMS.max_attempts
        assert self.attempt <= self.max_attempts

    def replace(self, payload: str, due: bool) -> bool:
        """Take over what a duplicate says, if that is not too late."""
        if self.state is State.WAITING:
            self.payload, self.due = payload, due
        return self.state is State.WAITING

    def settle(self, outcome: Outcome) -> None:
        """The outcome of a settle that is accepted."""
        match outcome:
            case Done():
                self._leave(State.SUCCEEDED)
            case _ if self.terminated:
                self._leave(State.CANCELLED)
            case Release() | Cancelled():
                self._leave(State.WAITING, uncounted=1)
            case Snooze():
                self._leave(State.WAITING, uncounted=1, due=False)
            case Dead():
                self._leave(State.DEAD)
            case Retry(delay=delay):
                self._leave(State.DEAD if self.used_up else State.WAITING, due=delay == "0s")

    def rescue(self) -> None:
        self.fence += 1
        self.rescues += 1
        ended = State.CANCELLED if self.terminated else State.DEAD
        self._leave(ended if self.terminated or self.used_up else State.WAITING)

    def requeue(self) -> None:
        self.attempt = self.rescues = 0
        self.terminated, self.due, self.state = False, True, State.WAITING

    def _leave(self, state: State, uncounted: int = 0, due: bool = True) -> None:
        self.attempt -= uncounted
        self.state, self.runner, self.due = state, None, due


@dataclass
class Holding:
    """Who took a unique key last, and with what scope."""

    id: int
    scope: Scope
    over: bool = False
    """Its time has passed."""


@dataclass
class Model:
    """All tasks by id, all runners that have an entry (True while the lease holds), and all unique keys."""

    tasks: dict[int, Task] = field(default_factory=dict)
    runners: dict[int, bool] = field(default_factory=dict)
    keys: dict[str, Holding] = field(default_factory=dict)

    def holder(self, key: str | None) -> int | None:
        """The task that keeps others from a key."""
        known = self.keys.get(key) if key is not None else None
        if known is None:
            return None
        ended = known.scope is Scope.UNTIL_FINISHED and self.tasks[known.id].state.final
        return None if known.over or ended else known.id

    def requeue(self, id: int) -> bool:
        """Run a task again, unless it cannot be or another has its key."""
        task = self.tasks[id]
        holder = self.holder(task.unique_key)
        if task.state not in (State.DEAD, State.CANCELLED) or holder not in (None, id):
            return False
        task.requeue()
        if task.unique_key is not None and holder is None:
            self.keys[task.unique_key] = Holding(id, Scope.UNTIL_FINISHED)
        return True

    def claimable(self, runner: int, suspects: bool) -> set[int]:
        """What a claim of this runner may take."""
        if not self.runners.get(runner):
            return set()
        return {id for id, task in self.tasks.items() if task.claimable and task.suspect is suspects}

    def ended(self, wait: Wait) -> State | None:
        """How a parent has ended; None while it has not, or is not there."""
        id = self._meant(wait.parent)
        return None if id is None or not self.tasks[id].state.final else self.tasks[id].state

    def block(self, task: Task) -> None:
        """Let a new task wait for what has not ended as it should."""
        for wait in task.waits:
            ended = self.ended(wait)
            wait.open = ended is None or (ended is not State.SUCCEEDED and wait.rule != "run")
        if any(wait.open for wait in task.waits):
            task.state = State.BLOCKED

    def sweep(self) -> tuple[set[int], set[int]]:
        """What is let go, and what is cancelled, by how all parents stand now."""
        blocked = {id: task for id, task in self.tasks.items() if task.state is State.BLOCKED}
        ends = {id: [self.ended(wait) for wait in task.waits] for id, task in blocked.items()}
        freed, cancelled = set(), set()
        for id, task in blocked.items():
            news = [(wait, end) for wait, end in zip(task.waits, ends[id], strict=True) if wait.open and end]
            closed = [wait for wait, end in news if end is State.SUCCEEDED or wait.rule == "run"]
            for wait in closed:
                wait.open = False
            if any(wait.rule == "cancel" and wait.open for wait, _ in news):
                cancelled.add(id)
                task.state = State.CANCELLED
            elif closed and not any(wait.open for wait in task.waits):
                freed.add(id)
                task.state = State.WAITING
        return freed, cancelled

    def waiting_for(self, id: int) -> list[tuple[Task, Wait]]:
        """What is let go, or cancelled, when this task fails."""
        blocked = [task for task in self.tasks.values() if task.state is State.BLOCKED]
        waits = [(task, wait) for task in blocked for wait in task.waits if wait.open and wait.rule != "wait"]
        return [(task, wait) for task, wait in waits if self._meant(wait.parent) == id]

    def circle(self, new: Task) -> bool:
        """Tell whether a new task would wait for itself."""
        level, seen = [wait.parent for wait in new.waits], set[int | str]()
        while level:
            parent = level.pop()
            if parent == new.key:
                return True
            id = self._meant(parent)
            if parent not in seen and id is not None and self.tasks[id].state is State.BLOCKED:
                level += [wait.parent for wait in self.tasks[id].waits if wait.open]
            seen.add(parent)
        return False

    def _meant(self, parent: int | str) -> int | None:
        if isinstance(parent, int):
            return parent
        return max((id for id, task in self.tasks.items() if task.key == parent), default=None)

    def holds(self, runner: int, id: int, fence: int) -> bool:
        """Tell whether a settle must be accepted."""
        task = self.tasks[id]
        return task.state is State.RUNNING and (task.runner, task.fence) == (runner, fence)

    def rescue(self) -> set[int]:
        self.runners = {runner: True for runner, holds in self.runners.items() if holds}
        lost = {
            id for id, task in self.tasks.items() if task.state is State.RUNNING and task.runner not in self.runners
        }
        for id in lost:
            self.tasks[id].rescue()
        return lost
