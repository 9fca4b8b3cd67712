"""Notes of attempts, collected while a handler runs and written in batches."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from runner.db.database import Database
from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.engine.events import Events, NotesWritten
from runner.engine.executing.attempt_outcome import checkpoint_text
from runner.engine.executing.outages import note_outage
from runner.engine.executing.sealing import call_codec, seal_text
from runner.engine.running import Running
from runner.engine.stuck_rows import StuckRows
from runner.errors import (
    CodecFailed,
    DatabaseUnavailable,
    FencedOut,
    InvalidCheckpoint,
    KeyMissing,
    RowLocked,
    StoreError,
)
from runner.handlers.context import require_progress
from runner.handlers.own_transaction import INSIDE, INSIDE_OF
from runner.model.stuck_row import RowFault
from runner.settings import Settings
from runner.store.notes import (
    LINE_LIMIT,
    STACK_LEVEL,
    Checkpoint,
    LogLine,
    Progress,
    last_checkpoints,
    save_checkpoint,
    write_notes,
)
from runner.text.redact import hide, secrets
from runner.text.sanitize import count_noun

log = logging.getLogger("runner")

MOST_LINES = 1_000
"""Maximum number of log lines per attempt."""

LONGEST_UNIT = 40
"""Maximum number of characters of a unit."""

LAST_TRY = 8
"""Tries, over some minutes, after which the progress and the log of a task that has ended are not written."""

RATE_AFTER = 0.5
"""Seconds after the first progress of an attempt from which a rate is computed."""


class AttemptNotes:
    """The notes of one attempt.

    Args:
        writer: writes them.
    """

    def __init__(self, running: Running, writer: "NotesWriter") -> None:
        self.running = running
        self.state: Any = None
        self.number = 0
        """Number of the last checkpoint."""
        self.unsaved: str | None = None
        """The state that is kept and not stored, as JSON text."""
        self.saved_at = time.monotonic()
        self.report: Progress | None = None
        """The progress, if it has changed since the last write."""
        self.lines: list[LogLine] = []
        self._line_count = 0
        self._first: tuple[float, float] | None = None
        self._writer = writer
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        """Read the last checkpoint."""
        last = await self._writer.last_checkpoint(self.running.task.id)
        if last is not None:
            self.number, self.state = last[0], json.loads(await self._opened(last[1]))

    async def save(self, state: Any) -> None:
        """Store a checkpoint."""
        task = self.running.task
        if INSIDE_OF.get() == (task.id, task.fence):
            raise InvalidCheckpoint(id=task.id, type=type(state).__qualname__, why=INSIDE)
        text = self._text(state)
        kept, self.unsaved, self.running.unanswered = self.unsaved, None, True
        try:
            await self._store_when_free(text)
            self.running.unanswered = False
        except StoreError as error:
            self.unsaved, self.running.unanswered = self.unsaved or kept, False
            if isinstance(error, DatabaseUnavailable):
                note_outage(self.running, error, error)
            raise
        if self.unsaved is None:  # otherwise the handler has kept a later state in the meantime
            self.state = json.loads(text)

    def keep(self, state: Any) -> None:
        """Set the state that the runner stores later."""
        self.unsaved = self._text(state)
        self.state = json.loads(self.unsaved)
        self._writer.changed.add(self)

    async def save_kept(self) -> None:
        """Store the kept state, if no checkpoint is being stored; a failure is logged."""
        text = self.unsaved
        if text is None or self._saving.locked():
            return
        self.unsaved = None
        try:
            await self._store(text)
        except FencedOut:
            return
        except (CodecFailed, KeyMissing) as error:
            self.unsaved = self.unsaved or text
            log.warning("could not store a checkpoint of task %d: %s", self.running.task.id, error)
        except StoreError as error:
            self.unsaved = self.unsaved or text
            if not self._set_apart(error):
                log.warning("could not store a checkpoint of task %d: %s", self.running.task.id, error)

    def progress(self, done: float, total: float | None, unit: str) -> None:
        """Set the progress."""
        require_progress(done, total)
        now, task = time.monotonic(), self.running.task
        began, start = self._first = self._first or (now, float(done))
        rate = (done - start) / (now - began) if now - began > RATE_AFTER and done > start else None
        total_ = None if total is None else float(total)
        self.report = Progress(task.id, task.fence, float(done), total_, unit[:LONGEST_UNIT] or None, rate)
        self._writer.changed.add(self)

    def line(self, level: int, text: str) -> None:
        """Add a line to the log, without the values of secret fields."""
        self._add(logging.getLevelName(level).lower(), text)

    def stack_line(self, text: str) -> None:
        """Add a line of a stack, which an operator has asked for."""
        self._add(STACK_LEVEL, text)

    def _add(self, level: str, text: str) -> None:
        self._line_count += 1
        if self._line_count > MOST_LINES + 1:
            return
        if self._line_count == MOST_LINES + 1:
            text = f"further lines are not kept: an attempt has at most {MOST_LINES:,}"
        task = self.running.task
        masked = hide(text, secrets(task.payload or "{}", task.headers))
        if (vault := self.running.vault) is not None and level != STACK_LEVEL:
            masked = seal_text(vault, masked, LINE_LIMIT)
        line = LogLine(task.id, task.fence, self._line_count, task.attempt, datetime.now(UTC), level, masked)
        self.lines.append(line)
        self._writer.changed.add(self)

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Future[None]:
        """Run a coroutine function on the runner's loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._writer.loop)

    def _text(self, state: Any) -> str:
        return checkpoint_text(state, self._writer.limit, self.running.task.id)

    async def _opened(self, text: str) -> str:
        """Decrypt a stored state."""
        if (vault := self.running.vault) is None:
            return text
        return await call_codec(vault, lambda: vault.open("checkpoint", text))

    async def _sealed(self, text: str) -> str:
        """Encrypt a state to store."""
        if (vault := self.running.vault) is None:
            return text
        return await call_codec(vault, lambda: vault.seal("checkpoint", text))

    async def _store_when_free(self, text: str) -> None:
        """Store a state as soon as no other transaction locks the row of the task."""
        while True:
            try:
                return await self._store(text)
            except RowLocked as error:
                self._set_apart(error)
                await asyncio.sleep(self._writer.stuck.until_due("checkpoint", self.running.task.id) or 0.0)

    def _set_apart(self, error: StoreError) -> bool:
        task, fault = self.running.task, row_fault(error)
        if fault is not None:
            self._writer.stuck.set_apart("checkpoint", task.id, task.handler, fault)
        return fault is not None

    async def _store(self, text: str) -> None:
        task = self.running.task
        async with self._saving:  # an autosave and a checkpoint must not take the same number
            number = self.number + 1
            text = await self._sealed(text)
            checkpoint = Checkpoint(task.id, task.fence, task.attempt, number, text)
            if not await self._writer.database.write(save_checkpoint, self._writer.runner_id(), checkpoint):
                raise FencedOut(id=task.id, fence=task.fence)
            self.number, self.saved_at = number, time.monotonic()
            self._writer.stuck.free("checkpoint", [task.id])


