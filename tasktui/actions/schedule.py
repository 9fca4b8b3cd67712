"""Adding, running, pausing, editing and deleting a schedule: their confirmations."""

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.content import Content

from runner.errors import InvalidInput, InvalidSchedule
from runner.model.schedule import ScheduleSpec
from runner.text import formatting
from runner.text.redact import redact
from runner.text.times import format_moment
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import edited_schedule_words, new_schedule_words, schedule_words
from tasktui.actions.question import Dialog, Form, FormField, Question
from tasktui.actions.queues import pause_meaning
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.render.rows import Row, heading
from tasktui.render.rows import rule as rule_line
from tasktui.session.session import Session

if TYPE_CHECKING:
    from runner.queries.schedules import ScheduleRow  # The first screen does not need it.

TIMES, COLUMN = 10, 36
"""Number of the next times of a rule, and the cells of each."""

LONGEST = 300
"""Characters of a payload in a confirmation."""

Change = Callable[[Confirmation], Coroutine[Any, Any, Notice]]


def ask_to_add(action: Action, session: Session, targets: Targets) -> Dialog:
    """Ask for the values of a new schedule."""
    row = targets.schedule()
    handler = line(row.spec.handler) if row is not None else ""
    fields = (
        FormField("schedule", "Name", hint="required: nightly"),
        FormField("handler", "Handler", handler, "required: the handler of its tasks"),
        FormField("rule", "Rule", hint="required: a cron line, every 5m, or after_end 30s"),
        FormField("timezone", "Time zone", hint="UTC; of a cron line: Europe/Berlin"),
        FormField("payload", "Payload", hint='{}; a JSON object, such as {"full": true}', is_json=True),
    )
    about = [content(("New schedule", "bold strong")), content("  for more options: runner schedules add")]
    now = session.now()
    return Form("New schedule", about, fields, partial(_times, now), partial(_confirm_add, action, session), _errors)


def _new(typed: Mapping[str, str]) -> tuple[str, ScheduleSpec]:
    texts = {name: " ".join(text.split()) for name, text in typed.items()}
    zone, payload = texts.get("timezone") or "UTC", typed.get("payload", "").strip() or "{}"
    return texts.get("schedule", ""), ScheduleSpec(texts.get("handler", ""), texts.get("rule", ""), zone, payload)


def _errors(typed: Mapping[str, str]) -> dict[str, str]:
    """The reasons why texts are refused, by entry."""
    from runner.handlers.schedules import check_id
    from runner.policy.schedule_ticks import check_spec

    id, spec = _new(typed)
    errors = {name: "required" for name in ("schedule", "handler", "rule") if not typed.get(name, "").strip()}
    for name, check in (("schedule", lambda: check_id(id)), ("", lambda: check_spec(spec))):
        try:
            check()
        except InvalidInput as error:
            errors.setdefault(name or str(error.fields.get("field", "rule")), str(error.fields.get("why", error)))
    return errors


def _times(now: datetime, typed: Mapping[str, str]) -> list[str]:
    if _errors(typed):
        return []
    _, spec = _new(typed)
    return ["".join(text for text, _ in row) for row in rule_rows(spec.timezone, now, 2 * COLUMN, spec.rule, low=False)]


async def _confirm_add(action: Action, session: Session, typed: Mapping[str, str]) -> Dialog:
    """Ask for confirmation of a new schedule.

    Raises:
        InvalidInput: an entry is refused.
    """
    from runner.operations.names import handler_warning
    from runner.operations.schedule import check_arguments

    if errors := _errors(typed):
        raise InvalidInput(why=f"mend first: {', '.join(errors)}")
    id, spec = _new(typed)
    await session.read(check_arguments, spec)
    payload = json.dumps(redact(json.loads(spec.payload)), ensure_ascii=False)
    zone = f" in {line(spec.timezone)}" if spec.timezone != "UTC" else ""
    about = [content(f"  handler {line(spec.handler)}, rule {line(spec.rule)}{zone}")]
    about.append(content(f"  payload {line(payload, LONGEST)}"))
    if warning := await session.read(handler_warning, spec.handler):
        about.append(content((f"  {line(warning, LONGEST)}; its tasks wait until a runner has it", "retrying")))
    words = partial(new_schedule_words, id, spec)
    return Question(
        action, about, 1, words=words, change=partial(_add, session, id, spec), subject=f"schedule {line(id)}"
    )


async def _add(session: Session, id: str, spec: ScheduleSpec, confirmation: Confirmation) -> Notice:
    from runner.operations.schedule import add_schedule

    limit = int(session.settings.payload_limit)
    await session.write(add_schedule, id, spec, session.by(confirmation.reason), limit)
    return Notice(f"Schedule {line(id)} added")


