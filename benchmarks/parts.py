"""The parts of the comparison. Each one measures a system on an empty database."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import quantiles
from typing import NamedTuple

from benchmarks.contract import Reading
from benchmarks.rig import Rig, Usage, Workers, resume_after_kill

MOST_SINGLE, MOST_PACED = 3_000, 500
SLOW, WARM_UP = 50, 5
"""Submits per second of the part `latency`, and tasks before it."""
LOAD_SECONDS = 10
LOADS = (200, 2_000, 8_000)
"""Submits per second of the parts `load`."""
SHORT_LEASE = 2
"""Seconds of the lease of the parts `restart2` and `takeover2`."""
ALIVE, SHORTLY_ALIVE = 20.0, 5.0
"""Seconds for which a process has lived when it is killed: longer than our lease."""
MICRO, MILLI = 1e6, 1e3


class Sizes(NamedTuple):
    """The amounts of a run."""

    tasks: int
    """In a backlog."""
    limit: float
    """Seconds for a backlog."""


class Measurement(NamedTuple):
    """The figures of one part, by name, and the tasks that did not run exactly once."""

    figures: dict[str, float]
    lost: int = 0
    repeated: int = 0


Part = Callable[[Rig, Sizes], Measurement]


def one(rig: Rig, sizes: Sizes) -> Measurement:
    """Submit tasks one by one."""
    count = min(sizes.tasks, MOST_SINGLE)
    return Measurement({"rate": count / rig.call("one", count)})


def bulk(rig: Rig, sizes: Sizes) -> Measurement:
    """Submit many tasks the fastest way."""
    return Measurement({"rate": sizes.tasks / rig.call("bulk", sizes.tasks)})


def steps(rig: Rig, sizes: Sizes) -> Measurement:
    """Run the durable steps of one workflow."""
    count = min(sizes.tasks, MOST_SINGLE)
    return Measurement({"rate": count / rig.call("steps", count)})


def flows(rig: Rig, sizes: Sizes) -> Measurement:
    """Start and run workflows of one step."""
    count = min(sizes.tasks, MOST_SINGLE)
    return Measurement({"rate": count / rig.call("flows", count)})


def resume(rig: Rig, sizes: Sizes, *, lease: int, standby: bool) -> Measurement:  # noqa: ARG001 - one workflow
    """Kill the process of a workflow, and measure the time until its step runs again."""
    alive = SHORTLY_ALIVE if lease else ALIVE
    return Measurement({"seconds": resume_after_kill(rig, lease, alive, standby=standby)})


def drain(rig: Rig, sizes: Sizes, *, workers: int, pinned: bool = False) -> Measurement:
    """Execute a backlog, from the first start until the database has no unfinished task."""
    with rig.old_snapshot() if pinned else nullcontext():
        rig.call("bulk", sizes.tasks)
        rig.analyze()
        with Workers(rig, workers, sizes.tasks) as crew:
            end = crew.wait_until_done(sizes.limit)
            readings, usages = crew.stop()
    seconds = end - min(reading.first for reading in readings if reading.starts)
    figures = {"rate": sizes.tasks / seconds, "memory": max(usage.memory for usage in usages)}
    return _measurement(figures | {"cpu": _cpu(readings, usages)}, readings)


def paced(rig: Rig, sizes: Sizes, *, rate: int, count: int) -> Measurement:
    """Submit tasks at a constant rate to one worker: the time from the submit to the start, and the CPU per task."""
    with Workers(rig, 1, count) as crew:
        rig.call("one", min(WARM_UP, count))
        crew.wait_for_starts(min(WARM_UP, count), sizes.limit)
        server = rig.server_cpu()
        reached = count / rate / rig.call("paced", count, rate)
        crew.wait_until_done(sizes.limit)
        server = MICRO * (rig.server_cpu() - server) / count
        readings, usages = crew.stop()
    times = [MILLI * seconds for seconds in readings[0].latencies if seconds]
    ranks = quantiles(times, n=100, method="inclusive")
    figures = {"p50": ranks[49], "p99": ranks[98], "reached": min(1.0, reached), "cpu": _cpu(readings, usages)}
    figures |= {"server": server} if server else {}
    return _measurement(figures, readings, warm_up=min(WARM_UP, count))


def _cpu(readings: Sequence[Reading], usages: Sequence[Usage]) -> float:
    """CPU microseconds per task, from the first task of each worker on."""
    pairs = [(reading, usage) for reading, usage in zip(readings, usages, strict=True) if reading.starts]
    used = sum(usage.cpu - reading.cpu for reading, usage in pairs)
    return MICRO * used / sum(reading.starts for reading, _ in pairs)


def _measurement(figures: dict[str, float], readings: Sequence[Reading], warm_up: int = 0) -> Measurement:
    """Count the tasks that did not run exactly once; those of the warm-up have the numbers of the first ones."""
    counts = [sum(times) for times in zip(*(reading.times for reading in readings), strict=True)]
    counts = [count - (number < warm_up) for number, count in enumerate(counts)]
    lost, repeated = sum(not count for count in counts), sum(max(0, count - 1) for count in counts)
    return Measurement(figures, lost, repeated)


def parts(sizes: Sizes) -> dict[str, Part]:
    """Every part, in the order of execution."""
    loads = {f"load{rate}": min(sizes.tasks, rate * LOAD_SECONDS) for rate in LOADS}
    return {
        "one": one,
        "bulk": bulk,
        "drain1": partial(drain, workers=1),
        "drain2": partial(drain, workers=2),
        "drain4": partial(drain, workers=4),
        "latency": partial(paced, rate=SLOW, count=min(sizes.tasks, MOST_PACED)),
        **{name: partial(paced, rate=int(name.removeprefix("load")), count=count) for name, count in loads.items()},
        "steps": steps,
        "flows": flows,
        "restart": partial(resume, lease=0, standby=False),
        "restart2": partial(resume, lease=SHORT_LEASE, standby=False),
        "takeover": partial(resume, lease=0, standby=True),
        "takeover2": partial(resume, lease=SHORT_LEASE, standby=True),
        "pinned": partial(drain, workers=1, pinned=True),
    }
