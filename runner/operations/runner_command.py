"""Store a command for a runner, which receives it with its next heartbeat."""

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor
from runner.policy.runner_command import parse_runner_command


async def send_command(tx: Transaction, runner_id: int, command: str | None, by: Actor) -> bool:
    """Store a command for a runner.

    Args:
        tx: a writing transaction.
        runner_id: the runner's id.
        command: a command in the format of runner.policy.runner_command; None withdraws a command that the runner
            has not received yet.
        by: the author.

    Returns:
        False if the runner does not exist.

    Raises:
        InvalidEdit: the command is unknown.
    """
    if command is not None:
        command = str(parse_runner_command(command))
    runner = tx.tables.runner
    is_runner = runner.c.id == runner_id
    rows = await tx.rows(sa.select(runner.c.command).where(is_runner).with_for_update())
    if rows:
        await tx.execute(sa.update(runner).where(is_runner).values(command=command))
        entry = AuditEntry("command", {"command": rows[0].command}, {"command": command}, target=f"runner {runner_id}")
        await record(tx, by, [entry])
    return bool(rows)
