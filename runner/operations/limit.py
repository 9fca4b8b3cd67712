"""limit: the limits of queues and handlers over all runners."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.transaction import Transaction, clock
from runner.db.types import EARLIEST
from runner.errors import InvalidEdit, InvalidInput
from runner.filter.fields import suggestion
from runner.operations.audit_log import AuditEntry, record
from runner.operations.names import name_warning
from runner.operations.pause import PauseKind, PauseTarget, registry_of
from runner.operations.results import Actor
from runner.operations.written_rows import write_rows
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.policy.rate import Rate, checked
from runner.queries.rows import moment, readable, text
from runner.store.claim.ledger import kept_tokens

NONE = "none"
"""The value that removes a limit."""

DEFAULT = "default"
"""The value that returns to the limits of the handler's code."""

OPTIONS = dict(zip(("concurrency", "per-tenant", "rate"), SharedLimits._fields, strict=True))
"""The options of the command line, and their fields in SharedLimits."""

CLAIMS_END = 1.0
"""Maximum seconds to wait for claims that began before a first limit. A claim takes milliseconds."""

COLUMNS = (*UNLIMITED.columns, "limited_at", "limited_by", "limited_why")


class LimitEdit(NamedTuple):
    """A change of limits.

    Args:
        values: new limits as text by option; NONE removes one, and the others stay.
        default: True to return to the limits of the handler's code; then `values` is empty.
        new: True to accept a name that has never been used.
    """

    values: Mapping[str, str]
    default: bool = False
    new: bool = False


class LimitResult(NamedTuple):
    """The limits before and after a change."""

    before: SharedLimits
    after: SharedLimits


def parse_edit(answer: str) -> LimitEdit:
    """Parse a change such as `concurrency=5 rate=100/min`, or `default`.

    Raises:
        InvalidInput: it is empty, or an option is unknown.
    """
    if answer.strip() == DEFAULT:
        return LimitEdit({}, default=True)
    values: dict[str, str] = {}
    for word in answer.split():
        name, equals, value = word.partition("=")
        if not equals or name not in OPTIONS:
            choices = ", ".join(f"{option}=..." for option in OPTIONS)
            why = f"{word[:40]!r} is not a limit{suggestion(name, tuple(OPTIONS))}; enter {choices} or {DEFAULT}"
            raise InvalidInput(why=why)
        values[name] = value
    return LimitEdit(values)


def current_texts(limits: SharedLimits) -> dict[str, str]:
    """The limits as text by option."""
    return {option: NONE if value is None else str(value) for option, value in zip(OPTIONS, limits, strict=True)}


def edited(limits: SharedLimits, values: Mapping[str, str]) -> SharedLimits:
    """Return limits with new values.

    Args:
        limits: the limits before.

    Raises:
        InvalidEdit: a value is not valid.
    """
    if not values:
        raise InvalidInput(why=f"name a limit: {', '.join(f'--{option}' for option in OPTIONS)}, or --{DEFAULT}")
    fields: dict[str, Any] = {}
    for option, value in values.items():
        fields[OPTIONS[option]] = None if value.strip().lower() == NONE else _parse(option, value)
    return limits._replace(**fields)


def _parse(option: str, value: str) -> Any:
    if option == "rate":
        return Rate.parse(value)
    digits = value.strip().replace(",", "").replace("_", "")
    if not digits.removeprefix("-").isdecimal():
        raise InvalidEdit(field=option, value=value, why=f"expected a whole number, or {NONE} for no limit")
    return checked(option, int(digits[:20]))


async def set_limits(tx: Transaction, target: PauseTarget, edit: LimitEdit, by: Actor) -> LimitResult:
    """Set the limits of a queue or a handler. Tasks that run already count, and none of them stops.

    Args:
        target: the queue or handler.

    Raises:
        InvalidInput: a value is not valid, or the name is unknown; nothing was changed.
    """
    await _await_plain_claims(tx, target)
    row = await read_entry(tx, target, locked=True)
    result = await _result(tx, target, edit, row)
    author = {
        "limited_at": await clock(tx),
        "limited_by": by.stored.operator,
        "limited_why": by.stored.reason,
    }
    values = result.after.columns | (dict.fromkeys(author) if edit.default else author)
    await write(tx, target, values)
    await record(tx, by, [AuditEntry("limit", before_of(row), values, target=str(target))])
    return result


async def _await_plain_claims(tx: Transaction, target: PauseTarget) -> None:
    """Before a first limit, wait for the claims that began without it: they take no lock that counts their tasks."""
    if any(SharedLimits.of_row(await read_entry(tx, target, locked=False))):
        return
    lock = tx.dialect.readers_ended(registry_of(tx, target), CLAIMS_END)
    if lock is not None:
        await tx.execute(lock)


async def preview_limits(tx: Transaction, target: PauseTarget, edit: LimitEdit) -> LimitResult:
    """Preview a change of limits; see `set_limits`."""
    return await _result(tx, target, edit, await read_entry(tx, target, locked=False))


async def _result(tx: Transaction, target: PauseTarget, edit: LimitEdit, row: Mapping[str, Any]) -> LimitResult:
    before = SharedLimits.of_row(row)
    after = declared(row) if edit.default else edited(before, edit.values)
    if not (edit.new or row["known"]) and (warning := await name_warning(tx, target)):
        raise InvalidInput(why=f"{warning}; to limit it before its first task, use --new")
    return LimitResult(before, after)


def declared(row: Mapping[str, Any]) -> SharedLimits:
    """The limits of a handler's code, from its registry row; none for a queue."""
    try:
        values = json.loads(row.get("declared_limits") or "{}")
        return SharedLimits.of_row(dict.fromkeys(COLUMNS) | values)
    except (TypeError, ValueError, KeyError):
        return SharedLimits()


def before_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a registry row for the audit."""
    return {name: row[name] for name in COLUMNS}


async def read_entry(tx: Transaction, target: PauseTarget, *, locked: bool) -> dict[str, Any]:
    """Read the registry row of a queue or handler; empty values if there is none."""
    registry = registry_of(tx, target)
    names = [*COLUMNS, *(["declared_limits"] if target.kind is PauseKind.HANDLER else [])]
    statement = sa.select(*readable(tx, [registry.c[name] for name in names])).where(registry.c.name == target.name)
    bounded = statement.where(tx.dialect.lock_limit(OPERATION_LOCKS)).with_for_update(key_share=True)
    row = (await tx.execute(bounded if locked else statement)).mappings().one_or_none()
    if row is None:
        return dict.fromkeys(names) | {"known": False}
    texts = ("limited_by", "limited_why")
    values = {name: text(row[name]) if name in texts else row[name] for name in names}
    return values | {"limited_at": moment(row["limited_at"]), "known": True}


async def write(tx: Transaction, target: PauseTarget, values: Mapping[str, Any]) -> None:
    """Write the limits of a queue or handler. A new rate begins with a full token bucket."""
    registry = registry_of(tx, target)
    # No runner has ever had a handler whose entry was created by a limit.
    unseen = {"last_seen_at": EARLIEST} if target.kind is PauseKind.HANDLER else {}
    insert = tx.dialect.insert(registry).values(name=target.name, **values, **unseen)
    new = dict(values) | {"rate_spent": kept_tokens(registry, values)}
    await write_rows(tx, insert.on_conflict_do_update(index_elements=registry.primary_key, set_=new))
