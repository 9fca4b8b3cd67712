"""Tasks of `django.tasks`, which Django 5 does not have; the settings name this module in HANDLERS."""

import asyncio
import time
from typing import Any

from django.tasks import TaskContext, task

from shop.models import Order

ATTEMPTS: list[int] = []


@task
def total(*cents: int, tax: float = 0.0) -> float:
    return sum(cents) * (1 + tax)


@task(queue_name="mail", priority=10)
async def count_orders() -> int:
    return await Order.objects.acount()


@task(takes_context=True)
def flaky(context: TaskContext, message: str) -> dict[str, Any]:
    ATTEMPTS.append(context.attempt)
    if context.attempt == 1:
        raise ValueError(message)
    return {"id": context.task_result.id, "attempt": context.attempt}


@task
def leave() -> None:
    raise SystemExit("the task has left")


@task
def give_a_function() -> Any:
    return lambda: True


@task
async def sleep_too_long() -> None:
    await asyncio.sleep(60)


@task
def block_too_long() -> None:
    time.sleep(2)