class NotesWriter:
    """Writes the notes of all attempts of a runner.

    Args:
        settings: the limit and the interval of checkpoints.
        events: publishes that progress or log lines of tasks were written.
    """

    every = 1.0
    """Seconds between two writes."""

    def __init__(
        self, database: Database, settings: Settings, runner_id: Callable[[], int], stuck: StuckRows, events: Events
    ) -> None:
        self.database, self.stuck, self._events = database, stuck, events
        self.runner_id = runner_id
        self.limit = int(settings.checkpoint_limit)
        self.changed: set[AttemptNotes] = set()
        """Notes with something to write."""
        self._interval = settings.checkpoint_interval.total_seconds()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resumed: list[int] = []
        self._reading: asyncio.Future[dict[int, tuple[int, str]]] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the runner."""
        assert self._loop is not None  # noqa: S101 - set by the first attempt
        return self._loop

    def begin(self, running: Running) -> AttemptNotes:
        """Begin the notes of an attempt. Call it on the event loop; after that, any thread may for tasks of a chunk."""
        if running.chunk is None or self._loop is None:
            self._loop = asyncio.get_running_loop()
        return AttemptNotes(running, self)

    async def last_checkpoint(self, task_id: int) -> tuple[int, str] | None:
        """Read the number and the JSON text of the last checkpoint of a task; None without one.

        Attempts that start in the same turn of the event loop share one statement.
        """
        self._resumed.append(task_id)
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_checkpoints())
        return (await asyncio.shield(self._reading)).get(task_id)

    async def _read_checkpoints(self) -> dict[int, tuple[int, str]]:
        await asyncio.sleep(0)  # the other attempts of this turn add their tasks
        task_ids, self._resumed, self._reading = self._resumed, [], None
        return await self.database.read(last_checkpoints, task_ids)

    async def flush(self) -> None:
        """Write progress and log lines, and the kept states whose interval has passed."""
        if not self.changed:
            return
        notes, self.changed = self.changed, set()
        now, resting = time.monotonic(), self.stuck.resting("checkpoint")
        for item in notes:
            if item.unsaved is None or item.running.settled:
                continue
            if now - item.saved_at >= self._interval and item.running.task.id not in resting:
                await item.save_kept()
            if item.unsaved is not None:
                self.changed.add(item)
        await self._write(notes)

    async def _write(self, notes: set[AttemptNotes]) -> None:
        resting = self.stuck.resting("note")
        changed = {item for item in notes if item.report is not None or item.lines}
        rest = {item for item in changed if item.running.task.id in resting}
        self.changed |= rest
        try:
            await write_in_halves(list(changed - rest), self._write_part, self._set_apart)
        except StoreError as error:
            log.warning("could not write progress and logs of attempts: %s", error)
            self.changed |= changed

    async def _write_part(self, notes: Sequence[AttemptNotes]) -> None:
        content = [(item, item.report, item.lines) for item in notes]
        for item in notes:
            item.report, item.lines = None, []
        progress = [report for _, report, _ in content if report is not None]
        try:
            lines = [line for _, _, batch in content for line in batch]
            await self.database.write(write_notes, self.runner_id(), progress, lines)
        except StoreError:
            for item, report, batch in content:
                item.report, item.lines = item.report or report, batch + item.lines
            raise
        ids = [item.running.task.id for item in notes]
        self.stuck.free("note", ids)
        self._events.publish(NotesWritten(ids))

    def _set_apart(self, item: AttemptNotes, fault: RowFault) -> None:
        task = item.running.task
        if item.running.settled and self.stuck.tries("note", task.id) >= LAST_TRY:
            number = count_noun(len(item.lines), "log line")
            log.warning("task %d (%s): progress and %s not kept: %s", task.id, task.handler, number, fault.fact)
            item.report, item.lines = None, []
            self.stuck.forget([task.id])
            return
        self.stuck.set_apart("note", task.id, task.handler, fault)
        self.changed.add(item)
