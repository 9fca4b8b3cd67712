"""Fill a database with rows as they look after long use: `python -m tests.bench.rows --url ... --history 10000000`.

For measurements of screens and queries; no runner claims these rows, because none knows their handlers.
"""

import argparse
import asyncio
import time

import sqlalchemy as sa

from runner.db.database import Database

CHUNK = 500_000
QUEUES, HANDLERS = 20, 10
DAY = 86_400

SERIES = {
    "postgresql": "SELECT * FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS series(i)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last) SELECT i FROM n",
}
"""The numbers from the first to the last."""

AHEAD = {
    "postgresql": "now() + make_interval(secs => CAST({} AS double precision))",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now', ({}) || ' seconds')",
}
"""A time, in seconds from now."""

HISTORY = """
INSERT INTO task_history(id, queue, handler, key, state, attempt, submitted_at, run_at, finished_at, duration, error)
SELECT i, 'queue-' || (i % {queues}), 'bench.handler-' || (i % {handlers}), CASE i % 10 WHEN 0 THEN 'order-' || i END,
    CASE WHEN i % 500 = 0 THEN 'dead' ELSE 'succeeded' END, 1 + i % 3,
    {begun}, {begun}, {ended}, 0.01 * (i % 100), CASE WHEN i % 500 = 0 THEN 'ConnectionError: no route ' || (i % 7) END
FROM ({series}) AS numbers
"""
ATTEMPTS = """
INSERT INTO task_attempt(task_id, fence, attempt, queue, handler, started_at, ended_at, verb, error_type, message,
    traceback, fingerprint)
SELECT i, 1, 1, 'queue-' || (i % {queues}), 'bench.handler-' || (i % {handlers}), {begun}, {ended}, 'retry',
    'ConnectionError', 'no route ' || (i % 7), 'Traceback (most recent call last): ...', 'f' || (i % 50)
FROM ({series}) AS numbers
"""
LIVE = """
INSERT INTO task(id, queue, handler, key, state, attempt, fence, runner_id, run_at, submitted_at, priority)
SELECT i, 'queue-' || (i % {queues}), 'bench.handler-' || (i % {handlers}), CASE i % 10 WHEN 0 THEN 'order-' || i END,
    CASE WHEN i % 1000 = 0 THEN 'running' ELSE 'waiting' END, i % 2, i % 2,
    CASE WHEN i % 1000 = 0 THEN 1 + i % 5 END,
    CASE WHEN i % 5 < 2 THEN {past} ELSE {future} END, {past}, 1 + i % 3
FROM ({series}) AS numbers
"""
MINUTES = """
INSERT INTO task_minute(minute, queue, handler, runner_id, succeeded, first_try, retried, died)
SELECT {minute}, 'queue-' || (i % {queues}), 'bench.handler-' || (i % {handlers}), 1, 40, 30, 5, i % 2
FROM ({series}) AS numbers
"""
MINUTE = {
    "postgresql": "date_trunc('minute', now()) - make_interval(mins => CAST(i / {queues} AS integer))",
    "sqlite": "strftime('%Y-%m-%d %H:%M:00.000', 'now', (-(i / {queues})) || ' minutes')",
}


class Filler:
    """Writes rows into one database.

    Args:
        database: with our tables, empty.
        history: finished tasks; a hundredth of them has a failed attempt.
        live: live ones.
    """

    def __init__(self, database: Database, history: int, live: int) -> None:
        self.database = database
        self.history = history
        self.live = live

    async def fill(self) -> None:
        past = self._ahead(f"-(CAST({self.history} AS double precision) - i) * {30 * DAY / max(self.history, 1)}")
        await self._chunks(HISTORY, 1, self.history, begun=past, ended=past)
        await self._chunks(ATTEMPTS, 1, self.history // 100, begun=past, ended=self._ahead(f"-(i % {DAY})"))
        first = self.history + 1
        times = {"past": self._ahead(f"-(i % {DAY})"), "future": self._ahead(f"i % {DAY}")}
        await self._chunks(LIVE, first, self.history + self.live, **times)
        minute = MINUTE[self.database.dialect.name].format(queues=QUEUES)
        await self._chunks(MINUTES, 0, QUEUES * 24 * 60, minute=minute)
        await self._finish()

    def _ahead(self, seconds: str) -> str:
        return AHEAD[self.database.dialect.name].format(seconds)

    async def _chunks(self, statement: str, first: int, last: int, **parts: str) -> None:
        series = SERIES[self.database.dialect.name]
        written = statement.format(series=series, queues=QUEUES, handlers=HANDLERS, **parts)
        for begin in range(first, last + 1, CHUNK):
            async with self.database.writing() as tx:
                await tx.execute(sa.text(written), {"first": begin, "last": min(begin + CHUNK - 1, last)})

    async def _finish(self) -> None:
        lease = self._ahead("3600")
        names = ", ".join(f'"bench.handler-{number}"' for number in range(HANDLERS))
        async with self.database.writing() as tx:
            for number in range(5):
                values = f"('host-{number}', {number + 1}, '1', '[{names}]', 100, {lease})"
                columns = "host, pid, version, handlers, capacity, lease_until"
                await tx.execute(sa.text(f"INSERT INTO task_runner({columns}) VALUES {values}".replace(":", r"\:")))
            if tx.dialect.name == "postgresql":
                following = "SELECT setval(pg_get_serial_sequence('task', 'id'), (SELECT max(id) FROM task))"
                await tx.execute(sa.text(following))
            await tx.execute(sa.text("ANALYZE"))


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rows", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=100_000)
    arguments = parser.parse_args()
    database, begin = Database.open(arguments.url, synchronous="NORMAL"), time.monotonic()
    try:
        await database.migrate()
        await Filler(database, arguments.history, arguments.live).fill()
    finally:
        await database.dispose()
    print(f"{arguments.history:,} finished and {arguments.live:,} live tasks in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
