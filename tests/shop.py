"""A shop in the middle of an outage, for pictures and for looking at the console: `python -m tests.shop FILE`.

Eight queues, six runners on three hosts, a payment gateway that fails after a deploy, a silent runner, a paused queue.
The rows are written as runners and operators would have left them.
"""

import asyncio
import json
import math
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES, NO_BIN
from runner.db.transaction import Transaction
from runner.model.schedule import ScheduleSpec
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.operations.schedule import add_schedule
from runner.policy.histogram import Histogram

NOW = datetime.now(UTC)
MINUTE = timedelta(minutes=1)

HANDLERS = {
    "payments": {"payments.charge": 30.0, "payments.refund": 20.0, "payments.capture": 12.0},
    "orders": {"orders.place": 0.3, "orders.close_day": 90.0},
    "mail": {"mail.receipt": 0.4},
    "search": {"search.index": 0.2},
    "images": {"images.resize": 9.0},
    "webhooks": {"hooks.deliver": 0.6},
    "inventory": {"stock.reserve": 0.02},
    "reports": {"reports.daily": 300.0},
}
"""Seconds of a usual attempt, by queue and handler; payments are slow because the gateway does not answer."""

SCHEDULES = {
    "carts.remind": ("mail.receipt", "*/15 * * * *", 15),
    "fx.rates": ("orders.rates", "*/20 * * * *", 20),
    "payments.reconcile": ("payments.capture", "*/15 * * * *", 15),
    "stock.sync": ("stock.reserve", "*/5 * * * *", 5),
    "ledger.close": ("orders.close_day", "0 * * * *", 60),
    "search.compact": ("search.index", "30 * * * *", 60),
}
"""Handler, rule and minutes between two ticks of each schedule."""

LIMITS = {"payments": 32, "orders": 32, "mail": 32, "search": 16, "images": 24, "webhooks": 24, "inventory": 24}
"""Running tasks that each queue may have; the reports are paused."""

PER_MINUTE = {
    "payments": 214,
    "orders": 655,
    "mail": 1512,
    "search": 1020,
    "images": 110,
    "webhooks": 405,
    "inventory": 389,
}
READY = {
    "payments": 2148,
    "orders": 312,
    "mail": 1204,
    "search": 418,
    "images": 187,
    "webhooks": 88,
    "inventory": 64,
    "reports": 9,
}
OLDEST = {"payments": 1560, "mail": 48, "images": 22, "search": 10, "reports": 1320}
"""Seconds since the first ready task of a queue became due, where they are not 4."""

FAILING = {"payments.charge": 73, "payments.refund": 5}
"""Failed attempts per minute of the outage."""

DEAD = 126
"""Payments that died in the outage."""

DEATHS = timedelta(seconds=12.8)
"""The time between two of them."""

LAST_ENDS = (timedelta(minutes=22.5), timedelta(minutes=21), timedelta(minutes=15.5))
"""How long before the death the earlier attempts ended, by the plan 1m,5m,15m."""

FIRST_RETRY = 7_603
"""The distance of the last waiting task from the first one that retries."""

RUNNERS = (("web-1", 4117), ("web-1", 4118), ("web-2", 2290), ("web-2", 2291), ("batch-1", 881), ("batch-1", 882))
BUSY = {
    "web-1": {"payments.charge": 2, "orders.place": 8, "mail.receipt": 7, "search.index": 5},
    "web-2": {"payments.charge": 2, "orders.place": 6, "mail.receipt": 9, "search.index": 3},
    "batch-1": {"images.resize": 10, "hooks.deliver": 6, "stock.reserve": 2},
}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/payments/charge.py", line 52, in charge
    reply = gateway.post("/v2/charge", order, timeout=30)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 1144, in post
    return self.request("POST", url, content=content, data=data)
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 825, in request
    return self.send(request, auth=auth, follow_redirects=follow_redirects)
  File "/srv/venv/lib/python3.12/site-packages/httpcore/_sync/connection_pool.py", line 256, in handle_request
    raise exc from None
