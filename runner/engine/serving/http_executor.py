"""HttpExecutor: the Python executor that pulls tasks from a server and runs them in threads."""

import json
import logging
import pickle
import queue
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from math import inf
from typing import Any

from runner.engine.external.call import CallLimits, ExternalCall
from runner.engine.external.call_site import call_site
from runner.engine.forced_end import exit_now
from runner.engine.processes.messages import ProcessCall, read_message
from runner.engine.serving.http_threads import HttpThreads
from runner.engine.serving.server_client import ServerClient, ServerRefused
from runner.handlers.registry import REGISTRY, Handler
from runner.model.duration import parse_duration
from runner.model.outcome import (
    RESULT_NOT_KEPT,
    Cancelled,
    Dead,
    Done,
    Failure,
    Interrupted,
    Outage,
    Outcome,
    Release,
    Retry,
    Snooze,
)
from runner.model.task import Claimed
from runner.model.text_limits import to_storable
from runner.settings import Settings
from runner.stop_signals import stop_signals
from runner.text.sanitize import count_noun, one_line

log = logging.getLogger("runner")

PULL_WAIT = 20.0
"""Seconds for which a pull waits for a task."""

SILENCE = 10.0
"""Seconds without a reply to a pull, beyond its wait, after which the connection is lost."""

SETTLE = "runner-settle"
"""The thread without which no task ends."""

BATCH = 500
"""Maximum number of outcomes in one request."""

OF_BODY = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
"""The statuses with which a server refuses a whole request for its size, or for one of its outcomes."""

LONGEST_PAUSE = 15.0
"""Maximum seconds between two tries to reach the server."""

SAME_SIGNAL = 0.2
"""Seconds in which a repeated signal is the first one: `timeout` sends it to the process and to its group."""

LONGEST_WAIT = 2.0
"""Seconds that a task waits for a thread before other executors can take it."""

LEVELS = 50
"""The highest level of a log line."""

Ending = dict[str, Any]

Claim = tuple[str, int, int]
"""Shard, task id and fence."""


