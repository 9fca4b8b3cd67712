"""selection: which tasks a runner takes from its lanes: those of some buckets, and those with few failures.

A bucket is a number from 0 to BUCKETS - 1 that every task has, random unless the task option `bucket` sets it. A runner
with a selection adds conditions to its claims; without one, the statements are the same as if it did not exist.

--buckets 0-499,700   fixed buckets, which several runners may share
--slice 2/8           static slice: the buckets with bucket % 8 = 2; a second runner of the slice is its standby
--slice live          the live runners with the same handlers and queues divide all buckets
--slice single        all buckets: one runner claims, the others are standbys
--slice shop.slices:ByRegion   the same as live, divided by a class of your own
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa

from runner.db.schema.task import Condition
from runner.db.types import PositionTime, epoch_seconds, from_position, is_listed, is_unlisted
from runner.errors import InvalidSettings
from runner.model.task import BUCKETS
from runner.policy.own_class import OwnClass
from runner.text.sanitize import one_line

T = TypeVar("T")

ALL = frozenset(range(BUCKETS))
"""All buckets."""

LIVE, SINGLE = "live", "single"

RUNNER_QUEUE_SQL: Any = sa.literal_column("'@'")
"""The first character of the queues of single runners."""


class TaskSelection(NamedTuple):
    """The tasks that a claim takes from its lanes.

    Args:
        buckets: a text of BUCKETS characters, 1 for each bucket that the runner takes; None for all.
        failures: maximum number of failures of a task; None for any.
        until: the end of the lease that was valid when the buckets were read, in seconds since 1970 by the database's
            clock; None for fixed buckets. After it another runner may have taken a bucket, even if the lease was
            renewed since, so a claim that waited so long for a lock takes nothing.
        fresh: number of failures up to which a task is taken without regard to `seen`.
        seen: the time of a scan, as PositionTime: tasks that failed more often are taken if they were due then. None
            together with `fresh`.
        without: ids of tasks to leave out, with commas between them: stuck rows; None for none.
        only: ids of the only tasks to take, in the same form; None for all.
    """

    buckets: str | None = None
    failures: int | None = None
    until: float | None = None
    fresh: int | None = None
    seen: object = None
    without: str | None = None
    only: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the conditions in force, by which statements are prepared."""
        return tuple(name for name, value in self._asdict().items() if value is not None)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the conditions in force."""
        return {f"selected_{name}": getattr(self, name) for name in self.names}


ANY = TaskSelection()


def selected(task: Any, names: Collection[str]) -> Iterator[Condition]:
    """The SQL that a selection takes a task.

    Args:
        names: see `TaskSelection.names`.
    """
    if "buckets" in names:
        bit = sa.func.substr(sa.bindparam("selected_buckets", type_=sa.Text), task.bucket + 1, sa.literal_column("1"))
        # Tasks for this runner alone have any bucket. As an inequality, which planners expect of nearly every row.
        own = sa.func.substr(task.queue, sa.literal_column("1"), sa.literal_column("1")) == RUNNER_QUEUE_SQL
        yield (bit != sa.literal_column("'0'")) | own
    if "until" in names:
        yield epoch_seconds() <= sa.bindparam("selected_until", type_=sa.Float)
    if "failures" in names:
        yield task.attempt <= sa.bindparam("selected_failures", type_=sa.Integer)
    if "seen" in names:
        was_due = task.run_at <= from_position(sa.bindparam("selected_seen", type_=PositionTime))
        yield (task.attempt <= sa.bindparam("selected_fresh", type_=sa.Integer)) | was_due
    if "without" in names:
        yield is_unlisted(task.id, sa.bindparam("selected_without", type_=sa.Text))
    if "only" in names:
        yield is_listed(task.id, sa.bindparam("selected_only", type_=sa.Text))


def listed(ids: Iterable[int]) -> str | None:
    """Return ids as the text of a selection; None without one."""
    return ",".join(map(str, ids)) or None


def among(id: Any, only: Collection[int] | None, without: Collection[int]) -> Iterator[Condition]:
    """The SQL that an id is one of some ids, and none of others.

    Args:
        only: the ids to take; None for all.
        without: the ids to leave out, such as those of stuck rows.
    """
    if only is not None:
        yield is_listed(id, sa.literal(listed(only) or "0", sa.Text))
    if without:
        yield is_unlisted(id, sa.literal(listed(without), sa.Text))


def mask(buckets: Collection[int]) -> str:
    """Return buckets as the text of a selection."""
    return "".join("1" if bucket in buckets else "0" for bucket in range(BUCKETS))


def parse_buckets(text: str) -> frozenset[int]:
    """Parse buckets such as 0-499,700.

    Raises:
        InvalidSettings: they are not numbers from 0 to BUCKETS - 1.
    """
    result: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = [int(number) if number.isdecimal() else -1 for number in (first, last if dash else first)]
        if not 0 <= numbers[0] <= numbers[1] < BUCKETS:
            why = f"{text!r}: use numbers and ranges from 0 to {BUCKETS - 1}, such as 0-499,700"
            raise InvalidSettings(where="buckets", why=why)
        result.update(range(numbers[0], numbers[1] + 1))
    return frozenset(result)


def format_buckets(buckets: Iterable[int]) -> str:
    """Format buckets so that `parse_buckets` reads them back; empty for none."""
    ranges: list[list[int]] = []
    for bucket in sorted(buckets):
        if ranges and bucket == ranges[-1][1] + 1:
            ranges[-1][1] = bucket
        else:
            ranges.append([bucket, bucket])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)


def stored_buckets(text: str) -> frozenset[int]:
    """Parse the buckets of a runner's row; empty if they are not valid."""
    try:
        return parse_buckets(text)
    except InvalidSettings:
        return frozenset()


