"""DBOS: one workflow with many steps, and many with one, with its defaults. It has no part in other measurements.

A new process continues the workflows of a dead one with its name, `local`. No process takes over from a dead one with
another name, unless Conductor, a service, asks it.
"""

import asyncio
import time

from dbos import DBOS

from benchmarks import contract
from benchmarks.contract import Peer, arrive, run, url


@DBOS.step()
async def add(value: int) -> int:
    """The function of each step."""
    return value + 1


@DBOS.workflow()
async def flow(count: int) -> float:
    """Run the steps, and return the seconds."""
    start, value = time.monotonic(), 0
    for _ in range(count):
        value = await add(value)
    return time.monotonic() - start


@DBOS.workflow()
async def small(number: int) -> int:
    """Run one step."""
    result: int = await add(number)
    return result


first, second = DBOS.step()(contract.first), DBOS.step()(contract.second)


@DBOS.workflow()
async def resumed() -> None:
    """Run two steps."""
    await first()
    await second()


class Dbos(Peer):
    """A process with DBOS."""

    async def open(self) -> None:
        """Connect, and create the tables."""
        DBOS(config={"name": "bench", "system_database_url": url(), "log_level": "ERROR"})
        DBOS.launch()

    async def close(self) -> None:
        """Disconnect."""
        DBOS.destroy()

    async def steps(self, count: int) -> float:
        """Run one workflow."""
        seconds: float = await flow(count)
        return seconds

    async def flows(self, count: int) -> float:
        """Start workflows one by one, and wait for their ends."""
        start = time.monotonic()
        handles = [await DBOS.start_workflow_async(small, number) for number in range(count)]
        for handle in handles:
            await handle.get_result()
        return time.monotonic() - start

    async def resume(self, lease: int, *, begin: bool) -> None:
        """Begin a workflow, or let the launch continue that of the dead process."""
        if lease:
            raise NotImplementedError("DBOS has no lease")
        arrive("ready")
        if begin:
            await DBOS.start_workflow_async(resumed)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(Dbos())
