"""`runner signal` and `runner rewind --step`: signals to tasks, and steps that run again."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from runner import Context, connect, disconnect, handler
from runner.cli.exit_codes import Exit
from runner.engine.runner import Engine
from runner.errors import InvalidInput, TaskUnchanged
from runner.handlers.registry import REGISTRY
from runner.settings import Settings
from runner.urls import parse_url
from tests.cli.conftest import Call, Store
from tests.engine.harness import QUICK

pytestmark = pytest.mark.both_databases


class Shop:
    """An order that is charged and waits for its approval."""

    def __init__(self, url: str, order: Any) -> None:
        self.settings, self.order = Settings(url=parse_url(url), **QUICK), order
        self.charges = 0

    def work(self) -> None:
        """Run until all orders are finished or wait."""
        assert asyncio.run(Engine(self.settings, {self.order.name: self.order}).run(until_idle=True))


@pytest.fixture
def shop(store: Store) -> Iterator[Shop]:
    @handler("signal.order")
    async def order(ctx: Context) -> list[object]:
        async def charge() -> int:
            ours.charges += 1
            return ours.charges

        paid = await ctx.step("charge", charge)
        found = await ctx.wait_for("approved")
        return [paid, found and found.payload, found and found.by]

    connect(url=parse_url(store.url))
    ours = Shop(store.url, order)
    yield ours
    disconnect()
    REGISTRY._handlers.pop("signal.order")


@pytest.mark.slow
@pytest.mark.one_database
def test_a_signal_continues_the_tasks_of_a_key(cli: Call, shop: Shop) -> None:
    tasks = [shop.order.options(key="order-17").submit() for _ in range(2)]
    shop.work()
    assert "It waits for signal approved (step approved)." in cli("why", tasks[0]).out
    steps = cli("show", tasks[0], "--json").document["steps"]
    assert [(step["name"], step["kind"], bool(step["done_at"])) for step in steps] == [
        ("charge", "function", True),
        ("approved", "wait", False),
    ]
    assert "last error" not in cli("show", tasks[0]).out
    assert cli("signal", "key:order-17", "approved", "{", "--yes", 2).code == Exit.BAD_INPUT
    assert "2 would change" in cli("signal", "key:order-17", "approved", "--dry-run").out
    assert cli("signal", "key:order-17", "approved", '{"by": "ana"}', "--yes", 2).code == Exit.OK
    assert "last error" not in cli("show", tasks[0]).out
    shop.work()
    assert [task.result()[:2] for task in tasks] == [[1, {"by": "ana"}], [2, {"by": "ana"}]]
    assert "it has succeeded and is not waiting, blocked or running" in cli("signal", tasks[0], "approved").err


def test_a_signal_of_the_application_has_its_author(cli: Call, shop: Shop) -> None:
    task = shop.order.submit()
    with pytest.raises(InvalidInput, match="the payload of signal 'approved' is not JSON"):
        task.signal("approved", object())
    task.signal("approved", [1], by="ana")
    shop.work()
    assert task.result()[1] == [1]
    assert task.result()[2].startswith("ana via ")
    assert cli("audit", "--json").document["entries"][0]["operator"].startswith("ana via ")
    with pytest.raises(TaskUnchanged):
        task.signal("approved")


@pytest.mark.slow
def test_a_signal_is_withdrawn_until_it_is_received(cli: Call, shop: Shop) -> None:
    task = shop.order.submit()
    assert cli("signal", task, "approved", 1).code == Exit.OK
    assert "signals" in cli("show", task).out
    assert cli("undo", 1).code == Exit.OK
    assert cli("show", task, "--json").document["signals"] == []
    assert cli("signal", task, "approved", 2).code == Exit.OK
    shop.work()
    assert task.result()[1] == 2
    assert "it has succeeded" in cli("undo", 3).err


@pytest.mark.slow
def test_forgotten_steps_run_again(cli: Call, shop: Shop) -> None:
    task = shop.order.submit()
    shop.work()
    assert "charge    done" in cli("rewind", task).out
    assert cli("rewind", task, "--step", "charge", "--dry-run").out == "would continue from step charge\n"
    assert "it has no step reserve" in cli("rewind", task, "--step", "reserve").err
    assert cli("rewind", task, "--step", "charge", "--to", 1).code == Exit.BAD_INPUT
    assert cli("rewind", task, "--step", "charge").code == Exit.OK
    assert cli("signal", task, "approved").code == Exit.OK
    cli("retry", task)
    shop.work()
    assert task.result()[:2] == [2, None]