class StaticSlice(NamedTuple):
    """The buckets whose number modulo `slices` is `number`."""

    number: int
    slices: int

    def __str__(self) -> str:
        return SINGLE if self.slices == 1 else f"{self.number}/{self.slices}"

    @property
    def buckets(self) -> frozenset[int]:
        """The buckets of the slice."""
        return frozenset(range(self.number, BUCKETS, self.slices))


class LiveSlices(Protocol):
    """How the live runners of a group divide all buckets."""

    def share(self, member: str, members: frozenset[str]) -> Collection[int]:
        """Return the buckets of one member. Each bucket should be in the share of one member.

        Args:
            member: the name of this runner in its group, such as web1#0.
            members: names of all members, this one included.
        """


class EvenSlices:
    """The slices `live`: see `share`."""

    def __str__(self) -> str:
        return LIVE

    def share(self, member: str, members: frozenset[str]) -> Collection[int]:
        """Return an even share."""
        return share(member, members)


def _are_buckets(value: Any) -> bool:
    return isinstance(value, Collection) and all(type(bucket) is int and 0 <= bucket < BUCKETS for bucket in value)


SLICES = (
    f"a number and the slices such as 0/4 (then 0 to 3; at most {BUCKETS} slices), live, single, or a class of your "
    "own as package.module:Class"
)
OWN = OwnClass(
    "slice", ("share",), "no class: it needs share(member, members)", SLICES, EvenSlices(), {"share": _are_buckets}
)


def load_slices(text: str) -> LiveSlices:
    """Return how the live runners divide the buckets.

    Args:
        text: the setting `slice`: `live`, or the path of a class.

    Raises:
        InvalidSettings: the class cannot be loaded.
    """
    name = text.strip()
    slices: LiveSlices = EvenSlices() if name == LIVE else OWN.load(name)
    return slices


def parse_slice(text: str) -> StaticSlice | None:
    """Parse the setting `slice`.

    Returns:
        The static slice; None for `live` and for the path of a class, which `load_slices` loads.

    Raises:
        InvalidSettings: it is not a slice.
    """
    name = text.strip()
    if name == LIVE or ":" in name:
        return None
    if name == SINGLE:
        return StaticSlice(0, 1)
    number, _, slices = name.partition("/")
    if number.isdecimal() and slices.isdecimal() and 0 <= int(number) < int(slices) <= BUCKETS:
        return StaticSlice(int(number), int(slices))
    raise InvalidSettings(where="slice", why=f"{text!r}: use {SLICES}")


def selection_of(slices: str | None, buckets: str | None) -> TaskSelection:
    """Return the tasks that a runner and the standbys of its slice take in the end; with live slices, all of them.

    Args:
        slices: the setting `slice`.
        buckets: the setting `buckets`.

    Raises:
        InvalidSettings: one of them is not valid.
    """
    if slices is not None:
        static = parse_slice(slices)
        return ANY if static is None or static.slices == 1 else TaskSelection(mask(static.buckets))
    return ANY if buckets is None else TaskSelection(mask(parse_buckets(buckets)))


def described_selection(slices: str | None, buckets: str | None) -> tuple[str | None, str | None]:
    """Return the selection of a runner as the texts of its row: its slice and its buckets.

    Args:
        slices: the setting `slice`.
        buckets: the setting `buckets`.

    Raises:
        InvalidSettings: one of them is not valid.
    """
    if slices is not None:
        return str(parse_slice(slices) or slices.strip()), ""
    return None, None if buckets is None else format_buckets(parse_buckets(buckets))


def share(member: str, members: Collection[str]) -> frozenset[int]:
    """Return the buckets of one member: a bucket belongs to the member with the highest hash of both.

    A member that leaves gives its buckets to the others, and no other bucket moves. One that joins takes an equal part
    of each.

    Source: highest random weight, Thaler and Ravishankar, 1998 (rendezvous hashing).

    Args:
        members: names of all members, this one included.
    """
    rivals = sorted(members)
    return frozenset(bucket for bucket in ALL if max(rivals, key=lambda name: _weight(bucket, name)) == member)


def _weight(bucket: int, member: str) -> bytes:
    return blake2b(f"{bucket}:{member}".encode(), digest_size=8).digest()


def member_name(host: str, names: Collection[str]) -> str:
    """Return the first free name of a member on a host, so that a runner that starts again gets its old name."""
    return next(name for number in range(len(names) + 1) if (name := f"{host}#{number}") not in names)


def select_handlers(handlers: Mapping[str, T], only: Sequence[str], without: Sequence[str]) -> dict[str, T]:
    """Return the handlers that a runner takes.

    Args:
        only: names, or patterns such as report.*, of the handlers to take; empty for all.
        without: the same of those to leave.

    Raises:
        InvalidSettings: a pattern matches no handler, or none is left.
    """
    for setting, patterns in (("only", only), ("without", without)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in handlers):
                names = ", ".join(map(one_line, sorted(handlers)))
                raise InvalidSettings(
                    where=setting, why=f"{pattern!r}: no handler matches it; the handlers are {names}"
                )
    selected = {
        name: handler
        for name, handler in handlers.items()
        if (not only or any(fnmatchcase(name, pattern) for pattern in only))
        and not any(fnmatchcase(name, pattern) for pattern in without)
    }
    if handlers and not selected:
        raise InvalidSettings(where="without", why="it leaves no handler; the runner would claim nothing")
    return selected