def ask_to_run(action: Action, session: Session, targets: Targets) -> Dialog | None:
    """Ask to run the selected schedule now."""
    row = targets.schedule()
    if row is None:
        return None
    about = [content(("Also while another run is unfinished", "bold")), _task(row)]
    question = _question(action, row, about, partial(_run, session, row))
    return replace(question, title="Run?", subject=f"{question.subject} now")


def ask_to_pause(action: Action, session: Session, targets: Targets) -> Dialog | None:
    """Ask to pause the selected schedule, or to resume it if it is paused."""
    row = targets.schedule()
    if row is None:
        return None
    if row.pause is None:
        about = [content(("Ticks during the pause are not made up for", "bold"))]
        question = _question(action, row, about, partial(_pause, session, row))
        return replace(question, meaning=partial(pause_meaning, session))
    now, end = session.now(), row.pause.until
    until = f"{formatting.clock(end, now, session.zone)}, {formatting.distance(end, now)}" if end else "it is resumed"
    about = [
        content(f"Paused by {line(row.pause.by)} until {until}: {line(row.pause.why)}"),
    ]
    resume = action.without_prompt()._replace(name="schedules resume", label="Resume")
    return _question(resume, row, about, partial(_resume, session, row))


def ask_to_edit(action: Action, session: Session, targets: Targets) -> Dialog | None:
    """Ask for other values of the selected schedule."""
    row = targets.schedule()
    return None if row is None else edit_form(action, session, row)


def edit_form(action: Action, session: Session, row: "ScheduleRow") -> Form:
    """Build the form with the values of a schedule."""
    from runner.model.schedule import OVERLAPS
    from tasktui.actions.edit_form import shown_payload  # imports modules that the first screen does not need

    spec = row.spec
    payload, lock_reason = shown_payload(spec.payload)
    fields = (
        FormField("rule", "Rule", line(spec.rule), "a cron line, every 5m, or after_end 30s"),
        FormField("timezone", "Time zone", line(spec.timezone), "of a cron line: Europe/Berlin"),
        FormField("overlap", "Overlap", line(spec.overlap), ", ".join(OVERLAPS)),
        FormField("misfire", "Missed ticks", line(spec.misfire), "skip, once or all N"),
        FormField("payload", "Payload", payload, "{}", lock_reason, is_json=True),
    )
    about = [content((f"overlap: {', '.join(OVERLAPS)}; missed: skip, once or all N", "muted"))]
    now = session.now()
    return Form(
        f"Edit schedule {line(row.id)}",
        about,
        fields,
        partial(_edit_preview, row, now),
        partial(_confirm_edit, action, session, row),
        partial(_edit_errors, row),
    )


def _edited(row: "ScheduleRow", typed: Mapping[str, str]) -> dict[str, Any]:
    """The edited values by column.

    Raises:
        InvalidInput: the payload is not JSON, or moves a masked secret.
    """
    from runner.text.redact import with_secrets
    from tasktui.actions.edit_form import shown_payload

    spec = row.spec
    payload, lock_reason = shown_payload(spec.payload)
    shown = {name: line(getattr(spec, name)) for name in ("rule", "timezone", "overlap", "misfire")}
    texts = {name: " ".join(typed.get(name, "").split()) for name in shown}
    values: dict[str, Any] = {name: text for name, text in texts.items() if text not in ("", shown[name])}
    text = typed.get("payload", payload).strip()
    if not lock_reason and text not in ("", payload):
        try:
            values["payload"] = with_secrets(text, spec.payload)
        except ValueError as error:
            raise InvalidSchedule(field="payload", value=text[:80], why=f"invalid JSON: {error}") from error
    return values


def _edit_errors(row: "ScheduleRow", typed: Mapping[str, str]) -> dict[str, str]:
    """The reasons why texts are refused, by entry."""
    from runner.policy.schedule_ticks import check_spec

    try:
        check_spec(row.spec._replace(**_edited(row, typed)))
    except InvalidInput as error:
        field = str(error.fields.get("field", "rule"))
        return {field if field in ("timezone", "overlap", "misfire", "payload") else "rule": str(error.fields["why"])}
    return {}


def _edit_preview(row: "ScheduleRow", now: datetime, typed: Mapping[str, str]) -> list[str]:
    """The edited values, and the next times of the rule."""
    if _edit_errors(row, typed):
        return []
    values = _edited(row, typed)
    spec = row.spec._replace(**values)
    times = rule_rows(spec.timezone, now, 2 * COLUMN, spec.rule, low=False)
    return [*(_differences(row, values) or ["no changes yet"]), *("".join(text for text, _ in each) for each in times)]


def _differences(row: "ScheduleRow", values: Mapping[str, str]) -> list[str]:
    """The values before and after an edit, with masked secrets."""
    from tasktui.actions.edit_form import payload_differences

    lines = [f"{name}: {getattr(row.spec, name)} -> {text}" for name, text in values.items() if name != "payload"]
    lines += [f"payload {text}" for text in payload_differences(row.spec.payload, values.get("payload"))]
    return [line(text, LONGEST) for text in lines]


