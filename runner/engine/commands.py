"""Commands of operators to a runner: drain, resize and stack."""

import logging
from collections.abc import Callable

from runner.engine.lease.lease import Lease
from runner.engine.worker import Worker
from runner.errors import InvalidEdit, StoreError
from runner.policy.runner_command import RunnerCommand, parse_runner_command

log = logging.getLogger("runner.lease")


class CommandReceiver:
    """Executes the commands of operators.

    Args:
        drain: called to drain the runner.
    """

    def __init__(self, lease: Lease, worker: Worker, drain: Callable[[], object]) -> None:
        self._lease = lease
        self._worker = worker
        self._drain = drain
        self.pending: str | None = None
        """The command in the last heartbeat reply."""

    async def execute(self) -> None:
        """Execute the pending command; ignore an unknown one."""
        text, self.pending = self.pending, None
        if text is None:
            return
        try:
            command = parse_runner_command(text)
        except InvalidEdit:
            return
        rest = str(RunnerCommand(drain=command.drain))
        if text != rest:
            await self._change(command, text, rest or None)
        if command.drain:
            log.info("draining: requested by an operator")
            self._drain()

    async def _change(self, command: RunnerCommand, text: str, rest: str | None) -> None:
        """Resize, write stacks and acknowledge both."""
        for task_id in command.stacks:
            await self._worker.write_stack(task_id)
        self._worker.resize(command.concurrency, command.threads, command.processes)
        in_flight = self._worker.in_flight
        sizes = in_flight.capacity, in_flight.in_threads.limit, in_flight.in_processes.limit
        try:
            await self._lease.acknowledge(text, rest, *sizes)
        except StoreError as error:  # the next heartbeat returns the command again
            log.warning("could not acknowledge a runner command: %s", error)
        else:
            if command.resizes:
                log.info("resized by an operator: %s, capacity %d", command, in_flight.capacity)
