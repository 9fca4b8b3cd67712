"""Triggers that refuse to change some rows, as those of an application may do, on both databases."""

from typing import Literal

import sqlalchemy as sa

from runner.db.database import Database

Event = Literal["UPDATE", "DELETE", "INSERT"]

TEXT = "audit says no"

SERVER_STATES = (
    "08001",
    "08006",
    "25006",
    "26000",
    "0A000",
    "40001",
    "40003",
    "40P01",
    "53100",
    "55P03",
    "57014",
    "57P01",
)
"""SQLSTATEs of outages and of concurrent transactions, which a trigger can raise in a session that continues."""


async def refuse(
    database: Database,
    event: Event,
    table: str = "task",
    *,
    when: str = "{row}.key LIKE 'bad%'",
    sqlstate: str = "P0001",
    name: str = "audit",
    silently: bool = False,
    ends_session: bool = False,
) -> None:
    """Create a trigger that raises an error for rows.

    Args:
        database: the database.
        event: the change that it refuses.
        table: the table.
        when: the condition of the rows, with {row} for the row.
        sqlstate: the SQLSTATE of the error on PostgreSQL.
        name: the name of the trigger.
        silently: skip the change without an error.
        ends_session: end the session of the statement, on PostgreSQL.
    """
    row = "NEW" if event == "INSERT" else "OLD"
    condition = when.format(row=row)
    if database.dialect.name == "sqlite":
        action = "RAISE(IGNORE)" if silently else f"RAISE(ABORT, '{TEXT}')"
        body = f"CREATE TRIGGER {name} BEFORE {event} ON {table} WHEN {condition} BEGIN SELECT {action}; END"
        await execute(database, body)
        return
    action = "RETURN NULL" if silently else f"RAISE EXCEPTION '{TEXT}' USING ERRCODE = '{sqlstate}'"
    if ends_session:
        action = "PERFORM pg_terminate_backend(pg_backend_pid())"
    await execute(
        database,
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {condition} THEN {action}; END IF; "
        f"RETURN {'OLD' if event == 'DELETE' else 'NEW'}; END $$",
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    )


async def accept(database: Database, table: str = "task", *, name: str = "audit") -> None:
    """Remove the trigger."""
    if database.dialect.name == "sqlite":
        await execute(database, f"DROP TRIGGER {name}")
    else:
        await execute(database, f"DROP TRIGGER {name} ON {table}", f"DROP FUNCTION {name}()")


async def execute(database: Database, *statements: str) -> None:
    async with database.writing() as tx:
        for statement in statements:
            await tx.execute(sa.text(statement.replace(":", r"\:")))
