"""New tasks: the form for a task of a handler, and for a copy of a task with the same or another payload."""

import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.errors import InvalidInput, RunnerError
from runner.operations.pause import PauseKind
from runner.text.redact import is_secret
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import new_task_words
from tasktui.actions.question import Dialog, Question
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session

if TYPE_CHECKING:  # They import modules that the first screen does not need.
    from runner.handlers.option_values import Clock
    from runner.handlers.parameters import StoredSignature
    from runner.queries.task.detail import TaskDetail
    from tasktui.actions.question import Form, FormField

PAYLOAD = "payload"
OPTIONS = ("queue", "priority", "run_at", "max_attempts", "key")
"""The task options in the form."""

MORE, UNCHECKED = "more", "unchecked"
"""The entries for arguments that the stored signature lacks, and for the reason to submit what it refuses."""

LONGEST_PAYLOAD = 300
"""Characters of a payload in the preview."""


def ask_for_copy(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask for the values of a copy of the selected task."""
    task = targets.task()
    return _ask_for_copy(action, session, task.id) if task is not None else None


async def _ask_for_copy(action: Action, session: Session, id: int) -> Dialog:
    from runner.queries.task.detail import task_detail

    detail = await session.read(task_detail, id)
    return (await _draft(action, session, detail.task.handler, detail)).form()


def ask_for_handler(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask for the values of a new task of the selected handler."""
    target = targets.pause_target(PauseKind.HANDLER)
    return ask_to_submit(action, session, target.name) if target is not None else None


async def ask_to_submit(action: Action, session: Session, handler: str) -> Dialog:
    """Ask for the values of a new task.

    Args:
        handler: name of the handler; its runners have stored its parameters.
    """
    return (await _draft(action, session, handler)).form()


async def _draft(action: Action, session: Session, handler: str, origin: "TaskDetail | None" = None) -> "Draft":
    from runner.db.transaction import clock
    from runner.handlers.option_values import Clock
    from runner.operations.names import handler_warning
    from runner.queries.signatures import stored_signature

    signature = await session.read(stored_signature, handler)
    warning = "" if signature else await session.read(handler_warning, handler)
    at = Clock(await session.read(clock), session.zone)
    return Draft(action, session, handler, at, signature, origin, warning)


@dataclass(frozen=True, slots=True)
class Draft:
    """A task that an operator is about to submit.

    Args:
        clock: the time that typed times refer to.
        signature: the signature of the handler; None if no runner has stored one.
        origin: the task that the new one is a copy of; None for a new task.
        warning: the warning about a handler that no runner ever had; empty for another one.
    """

    action: Action
    session: Session
    handler: str
    clock: "Clock"
    signature: "StoredSignature | None"
    origin: "TaskDetail | None"
    warning: str = ""

    def form(self) -> "Form":
        """Build the form."""
        from runner.operations.new_task import DERIVED
        from tasktui.actions.question import Form

        title = f"Copy task {self.origin.task.id}" if self.origin else "New task"
        about = [content((f"{title} of {line(self.handler)}", "bold strong"))]
        if self.origin is not None:
            about.append(content("  The copy has no unique key, order key or dependencies."))
        elif self.signature is None:
            unchecked = "No runner has stored its parameters: its code checks the payload when it runs."
            about.append(content(f"  {line(self.warning or unchecked, LONGEST_PAYLOAD)}"))
        elif derived := [DERIVED[name] for name in self.signature.derived if name in DERIVED]:
            about.append(content(f"  Its code derives {' and '.join(derived)} from the arguments; this task has none."))
        return Form(title, about, self.fields(), self.preview, self.submit, self.errors)

    def fields(self) -> "list[FormField]":
        """The entries: one for each parameter or one for the payload, and the options."""
        from tasktui.actions.question import FormField

        task, preset = self.origin and self.origin.task, self.signature.options if self.signature else {}
        checked = self.signature is not None
        values = {name: "" if task is None else str(getattr(task, name) or "") for name in OPTIONS if name != "run_at"}
        if task is None:
            values |= {name: str(preset[name]) for name in ("queue", "priority") if name in preset}
        return [
            *self._arguments(),
            FormField("queue", "Queue", values["queue"] and line(values["queue"]), "default"),
            FormField("priority", "Priority", values["priority"], "1 to 9, 9 runs first; 1 by default"),
            FormField("run_at", "Run at", "", "now; +15m, 14:30, tomorrow 9:00"),
            FormField("max_attempts", "Max attempts", values["max_attempts"], "the handler's"),
            FormField("key", "Key", values["key"] and line(values["key"]), "none; a business key to search by"),
            *([FormField(UNCHECKED, "Unchecked", "", "no; a reason submits values that are refused above")] * checked),
        ]

    def _arguments(self) -> "list[FormField]":
        from runner.handlers.parameters import Kind
        from tasktui.actions.edit_form import shown_payload
        from tasktui.actions.question import FormField

        payload, lock_reason = shown_payload(self.origin.payload) if self.origin else ("", "")
        if lock_reason:
            return [FormField(PAYLOAD, "Payload", payload, lock_reason=lock_reason)]
        values = json.loads(payload or "{}")
        fields = self._parameters(values)
        if fields is None:
            return [FormField(PAYLOAD, "Payload", payload, '{}; a JSON object, such as {"user_id": 7}', is_json=True)]
        texts = {field.name: field.show(values[field.name]) if field.name in values else "" for field in fields}
        return [
            FormField(
                *(f"argument-{index}", line(field.name), texts[field.name], line(field.hint)),
                is_json=field.kind is Kind.JSON,
                is_secret=is_secret(field.name),
            )
            for index, field in enumerate(fields)
        ] + [FormField(MORE, "More arguments", "", "none; a JSON object, and a reason in Unchecked", is_json=True)]

    def _parameters(self, values: object) -> "Sequence[Any] | None":
        """The parameters with an entry each; None if the payload has one entry."""
        if self.signature is None or self.signature.extra or not isinstance(values, dict):
            return None
        names = {field.name for field in self.signature.fields}
        return self.signature.fields if values.keys() <= names else None

    def errors(self, typed: Mapping[str, str]) -> dict[str, str]:
        """The reasons why texts are refused, by entry."""
        return self._read(typed)[1]

    def _read(self, typed: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Read the entries that differ from the first task: values by field of NewTask, and errors by entry.

        Secrets of the first task stay masked; `copy_task` puts them back.
        """
        from tasktui.actions.edit_form import parse_value

        fields = {field.name: field for field in self.fields() if not field.lock_reason}
        edited = {name for name, field in fields.items() if typed.get(name, field.value).strip() != field.value}
        values, errors = self._payload(typed, edited)
        if _is_unchecked(typed) and PAYLOAD in values:
            errors = {}
        for name in OPTIONS:
            text = typed.get(name, "").strip()
            try:
                if text and (name in edited or self.origin is None):
                    values[name] = parse_value(name, text, *self.clock)
                elif name in edited:
                    values[name] = None
            except RunnerError as error:
                errors[name] = _why(error)
        return values, errors

    def _payload(self, typed: Mapping[str, str], edited: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Read the entries of the payload: its text, if any was edited or this is a new task, and errors by entry."""
        entries = {name for name in typed if name in (PAYLOAD, MORE) or name.startswith("argument-")}
        if self.origin is not None and not edited & entries:
            return {}, {}
        return self._whole_payload(typed[PAYLOAD]) if PAYLOAD in typed else self._from_arguments(typed, edited)

    def _whole_payload(self, text: str) -> tuple[dict[str, Any], dict[str, str]]:
        from tasktui.actions.edit_form import parse_value

        try:
            payload = parse_value(PAYLOAD, text.strip() or "{}", *self.clock)
            return {PAYLOAD: payload}, self._misfit(payload)
        except RunnerError as error:
            return {}, {PAYLOAD: _why(error)}

    def _from_arguments(self, typed: Mapping[str, str], edited: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
        from tasktui.actions.edit_form import shown_payload

        assert self.signature is not None  # noqa: S101 - there are entries of its parameters
        shown = json.loads(shown_payload(self.origin.payload)[0]) if self.origin else {}
        ids = {field.name: f"argument-{index}" for index, field in enumerate(self.signature.fields)}
        kept = {name for name, id in ids.items() if self.origin is not None and id not in edited}
        texts = {name: "" if name in kept else typed[id] for name, id in ids.items()}
        read, errors = self.signature.arguments(texts, self.clock)
        sources = {name: shown if name in kept else read for name in ids}
        values = {name: source[name] for name, source in sources.items() if name in source}
        refused = {ids[name]: why for name, why in errors.items() if name not in kept or name not in shown}
        if _is_unchecked(typed):
            values |= {name: _as_json(texts[name]) for name in errors if texts[name].strip()}
        more, why = self._more_arguments(typed, ids)
        if why:
            return {}, {**refused, MORE: why}
        if more:
            refused[MORE] = "its runners stored no such argument"
        return {PAYLOAD: json.dumps(values | more, ensure_ascii=False)}, refused

    def _more_arguments(self, typed: Mapping[str, str], ids: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """Read the arguments that the stored signature lacks; or the reason why the text is refused."""
        from tasktui.actions.edit_form import parse_value

        try:
            more = json.loads(parse_value(PAYLOAD, typed.get(MORE, "").strip() or "{}", *self.clock))
        except RunnerError as error:
            return {}, _why(error)
        if named := [line(name) for name in ids if name in more]:
            entries = "has an entry of its own" if len(named) == 1 else "have entries of their own"
            return {}, f"{', '.join(named)}: {entries} above"
        return more, ""

    def _misfit(self, payload: str) -> dict[str, str]:
        """The reason why the handler would refuse a payload, by entry; empty if nothing is known against it."""
        from runner.text.redact import with_secrets

        whole = with_secrets(payload, self.origin.payload) if self.origin else payload
        why = self.signature.misfit(json.loads(whole)) if self.signature is not None else ""
        return {PAYLOAD: why} if why else {}

    def preview(self, typed: Mapping[str, str]) -> list[str]:
        """Describe the task, or the number of errors."""
        from runner.text import formatting
        from runner.text.redact import redact
        from tasktui.actions.edit_form import payload_differences

        values, errors = self._read(typed)
        if errors:
            return [self._refusal(errors)]
        lines = []
        if self.origin is not None:
            before = json.dumps(redact(json.loads(self.origin.payload))) if PAYLOAD in values else ""
            lines = payload_differences(before, values[PAYLOAD]) if PAYLOAD in values else []
            lines = lines or ["the same payload, with its secrets"]
        else:
            lines.append(f"payload: {json.dumps(redact(json.loads(values.get(PAYLOAD) or '{}')), ensure_ascii=False)}")
        run_at = values.get("run_at")
        due = formatting.exact(run_at, *self.clock) if isinstance(run_at, datetime) else "as soon as a runner is free"
        if _is_unchecked(typed):
            lines.append("not compared with the stored signature: its code may refuse it")
        return [line(text, LONGEST_PAYLOAD) for text in (*lines, f"runs {due}")]

    def _refusal(self, errors: Mapping[str, str]) -> str:
        return f"mend first: {', '.join(field.label for field in self.fields() if field.name in errors)}"

    async def submit(self, typed: Mapping[str, str]) -> Dialog:
        """Ask for confirmation of the task.

        Raises:
            InvalidInput: an entry is refused.
        """
        values, errors = self._read(typed)
        if errors:
            raise InvalidInput(why=self._refusal(errors))
        new = f"a copy of task {self.origin.task.id}" if self.origin else "a task"
        about = [content(text) for text in self.preview(typed)]
        typed_options = {name: typed[name].strip() for name in OPTIONS if name in values}
        payload = values.get(PAYLOAD) or (None if self.origin else "{}")
        source = self.origin.task.id if self.origin else self.handler
        reason = typed.get(UNCHECKED, "").strip()
        words = partial(new_task_words, self.action, source, payload, typed_options, unchecked=bool(reason))
        change = partial(self._submit, values, reason)
        subject = f"{new} of {line(self.handler)}"
        return Question(
            self.action, about, 1, words=words, change=change, title="Submit?", subject=subject, reason=reason
        )

    async def _submit(self, values: Mapping[str, Any], unchecked: str, confirmation: Confirmation) -> Notice:
        from runner.handlers.keyring import Keyring
        from runner.model.task import NewTask
        from runner.operations.new_task import SubmitOptions, copy_task, submit_task

        settings, by = self.session.settings, self.session.by(confirmation.reason or unchecked)
        options = SubmitOptions(settings.notify, int(settings.payload_limit), not unchecked, Keyring(settings))
        if self.origin is not None:
            id = await self.session.write(copy_task, self.origin.task.id, values, by, options)
            return Notice(f"Submitted task {id}, a copy of task {self.origin.task.id}")
        expires = self.signature.options.get("expires") if self.signature else None
        task = NewTask(self.handler, expires=expires)._replace(**values)
        return Notice(f"Submitted task {await self.session.write(submit_task, task, by, options)}")


def _is_unchecked(typed: Mapping[str, str]) -> bool:
    """True if the operator gave a reason to submit values that the stored signature refuses."""
    return bool(typed.get(UNCHECKED, "").strip())


def _as_json(text: str) -> Any:
    """The JSON that a text writes, otherwise the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()


def _why(error: RunnerError) -> str:
    """The reason without the name of the field, which its entry shows."""
    return str(error.fields.get("why", error))
