"""DBOS: one workflow with many steps, with its defaults. It has no part in the other measurements."""

import time

from dbos import DBOS

from benchmarks.contract import Peer, run, url


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


if __name__ == "__main__":
    run(Dbos())
