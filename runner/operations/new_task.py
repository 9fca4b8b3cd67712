"""New tasks by operators, submitted or copied, in the audit with an undo."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.db.transaction import Transaction
from runner.errors import TaskNotFound
from runner.handlers.dependencies import read_declared, with_key
from runner.handlers.keyring import Keyring
from runner.handlers.options import SETTABLE
from runner.model.task import MOVES, NewTask, State
from runner.model.text_limits import FAILED_HOST
from runner.operations.audit_log import AuditEntry, record
from runner.operations.edit_values import PAYLOAD_LIMIT, check_payload
from runner.operations.results import Actor, Result
from runner.operations.sealed_payload import open_payload, seal_payload
from runner.operations.targets import LockedTask
from runner.operations.terminate import cancel
from runner.policy.retry import parse_plan
from runner.queries.rows import as_text, readable
from runner.queries.signatures import stored_signature
from runner.queries.task_list.row import one_task
from runner.store.submit import submit as store_submit
from runner.store.validation import check
from runner.text.redact import MASK, with_secrets

if TYPE_CHECKING:
    from runner.operations.undo.entries import UndoableChange

SUBMIT, COPY = "submit", "copy"
"""The verbs in the audit: of the new task, and of the task that it is a copy of."""

COPIED = tuple(name for name, option in SETTABLE.items() if option.column == name and option.type not in (None, "time"))
"""The options that a copy takes over.

Its time and expiry begin again. Unique key, order key and dependencies stay with the first task: a copy has none.
"""


DERIVED = {
    "unique_key": "a unique key",
    "bucket": "a bucket",
    "order_key": "an order key",
    "tenant": "a tenant",
    "key": "a key",
}
"""The values that the code of a handler derives from the arguments of a call."""


class SubmitOptions(NamedTuple):
    """The settings of a submit by an operator.

    Args:
        notify: wake listening runners.
        payload_limit: maximum number of bytes of a payload.
        checked: refuse a new payload that does not match the stored signature of its handler.
        keyring: the keys of the operator, for handlers with a codec; None stores payloads as they are.
    """

    notify: bool = True
    payload_limit: int = PAYLOAD_LIMIT
    checked: bool = True
    keyring: Keyring | None = None


DEFAULTS = SubmitOptions()


async def submit_task(tx: Transaction, task: NewTask, by: Actor, options: SubmitOptions = DEFAULTS) -> int:
    """Submit a task.

    Args:
        task: the task; the operator becomes its submitter.

    Returns:
        The id of the task.

    Raises:
        InvalidTask: a value is not allowed; nothing was written.
        InvalidEdit: the payload is not a JSON object; nothing was written.
        PayloadTooLarge: the payload exceeds the limit.
    """
    signature = await stored_signature(tx, task.handler)
    if signature is not None:
        task = with_key(task, read_declared(signature.options))
    payload = await seal_payload(tx, options.keyring, task.handler, task.payload, options.payload_limit)
    return await _submit(tx, task._replace(payload=payload), by, options, {})


async def copy_task(
    tx: Transaction, id: int, values: Mapping[str, Any], by: Actor, options: SubmitOptions = DEFAULTS
) -> int:
    """Submit a copy of a task in any state. The audit links both tasks.

    Args:
        values: other values by field of NewTask. A mask in the payload keeps the secret of the same place.

    Returns:
        The id of the copy.

    Raises:
        TaskNotFound: no task has this id.
        InvalidTask: a value is not allowed; nothing was written.
        InvalidEdit: the payload is not a JSON object, or a mask has no secret; nothing was written.
        InvalidPayload: a new payload does not match the stored signature of its handler; nothing was written.
        PayloadTooLarge: the payload exceeds the limit.
    """
    copy = await _submit(tx, await copy_of(tx, id, values, options), by, options, {"copy_of": id})
    await record(tx, by, [AuditEntry(COPY, {}, {"copy": copy}, id)])
    return copy


async def copy_of(tx: Transaction, id: int, values: Mapping[str, Any], options: SubmitOptions = DEFAULTS) -> NewTask:
    """Make the task that `copy_task` would submit; the errors are the same."""
    columns = {"handler", "payload", *COPIED}
    for table in (tx.tables.task, tx.tables.history):
        statement = one_task(tx, table, id, readable(tx, [column for column in table.c if column.name in columns]))
        row = (await tx.execute(statement)).mappings().one_or_none()
        if row is not None:
            break
    else:
        raise TaskNotFound(id=id)
    stored = as_text(row["payload"])
    others = dict(values)
    if "payload" in others:
        check_payload(others["payload"], options.payload_limit)
        handler = as_text(row["handler"])
        if MASK in others["payload"]:
            others["payload"] = with_secrets(others["payload"], open_payload(options.keyring, handler, stored))
        if options.checked:
            await require_signature(tx, handler, others["payload"])
        limit = options.payload_limit
        others["payload"] = await seal_payload(tx, options.keyring, handler, others["payload"], limit, stored)
    if others.get("retry") is not None:
        others["retry"] = str(parse_plan(others["retry"]))
    copied = {name: row[name] for name in COPIED}
    if FAILED_HOST in as_text(copied["hosts"] or "").split(","):
        copied["hosts"] = FAILED_HOST  # its own first attempt has not failed
    task = NewTask(as_text(row["handler"]), stored, **copied)._replace(**others)
    check(task)
    return task


async def require_signature(tx: Transaction, handler: str, payload: str) -> None:
    """Reject a payload that the handler would refuse, as far as its runners have stored its signature.

    Args:
        payload: the arguments, a JSON object as text.

    Raises:
        InvalidPayload: it does not match; the message names the argument without its value.
    """
    signature = await stored_signature(tx, handler)
    if signature is not None:
        signature.require(handler, payload)


async def _submit(tx: Transaction, task: NewTask, by: Actor, options: SubmitOptions, more: Mapping[str, Any]) -> int:
    check_payload(task.payload, options.payload_limit)
    id = await store_submit(tx, task._replace(submitted_by=by.operator), notify=options.notify)
    await record(tx, by, [AuditEntry(SUBMIT, {}, {"handler": task.handler, **more}, id)])
    return id


async def cancel_submit(tx: Transaction, pairs: "Sequence[tuple[UndoableChange, LockedTask]]", by: Actor) -> Result:
    """Undo submits by operators: cancel the tasks, which have not started."""
    await cancel(tx, [task for _, task in pairs], by)
    after = {"state": MOVES["cancel"].target}
    entries = [AuditEntry("cancel", {"state": task.state}, after, task.id, undo_of=change.id) for change, task in pairs]
    await record(tx, by, entries)
    return Result([task.id for _, task in pairs])


def submit_conflict(_change: "UndoableChange", task: LockedTask) -> str | None:
    """The conflict with the undo of a submit."""
    if task.fence or task.state is State.RUNNING:
        return "it has started since; terminate it instead"
    return f"it is now {task.state}" if task.state.final else None
