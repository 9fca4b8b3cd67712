"""StuckRows: the rows that verbs of this runner could not change, set apart so that all others proceed."""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from runner.db.database import Database
from runner.db.errors import LOCK_TIMEOUT, row_fault, session_fault
from runner.db.row_locks import lock_at, row_locks
from runner.errors import StoreError
from runner.model.stuck_row import (
    LOCKED,
    BlockingSession,
    HeldLock,
    RowFault,
    RowPlace,
    StuckCause,
    StuckRow,
    StuckVerb,
    stored_stuck,
)
from runner.store.heartbeat import write_stuck
from runner.store.locked import locked
from runner.text.redact import mask
from runner.text.sanitize import one_line
from runner.text.stuck_row import LONGEST_FACT, place_text, stuck_text

log = logging.getLogger("runner.stuck")

PAUSES = {StuckCause.LOCKED: (0.1, 1.0), StuckCause.REFUSED: (1.0, 60.0)}
"""The first and the longest pause before the next try, in seconds; each pause is twice as long as the one before."""

LOGGED_TRIES = {StuckCause.LOCKED: 3, StuckCause.REFUSED: 1}
"""The failure that is logged: most locks last for milliseconds."""

MOST_LOGGED, MILESTONES = 20, (100, 1_000, 10_000)
"""The number of tasks of one handler that are logged each, by verb, and the numbers at which another one is logged."""

MOST_SETBACKS = 10_000
"""Maximum number of rows that are remembered; a verb fails again on others, and then splits its batch again."""

MOST_PLACES = 20
"""Maximum number of rows of other tables whose locks are looked up together."""

MOST_SESSION_ENDS = 3
"""The number of times in a row that a verb ends its session before one of its rows counts as the reason."""

Key = tuple[StuckVerb, int]
"""A verb and a task id."""


@dataclass(slots=True)
class _Setback:
    row: StuckRow
    due: float
    pause: float
    logged: str = ""
    fault: RowFault = LOCKED
    """The last fault, as the statement reported it."""


