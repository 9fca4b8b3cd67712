"""Checks of strategies: compare the claim log with the limits, orders, selections and breakers in force. Pure.

A claim whose transaction began before a change was committed may not have seen the change; docs/strategies.md states
where that is so, and only there it is excused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.model.task import State
from runner.policy.rate import Rate
from runner.policy.selection import stored_buckets
from tests.chaos.claim_log import LIMITS, Entry
from tests.chaos.evidence import GRAIN
from tests.chaos.journal import Event

Key = tuple[str, str]
"""The kind and the name of a queue or a handler."""

TOKEN = 0.01
"""Share of a token by which a count of starts may seem too high: times have milliseconds."""


RELEASED_BY = {"claim": ("started", "debounce"), "gone": ("started", "debounce", "finished")}
"""The scopes of unique keys that a task frees when it starts, and when it ends."""


class Breach(NamedTuple):
    """A strategy that a claim broke.

    Args:
        rule: limit, tenant, rate, runner, order, unique, expiry, hosts, slices, or breaker.
        task: the task.
        why: the reason.
    """

    rule: str
    task: int | None
    why: str


@dataclass
class _Log:
    """The state of the database at a place of the log."""

    running: dict[int, Entry] = field(default_factory=dict)
    live: dict[int, Entry] = field(default_factory=dict)
    limits: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    since: dict[Key, float] = field(default_factory=dict)
    """From when on a first limit binds every claim."""

    def apply(self, entry: Entry) -> None:
        data = entry.data
        match entry.kind:
            case "submit":
                self.live[data["id"]] = entry
            case "claim":
                self.running[data["id"]] = entry
            case "end":
                self.running.pop(data["id"], None)
            case "gone":
                self.running.pop(data["id"], None)
                self.live.pop(data["id"], None)
            case "limits":
                key = data["kind"], data["name"]
                if not any(self.limits.get(key, {}).get(name) for name in LIMITS):
                    self.since[key] = float("inf")
                self.limits[key] = data
            case "acknowledged":
                key = data["kind"], data["name"]
                self.since[key] = min(self.since.get(key, entry.at), entry.at)

    def binds(self, key: Key, claim: Entry) -> bool:
        """True if the limits of a queue or a handler bind a claim: it began after the first of them was set."""
        return claim.began >= self.since.get(key, float("inf"))


def keys_of(claim: Entry) -> tuple[Key, Key]:
    return ("queue", claim.data["queue"]), ("handler", claim.data["handler"])


def check_strategies(log: Sequence[Entry], states: Mapping[int, str], unblocked: frozenset[int]) -> list[Breach]:
    """Find every claim that broke a strategy.

    Args:
        log: the claim log.
        states: the final state of each task by id.
        unblocked: the tasks that an operator unblocked.
    """
    return [
        *_limits(log),
        *_rates(log),
        *_order(log, states, unblocked),
        *_unique(log),
        *_expiry(log),
        *_hosts(log),
        *_slices(log),
        *_breakers(log),
    ]


def _limits(log: Sequence[Entry]) -> Iterator[Breach]:
    state = _Log()
    for entry in log:
        state.apply(entry)
        if entry.kind != "claim":
            continue
        for key in keys_of(entry):
            limits = state.limits.get(key)
            if limits is None or not state.binds(key, entry):
                continue
            same = [other for other in state.running.values() if key in keys_of(other) and state.binds(key, other)]
            if limits["max_running"] is not None and len(same) > limits["max_running"]:
                yield Breach("limit", entry.data["id"], f"{key} runs {len(same)} of {limits['max_running']}")
            tenant, most = entry.data["tenant"], limits["max_per_tenant"]
            own = sum(other.data["tenant"] == tenant for other in same)
            if tenant is not None and most is not None and own > most:
                yield Breach("tenant", entry.data["id"], f"{key} runs {own} of {most} of tenant {tenant}")


def _rates(log: Sequence[Entry]) -> Iterator[Breach]:
    """Between two changes, at most n + time / interval tasks start in any period (a bucket of n tokens)."""
    state = _Log()
    starts: Counter[Key] = Counter()
    least: dict[Key, float] = {}
    for entry in log:
        state.apply(entry)
        if entry.kind == "limits":
            key = entry.data["kind"], entry.data["name"]
            starts[key], least[key] = 0, float("inf")
        for key in keys_of(entry) if entry.kind == "claim" else ():
            limits = state.limits.get(key)
            if limits is None or not limits["rate_limit"] or not state.binds(key, entry):
                continue
            rate = Rate(limits["rate_limit"], limits["rate_period"])
            least[key] = min(least[key], starts[key] - entry.began / rate.interval)
            starts[key] += 1
            excess = starts[key] - entry.at / rate.interval - least[key] - rate.tokens
            if excess > TOKEN + GRAIN / rate.interval:
                yield Breach("rate", entry.data["id"], f"{key} started {excess:.2f} more than {rate}")


def _order(log: Sequence[Entry], states: Mapping[int, str], unblocked: frozenset[int]) -> Iterator[Breach]:
    state = _Log()
    waiting: dict[str, set[int]] = defaultdict(set)
    last: dict[str, int] = {}
    submitted: dict[int, int] = {}
    ends: dict[int, int] = {}
    for index, entry in enumerate(log):
        task, key = entry.data.get("id"), entry.data.get("order_key")
        state.apply(entry)
        if entry.kind == "submit" and key is not None:
            waiting[key].add(entry.data["id"])
            submitted[entry.data["id"]] = index
        if entry.kind == "gone":
            ends[entry.data["id"]] = index
        if entry.kind != "claim" or key is None:
            continue
        waiting[key] &= state.live.keys()
        for other in waiting[key] - {task}:
            if other in state.running:
                yield Breach("order", task, f"runs beside task {other} of order key {key}")
            elif other < entry.data["id"] and state.live[other].at < entry.began:
                yield Breach("order", task, f"started before task {other} of order key {key}")
        before = last.get(key)
        stops = key.startswith("wait") and before is not None and states.get(before) in (State.DEAD, State.CANCELLED)
        waited = before is not None and submitted.get(task or 0, 0) < ends.get(before, 0)
        if stops and waited and before != task and task not in unblocked:
            yield Breach("order", task, f"started after task {before}, which is {states[before or 0]}, with {key}")
        last[key] = entry.data["id"]


def _unique(log: Sequence[Entry]) -> Iterator[Breach]:
    """The name of a unique key begins with its scope: finished, started, debounce, or throttle and its seconds."""
    holders: dict[tuple[str, str], Entry] = {}
    names: dict[int, tuple[str, str]] = {}
    for entry in log:
        data = entry.data
        name = names.get(data.get("id", 0))
        if name is not None and name[1].startswith(RELEASED_BY.get(entry.kind, ())):
            del names[data["id"]], holders[name]
        if entry.kind == "submit" and data["unique_key"]:
            name = data["handler"], data["unique_key"]
            holder = holders.get(name)
            if holder is not None and not name[1].startswith("throttle"):
                yield Breach("unique", data["id"], f"holds {name} beside task {holder.data['id']}")
            elif holder is not None:
                window = float(name[1].split("-")[1])
                if data["submitted_at"] < holder.data["submitted_at"] + window - GRAIN:
                    yield Breach("unique", data["id"], f"within {window} s after task {holder.data['id']} with {name}")
            holders[name], names[data["id"]] = entry, name


def _expiry(log: Sequence[Entry]) -> Iterator[Breach]:
    for entry in log:
        expires_at = entry.data.get("expires_at") if entry.kind == "claim" else None
        if expires_at is not None and entry.data["claimed_at"] > expires_at + GRAIN:
            late = entry.data["claimed_at"] - expires_at
            yield Breach("expiry", entry.data["id"], f"was claimed {late:.3f} s after its expiry")


def _hosts(log: Sequence[Entry]) -> Iterator[Breach]:
    hosts: dict[int, str] = {}
    for entry in log:
        if entry.kind == "runner":
            hosts[entry.data["id"]] = entry.data["host"]
        if entry.kind == "claim" and entry.data["hosts"]:
            host = hosts[entry.data["runner_id"]]
            if host not in entry.data["hosts"].split(","):
                yield Breach("hosts", entry.data["id"], f"of hosts {entry.data['hosts']} was claimed on {host}")
        if entry.kind == "unbind" and entry.at < entry.data["hosts_until"] - GRAIN:
            yield Breach("hosts", entry.data["id"], "was given to any host before its time")


class Slices:
    """The runners that divide the buckets, at a place of the log."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.owners: dict[int, tuple[int, float]] = {}
        """The runner that wrote each bucket last, and when."""

    def apply(self, entry: Entry) -> None:
        data = entry.data
        if entry.kind in ("runner", "buckets", "lease"):
            self.rows.setdefault(data["id"], {}).update(data)
        if entry.kind in ("runner", "buckets") and data["slice"]:
            self.owners |= dict.fromkeys(stored_buckets(data["buckets"] or ""), (data["id"], entry.at))
        if entry.kind == "left":
            self.rows.pop(data["id"], None)

    def members(self, at: float) -> dict[int, frozenset[int]]:
        """The buckets of each runner with a slice whose lease is valid at a time."""
        living = {id: row for id, row in self.rows.items() if row["slice"] and row["lease_until"] >= at}
        return {id: stored_buckets(row["buckets"] or "") for id, row in living.items()}


