"""Drafts: new tasks from the command line or from JSON lines, parsed, checked and submitted.

A bad line does not affect the others.
"""

import json
import os
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from runner.cli.exit_codes import print_stderr
from runner.cli.handlers import NO_REGISTRY, HandlerRegistry
from runner.errors import (
    DatabaseRefused,
    DuplicateTask,
    InvalidInput,
    InvalidPayload,
    InvalidTask,
    PayloadTooLarge,
    RunnerError,
)
from runner.filter.fields import suggestion
from runner.handlers.call_options import NO_CALL_OPTIONS
from runner.handlers.dependencies import read_declared, with_key
from runner.handlers.option_values import Clock
from runner.handlers.options import CALL_OPTIONS, SETTABLE, read_options
from runner.handlers.registry import Handler
from runner.model.task import DependsOn, NewTask, OnFailure, SubmitResult
from runner.model.text_limits import describe_json_error
from runner.policy.retry import parse_plan
from runner.store.validation import check

MAX_DIGITS = 20


def parse_option(word: str, on_failure: OnFailure) -> DependsOn:
    """Parse the value of --after: 17, or orders.pay=order-17.

    A handler's name contains no equals sign, so the first one ends it. The key may contain more.
    """
    if word.isdecimal() and len(word) < MAX_DIGITS:
        return DependsOn(int(word), on_failure)
    handler, _, key = word.partition("=")
    if not (handler and key):
        raise InvalidInput(why=f"--after expects a task id or handler=key, not {word[:80]!r}")
    return DependsOn((handler, key), on_failure)


OPTIONS = tuple(SETTABLE)
"""Task options of a JSON line, without handler and payload."""

AT_SUBMIT = tuple(name for name, option in SETTABLE.items() if option.default == "submit")
"""Task options that a handler may set for its tasks."""


@dataclass(frozen=True)
class Drafts:
    """The common part of all tasks of one command.

    Args:
        handlers: the loaded handlers, whose signatures payloads must match.
        payload_limit: maximum size of a payload in bytes.
        now: the current time, aware.
        zone: time zone of times without an offset.
        options: defaults for every task, by names of OPTIONS.
        registry: the handlers that runners have registered, for those that are not loaded.
    """

    handlers: Mapping[str, Handler]
    payload_limit: int
    submitted_by: str
    now: datetime
    zone: tzinfo
    options: Mapping[str, Any] = field(default_factory=dict)
    registry: HandlerRegistry = NO_REGISTRY

    def task(self, handler: str, payload: str, options: Mapping[str, Any] | None = None) -> NewTask:
        """Check a task and convert it for the store.

        Args:
            payload: arguments, a JSON object as text.
            options: options of this task alone, by names of OPTIONS.

        Raises:
            InvalidInput: a value has the wrong type or is out of bounds, or the payload does not match the handler.
        """
        spec = self.handlers.get(handler)
        signature = self.registry.signature(handler) if spec is None else None
        columns = {name: self._read(name, value) for name, value in {**self.options, **(options or {})}.items()}
        own = {name: columns.pop(name) for name in CALL_OPTIONS if name in columns}
        _, call_options = read_options(own, spec.defaults.call_options if spec else NO_CALL_OPTIONS)
        if spec is not None:
            columns = {**spec.submit_defaults, **columns}
        elif signature is not None:
            columns = {name: value for name, value in signature.options.items() if name in AT_SUBMIT} | columns
        if columns.get("retry") is not None:
            columns["retry"] = str(parse_plan(columns["retry"]))
        text = _payload(handler, payload, spec)
        if signature is not None and self.registry.checks:
            signature.require(handler, text)
        if signature is not None:
            self.registry.report_missing(handler, signature, call_options)
        if (size := len(text.encode())) > self.payload_limit:
            raise PayloadTooLarge(handler=handler, size=size, limit=self.payload_limit)
        call_options.require_keys()
        task = NewTask(handler=handler, payload=text, submitted_by=self.submitted_by, **columns)
        task = call_options.applied(task, lambda: spec.signature.arguments(text) if spec else {})
        if signature is not None:
            task = with_key(task, read_declared(signature.options))
        check(task)
        return task

    def line(self, text: str, handler: str | None) -> NewTask:
        """Read a task from a line of JSON.

        Args:
            text: the payload alone if `handler` is set, else an object with handler, payload and names of OPTIONS.
            handler: handler of all lines; None if each line names its own.

        Raises:
            InvalidInput: see `task`; or the line does not contain such an object.
        """
        if handler is not None:
            return self.task(handler, text)
        try:
            values = _object(text)
        except _Unreadable as error:
            raise InvalidInput(why=str(error)) from None
        name, payload = values.pop("handler", None), values.pop("payload", {})
        if not isinstance(name, str):
            raise InvalidInput(why='the line has no handler; write {"handler": "name", "payload": {...}}')
        try:
            return self.task(name, json.dumps(payload, ensure_ascii=False, allow_nan=False), values)
        except ValueError:
            raise InvalidPayload(handler=name, why="a number is too large for JSON") from None

    def _read(self, name: str, value: Any) -> Any:
        option = SETTABLE.get(name)
        if option is None or option.parse is None:
            hint = suggestion(name, (*OPTIONS, "handler", "payload"))
            raise InvalidInput(why=f"unknown field {name!r}{hint}; fields: handler, payload, {', '.join(OPTIONS)}")
        return None if value is None else option.parse(name, value, Clock(self.now, self.zone))