class HttpExecutor:
    """Pulls tasks, runs their handlers, and settles them, until a signal.

    Args:
        handlers: the handlers, by name.
        client: the connection to the server.
    """

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler], client: ServerClient) -> None:
        self._handlers, self._client = handlers, client
        self._limits, self._interruptions = CallLimits.of(settings), settings.max_interruptions
        self._drain = settings.drain_timeout.total_seconds()
        self.name = f"{re.sub('[^A-Za-z0-9_.-]', '-', socket.gethostname())[:60]}-{secrets.token_hex(6)}"
        self._lease, self._beat = settings.lease_timeout.total_seconds(), 1.0
        self._running: dict[int, Claim] = {}
        """The claim of each running call, by number."""
        self._asked: set[int] = set()
        """The numbers of the calls that the server has asked to end."""
        self._changed = threading.Condition()
        self._threads = HttpThreads(settings.threads, self._notify)
        self._endings: queue.SimpleQueue[Ending | tuple[str, Ending] | None] = queue.SimpleQueue()
        """The outcomes, and the notes of handlers with the path of their request."""
        self._stop, self._done = threading.Event(), threading.Event()
        self._refusal: ServerRefused | None = None
        """Why the server does not accept this executor."""
        self._failed: set[str] = set()
        """The threads that ended by an error of this program."""

    def run(self, *, until_idle: bool = False) -> int:
        """Work until a signal; return the exit code.

        Args:
            until_idle: end when the server has no task now and none runs.

        Raises:
            ServerRefused: the server does not accept this executor.
        """
        with Signals() as signals:
            settling = self._start(SETTLE, self._settle_all, signals)
            self._start("runner-heartbeat", self._beat_all, signals)
            pulling = self._start("runner-pull", lambda: self._pull_all(until_idle), signals)
            signals.wait()
            self._stop.set()
            if self._refusal is None and not self._post("pull", self._no_more):
                self._client.interrupt("pull")  # the server is away
            pulling.join()
            clean = self._finish()
            self._endings.put(None)
            settling.join(self._lease)
            self._done.set()
        self._client.close()
        if self._refusal is not None:
            raise self._refusal
        if not clean or settling.is_alive():
            log.error("ending although %s did not end", count_noun(len(self._running), "task"))
            exit_now(1)  # a handler that does not end would keep the process
        self._threads.close()
        return 1 if self._failed else 0

    def _start(self, name: str, work: Callable[[], object], signals: "Signals") -> threading.Thread:
        """Start a thread whose end ends the executor."""

        def run() -> None:
            try:
                work()
            except ServerRefused as error:
                self._refusal = error
            except BaseException:
                log.exception("the thread %s failed", name)
                self._failed.add(name)
                self._notify()
            finally:
                signals.end()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _pull_all(self, until_idle: bool) -> None:
        pause, is_known = 0.5, False
        while not self._stop.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._room() or self._stop.is_set(), PULL_WAIT)
                free = self._room()
            if not free or self._stop.is_set():
                continue
            wait = min(PULL_WAIT, 1.0) if until_idle else PULL_WAIT
            try:
                body = self._body(handlers=sorted(self._handlers), free=free, wait=wait)
                reply = self._client.post("pull", body, wait + SILENCE)
            except OSError as error:
                if not self._stop.is_set():
                    log.warning("%s; trying again in %.1f s", one_line(str(error)), pause)
                    self._stop.wait(pause)
                    pause = min(LONGEST_PAUSE, 2 * pause)
                continue
            pause, self._lease, self._beat = 0.5, reply["lease"], reply["heartbeat"]
            if not is_known:
                is_known = True
                names = count_noun(len(self._handlers), "handler")
                log.info("executor %s pulls from %s with %s", self.name, self._client.url, names)
            for task in reply["tasks"]:
                self._begin(task)
            if reply["draining"]:
                self._stop.wait(1.0)
            if until_idle and not reply["tasks"] and not self._running:
                return

    def _room(self) -> int:
        return self._threads.room(len(self._running))

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _begin(self, task: Mapping[str, Any]) -> None:
        """Start a task, or hand it back if this executor has begun to stop."""
        number = secrets.randbits(62)
        with self._changed:
            self._running[number] = _claim(task)
        if self._stop.is_set():
            self._hand_back(number, "its executor stopped before the task started")
        else:
            self._threads.start(number, lambda: self._run(number, task))

    def _hand_back(self, number: int, why: str) -> None:
        """Return a task that has not started; its attempt does not count."""
        ending = {"outcome": "stopped"} if number in self._asked else {"outcome": "release", "why": why}
        self._endings.put({"number": number, **_key(self._running[number])} | ending)

    def _finish(self) -> bool:
        """Wait for the running handlers; False if some do not end within the drain timeout."""
        for number in self._threads.withdraw():
            self._hand_back(number, "its executor stopped before the task started")
        with self._changed:
            if self._running:
                log.info("draining: %s running", count_noun(len(self._running), "task"))
            if self._changed.wait_for(lambda: not self._running or SETTLE in self._failed, self._drain):
                return True
            for number in self._running:
                call_site().deliver(number, pickle.dumps(("stop", False)))
            return self._changed.wait_for(lambda: not self._running, 1.0)

    def _run(self, number: int, task: Mapping[str, Any]) -> None:
        """Run one task in this thread."""
        try:
            handler = self._handlers[task["handler"]]
            texts = json.dumps(task["payload"]), json.dumps(task["headers"]) if task["headers"] else None
            state = None if task["checkpoint"] is None else json.dumps(task["checkpoint"])
            names = task["id"], task["queue"], task["handler"], task["key"], texts[0], task["priority"], None
            counts = task["attempt"], task["max_attempts"], task["fence"], task["timeout"], 0
            claimed = Claimed(*names, *counts, headers=texts[1])
            places = handler.function.__module__, state, task["timeout"], self._interruptions, None
            call = ProcessCall(number, None, claimed, *places)
            data = ExternalCall.of(call, self._limits, REGISTRY.prepare).dumps()
            key = _key(_claim(task))
            end = call_site().run(data, lambda message: self._note(number, key, message))
            kind, value, *_ = read_message(end)
            outcome = value.outcome if kind == "end" else Retry(failure=Failure("ProcessNotStarted", str(value)))
        except BaseException as error:  # a bug here must not leave the task to its lease
            log.exception("task %s (%s) could not be executed", task["id"], one_line(str(task["handler"])))
            outcome = Retry(failure=Failure(type(error).__name__, str(error)))
        self._endings.put({"number": number, **_key(_claim(task))} | self._ending(number, outcome))

    def _ending(self, number: int, outcome: Outcome) -> Ending:
        ending: Ending = {"outcome": "release", "why": "its executor stopped before the task ended"}
        match outcome:
            case Done():
                result = None if outcome.result is None else json.loads(outcome.result)
                ending = {"outcome": "succeed", "result": result}
                if outcome.why:
                    ending["why"] = outcome.why.removeprefix(f"{RESULT_NOT_KEPT}: ")[:16_384]
            case Retry():
                delay = None if outcome.delay is None else parse_duration(outcome.delay).total_seconds()
                ending = {"outcome": "retry", "delay": delay, "why": outcome.why[:16_384]} | _error(outcome.failure)
            case Dead():
                ending = {"outcome": "die", "why": outcome.why[:16_384]} | _error(outcome.failure)
            case Snooze():
                delay = parse_duration(outcome.delay).total_seconds()
                ending = {"outcome": "snooze", "delay": delay, "why": outcome.why[:16_384]}
            case Cancelled() | Interrupted() if number in self._asked:
                ending = {"outcome": "stopped"}
            case Outage():
                ending = {"outcome": "release", "why": outcome.failure.reason[:16_384]}
            case Release():
                ending = {"outcome": "release", "why": outcome.why[:16_384]}
        return ending

    def _note(self, number: int, key: Mapping[str, Any], message: bytes) -> None:
        """Take a message of a handler for the server; a checkpoint waits for its reply in a thread."""
        kind, *values = pickle.loads(message)  # noqa: S301 - from this process
        if kind == "progress":
            done, total, unit = values
            self._endings.put(("progress", {"progress": [{**key, "done": done, "total": total, "unit": unit}]}))
        elif kind == "line":
            level, text = values
            line = {**key, "level": max(0, min(LEVELS, level)), "text": text[:16_384]}
            self._endings.put(("log", {"lines": [line]}))
        elif kind == "keep":
            self._endings.put(("checkpoint", {**key, "state": json.loads(values[0])}))
        elif kind == "save":
            threading.Thread(target=self._save, args=(number, key, *values), daemon=True).start()
        elif kind == "parents":
            error = RuntimeError("ctx.batch.results() needs a runner with a database")
            call_site().deliver(number, pickle.dumps(("reply", values[0], None, error)))

    def _save(self, number: int, key: Mapping[str, Any], request: int, state: str) -> None:
        error = None
        try:
            if self._client.post("checkpoint", self._body(**key, state=json.loads(state)))["lost"]:
                error = RuntimeError("the checkpoint was not stored: another claim has the task")
        except (OSError, ServerRefused) as failure:
            error = RuntimeError(f"the checkpoint was not stored: {failure}")
        call_site().deliver(number, pickle.dumps(("reply", request, None, error)))

    def _post(self, path: str, values: Ending) -> bool:
        """Send a message that changes no outcome; without the server it is lost, and the handler goes on."""
        try:
            self._client.post(path, self._body(**values))
        except (OSError, ServerRefused) as error:
            log.warning("%s is lost: %s", path, one_line(str(error)))
            return False
        return True

    @property
    def _no_more(self) -> Ending:
        """A pull that ends the one that waits: its executor has no free slots any more."""
        return {"handlers": sorted(self._handlers), "free": 0, "wait": 0}

    def _settle_all(self) -> None:
        """Send the notes and the outcomes in their order, outcomes in batches, until None."""
        while (item := self._endings.get()) is not None:
            batch: list[Ending] = []
            with suppress(queue.Empty):
                while isinstance(item, dict) and len(batch) < BATCH:
                    batch.append(item)
                    item = self._endings.get_nowait()
            if batch:
                self._settle(batch)
            if item is None:
                return
            if isinstance(item, tuple):
                self._post(*item)
            elif item is not batch[-1]:
                self._settle([item])

    def _settle(self, batch: list[Ending]) -> None:
        """Settle a batch, and forget its tasks."""
        numbers = [ending.pop("number") for ending in batch]
        self._send(batch, time.monotonic() + 4 * self._lease)
        with self._changed:
            for number in numbers:
                self._running.pop(number, None)
                self._asked.discard(number)
            self._changed.notify_all()

    def _send(self, left: list[Ending], end: float) -> None:
        """Send outcomes: again while the server is away, and in halves if it refuses them for one of them.

        An outcome that the server refuses alone fails its attempt with the refusal.

        Args:
            end: the time in monotonic seconds at which their leases have run out.
        """
        pause, is_replaced = 0.1, False
        while left and time.monotonic() < end:
            try:
                replies = self._client.post("settle", self._body(endings=left))["endings"]
            except OSError as error:
                log.warning("%s; settling again in %.1f s", one_line(str(error)), pause)
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                continue
            except ServerRefused as error:
                if is_replaced or error.fields["status"] not in OF_BODY:
                    log.error("%s not settled: %s", count_noun(len(left), "outcome"), one_line(str(error)))
                    return
                if len(left) == 1:
                    log.warning("task %d: %s", left[0]["id"], one_line(str(error)))
                    left, is_replaced = [_replacement(left[0], error)], True
                    continue
                middle = len(left) // 2
                self._send(left[:middle], end)
                left = left[middle:]
                continue
            for reply in replies:
                if reply["status"] == "refused":
                    log.warning("task %d: %s", reply["id"], one_line(reply["why"]))
            left = [ending for ending, reply in zip(left, replies, strict=True) if reply["status"] == "pending"]

    def _beat_all(self) -> None:
        while not self._done.wait(self._beat):
            self._return_late()
            running = {key: number for number, key in list(self._running.items())}
            if not running:
                continue
            try:
                body = self._body(tasks=[_key(claim) for claim in running])
                reply = self._client.post("heartbeat", body, max(1.0, self._lease / 3))  # a lease outlasts a lost one
            except (OSError, ServerRefused) as error:
                log.warning("no heartbeat: %s", one_line(str(error)))
                continue
            for task in [*reply["stop"], *reply["lost"]]:
                number = running[_claim(task)]
                if number not in self._asked:
                    self._asked.add(number)
                    call_site().deliver(number, pickle.dumps(("stop", task.get("terminated", True))))

    def _return_late(self) -> None:
        """Return the tasks that have waited too long behind others, and their slots."""
        if late := self._threads.withdraw(time.monotonic() - LONGEST_WAIT):
            for number in late:
                self._hand_back(number, "no thread of its executor was free")
            self._endings.put(("pull", self._no_more))

    def _body(self, **values: Any) -> dict[str, Any]:
        return {"executor": self.name, **values}


