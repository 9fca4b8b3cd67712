"""Runner commands: requests of operators to a runner, stored as text in its row.

drain            claim no more tasks, finish the running ones, and exit
concurrency=50         run this many async handlers concurrently
threads=4        run this many plain functions concurrently
processes=2      run this many process handlers concurrently
stack=12         write the stack of this task into its log
concurrency=50 threads=4
"""

import re
from dataclasses import dataclass

from runner.errors import InvalidEdit

MOST_SLOTS = 1_000_000
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
        stack: id of the task whose stack to write; None for none.
    """

    drain: bool = False
    concurrency: int | None = None
    threads: int | None = None
    processes: int | None = None
    stack: int | None = None

    def __str__(self) -> str:
        sizes = [f"{name}={getattr(self, name)}" for name in KINDS if getattr(self, name) is not None]
        if self.stack is not None:
            return f"stack={self.stack}"
        return " ".join(["drain"] * self.drain + sizes)


def parse_runner_command(text: str) -> RunnerCommand:
    """Parse a runner command.

    Raises:
        InvalidEdit: the text is not a runner command.
    """
    if text == "drain":
        return RunnerCommand(drain=True)
    if stack := _STACK.fullmatch(text):
        return RunnerCommand(stack=int(stack[1]))
    sizes: dict[str, int] = {}
    for word in text.split():
        part = _RESIZE.fullmatch(word)
        if not part or part[1] in sizes or not 1 <= int(part[2]) <= MOST_SLOTS:
            raise _invalid(text)
        sizes[part[1]] = int(part[2])
    if not sizes:
        raise _invalid(text)
    return RunnerCommand(False, *(sizes.get(kind) for kind in KINDS))


def _invalid(text: str) -> InvalidEdit:
    why = f"use drain, concurrency=N, threads=N or processes=N, with N from 1 to {MOST_SLOTS:,}"
    return InvalidEdit(field="the runner command", value=text, why=why)
