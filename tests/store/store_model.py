"""A model of the store in memory: tasks, leases of runners, and the effect of each verb."""

from dataclasses import dataclass, field

from runner.model.outcome import Cancelled, Dead, Done, Outcome, Release, Retry, Snooze
from runner.model.task import Scope, State
from tests.store.runners import TERMS

KNOWN = "work"
"""The handler of all runners."""


@dataclass
class Wait:
    """A dependency, by the parent's id or by its key among the tasks of KNOWN."""

    parent: int | str
    rule: str
    open: bool = True


@dataclass
class Task:
    """The expected state of a task."""

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
    """Every fence that a claim has handed out."""

    @property
    def used_up(self) -> bool:
        return self.max_attempts is not None and self.attempt >= self.max_attempts

    @property
    def suspect(self) -> bool:
        last = self.max_attempts is not None and self.attempt + 1 >= self.max_attempts
        return self.rescues > 1 or (self.rescues == 1 and last)

    @property
    def width(self) -> int:
        left = 9 if self.max_attempts is None else self.max_attempts - self.attempt
        return 1 if self.rescues > 3 or left < 2 else 4 if self.rescues > 2 or left < 3 else 16

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
        """Take the values of a duplicate, unless it is too late."""
        if self.state is State.WAITING:
            self.payload, self.due = payload, due
        return self.state is State.WAITING

    def settle(self, outcome: Outcome) -> None:
        """Apply an accepted outcome."""
        match outcome:
            case Done():
                self._leave(State.SUCCEEDED)
            case _ if self.terminated:
                self._leave(State.CANCELLED)
            case Release() | Cancelled():
                self._leave(State.WAITING, uncounted=1)
            case Snooze():
                self.rescues = 0
                self._leave(State.WAITING, uncounted=1, due=False)
            case Dead():
                self._leave(State.DEAD)
            case Retry(delay=delay):
                self.rescues = self.rescues if self.used_up else 0
                self._leave(State.DEAD if self.used_up else State.WAITING, due=delay == "0s")

    def rescue(self) -> None:
        self.fence += 1
        self.rescues += 1
        final = State.CANCELLED if self.terminated else State.DEAD
        self._leave(final if self.terminated or self.used_up else State.WAITING)

    def requeue(self) -> None:
        self.attempt = self.rescues = 0
        self.terminated, self.due, self.state = False, True, State.WAITING

    def _leave(self, state: State, uncounted: int = 0, due: bool = True) -> None:
        self.attempt -= uncounted
        self.state, self.runner, self.due = state, None, due


@dataclass
class Holding:
    """The last holder of a unique key, and its scope."""

    id: int
    scope: Scope
    over: bool = False
    """True when its time has passed."""


@dataclass
class Model:
    """All tasks by id, all registered runners (True while the lease is valid), and all unique keys."""

    tasks: dict[int, Task] = field(default_factory=dict)
    runners: dict[int, bool] = field(default_factory=dict)
    keys: dict[str, Holding] = field(default_factory=dict)

    def holder(self, key: str | None) -> int | None:
        """The task that holds a key."""
        holding = self.keys.get(key) if key is not None else None
        if holding is None:
            return None
        state = self.tasks[holding.id].state
        started = state not in (State.WAITING, State.BLOCKED)
        released = (holding.scope is Scope.UNTIL_FINISHED and state.final) or (
            holding.scope is Scope.UNTIL_STARTED and started
        )
        return None if holding.over or released else holding.id

    def requeue(self, id: int) -> bool:
        """Requeue a task, unless its state forbids it or another task holds its key."""
        task = self.tasks[id]
        holder = self.holder(task.unique_key)
        if task.state not in (State.DEAD, State.CANCELLED) or holder not in (None, id):
            return False
        task.requeue()
        self.hold_again(id, holder)
        return True

    def hold_again(self, id: int, holder: int | None) -> None:
        """Let a task that comes back hold its free key until it finishes, or until it starts as before."""
        key = self.tasks[id].unique_key
        if key is not None and holder is None and self.keys.get(key) != Holding(id, Scope.UNTIL_STARTED):
            self.keys[key] = Holding(id, Scope.UNTIL_FINISHED)

    def claimable(self, runner: int, suspects: bool) -> set[int]:
        """The tasks that a claim of this runner may take."""
        if not self.runners.get(runner):
            return set()
        return {id for id, task in self.tasks.items() if task.claimable and task.suspect is suspects}

    def final_state(self, wait: Wait) -> State | None:
        """The final state of a parent; None while it is live or missing."""
        id = self._parent_id(wait.parent)
        return None if id is None or not self.tasks[id].state.final else self.tasks[id].state

    def block(self, task: Task) -> None:
        """Block a new task on its unresolved dependencies."""
        for wait in task.waits:
            state = self.final_state(wait)
            wait.open = state is None or (state is not State.SUCCEEDED and wait.rule != "run")
        if any(wait.open for wait in task.waits):
            task.state = State.BLOCKED

    def sweep(self) -> tuple[set[int], set[int]]:
        """Release and cancel dependents, by the current states of all parents."""
        blocked = {id: task for id, task in self.tasks.items() if task.state is State.BLOCKED}
        ends = {id: [self.final_state(wait) for wait in task.waits] for id, task in blocked.items()}
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

    def open_dependencies(self, id: int) -> list[tuple[Task, Wait]]:
        """The dependents that are released or cancelled when this task fails."""
        blocked = [task for task in self.tasks.values() if task.state is State.BLOCKED]
        waits = [(task, wait) for task in blocked for wait in task.waits if wait.open and wait.rule != "wait"]
        return [(task, wait) for task, wait in waits if self._parent_id(wait.parent) == id]

    def circle(self, new: Task) -> bool:
        """True if a new task would depend on itself."""
        level, parents = [wait.parent for wait in new.waits], set[int | str]()
        while level:
            parent = level.pop()
            if parent == new.key:
                return True
            id = self._parent_id(parent)
            if parent not in parents and id is not None and self.tasks[id].state is State.BLOCKED:
                level += [wait.parent for wait in self.tasks[id].waits if wait.open]
            parents.add(parent)
        return False

    def _parent_id(self, parent: int | str) -> int | None:
        if isinstance(parent, int):
            return parent
        return max((id for id, task in self.tasks.items() if task.key == parent), default=None)

    def holds(self, runner: int, id: int, fence: int) -> bool:
        """True if a settle must be accepted."""
        task = self.tasks[id]
        return task.state is State.RUNNING and (task.runner, task.fence) == (runner, fence)

    def rescue_by(self, asker: int) -> set[int]:
        if not self.runners.get(asker):
            return set()
        self.runners = {runner: True for runner, holds in self.runners.items() if holds}
        lost = {
            id for id, task in self.tasks.items() if task.state is State.RUNNING and task.runner not in self.runners
        }
        for id in lost:
            self.tasks[id].rescue()
        return lost
