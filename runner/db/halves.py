"""write_in_halves: write the rows of a batch that the database accepts, and find the others."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from runner.db.errors import row_fault
from runner.errors import StoreError
from runner.model.stuck_row import RowFault

T = TypeVar("T")


async def write_in_halves(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[object]],
    on_fault: Callable[[T, RowFault], None],
    fault_of: Callable[[StoreError], RowFault | None] = row_fault,
) -> None:
    """Write items in one call; after a refusal, each half, so that one refused row costs about twice log2(n) calls.

    Args:
        write: writes items in a transaction of its own: all of them or none.
        on_fault: called with each single item that the database did not write.
        fault_of: returns the fault of a row; None for an outage.

    Raises:
        StoreError: the database does not answer, and items before the error may be written; or it refuses the statement
            for all items alike, and none is written.
    """
    waiting, apart = [items], list[tuple[T, RowFault]]()
    statement_error: StoreError | None = None
    is_alike = True
    while waiting:
        part = waiting.pop()
        if not part:
            continue
        try:
            await write(part)
            is_alike = False
        except StoreError as error:
            if (fault := fault_of(error)) is None:
                raise
            if len(part) == 1 and fault.of_statement:
                is_alike &= fault == (apart[0][1] if apart else fault)
                apart.append((part[0], fault))
                statement_error = error
            elif len(part) == 1:
                is_alike = False
                on_fault(part[0], fault)
            else:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
    if statement_error is not None and is_alike:
        raise statement_error
    for item, fault in apart:
        on_fault(item, fault)