class StuckRows:
    """The stuck rows of one runner.

    A verb that fails on a row calls `set_apart` and leaves out the rows of `resting` until they are due again; after a
    success it calls `free`.
    """

    def __init__(self) -> None:
        self._setbacks: dict[Key, _Setback] = {}
        self._numbers = Counter[tuple[StuckVerb, str]]()
        """The stuck rows since the last time without one, by verb and handler."""
        self._stored: tuple[int, str | None] = (0, None)

    def set_apart(
        self, verb: StuckVerb, task: int, handler: str, fault: RowFault, blocker: BlockingSession | None = None
    ) -> None:
        """Record that a verb could not change a row, and choose the time of its next try.

        Args:
            blocker: the session that locks the row, if known; None keeps the one of the try before.
        """
        fault = fault._replace(fact=mask(one_line(fault.fact, LONGEST_FACT)))  # a trigger may raise any text
        entry = self._setbacks.get((verb, task))
        shortest, longest = PAUSES[fault.cause]
        if entry is None or entry.row.cause is not fault.cause:
            if entry is None and len(self._setbacks) >= MOST_SETBACKS:
                return
            since = datetime.now(UTC) if entry is None else entry.row.since
            row = StuckRow(task, handler, verb, fault.cause, fault.fact, since, 0, blocker)
            entry = self._setbacks[verb, task] = _Setback(row, 0.0, shortest / 2, entry.logged if entry else "")
        named = blocker or (entry.row.blocker if fault.cause is StuckCause.LOCKED else None)
        fact = entry.row.fact if blocker is None and fault == entry.fault else fault.fact  # with the name of the row
        entry.row = entry.row._replace(fact=fact, tries=entry.row.tries + 1, blocker=named)
        entry.fault = fault
        entry.pause = min(longest, 2 * entry.pause)
        entry.due = time.monotonic() + entry.pause
        if entry.row.tries >= LOGGED_TRIES[fault.cause] or verb == "complete":  # whose transaction waits for long
            self._log(entry)

    def free(self, verb: StuckVerb, tasks: Iterable[int]) -> None:
        """Record that a verb changed rows, or that they are gone. Refused rows with the same fact are due now."""
        if not self._setbacks:
            return
        facts = set[str]()
        for task in tasks:
            entry = self._setbacks.pop((verb, task), None)
            if entry is None:
                continue
            row = entry.row
            if entry.logged:
                level = logging.INFO if self._numbers[verb, row.handler] <= MOST_LOGGED else logging.DEBUG
                text = f"row no longer {row.cause}, {verb} done"
                log.log(level, "task %d (%s): %s", task, one_line(row.handler), text)
            if row.cause is StuckCause.REFUSED:
                facts.add(row.fact)
        if not self._setbacks:
            self._numbers.clear()
        for other in self._setbacks.values() if facts else ():
            if other.row.verb == verb and other.row.fact in facts:
                other.due = 0.0

    def retain(self, verb: StuckVerb, tasks: Collection[int]) -> None:
        """Drop the rows of a verb that a scan no longer finds: another runner or an operator has changed them.

        Args:
            tasks: ids of the tasks that the scan found or left out.
        """
        for task in self.tasks(verb).difference(tasks):
            row = self._setbacks.pop((verb, task)).row
            log.debug("task %d (%s): %s has nothing left to do", task, one_line(row.handler), verb)

    def forget(self, tasks: Iterable[int]) -> None:
        """Drop the rows of tasks that have ended: nothing is left to write."""
        if self._setbacks:
            ended = set(tasks)
            for key in [key for key in self._setbacks if key[1] in ended]:
                del self._setbacks[key]

    def retry_now(self, verb: StuckVerb) -> None:
        """Make all rows of a verb due now, for its last try."""
        for (kind, _), entry in self._setbacks.items():
            if kind == verb:
                entry.due = 0.0

    def resting(self, verb: StuckVerb) -> frozenset[int]:
        """Return the ids that a verb leaves out now, because their next try is not due."""
        if not self._setbacks:
            return frozenset()
        now = time.monotonic()
        return frozenset(task for (kind, task), entry in self._setbacks.items() if kind == verb and entry.due > now)

    def tasks(self, verb: StuckVerb) -> set[int]:
        """Return the ids of all stuck rows of a verb."""
        return {task for kind, task in self._setbacks if kind == verb}

    def tries(self, verb: StuckVerb, task: int) -> int:
        """Return the number of failures of a verb on a row; 0 if it is not stuck."""
        entry = self._setbacks.get((verb, task))
        return 0 if entry is None else entry.row.tries

    def until_due(self, verb: StuckVerb, task: int | None = None) -> float | None:
        """Return the seconds until the next row of a verb, or that of a task, is due; None without one."""
        dues = [entry.due for (kind, id), entry in self._setbacks.items() if kind == verb and task in (None, id)]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def rows(self, verb: StuckVerb | None = None) -> list[StuckRow]:
        """Return the stuck rows of a verb, or of all verbs, oldest first. Locks of milliseconds are left out."""
        rows = [entry.row for entry in self._setbacks.values() if entry.logged and verb in (None, entry.row.verb)]
        return sorted(rows, key=lambda row: (row.since, row.task))

    async def name_sessions(self, database: Database) -> None:
        """Find the sessions that lock rows whose verbs do not look for them, and log those rows again."""
        unnamed = [
            (key, entry)
            for key, entry in self._setbacks.items()
            if entry.logged and entry.row.cause is StuckCause.LOCKED and entry.row.blocker is None
        ]
        if not unnamed:
            return
        locks = await locks_of_faults(database, {number: entry.fault for number, (_, entry) in enumerate(unnamed)})
        for number, lock in locks.items():
            key, entry = unnamed[number]
            if self._setbacks.get(key) is entry and entry.row.blocker is None:
                fact = with_place(entry.fault, lock).fact
                entry.row = entry.row._replace(fact=fact, blocker=lock.session)
                self._log(entry)

    async def store(self, database: Database, runner_id: int) -> None:
        """Store the rows in the registry of runners for other processes, if they have changed since the last call."""
        await self.name_sessions(database)
        text = stored_stuck(self.rows())
        if (runner_id, text) == self._stored or (text is None and self._stored[1] is None):
            return
        try:
            await database.write(write_stuck, runner_id, text)
        except StoreError as error:
            log.warning("could not store the stuck rows for other processes: %s", error)
        else:
            self._stored = (runner_id, text)

    def __len__(self) -> int:
        return len(self._setbacks)

    def _log(self, entry: _Setback) -> None:
        row = entry.row
        fact = f"{row.cause} {row.fact} {row.blocker and row.blocker.pid}"
        if entry.logged == fact:
            return
        number = self._numbers[row.verb, row.handler] = self._numbers[row.verb, row.handler] + (not entry.logged)
        entry.logged = fact
        names = {"task": row.task, "handler": row.handler}
        if number <= MOST_LOGGED:
            log.warning("%s", stuck_text(row), extra=names)
        elif number in MILESTONES:
            log.warning("%s, like %d other tasks of this handler so far", stuck_text(row), number - 1, extra=names)