httpx.ReadTimeout: The read operation timed out

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/payments/charge.py", line 55, in charge
    raise GatewayTimeout(f"no answer from {host} within 30 s") from error
  File "/srv/shop/gateway/client.py", line 64, in post
    raise GatewayTimeout(f"no answer from {host}") from e
shop.errors.GatewayTimeout: no answer from paygate within 30 s"""

FAILURES = (
    ("payments", "payments.charge", "shop.errors.GatewayTimeout", "no answer from paygate within 30 s", 1890, 26),
    ("payments", "payments.refund", "shop.errors.GatewayTimeout", "no answer from paygate within 30 s", 118, 26),
    ("webhooks", "hooks.deliver", "httpx.HTTPStatusError", "410 Gone for https://hooks.example/9f3c", 144, 60),
    ("images", "images.resize", "PIL.UnidentifiedImageError", "cannot identify image file 'a.webp'", 61, 60),
    ("mail", "mail.receipt", "smtplib.SMTPServerDisconnected", "Connection unexpectedly closed", 24, 50),
    ("orders", "orders.place", "sqlalchemy.exc.IntegrityError", "duplicate key value 88121", 9, 58),
    ("search", "search.index", "KeyError", "'sku'", 3, 58),
)


async def fill(database: Database) -> None:
    """Write the shop."""
    random.seed(7)
    async with database.writing() as tx:
        runners = await _runners(tx)
        await _minutes(tx, runners)
        next_id = await _tasks(tx, runners)
        await _attempts(tx, next_id)
        await _past_runs(tx, next_id)
        await _workflow(tx, next_id + 2000)
    for name, (handler, rule, _) in SCHEDULES.items():
        await database.write(add_schedule, name, ScheduleSpec(handler, rule), Actor("ana", "ops-1"))
    for queue, running in LIMITS.items():
        limits = LimitEdit({"concurrency": str(running)}, new=True)
        await database.write(set_limits, PauseTarget(PauseKind.QUEUE, queue), limits, Actor("li", "ops-2"))
    for id in (1_000, 1_001):
        await database.write(edit, id, None, Changes(priority=2), Actor("li", "ops-2", "the customer calls"))
    reports = PauseTarget(PauseKind.QUEUE, "reports")
    await database.write(pause, reports, Actor("ana", "ops-1", "restore of db-2"), until=NOW + 23 * MINUTE)
    async with database.writing() as tx:
        await _as_long_ago(tx)


async def _as_long_ago(tx: Transaction) -> None:
    """Move the operations into the past, set the next ticks, and open a breaker."""
    tables = tx.tables
    for name, (_, _, minutes) in SCHEDULES.items():
        soon = NOW.replace(second=0, microsecond=0) + MINUTE * (minutes - NOW.minute % minutes)
        late = NOW - 7 * MINUTE if name == "payments.reconcile" else soon
        await tx.execute(sa.update(tables.schedule).where(tables.schedule.c.id == name).values(next_at=late))
    paused = sa.update(tables.queue).where(tables.queue.c.name == "reports")
    await tx.execute(paused.values(paused_at=NOW - 22 * MINUTE))
    entry = tables.audit.c
    await tx.execute(sa.update(tables.audit).where(entry.verb == "add").values(at=NOW - 3000 * MINUTE))
    await tx.execute(sa.update(tables.audit).where(entry.operator == "li").values(at=NOW - 65 * MINUTE))
    await tx.execute(sa.update(tables.audit).where(entry.verb == "pause").values(at=NOW - 22 * MINUTE))
    breaker = {"breaker_probes": 1, "breaker_wait": 600.0, "breaker_round": 4, "breaker_opened_at": NOW - 22 * MINUTE}
    breaker |= {"breaker_probe_at": NOW + 9 * MINUTE, "breaker_why": "GatewayTimeout 20 times in 1m"}
    handler = tx.dialect.insert(tables.handler).values(name="payments.charge", **breaker)
    await tx.execute(handler.on_conflict_do_update(index_elements=tables.handler.primary_key, set_=breaker))


async def _runners(tx: Transaction) -> list[int]:
    ids = []
    for host, pid in RUNNERS:
        silent = (host, pid) == ("web-2", 2291)
        version, began = ("4.11.3", 4560) if host == "batch-1" else ("4.12.0", 29)
        handlers = [name for names in HANDLERS.values() for name in names]
        beat = NOW - timedelta(seconds=41 if silent else 1)
        values: dict[str, Any] = {
            "host": host,
            "pid": pid,
            "version": version,
            "started_at": NOW - began * MINUTE,
            "heartbeat_at": beat,
            "lease_until": NOW + timedelta(seconds=40 if silent else 3600),
            "handlers": json.dumps(handlers),
            "capacity": 24,
            "running": 20,
            "cpu": 1.4 if host == "batch-1" else 0.55,
            "memory": (410 if host == "batch-1" else 280) * 2**20 + pid * 2**12,
        }
        runner = tx.tables.runner
        ids.append(int(await tx.scalar(sa.insert(runner).values(**values).returning(runner.c.id))))
    return ids


async def _minutes(tx: Transaction, runners: list[int]) -> None:
    rows = []
    for ago in range(60 * 26):
        at = (NOW - ago * MINUTE).replace(second=0, microsecond=0)
        wave = 0.75 + 0.25 * math.cos((ago - 300) / 720 * math.pi) + 0.05 * random.random()
        for queue, rate in PER_MINUTE.items():
            for handler, usual in HANDLERS[queue].items():
                if handler == "orders.close_day":
                    continue
                failing = handler.startswith("payments") and ago <= 26
                number = int(rate * wave * (0.12 if failing else 1.0) / (3 if queue == "payments" else 1))
                outage = FAILING.get(handler, 0) * min(1.0, (27 - ago) / 9)
                failed = int(outage if failing else random.random() * 2)
                seconds = 30.0 if failing else 0.84 if queue == "payments" else usual
                places = _runners_of(handler, runners) if ago <= 60 else runners[:1]
                for nth, id in enumerate(places):
                    first, last = (failed * part // len(places) for part in (nth, nth + 1))
                    some = last - first if failing else 0 if nth else failed
                    rows += _minute(at, queue, handler, id, number // len(places), seconds, some, ago)
    await tx.execute(sa.insert(tx.tables.minute), rows)


def _runners_of(handler: str, runners: list[int]) -> list[int]:
    """The live runners that run a handler."""
    live = [id for id, (host, pid) in zip(runners, RUNNERS, strict=True) if handler in BUSY[host] and pid != 2291]
    return live or runners[:2]


def _minute(
    at: datetime, queue: str, handler: str, runner_id: int, number: int, usual: float, failed: int, ago: int
) -> list[dict[str, Any]]:
    """The rows of one minute, handler and runner, with the durations of a sample."""
    bins = dict.fromkeys((*MINUTE_COUNTS, *MINUTE_TIMES), 0)
    place: dict[str, Any] = {"minute": at, "queue": queue, "handler": handler, "runner_id": runner_id} | bins
    failing = usual == 30.0
    run, wait = Histogram(), Histogram()
    sample = min(number, 8)
    for _ in range(sample):
        run.add([usual if failing else usual * random.lognormvariate(-0.2, 0.6)])
        usually = 0.4 if queue == "payments" else OLDEST.get(queue, 0.8) / 2
        late = max(0.4, (26 - ago) * 30.0) if failing else usually
        wait.add([late * random.lognormvariate(0, 0.3)])
    scale = number / sample if sample else 1.0
    rows = [
        place | {"bin_ms": bound, names[0]: round(each.number * scale), names[1]: each.seconds * scale}
        for histogram, names in ((run, ("runs", "run_time")), (wait, ("waits", "wait_time")))
        for bound, each in histogram.bins.items()
    ]
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["bin_ms"], dict(place)).update({name: value for name, value in row.items() if value})
    counts = {
        "submitted": 71 if failing else int(number * 0.985),
        "succeeded": number,
        "first_try": int(number * 0.97),
        "second_try": int(number * 0.02),
        "retried": failed,
        "died": 3 if failing and ago % 2 == 0 and handler == "payments.charge" else 0,
    }
    return [*merged.values(), place | counts | {"bin_ms": NO_BIN}]


async def _tasks(tx: Transaction, runners: list[int]) -> int:
    task = tx.tables.task
    live: list[dict[str, Any]] = []
    for index, (host, _) in enumerate(RUNNERS):
        queues = {handler: queue for queue, names in HANDLERS.items() for handler in names}
        for handler, number in BUSY[host].items():
            for nth in range(number):
                usual = HANDLERS[queues[handler]][handler]
                claimed = NOW - timedelta(seconds=usual * (0.3 + 0.9 * random.random()))
                live.append(
                    {
                        "handler": handler,
                        "queue": queues[handler],
                        "key": f"order-{90400 + nth + 40 * index}",
                        "state": "running",
                        "runner_id": runners[index],
                        "host": host,
                        "claimed_at": claimed,
                        "started_at": claimed,
                        "attempt": 2 if handler.startswith("payments") else 1,
                        "fence": 2,
                        "max_attempts": 5,
                        "run_at": claimed,
                        "submitted_at": claimed - timedelta(seconds=300),
                        "submitted_by": "api@web-1",
                    }
                )
    error = "shop.errors.GatewayTimeout: no answer from paygate within 30 s"
    payload = {"order": 90871, "amount": 129.9, "currency": "EUR", "card_token": "tok_live_abcdef", "retry": False}
    for queue, number in READY.items():
        handler = next(iter(HANDLERS[queue]))
        for nth in range(number):
            live.append(
                {
                    "handler": handler,
                    "queue": queue,
                    "key": f"order-{90900 + nth}",
                    "run_at": NOW - timedelta(seconds=OLDEST.get(queue, 4) * (1 - nth / number)),
                    "submitted_at": NOW - timedelta(minutes=30),
                    "submitted_by": "api@web-1",
                    "payload": json.dumps(payload | {"order": 90900 + nth}),
                }
            )
    for nth in range(3918):
        live.append(
            {
                "handler": "payments.charge",
                "queue": "payments",
                "key": f"order-{94000 + nth}",
                "attempt": 1 + nth % 4,
                "fence": 1 + nth % 4,
                "max_attempts": 5,
                "retry": "1m,5m,15m,30m",
                "run_at": NOW + timedelta(seconds=30 + nth / 4),
                "submitted_at": NOW - timedelta(minutes=24),
                "submitted_by": "api@web-1",
                "error": error,
                "payload": json.dumps(payload | {"order": 94000 + nth}),
            }
        )
    for nth in range(88):
        live.append(
            {"handler": "ledger.post", "queue": "orders", "state": "blocked", "blocked_by": 1, "key": f"ledger-{nth}"}
        )
    for queue, number in (("mail", 3410), ("webhooks", 140), ("orders", 48)):
        handler = next(iter(HANDLERS[queue]))
        live += [
            {"handler": handler, "queue": queue, "key": f"later-{nth}", "run_at": NOW + timedelta(seconds=3000 + nth)}
            for nth in range(number)
        ]
    names = {name for row in live for name in row}
    usual_values: dict[str, Any] = {
        "state": "waiting",
        "attempt": 0,
        "fence": 0,
        "payload": "{}",
        "blocked_by": 0,
        "run_at": NOW,
        "submitted_at": NOW - timedelta(hours=2),
    }
    rows = [{name: row.get(name, usual_values.get(name)) for name in names} for row in live]
    await tx.execute(sa.insert(task), rows)
    last = int(await tx.scalar(sa.select(sa.func.max(task.c.id))))
    past = []
    for nth in range(141):
        queue, handler = ("payments", "payments.charge") if nth < DEAD else ("webhooks", "hooks.deliver")
        end = NOW - DEATHS * (DEAD - 1 - nth if nth < DEAD else nth)
        past.append(
            {
                "id": last + 1 + nth,
                "handler": handler,
                "queue": queue,
                "state": "dead",
                "key": f"order-{88000 + nth}",
                "attempt": len(LAST_ENDS) + 1,
                "fence": len(LAST_ENDS) + 1,
                "max_attempts": len(LAST_ENDS) + 1,
                "finished_at": end,
                "submitted_at": end - LAST_ENDS[0] - timedelta(seconds=31),
                "run_at": end - timedelta(seconds=31),
                "claimed_at": end - timedelta(seconds=30),
                "error": error,
                "runner_id": runners[0],
                "host": "web-1",
                "payload": json.dumps(payload),
            }
        )
    await tx.execute(sa.insert(tx.tables.history), [*past, *_earlier(past[0], last + 145)])
    await tx.execute(sa.insert(task).values(id=last + 10_000, handler="orders.place"))  # later ids begin beyond it
    await tx.execute(sa.delete(task).where(task.c.id == last + 10_000))
    return last


def _earlier(dead: dict[str, Any], id: int) -> Iterator[dict[str, Any]]:
    """Earlier tasks of an order that retries now."""
    for nth, name in enumerate(("dead", "succeeded", "cancelled")):
        end = NOW - (3 - nth) * 400 * MINUTE
        values = {"id": id + nth, "state": name, "key": "order-94002", "finished_at": end}
        yield dead | values | {"error": dead["error"] if name == "dead" else None}


async def _past_runs(tx: Transaction, last: int) -> None:
    """Twelve runs of each schedule, a few of which failed."""
    tasks: list[dict[str, Any]] = []
    ticks = []
    for name, (handler, _, minutes) in SCHEDULES.items():
        begin = NOW.replace(second=0, microsecond=0) - MINUTE * (NOW.minute % minutes)
        for nth in range(12):
            at = begin - nth * minutes * MINUTE
            id = last + 1000 + len(tasks)
            took = timedelta(seconds=4 + 60 * random.random())
            start = at + timedelta(seconds=(0.1 + 0.4 * random.random()) * (9 if nth == 5 else 1))
            failed = name == "fx.rates" and nth in (1, 2)
            ends = {"state": "dead" if failed else "succeeded", "claimed_at": start, "finished_at": start + took}
            times = {
                "started_at": start,
                "run_at": at,
                "submitted_at": at,
                "duration": took.total_seconds(),
                "attempt": 1,
                "fence": 1,
                "host": "batch-1",
                "runner_id": 5,
                "payload": "{}",
            }
            tasks.append({"id": id, "handler": handler, "queue": "orders", **times, **ends})
            ticks.append({"schedule": name, "tick": at, "task_id": id, "outcome": "submitted", "at": at})
    await tx.execute(sa.insert(tx.tables.history), tasks)
    await tx.execute(sa.insert(tx.tables.tick), ticks)


STEPS = (
    ("ledger.collect", "succeeded", ()),
    ("ledger.check", "succeeded", (0,)),
    ("ledger.check", "dead", (0,)),
    ("ledger.check", "succeeded", (0,)),
    ("ledger.export", "blocked", (1, 2, 3)),
    ("mail.receipt", "blocked", (4,)),
)
"""The handler, the state and the parents of each task of a workflow."""

KEYS = ("october", "eu", "us", "apac", "october", "october")


async def _workflow(tx: Transaction, first: int) -> None:
    """The close of a month, which waits for a dead task."""
    tables, start = tx.tables, NOW - 12 * MINUTE
    values = {"name": "close october", "submitted_at": start}
    workflow = int(await tx.scalar(sa.insert(tables.workflow).values(**values).returning(tables.workflow.c.id)))
    for nth, ((handler, state, parents), key) in enumerate(zip(STEPS, KEYS, strict=True)):
        row: dict[str, Any] = {"id": first + nth, "handler": handler, "queue": "orders", "key": key, "state": state}
        row |= {"workflow": workflow, "submitted_at": start, "run_at": start}
        if state == "blocked":
            await tx.execute(sa.insert(tables.task).values(**row, blocked_by=1))
        else:
            took = timedelta(seconds=9 * (nth + 1))
            end = {"claimed_at": start, "finished_at": start + took, "attempt": 1, "max_attempts": 1}
            error = "shop.errors.LedgerMismatch: 14.20 EUR of us are in no order" if state == "dead" else None
            await tx.execute(sa.insert(tables.history).values(**row, **end, duration=9.0 * (nth + 1), error=error))
        for parent in parents:
            ended = STEPS[parent][1] if STEPS[parent][1] != "blocked" else None
            tie = {"task_id": first + nth, "parent_id": first + parent, "parent_state": ended}
            satisfied = {"satisfied_at": start if ended == "succeeded" else None}
            await tx.execute(sa.insert(tables.dependency).values(**tie, **satisfied))


def _failed_task(last: int, group: int, nth: int) -> int:
    """The task of an attempt: of the first group mostly one that retries, of the others a dead one."""
    if group == 0 and nth % 15:
        return last - FIRST_RETRY + nth
    return last + DEAD - nth // 15 if group == 0 else last + 130 + nth % 10


async def _attempts(tx: Transaction, last: int) -> None:
    rows = []
    for group, (queue, handler, error, message, number, minutes) in enumerate(FAILURES):
        for nth in range(number):
            end = NOW - timedelta(seconds=minutes * 60 * nth / number)
            rows.append(
                {
                    "task_id": _failed_task(last, group, nth),
                    "fence": 200 + 10_000 * group + nth,
                    "attempt": len(LAST_ENDS) + 1 if group == 0 and nth % 15 == 0 else 1 + nth % 4,
                    "queue": queue,
                    "handler": handler,
                    "host": ("web-1", "web-2")[nth % 5 > 2],
                    "runner_id": 1 + nth % 3,
                    "started_at": end - timedelta(seconds=30),
                    "ended_at": end,
                    "verb": "die" if group == 0 and nth % 15 == 0 else "retry",
                    "error_type": error,
                    "message": message,
                    "traceback": TRACEBACK if group < 2 else f"Traceback (most recent call last):\n{error}: {message}",
                    "fingerprint": f"{group}f3c2a",
                    "delay": None if group == 0 and nth % 15 == 0 else 60.0,
                }
            )
    for group in range(2, len(FAILURES)):  # These causes are older than the outage.
        old = NOW - timedelta(days=group)
        usual = next(row for row in rows if row["fingerprint"] == f"{group}f3c2a")
        rows.append(usual | {"task_id": last + 9_000 + group, "started_at": old, "ended_at": old})
    own = [(last - FIRST_RETRY + 2, timedelta(minutes=24 - 8 * nth)) for nth in (1, 2)]
    own += [(last + DEAD, ago) for ago in LAST_ENDS]  # these two have every failed attempt of their own
    for nth, (id, ago) in enumerate(own):
        times = {"started_at": NOW - ago - timedelta(seconds=30), "ended_at": NOW - ago}
        number = nth + 1 if nth < 2 else nth - 1
        attempt = {"fence": 100 + nth, "attempt": number, "verb": "retry", "delay": (60.0, 300.0, 900.0)[number - 1]}
        rows.append(rows[0] | times | attempt | {"task_id": id})
    await tx.execute(sa.insert(tx.tables.attempt), rows)


async def main(path: Path) -> None:
    """Create a file with the shop."""
    path.unlink(missing_ok=True)
    database = Database.open(f"sqlite:///{path}")
    try:
        await database.migrate()
        await fill(database)
    finally:
        await database.dispose()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
