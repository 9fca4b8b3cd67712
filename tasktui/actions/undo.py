"""Undoing one change, the last one of a schedule, or a change group: its confirmation.

A change that cannot be undone gets a notice with the reason instead of a dialog.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.content import Content

from runner.operations.targets import MANY
from runner.text import formatting
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import undo_group_words, undo_words
from tasktui.actions.question import BulkChange, Dialog, Question, result_notice
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session

if TYPE_CHECKING:
    # They import modules that the first screen does not need.
    from runner.operations.undo.undo import UndoPreview
    from runner.queries.audit import AuditRecord

LABEL = 15
"""Cells of the name of a value, at least."""


def ask(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to undo the selected operation as a whole, or the latest change of the selected task."""
    operation, task = targets.change(), targets.task()
    if operation is not None:
        undo = _ask_for_group if operation.number.number > 1 else _ask_for_change
        return undo(action, session, operation.entry)
    return _ask_for_task(action, session, task.id, _ask_for_change) if task is not None else None


def ask_for_group(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to undo the change group of the selected operation, or of the latest change of the selected task."""
    operation, task = targets.change(), targets.task()
    if operation is not None:
        return _ask_for_group(action, session, operation.entry)
    return _ask_for_task(action, session, task.id, _ask_for_group) if task is not None else None


def ask_for_schedule(action: Action, session: Session, targets: Targets) -> Coroutine[Any, Any, Dialog] | None:
    """Ask to undo the last change of the selected schedule."""
    row = targets.schedule()
    return _ask_for_schedule(action, session, row.id) if row is not None else None


async def _ask_for_schedule(action: Action, session: Session, id: str) -> Dialog:
    from runner.queries.audit import audit, undoable

    entry = undoable(await session.read(audit, target=f"schedule {id}"))
    if entry is None:
        return Notice(f"Schedule {line(id)} has no change to undo", bad=True)
    return await _ask_for_change(action, session, entry)


async def _ask_for_task(
    action: Action, session: Session, task_id: int, ask_for: Callable[..., Coroutine[Any, Any, Dialog]]
) -> Dialog:
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    entry = await perform.last_change(session, task_id)
    if entry is None:
        return Notice(f"Task {task_id} has no change to undo", bad=True)
    return await ask_for(action, session, entry)


async def _ask_for_change(action: Action, session: Session, entry: "AuditRecord") -> Dialog:
    from runner.operations.undo.undo import preview_undo as read_undoing
    from runner.queries.audit_words import restored_values
    from runner.text.redact import ChangedValue
    from tasktui.actions import perform

    preview = await session.read(read_undoing, [entry.id])
    if not preview.able:
        why = next(iter(preview.skipped), "it is no longer in the audit")
        return Notice(f"Change {entry.id} cannot be undone: {why}", bad=True)
    target = f"task {entry.task_id}" if entry.task_id is not None else entry.target
    values = [ChangedValue(*map(line, each)) for each in restored_values(entry, session.zone)]
    room = max([LABEL, *(len(each.name) + 1 for each in values)])
    about = [
        content((f"  {each.name:<{room}}", "muted"), (each.after, "strong"), (f", now {each.before}", "muted"))
        for each in values
    ]
    return Question(
        action,
        about,
        1,
        words=partial(undo_words, entry.id),
        change=partial(_undo, session, entry.id),
        sql=partial(perform.undo_sql, session, entry),
        subject=f"{line(formatting.verb(entry.verb))} of {line(target)} by {line(entry.operator)}",
    )


async def _undo(session: Session, entry_id: int, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    return result_notice("Undo", await perform.undo(session, entry_id, confirmation.reason))


async def _ask_for_group(action: Action, session: Session, entry: "AuditRecord") -> Dialog:
    from runner.operations.undo.undo import preview_undo as read_undoing

    group = entry.change_group
    if group is None:
        return Notice(f"Change {entry.id} does not belong to a group; undo it with Z", bad=True)
    preview = await session.read(read_undoing, None, group)
    skipped = [f"  {count:,} skipped: {line(why)}" for why, count in preview.skipped.items()]
    if not preview.able:
        return Notice("\n".join(["None of these changes can be undone", *skipped]), bad=True)
    more = "+" if preview.more else ""
    change = f"{line(formatting.verb(entry.verb))} of {len(preview.changes):,}{more} tasks"
    return Question(
        action,
        _about_group(preview, skipped),
        MANY + 1 if preview.more else len(preview.able),
        words=partial(undo_group_words, group, preview.number),
        change=partial(_undo_group, session, group, preview),
        title="Undo?",
        subject=f"{change} by {line(entry.operator)}",
    )


def _about_group(preview: "UndoPreview", skipped: Sequence[str]) -> list[Content]:
    about = [content((f"{len(preview.able):,}{'+' if preview.more else ''} to undo", "bold"))]
    return about + [content((text, "retrying")) for text in skipped]


def _undo_group(session: Session, group: str, preview: "UndoPreview", confirmation: Confirmation) -> BulkChange:
    from tasktui.actions import perform

    total = None if preview.more else len(preview.able)
    return BulkChange("Undo", total, partial(perform.undo_group, session, group, confirmation))