async def _confirm_edit(action: Action, session: Session, row: "ScheduleRow", typed: Mapping[str, str]) -> Dialog:
    """Ask for confirmation of the edited values.

    Raises:
        InvalidInput: an entry is refused, or nothing is edited.
    """
    from runner.operations.schedule import check_arguments

    if errors := _edit_errors(row, typed):
        raise InvalidInput(why="; ".join(errors.values()))
    values = _edited(row, typed)
    if not values:
        raise InvalidInput(why="edit a value first")
    spec = row.spec._replace(**values)
    if "payload" in values:
        await session.read(check_arguments, spec)
    texts = values if "payload" not in values else values | {"payload": typed["payload"].strip()}
    question = _question(
        action, row, [content(text) for text in _differences(row, values)], partial(_edit, session, row, values)
    )
    question = replace(question, words=partial(edited_schedule_words, row.id, texts))
    if "rule" in values or "timezone" in values:
        times = partial(rule_rows, spec.timezone, session.now())
        return replace(question, effect=lambda width, answer, *, low: times(width, answer or spec.rule, low=low))
    return question


def rule_rows(timezone: str, now: datetime, width: int, answer: str, *, low: bool) -> list[Row]:
    """Render the next ten times of a typed rule below a title, or the reason why it is refused.

    Args:
        timezone: time zone of a cron line.
        width: cells of a row.
        low: True for a screen with few rows: the next times of one row.
    """
    from runner.policy.schedule import describe, parse_rule, parse_zone, upcoming

    text = " ".join(answer.split())
    try:
        rule = parse_rule(text, timezone)
        times = [format_moment(moment, parse_zone(timezone)) for moment in upcoming(rule, now, TIMES)]
    except InvalidInput as error:
        return [[(line(f"✗ {error.fields.get('why', error)}", width), "bold dead")]]
    if rule.delay is not None:
        return [[(line(f"✓ {describe(text)} of the last run", width), "muted")]]
    columns = max(1, width // COLUMN)
    rows = [times[first : first + columns] for first in range(0, len(times), columns)]
    title = rule_line([heading("Next runs")], width, [(line(describe(text), width // 2), "muted")])
    return [title, *([("".join(f"{time:{COLUMN}}" for time in row), "text")] for row in rows[: 1 if low else TIMES])]


def ask_to_delete(action: Action, session: Session, targets: Targets) -> Dialog | None:
    """Ask to delete the selected schedule."""
    row = targets.schedule()
    if row is None:
        return None
    about = [content(("Its runs stay", "bold")), _task(row)]
    return _question(action, row, about, partial(_delete, session, row))


def _task(row: "ScheduleRow") -> Content:
    return content(f"  handler {line(row.spec.handler)}, rule {line(row.spec.rule)}")


def _question(action: Action, row: "ScheduleRow", about: list[Content], change: Change) -> Question:
    words = partial(schedule_words, action.name, row.id)
    return Question(action, about, 1, words=words, change=change, subject=f"schedule {line(row.id)}")


async def _run(session: Session, row: "ScheduleRow", confirmation: Confirmation) -> Notice:
    from runner.operations.schedule import run_schedule

    await session.write(run_schedule, row.id, session.by(confirmation.reason))
    return Notice(f"Schedule {line(row.id)} runs within a second on a live runner")


async def _pause(session: Session, row: "ScheduleRow", confirmation: Confirmation) -> Notice:
    from runner.db.transaction import clock
    from runner.operations.schedule import pause_schedule
    from runner.text.times import parse_moment

    until = None
    if confirmation.answer:
        until = parse_moment(confirmation.answer, await session.read(clock), session.zone)
    await session.write(pause_schedule, row.id, session.by(confirmation.reason), until, version=row.version)
    end = format_moment(until, session.zone) if until else "resumed"
    return Notice(f"Schedule {line(row.id)} paused until {end}")


async def _resume(session: Session, row: "ScheduleRow", confirmation: Confirmation) -> Notice:
    from runner.operations.schedule import resume_schedule

    await session.write(resume_schedule, row.id, session.by(confirmation.reason), version=row.version)
    return Notice(f"Schedule {line(row.id)} resumed")


async def _edit(session: Session, row: "ScheduleRow", values: Mapping[str, str], confirmation: Confirmation) -> Notice:
    from runner.operations.schedule import edit_schedule

    by, limit = session.by(confirmation.reason), int(session.settings.payload_limit)
    after = await session.write(edit_schedule, row.id, values, by, version=row.version, payload_limit=limit)
    return Notice(f"Schedule {line(row.id)} {'edited' if after else 'has these values'}")


async def _delete(session: Session, row: "ScheduleRow", confirmation: Confirmation) -> Notice:
    from runner.operations.schedule import delete_schedule

    await session.write(delete_schedule, row.id, session.by(confirmation.reason), version=row.version)
    return Notice(f"Schedule {line(row.id)} deleted; runner undo brings it back")