class _Unreadable(Exception):
    """The text is not a JSON object; the message explains the problem."""


def _payload(handler: str, text: str, spec: Handler | None) -> str:
    """Check a payload against the handler's signature, or only that it is an object if the handler is not loaded."""
    try:
        _object(text)
    except _Unreadable as error:
        raise InvalidPayload(handler=handler, why=str(error)) from None
    return spec.signature.check(text) if spec else text.strip()


def _object(text: str) -> dict[str, Any]:
    try:
        text.encode()
        value = json.loads(text, parse_constant=_reject_constant)
    except UnicodeEncodeError:
        raise _Unreadable("not UTF-8 text") from None
    except ValueError as error:
        raise _Unreadable(describe_json_error(text, error)) from None
    except RecursionError:
        raise _Unreadable("nested too deeply") from None
    if not isinstance(value, dict):
        raise _Unreadable('expected a JSON object, such as {"user_id": 7}')
    return value


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


BLOCK = 64 * 1024


class InputLine(NamedTuple):
    """One line.

    Args:
        number: counted from 1.
        text: the line without its end; None if it is too long or not UTF-8.
        problem: the reason for a missing text.
    """

    number: int
    text: str | None
    problem: str = ""


@contextmanager
def open_input(path: str) -> Iterator[int]:
    """Open a file, or standard input for `-`, and yield its descriptor.

    Raises:
        InvalidInput: the file cannot be read.
    """
    if path == "-":
        yield 0
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
        os.read(descriptor, 0)  # a folder can be opened but not read
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(why=f"cannot read {path}: {why}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_lines(descriptor: int, limit: int) -> Iterator[InputLine | None]:
    """Read lines as they arrive.

    Args:
        descriptor: a file or a pipe.
        limit: maximum length of a line in bytes; longer lines are skipped.

    Yields:
        Each line that is not blank, and None when reading on would block, so that the lines so far need not wait.
    """
    number, remainder, too_long = 0, b"", False
    while block := os.read(descriptor, BLOCK):
        *lines, remainder = (remainder + block).split(b"\n")
        for raw in lines:
            number += 1
            yield from _line(number, raw, limit if not too_long else -1)
            too_long = False
        if len(remainder) > limit:
            remainder, too_long = b"", True
        if not select.select([descriptor], [], [], 0)[0]:
            yield None
    if remainder or too_long:
        yield from _line(number + 1, remainder, limit if not too_long else -1)


def _line(number: int, raw: bytes, limit: int) -> Iterator[InputLine]:
    if len(raw) > limit:
        yield InputLine(number, None, f"longer than {max(limit, 0) or 'allowed'} bytes")
        return
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        yield InputLine(number, None, "not UTF-8 text")
        return
    if text:
        yield InputLine(number, text)


CHUNK = 2_000
"""Tasks per transaction."""


class BadLine(NamedTuple):
    """A rejected line and the reason."""

    line: int
    reason: str


@dataclass
class Intake:
    """Parses lines and submits their tasks in chunks.

    Args:
        read: parses a line, or raises an error that explains the problem.
    """

    read: Callable[[str], NewTask]
    submit: Callable[[list[NewTask]], SubmitResult]
    submitted: int = 0
    duplicates: int = 0
    """Tasks that existed already."""
    ids: tuple[int, int] | None = None
    """The first and the last id."""
    last_line: int = 0
    """The number of the last submitted line."""
    bad: list[BadLine] = field(default_factory=list)
    _chunk: list[tuple[int, NewTask]] = field(default_factory=list)

    def take(self, line: InputLine | None) -> None:
        """Add a line; None marks a pause in the input, which submits the tasks so far."""
        if line is None:
            self.flush()
            return
        try:
            if line.text is None:
                self._reject(line.number, line.problem)
            else:
                self._chunk.append((line.number, self.read(line.text)))
        except RunnerError as error:
            self._reject(line.number, str(error))
        if len(self._chunk) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Submit the tasks so far."""
        if self._chunk:
            chunk, self._chunk = self._chunk, []
            self._submit(chunk)

    def _submit(self, chunk: list[tuple[int, NewTask]]) -> None:
        try:
            result = self.submit([task for _, task in chunk])
        except (DatabaseRefused, DuplicateTask, InvalidTask) as error:
            # The database rejects one of them: halve the chunk until the task is alone.
            if len(chunk) == 1:
                self._reject(chunk[0][0], str(error))
                return
            self._submit(chunk[: len(chunk) // 2])
            self._submit(chunk[len(chunk) // 2 :])
            return
        new = [id for index, id in enumerate(result.ids) if index not in result.duplicates]
        self.submitted += len(new)
        self.duplicates += len(result.duplicates)
        if new:
            self.ids = (self.ids[0] if self.ids else new[0], new[-1])
        self.last_line = chunk[-1][0]

    def _reject(self, number: int, reason: str) -> None:
        self.bad.append(BadLine(number, reason))
        print_stderr(f"line {number}: {reason}")
