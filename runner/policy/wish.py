"""Wishes: what an operator may ask of a runner, as text in its row.

drain            take no more tasks, let the running ones end, and leave
slots=50         run so many async handlers at once
threads=4        run so many plain functions at once
slots=50 threads=4
"""

import re
from dataclasses import dataclass

from runner.errors import InvalidEdit

MOST_SLOTS = 1_000_000
KINDS = ("slots", "threads")
_RESIZE = re.compile(r"(slots|threads)=([0-9]{1,7})")


@dataclass(frozen=True, slots=True)
class Wish:
    """Something asked of a runner. Its text, `str(wish)`, reads back as an equal wish.

    Args:
        drain: take no more tasks, and leave.
        slots: how many async handlers to run at once; None to leave that as it is.
        threads: how many plain functions to run at once; None to leave that as it is.
    """

    drain: bool = False
    slots: int | None = None
    threads: int | None = None

    def __str__(self) -> str:
        sizes = [f"{name}={getattr(self, name)}" for name in KINDS if getattr(self, name) is not None]
        return " ".join(["drain"] * self.drain + sizes)


def parse_wish(text: str) -> Wish:
    """Read a wish.

    Raises:
        InvalidEdit: runners do not understand it.
    """
    if text == "drain":
        return Wish(drain=True)
    sizes = {}
    for word in text.split():
        part = _RESIZE.fullmatch(word)
        if not part or part[1] in sizes or not 1 <= int(part[2]) <= MOST_SLOTS:
            raise _unknown(text)
        sizes[part[1]] = int(part[2])
    if not sizes:
        raise _unknown(text)
    return Wish(slots=sizes.get("slots"), threads=sizes.get("threads"))


def _unknown(text: str) -> InvalidEdit:
    why = f"runners understand drain, and slots=N and threads=N from 1 to {MOST_SLOTS:,}"
    return InvalidEdit(field="the wish", value=text, why=why)
