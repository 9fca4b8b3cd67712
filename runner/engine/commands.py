"""Runner commands: requests that operators store for this runner. A heartbeat receives each one; it runs once."""

import logging
from collections.abc import Callable

from runner.engine.heartbeat import Lease
from runner.engine.worker import Worker
from runner.errors import InvalidEdit, StoreError
from runner.policy.runner_command import parse_runner_command

log = logging.getLogger("runner")


class CommandReceiver:
    """Executes the commands of operators.

    Args:
        lease: acknowledges each command.
        worker: the worker to resize.
        drain: called to drain the runner.
        scan: called when more slots are free.
    """

    def __init__(self, lease: Lease, worker: Worker, drain: Callable[[], object], scan: Callable[[], object]) -> None:
        self._lease = lease
        self._worker = worker
        self._drain = drain
        self._scan = scan
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
        if command.drain:
            log.info("draining: requested by an operator")
            self._drain()
            return
        if command.stack is not None:
            await self._worker.write_stack(command.stack)
        self._worker.resize(command.concurrency, command.threads, command.processes)
        in_flight = self._worker.in_flight
        sizes = in_flight.capacity, in_flight.in_threads.size, in_flight.in_processes.size
        try:
            await self._lease.acknowledge(text, *sizes)
        except StoreError as error:  # the next heartbeat returns the command again
            log.warning("could not acknowledge a runner command: %s", error)
        else:
            if command.stack is not None:
                return
            log.info("resized by an operator: %s, capacity %d", command, in_flight.capacity)
        self._scan()
