"""Procrastinate: psycopg, and a concurrency of 5, which drains fastest, as it fetches one job per statement."""

from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.contract import Peer, record, run, url

app = App(connector=PsycopgConnector(conninfo=url(), min_size=1, max_size=10))


@app.task(name="noop", queue="bench")
async def noop(i: int, t: float, pad: str) -> None:  # noqa: ARG001 - gives the payload its size
    """The handler of all systems."""
    record(i, t)


class Procrastinate(Peer):
    """Procrastinate."""

    async def open(self) -> None:
        """Connect."""
        await app.open_async()

    async def close(self) -> None:
        """Disconnect."""
        await app.close_async()

    async def setup(self) -> None:
        """Create the tables."""
        await app.schema_manager.apply_schema_async()

    async def submit(self, task: dict[str, Any]) -> None:
        """Submit one task."""
        await noop.defer_async(**task)

    async def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        """Submit tasks with one statement."""
        await noop.batch_defer_async(*tasks)

    async def work(self) -> None:
        """Run a worker until SIGTERM."""
        await app.run_worker_async(concurrency=5, wait=True)

    async def left(self) -> int:
        """Count the jobs that have not ended."""
        count = "SELECT count(*) AS number FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        return int((await app.connector.execute_query_one_async(count))["number"])


if __name__ == "__main__":
    run(Procrastinate())