def _claim(task: Mapping[str, Any]) -> Claim:
    return task["shard"], task["id"], task["fence"]


def _key(claim: Claim) -> dict[str, Any]:
    shard, id, fence = claim
    return {"shard": shard, "id": id, "fence": fence}


def _error(failure: Failure | None) -> Ending:
    if failure is None:
        return {}
    kind = re.sub(r"[^A-Za-z0-9_.$]", "_", failure.type)[:200]
    message, traceback = (to_storable(text, 65_536) for text in (failure.message, failure.traceback))
    return {"error": {"type": kind, "message": message, "traceback": traceback}}


def _replacement(ending: Ending, refusal: ServerRefused) -> Ending:
    """Return the outcome to settle in the place of one that the server refuses."""
    claim, outcome = _key(_claim(ending)), ending["outcome"]
    if outcome == "succeed":
        return {**claim, "outcome": "succeed", "why": str(refusal)}
    error = ending.get("error") or {"type": "", "message": "", "traceback": ""}
    parts = ending.get("why", ""), f"{error['type']}: {error['message']}".removeprefix(": ")
    text = f"{refusal} The outcome was {'; '.join([outcome, *filter(None, parts)])}"
    failure = Failure("OutcomeRefused", text, error["traceback"])
    return {**claim, "outcome": "die" if outcome == "die" else "retry", **_error(failure)}


class Signals:
    """The signals that stop a process. Its main thread waits for the first one; a second one ends the process.

    The handler of a signal may interrupt a thread that has a lock, so it only writes to a socket.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before: dict[int, Any] = {}
        self._first = inf
        """The time of the first signal in monotonic seconds."""

    def __enter__(self) -> "Signals":
        self._before = {number: signal.signal(number, self._receive) for number in stop_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def wait(self) -> None:
        """Wait for the first signal, or for `end`."""
        self._reader.recv(1)

    def end(self) -> None:
        """End the wait; any thread may call it."""
        with suppress(OSError):
            self._writer.send(b"e")

    def _receive(self, number: int, _: object) -> None:
        now = time.monotonic()
        if now > self._first + SAME_SIGNAL:
            exit_now(128 + number)
        self._first = min(self._first, now)
        self.end()