def _slices(log: Sequence[Entry]) -> Iterator[Breach]:
    slices = Slices()
    for entry in log:
        slices.apply(entry)
        if entry.kind == "buckets" and entry.data["slice"]:
            members = slices.members(entry.at)
            own = members.pop(entry.data["id"], frozenset())
            for other, buckets in members.items():
                if own & buckets:
                    yield Breach(
                        "slices", None, f"runners {entry.data['id']} and {other} both have {len(own & buckets)}"
                    )
        row = slices.rows.get(entry.data["runner_id"]) if entry.kind == "claim" else None
        if row is None:
            continue
        bucket, runner = entry.data["bucket"], entry.data["runner_id"]
        owner, since = slices.owners.get(bucket, (None, 0.0))
        living = slices.members(entry.at)
        # A runner that took the bucket, and then lost its lease or returned the bucket, owns it no longer: the runner
        # before it may have renewed its lease.
        in_use = owner is not None and bucket in living.get(owner, ())
        foreign = owner != runner and (in_use or bucket not in living.get(runner, ()))
        if row["slice"] and foreign and entry.began > since:
            yield Breach("slices", entry.data["id"], f"of bucket {bucket} of runner {owner} was claimed by {runner}")
        if not row["slice"] and row["buckets"] and bucket not in stored_buckets(row["buckets"]):
            yield Breach("slices", entry.data["id"], f"of bucket {bucket} was claimed by a runner of {row['buckets']}")


