"""edit: set values of one task, or the same values of many."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runner.db.transaction import Transaction
from runner.operations.audit_log import AuditEntry, record
from runner.operations.edit_values import (
    PAYLOAD_LIMIT,
    SAME,
    Changes,
    check_against,
    check_bulk,
    check_values,
    edit_objection,
)
from runner.operations.results import Actor, Result, Skipped, Target
from runner.operations.retry import requeue_with
from runner.operations.targets import LockedTask, change, lock_targets, partition_targets, read_tasks, reschedule

if TYPE_CHECKING:
    from runner.handlers.keyring import Keyring


@dataclass(frozen=True, slots=True)
class EditPreview:
    """The preview of an edit.

    Args:
        result: the result that the edit would return.
        before: the current values of the fields that would change.
        after: the new values of these fields.
    """

    result: Result
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


async def edit(  # noqa: PLR0913 - the options of one change
    tx: Transaction,
    id: int,
    version: int | None,
    changes: Changes,
    by: Actor,
    *,
    requeue: bool = False,
    payload_limit: int = PAYLOAD_LIMIT,
    checked: bool = True,
    keyring: "Keyring | None" = None,
) -> Result:
    """Set values of a live task; if it is running, its settle uses the new values.

    With `requeue` the task is a dead or cancelled one: it is requeued with all its attempts, and runners see it only
    with the new values. This is one change, and one undo.

    Args:
        version: the expected version; None to edit any version.
        requeue: requeue a dead or cancelled task.
        payload_limit: maximum number of bytes of a payload.
        checked: refuse a payload that does not match the stored signature of the task's handler.
        keyring: the keys of the operator, for a task whose handler has a codec; None stores the payload as it is.

    Returns:
        The result; a task that already has the values is skipped.

    Raises:
        InvalidEdit: a value is not allowed, or not in the current state of the task; nothing was changed.
        InvalidPayload: the payload does not match the stored signature; nothing was changed.
        InvalidRetryPlan: the retry plan is invalid.
        PayloadTooLarge: the payload exceeds the limit.
    """
    values = check_values(changes, payload_limit)
    await _check_payload(tx, id, values, payload_limit, checked, keyring)
    if requeue:
        return await requeue_with(tx, Target(id, version), values, by)
    preview = _editing(values, *await lock_targets(tx, "edit", [Target(id, version)]))
    if preview.after:
        await change(tx, [id], **preview.after)
        await record(tx, by, [AuditEntry("edit", preview.before, preview.after, id)])
    return preview.result


async def preview_edit(
    tx: Transaction,
    id: int,
    version: int | None,
    changes: Changes,
    *,
    requeue: bool = False,
    payload_limit: int = PAYLOAD_LIMIT,
    checked: bool = True,
    keyring: "Keyring | None" = None,
) -> EditPreview:
    """Preview an edit.

    Args:
        version: the expected version; None for any version.
        requeue: as in `edit`.
        payload_limit: maximum number of bytes of a payload.
        checked, keyring: as in `edit`.

    Raises:
        InvalidEdit: as in `edit`.
        InvalidPayload: as in `edit`.
        InvalidRetryPlan: as in `edit`.
        PayloadTooLarge: as in `edit`.
    """
    values = check_values(changes, payload_limit)
    await _check_payload(tx, id, values, payload_limit, checked, keyring)
    verb = "requeue" if requeue else "edit"
    tasks, result = partition_targets(verb, [Target(id, version)], await read_tasks(tx, [id], locked=False))
    return _editing(values, [task._replace(attempt=0) for task in tasks] if requeue else tasks, result)


async def _check_payload(
    tx: Transaction, id: int, values: dict[str, Any], limit: int, checked: bool, keyring: "Keyring | None"
) -> None:
    """Compare a new payload with the stored signature, and encrypt it if the task needs it."""
    if "payload" in values:
        from runner.operations.new_task import require_signature  # imports pydantic; few edits have a payload
        from runner.operations.sealed_payload import seal_payload

        for task in (await read_tasks(tx, [id], locked=False)).values():
            if checked:
                await require_signature(tx, task.handler, values["payload"])
            values["payload"] = await seal_payload(tx, keyring, task.handler, values["payload"], limit, task.payload)


def _editing(values: dict[str, Any], tasks: list[LockedTask], result: Result) -> EditPreview:
    """The changes to the task, if it is eligible."""
    for task in tasks:
        check_against(values, task)
        new = {name: value for name, value in values.items() if getattr(task, name) != value}
        if new:
            result.changed.append(task.id)
            return EditPreview(result, {name: getattr(task, name) for name in new}, new)
        result.skipped.append(Skipped(task.id, SAME))
    return EditPreview(result)


async def edit_each(
    tx: Transaction,
    targets: Iterable[Target],
    changes: Changes,
    by: Actor,
    **how: Any,
) -> Result:
    """Set the same values of several tasks; see `edit`."""
    result = Result()
    for target in targets:
        result.add(await edit(tx, target.id, target.version, changes, by, **how))
    return result


async def edit_all(
    tx: Transaction, targets: Iterable[Target], changes: Changes, by: Actor, *, spread: float = 0.0
) -> Result:
    """Set the same values of many live tasks; a task that does not allow them, or already has them, is skipped.

    Args:
        changes: the new values, without payload and key.
        spread: seconds after the new due time over which the tasks are spread at random.

    Raises:
        InvalidEdit: a value is not allowed, or belongs to one task; nothing was changed.
        InvalidRetryPlan: the retry plan is invalid.
    """
    values = check_bulk(changes, spread)
    locked, result = await lock_targets(tx, "edit", targets)
    tasks = []
    for task in locked:
        if why := edit_objection(values, task):
            result.skipped.append(Skipped(task.id, why))
        else:
            tasks.append(task)
    new_values = {task.id: values for task in tasks}
    if spread:
        others = {name: value for name, value in values.items() if name != "run_at"}
        delays = {task.id: timedelta(seconds=random.uniform(0, spread)) for task in tasks}  # noqa: S311 - no secret
        times = await reschedule(tx, {id: values["run_at"] + delay for id, delay in delays.items()}, **others)
        new_values = {id: values | {"run_at": time} for id, time in times.items()}
    elif tasks:
        await change(tx, list(new_values), **values)
    await record(tx, by, [_entry(task, new_values[task.id]) for task in tasks])
    result.changed = list(new_values)
    return result


def _entry(task: LockedTask, values: dict[str, Any]) -> AuditEntry:
    new = {name: value for name, value in values.items() if getattr(task, name) != value}
    return AuditEntry("edit", {name: getattr(task, name) for name in new}, new, task.id)
