"""Runner commands: requests of operators to a runner, stored as text in its row.

drain           claim no more tasks, finish the running ones, and exit
concurrency=50  run this many async handlers concurrently
threads=4       run this many plain functions concurrently
processes=2     run this many process handlers concurrently
stack=12        write the stack of this task into its log

Several of them make one command: concurrency=50 threads=4 stack=12 stack=13 drain

The row has room for one command, so that a command that the runner has not received yet is combined with the next one.
"""

import re
from dataclasses import dataclass, replace
from typing import Self

from runner.errors import InvalidEdit

MOST_SLOTS = 1_000_000
MOST_STACKS = 20
"""Maximum number of stacks in one command."""

KINDS = ("concurrency", "threads", "processes")
_STACK = re.compile(r"stack=([0-9]{1,18})")
_RESIZE = re.compile(r"(concurrency|threads|processes)=([0-9]{1,7})")


@dataclass(frozen=True, slots=True)
class RunnerCommand:
    """A runner command. `str(command)` parses back to an equal command.

    Args:
        drain: claim no more tasks, and exit.
        concurrency: number of concurrent async handlers; None to keep it.
        threads: number of concurrent plain functions; None to keep it.
        processes: number of concurrent process handlers; None to keep it.
        stacks: ids of the tasks whose stacks to write.
    """

    drain: bool = False
    concurrency: int | None = None
    threads: int | None = None
    processes: int | None = None
    stacks: tuple[int, ...] = ()

    def __str__(self) -> str:
        sizes = [f"{name}={getattr(self, name)}" for name in KINDS if getattr(self, name) is not None]
        return " ".join([*sizes, *(f"stack={id}" for id in self.stacks), *["drain"] * self.drain])

    @property
    def resizes(self) -> bool:
        """True if it changes a number of slots."""
        return any(getattr(self, kind) is not None for kind in KINDS)

    def followed_by(self, later: Self) -> Self:
        """Return one command with the effect of both: the later number of slots of each kind counts."""
        sizes = {kind: getattr(later, kind) for kind in KINDS if getattr(later, kind) is not None}
        stacks = tuple(dict.fromkeys((*self.stacks, *later.stacks)))
        return replace(self, drain=self.drain or later.drain, stacks=stacks, **sizes)


def parse_runner_command(text: str) -> RunnerCommand:
    """Parse a runner command.

    Raises:
        InvalidEdit: the text is not a runner command.
    """
    words, sizes = text.split(), dict[str, int]()
    stacks = [int(part[1]) for word in words if (part := _STACK.fullmatch(word))]
    for word in words:
        part = _RESIZE.fullmatch(word)
        if word == "drain" or _STACK.fullmatch(word):
            continue
        if not part or part[1] in sizes or not 1 <= int(part[2]) <= MOST_SLOTS:
            raise _invalid(text)
        sizes[part[1]] = int(part[2])
    if not words or words.count("drain") > 1 or len(stacks) > MOST_STACKS:
        raise _invalid(text)
    return RunnerCommand(drain="drain" in words, stacks=tuple(stacks), **sizes)


def _invalid(text: str) -> InvalidEdit:
    why = f"use drain, concurrency=N, threads=N or processes=N, with N from 1 to {MOST_SLOTS:,}"
    return InvalidEdit(field="the runner command", value=text, why=why)
