"""Store a command for a runner, which receives it with its next heartbeat."""

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.transaction import Transaction
from runner.errors import InvalidEdit, InvalidInput
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor
from runner.operations.written_rows import write_rows
from runner.policy.runner_command import MOST_STACKS, RunnerCommand, parse_runner_command


class CommandPending(InvalidInput):
    """Runner {id} has not received its requests for {number} stacks yet; try again in a few seconds."""


async def send_command(tx: Transaction, runner_id: int, command: str | None, by: Actor) -> bool:
    """Store a command for a runner, together with the commands that it has not received yet.

    Args:
        command: a command in the format of runner.policy.runner_command; None withdraws a command that the runner
            has not received yet.

    Returns:
        False if the runner does not exist.

    Raises:
        InvalidEdit: the command is unknown.
        CommandPending: too many requests for stacks are pending.
    """
    parsed = None if command is None else parse_runner_command(command)
    runner = tx.tables.runner
    is_runner = runner.c.id == runner_id
    command_of = sa.select(runner.c.command).where(is_runner, tx.dialect.lock_limit(OPERATION_LOCKS))
    rows = await tx.rows(command_of.with_for_update(key_share=True))
    if parsed is not None and rows:
        parsed = _pending(rows[0].command).followed_by(parsed)
        if len(parsed.stacks) > MOST_STACKS:
            raise CommandPending(id=runner_id, number=MOST_STACKS)
    if rows:
        command = None if parsed is None else str(parsed)
        await write_rows(tx, sa.update(runner).where(is_runner).values(command=command))
        entry = AuditEntry("command", {"command": rows[0].command}, {"command": command}, target=f"runner {runner_id}")
        await record(tx, by, [entry])
    return bool(rows)


def _pending(text: str | None) -> RunnerCommand:
    """The command that the runner has not received yet; runners ignore one that is unreadable."""
    try:
        return parse_runner_command(text or "")
    except InvalidEdit:
        return RunnerCommand()
