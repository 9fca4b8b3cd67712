"""slices: the buckets that runners divide among themselves, so that no bucket belongs to two of them.

Each runner writes the buckets that it claims from into its row. It takes a bucket only in a transaction that has locked
the rows of all runners with a slice, in which no other live row of its group has the bucket. A runner whose lease has
expired owns nothing; it stops claiming before that, by its own clock, and reads the rows again before it claims after a
late renewal. A claim that a lock delayed takes nothing after the lease that it began with. So two runners never claim
from one bucket, even if they disagree on who is alive.
"""

import json
import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import db_now, epoch_seconds, seconds_until
from runner.policy.selection import format_buckets, member_name, stored_buckets
from runner.store.registration import Identity


class SlicePeer(NamedTuple):
    """A live runner of a group: all runners with a slice, and with the same handlers and queues.

    Args:
        pid: its process id.
        member: its name in the group; None before it has one, and while it drains.
        buckets: the buckets that it claims from.
        age: seconds since its registration.
        silence: seconds since its last heartbeat.
        until: the end of its lease in seconds since 1970, by the database's clock.
    """

    id: int
    host: str
    pid: int
    slice: str
    member: str | None
    buckets: frozenset[int]
    age: float
    silence: float
    until: float


async def slice_peers(tx: Transaction, identity: Identity) -> list[SlicePeer]:
    """Return the live runners of a group, by id.

    Args:
        tx: an open transaction; one statement is executed.
    """
    runner = tx.tables.runner.c
    names = (runner.id, runner.host, runner.pid, runner.slice, runner.slice_member, runner.buckets)
    ages = (seconds_until(runner.started_at), seconds_until(runner.heartbeat_at))
    until = epoch_seconds() + seconds_until(runner.lease_until)
    columns = (*names, *ages, until, runner.handlers, runner.queues)
    rows = await tx.rows(sa.select(*columns).where(*_is_alive(runner)).order_by(runner.id))
    group = (sorted(identity.handlers), sorted(identity.queues))
    return [
        SlicePeer(id, host, pid, name, member, stored_buckets(buckets or ""), -age, -silence, float(until))
        for id, host, pid, name, member, buckets, age, silence, until, handlers, queues in rows
        if (_names(handlers), _names(queues)) == group
    ]


def _names(column: Any) -> list[str]:
    """A JSON column as a sorted list; psycopg decodes it."""
    value = json.loads(column) if isinstance(column, str) else column
    return sorted(value)


def _is_alive(runner: Any) -> tuple[sa.ColumnElement[bool], ...]:
    return runner.slice.is_not(None), runner.lease_until >= db_now()


async def _lock_peers(tx: Transaction, identity: Identity) -> list[SlicePeer]:
    """Lock the rows of all runners with a slice, and read the live ones after that.

    A runner whose lease has expired renews it only after this transaction, and then reads the buckets that it lost.
    """
    runner = tx.tables.runner.c
    await tx.rows(sa.select(runner.id).where(runner.slice.is_not(None)).order_by(runner.id).with_for_update())
    return await slice_peers(tx, identity)  # with a snapshot that has every change before the locks


async def join_slices(tx: Transaction, identity: Identity, runner_id: int) -> str:
    """Give a runner a name in its group that no other live runner has.

    Returns:
        The name: that of the last runner on this host, if it is free, or if that runner was killed and its lease has
        not expired yet.
    """
    peers = await _lock_peers(tx, identity)
    since = next((peer.age for peer in peers if peer.id == runner_id), 0.0)
    others = [peer for peer in peers if peer.id != runner_id and not _was_killed(peer, identity.host, since)]
    name = member_name(identity.host, [peer.member for peer in others if peer.member])
    await _write(tx, runner_id, slice_member=name)
    return name


def _was_killed(peer: SlicePeer, host: str, since: float) -> bool:
    """True if a runner on this host has no process, and sent no heartbeat in the last `since` seconds."""
    if peer.host != host or peer.silence <= since:
        return False
    try:
        os.kill(peer.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def is_double(peers: Sequence[SlicePeer], runner_id: int) -> bool:
    """True if the name of a runner belongs to an older one, which has sent a heartbeat since.

    The processes of another container on this host are not visible, so that its runner seemed to be killed.
    """
    own = next((peer for peer in peers if peer.id == runner_id), None)
    older = (peer for peer in peers if own is not None and peer.id < own.id and peer.member == own.member)
    return any(own is not None and own.member is not None and peer.silence <= own.age for peer in older)


async def take_buckets(tx: Transaction, identity: Identity, runner_id: int, buckets: Collection[int]) -> frozenset[int]:
    """Write the buckets that a runner claims from, in place of its former ones.

    Returns:
        Those of them that no other live runner has; none if its own lease has expired, because the others could not
        see that it has them.
    """
    peers = await _lock_peers(tx, identity)
    if all(peer.id != runner_id for peer in peers):
        return frozenset()
    free = frozenset(buckets).difference(*(peer.buckets for peer in peers if peer.id != runner_id))
    await _write(tx, runner_id, buckets=format_buckets(free))
    return free


async def leave_slices(tx: Transaction, runner_id: int) -> None:
    """Free the buckets of a runner that drains."""
    await _write(tx, runner_id, slice_member=None, buckets="")


async def _write(tx: Transaction, runner_id: int, **values: str | None) -> None:
    runner = tx.tables.runner
    await tx.execute(sa.update(runner).where(runner.c.id == runner_id).values(values))


async def count_live_runners(tx: Transaction) -> int:
    """Count the runners whose lease is valid."""
    runner = tx.tables.runner.c
    return int(await tx.scalar(sa.select(sa.func.count()).where(runner.lease_until >= db_now())))


def overlapping(peers: Sequence[SlicePeer], own: str, buckets: Collection[int] | None) -> SlicePeer | None:
    """Return a live runner whose slice overlaps another one without being the same; None if there is none.

    Args:
        buckets: its buckets; None for a live slice, which has any.
    """
    others = (peer for peer in peers if peer.slice != own)
    return next((peer for peer in others if buckets is None or not peer.buckets.isdisjoint(buckets)), None)
