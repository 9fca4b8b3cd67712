"""The events of a runner: their order, their subscribers, and a subscriber that fails."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from runner.engine import events
from runner.engine.claiming.claimer import Claimer
from runner.engine.events import AttemptsEnded, Events, TasksClaimed
from runner.engine.in_flight import InFlight
from runner.engine.runner import Engine
from runner.engine.slots import Slots
from runner.handlers.context import Context
from tests.engine.harness import Harness, at_work, until

STEPS = {
    "slot is free": (Slots, "release"),
    "task is gone": (InFlight, "remove"),
    "lanes open": (Claimer, "tasks_ended"),
    "scan": (Claimer, "rescan"),
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps from the end of a body to the next scan, as the runner takes them."""
    taken: list[str] = []

    def record(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            taken.append(name)
            return method(*arguments, **options)

        return call

    for name, (part, method) in STEPS.items():
        monkeypatch.setattr(part, method, record(name, getattr(part, method)))
    return taken


@pytest.mark.parametrize("in_own_transaction", [False, True])
async def test_a_task_frees_its_slot_then_its_lane_and_then_wakes_the_claimer(
    harness: Harness, steps: list[str], in_own_transaction: bool
) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None:
        if in_own_transaction:
            async with ctx.transaction():
                pass
        steps.clear()

    task = await harness.submit("work")
    async with harness.running(concurrency=1, poll_interval="1h", heartbeat_interval="1h", lease_timeout="5h"):
        await harness.wait_for(task)
        await until(lambda: "lanes open" in steps and steps[-1] == "scan")
    assert steps[:5] == ["slot is free", "scan", "task is gone", "lanes open", "scan"]


async def test_a_batch_leaves_the_runner_before_a_lane_of_it_opens(harness: Harness, steps: list[str]) -> None:
    @harness.handler("work")
    async def work(fail: bool = False) -> None:
        steps.clear()
        if fail:
            raise ValueError("broken")

    tasks = [await harness.submit("work", {"fail": n % 2 == 0}, max_attempts=1) for n in range(4)]
    # One batch with two moves: it is written when it is full.
    async with harness.running(poll_interval="1h", settle_interval="1h", settle_batch_size=4):
        await harness.wait_for(*tasks)
        await until(lambda: steps.count("lanes open") == 2 and steps[-1] == "scan")
    gone = steps.index("task is gone")
    assert steps[gone : gone + 7] == [*["task is gone"] * 4, "lanes open", "lanes open", "scan"]


async def test_an_exporter_subscribes_and_sees_every_move(harness: Harness) -> None:
    @harness.handler("work", retry="0s")
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("broken")

    claims, moves = list[int](), list[tuple[str | None, int]]()

    def count_claims(event: TasksClaimed) -> None:
        claims.extend(task.id for task in event.tasks)

    def count_moves(event: AttemptsEnded) -> None:
        moves.extend((event.verb, running.task.id) for running, _ in event.attempts)

    task = await harness.submit("work")
    runner = harness.runner()
    runner.events.subscribe(TasksClaimed, count_claims)
    runner.events.subscribe(AttemptsEnded, count_moves)
    async with at_work(runner):
        await harness.wait_for(task)
        await until(lambda: len(moves) == 2)
    assert (claims, moves) == ([task, task], [("retry", task), ("succeed", task)])


@pytest.mark.parametrize("error", [RuntimeError("away"), SystemExit(3)])
async def test_a_subscriber_that_fails_stops_no_other(
    harness: Harness, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    def export(_: AttemptsEnded) -> None:
        raise error

    ended: list[AttemptsEnded] = []
    tasks = [await harness.submit("work") for _ in range(2)]
    runner = harness.runner(concurrency=1, prefetch=0)
    runner.events.subscribe(AttemptsEnded, export)
    runner.events.subscribe(AttemptsEnded, ended.append)
    async with at_work(runner):
        await harness.wait_for(*tasks)
        await until(lambda: runner.metrics.verbs["succeed"] == sum(len(event.attempts) for event in ended) == 2)
    assert "AttemptsEnded: subscriber test_a_subscriber_that_fails_stops_no_other" in caplog.text


def test_the_parts_of_a_runner_need_no_part_that_is_made_later() -> None:
    """A lambda, or an attribute of a part that is set from outside, would hide such a need."""
    source = textwrap.dedent(inspect.getsource(Engine.__init__))
    tree = ast.parse(source)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    targets = [target for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets]
    names = [
        ast.unparse(name) for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    assert [name for name in names if name.count(".") > 1 or ("." in name and not name.startswith("self."))] == []


def test_an_event_is_frozen() -> None:
    classes = {kind for _, kind in inspect.getmembers(events, inspect.isclass) if kind.__module__ == events.__name__}
    assert len(classes) >= 10
    assert [kind for kind in classes - {Events} if not issubclass(kind, tuple)] == []
