"""silence: send no notices of an alert, or of all alerts of a rule, until a time."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.filter.fields import suggestion
from runner.model.alert import AlertRule, Silence
from runner.operations.audit_log import AuditEntry, record
from runner.operations.names import name_warning
from runner.operations.pause import PauseKind, PauseTarget, require_future
from runner.operations.results import Actor
from runner.operations.written_rows import write_rows
from runner.queries.rows import as_text, moment, readable, text

SILENCE = ("silenced_until", "silenced_by", "silenced_why")


def target_of_alert(name: str) -> str:
    """Return the target of the audit entries of an alert."""
    return f"alert {name}"


async def silence(tx: Transaction, name: str, until: datetime, by: Actor) -> Silence:
    """Send no notices of an alert until a time; another silence replaces it.

    Args:
        name: RULE:SUBJECT, or a rule for all of its alerts.
        until: the end, aware.

    Raises:
        InvalidInput: the rule or the subject does not exist; nothing was changed.
        InvalidEdit: the end is not in the future.
    """
    await check_alert(tx, name)
    require_future("the end of the silence", until, await clock(tx))
    until = until.replace(microsecond=until.microsecond // 1000 * 1000)  # as SQLite stores it, so that undo finds it
    values = {
        "silenced_until": until,
        "silenced_by": by.stored.operator,
        "silenced_why": by.stored.reason,
    }
    before = await silence_of(tx, name)
    await set_silence(tx, name, values)
    await record(tx, by, [AuditEntry("silence", before, values, target=target_of_alert(name))])
    return Silence(name, until, by.operator, by.reason)


async def unsilence(tx: Transaction, name: str, by: Actor) -> bool:
    """End a silence; an alert that fires sends its notice with the next evaluation.

    Args:
        name: the name of the silence.

    Returns:
        False if it was not silenced, and nothing was changed.

    Raises:
        InvalidInput: the rule does not exist.
    """
    rule_of(name)
    before = await silence_of(tx, name)
    if before:
        await set_silence(tx, name, {})
        await record(tx, by, [AuditEntry("unsilence", before, {}, target=target_of_alert(name))])
    return bool(before)


async def silence_of(tx: Transaction, name: str) -> dict[str, Any]:
    """Read and lock the silence in force; empty if there is none."""
    alert = tx.tables.alert
    columns = readable(tx, [alert.c[each] for each in SILENCE])
    statement = sa.select(*columns).where(alert.c.name == name, tx.dialect.lock_limit(OPERATION_LOCKS))
    row = (await tx.execute(statement.with_for_update(key_share=True))).mappings().one_or_none()
    until = None if row is None else moment(row["silenced_until"])
    if row is None or until is None or until <= await clock(tx):
        return {}
    return {"silenced_until": until} | {each: text(row[each]) for each in SILENCE[1:]}


async def set_silence(tx: Transaction, name: str, values: Mapping[str, Any]) -> None:
    """Set the silence of an alert; empty values remove it."""
    alert = tx.tables.alert
    changes = dict.fromkeys(SILENCE) | dict(values)
    insert = tx.dialect.insert(alert).values(name=name, **changes)
    await write_rows(tx, insert.on_conflict_do_update(index_elements=alert.primary_key, set_=changes))


def rule_of(name: str) -> AlertRule:
    """Read the rule of a name.

    Raises:
        InvalidInput: it does not exist.
    """
    rule, rules = name.partition(":")[0], tuple(each.value for each in AlertRule)
    if rule not in rules:
        hint = suggestion(rule, rules) or f"; the rules: {', '.join(rules)}"
        raise InvalidInput(why=f"no rule has the name {rule!r}{hint}")
    return AlertRule(rule)


async def check_alert(tx: Transaction, name: str) -> None:
    """Reject a name whose rule or subject does not exist.

    Raises:
        InvalidInput: with a similar name.
    """
    rule, (_, colon, subject) = rule_of(name), name.partition(":")
    alert = tx.tables.alert.c
    if not colon or await tx.rows(sa.select(alert.name).where(alert.name == name)):
        return
    if not rule.subject or not subject:
        why = f"{rule} has no subjects" if not rule.subject else f"name a {rule.subject} after the colon"
        raise InvalidInput(why=f"{why}: silence {rule} for all of its alerts")
    if warning := await _unknown(tx, rule.subject, subject):
        raise InvalidInput(why=warning)


async def _unknown(tx: Transaction, kind: str, subject: str) -> str:
    """The reason why a subject does not exist; empty if it does, or if its kind has no registry."""
    if kind in tuple(PauseKind):
        return await name_warning(tx, PauseTarget(PauseKind(kind), subject))
    if kind == "schedule":
        names = tuple(as_text(row[0]) for row in await tx.rows(sa.select(tx.tables.schedule.c.id)))
    elif kind == "runner":
        runner = tx.tables.runner.c
        names = tuple(f"{as_text(row[0])}:{row[1]}" for row in await tx.rows(sa.select(runner.host, runner.pid)))
    else:
        return ""
    return "" if subject in names else f"{kind} {subject} does not exist{suggestion(subject, names)}"