def _breakers(log: Sequence[Entry]) -> Iterator[Breach]:
    """While a breaker is open, no task starts but probes: so many after each time of a probe."""
    breakers: dict[str, Entry] = {}
    probes: Counter[str] = Counter()
    for entry in log:
        if entry.kind == "breaker":
            name = entry.data["name"]
            breakers[name], probes[name] = entry, 0
        breaker = breakers.get(entry.data["handler"]) if entry.kind == "claim" else None
        if breaker is None or breaker.data["breaker_probes"] is None or entry.began < breaker.at:
            continue
        name = entry.data["handler"]
        probes[name] += 1
        if entry.at < breaker.data["breaker_probe_at"] - GRAIN:
            early = breaker.data["breaker_probe_at"] - entry.at
            yield Breach("breaker", entry.data["id"], f"of {name} started {early:.3f} s before the next probe")
        if probes[name] > breaker.data["breaker_probes"]:
            yield Breach("breaker", entry.data["id"], f"of {name} is probe {probes[name]} of one round")


def check_narrow(history: Sequence[Event], most: int) -> list[Breach]:
    """Find the moments at which a process ran more tasks of `chaos.narrow` than its `limit_per_runner`."""
    running: Counter[int] = Counter()
    breaches = []
    for event in history:
        running[event.pid] += (event.what == "enter") - (event.what == "leave")
        if event.what == "enter" and running[event.pid] > most:
            breaches.append(Breach("runner", event.data["task"], f"process {event.pid} runs {running[event.pid]}"))
    return breaches