class SessionEnds:
    """The sessions in a row that ended during one verb.

    Each attempt had a new session, so that the server accepted connections in between.
    """

    def __init__(self) -> None:
        self._number = 0

    def fault_of(self, error: StoreError) -> RowFault | None:
        """Record a failed batch, and return the fault of one of its rows; None for an outage."""
        if fault := row_fault(error):
            return fault
        fault = session_fault(error)
        self._number = 0 if fault is None else self._number + 1
        return fault if self._number >= MOST_SESSION_ENDS else None

    def reset(self) -> None:
        """Record a batch that succeeded."""
        self._number = 0


async def blocking_sessions(database: Database, tasks: Sequence[int]) -> dict[int, BlockingSession]:
    """Find the sessions that lock rows of tasks, by task id; none on SQLite, and if the query fails."""
    with suppress(StoreError):
        return await database.read(row_locks, tasks)
    return {}


async def locks_of_faults(database: Database, faults: Mapping[int, RowFault]) -> dict[int, HeldLock]:
    """Find the locks of rows of any table for which statements waited in vain, by task id.

    Args:
        faults: the faults of those statements, by task id.

    Returns:
        The locks that are still held; none on SQLite, and if a query fails.
    """
    waits = {id: fault.place for id, fault in faults.items() if fault.fact.startswith(LOCK_TIMEOUT)}
    locks: dict[RowPlace | None, HeldLock | None] = {}
    with suppress(StoreError):
        for place in islice(dict.fromkeys(waits.values()), MOST_PLACES):
            locks[place] = await database.read(lock_at, place)
    return {id: lock for id, place in waits.items() if (lock := locks.get(place)) is not None}


def with_place(fault: RowFault, lock: HeldLock) -> RowFault:
    """Add the row or the table to the fact of a fault, which names neither."""
    return fault._replace(fact=f"{fault.fact} on {place_text(lock.table, lock.key)}")


async def set_locked_apart(database: Database, stuck: StuckRows, verb: StuckVerb, tasks: Mapping[int, str]) -> None:
    """Record the tasks whose rows another transaction locks, so that a verb skipped them.

    Args:
        tasks: the handlers of the tasks that the verb left over, by task id.
    """
    if not tasks:
        return
    rows = sorted(await database.write(locked, list(tasks)))
    sessions = await blocking_sessions(database, rows) if rows else {}
    for id in rows:
        stuck.set_apart(verb, id, tasks[id], LOCKED, sessions.get(id))
