"""ExternalTransaction: a transaction that an application ends, for verbs that otherwise run on our own connections."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData

from runner.db.statement import Prepared, StatementFrame, Step, Steps
from runner.db.transaction import Parameters, Transaction

T = TypeVar("T")


def external_steps(
    frame: StatementFrame, verb: Callable[..., Awaitable[T]], *arguments: Any, reads: bool = False
) -> Steps[T]:
    """Return the statements of a verb as steps, which any kind of connection can execute.

    Args:
        frame: the tables, and the dialect of the connection.
        verb: a verb of the store, a query or an operation.
        reads: True if it only reads, and so waits for no lock.
    """
    tx = ExternalTransaction(frame)
    limited = tx.dialect.row_locks and not reads
    return (yield from (_leaving_settings(tx, verb, arguments) if limited else verb(tx, *arguments)).__await__())


async def _leaving_settings(tx: "ExternalTransaction", verb: Callable[..., Awaitable[T]], arguments: Any) -> T:
    """Run a verb, and restore the limit of locks, which our statements set up to the end of a transaction."""
    limit = await tx.scalar(sa.text("SELECT current_setting('lock_timeout')"))
    result = await verb(tx, *arguments)
    await tx.execute(sa.select(sa.func.set_config("lock_timeout", limit, sa.true())))
    return result


class ExternalTransaction(Transaction):
    """A transaction whose statements leave as steps, in the order in which a verb executes them."""

    __slots__ = ("_frame",)

    def __init__(self, frame: StatementFrame) -> None:
        own: Any = self
        super().__init__(own, frame.tables, frame.dialect)
        self._frame = frame

    @property
    def driver(self) -> sa.Dialect:
        """The dialect for compiling statements."""
        return self._frame.driver

    async def execute(self, statement: Any, parameters: Parameters | None = None) -> Any:
        """Execute a statement, once for each set of parameters, and buffer its rows."""
        sets = [parameters] if parameters is None or isinstance(parameters, Mapping) else parameters
        columns = getattr(statement, "exported_columns", None)
        kinds = () if columns is None else [column.type.dialect_impl(self.driver) for column in columns]
        read = [kind.result_processor(self.driver, None) or _as_it_is for kind in kinds]
        found: list[tuple[Any, ...]] = []
        for each in sets:
            rendered: Any = _rendered(statement, self.driver, each)
            rows = await SentStep(Step(rendered, {}))
            found += [tuple(f(value) for f, value in zip(read, row, strict=True)) if read else row for row in rows]
        names = range(len(found[0]) if found else 0) if columns is None else columns.keys()
        return IteratorResult(SimpleResultMetaData([str(name) for name in names]), iter(found))

    async def rows(self, statement: Any, parameters: Parameters | None = None) -> Any:
        """Execute a statement and return all its rows."""
        return (await self.execute(statement, parameters)).all()

    async def scalar(self, statement: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """Execute a statement and return the first column of its first row, or None."""
        return (await self.execute(statement, parameters)).scalar()

    def run(self, prepared: Prepared, parameters: dict[str, Any]) -> Coroutine[Any, Any, list[Any]]:
        """Execute a prepared statement and return its rows as plain tuples."""
        return _sent(Step(prepared, parameters))

    async def pause(self, seconds: float) -> None:
        """Wait on the server, because a blocking caller has no event loop."""
        await self.execute(sa.select(sa.func.pg_sleep(seconds)))

    @asynccontextmanager
    async def begin_nested(self) -> AsyncIterator[None]:
        """Begin a savepoint; an exception from the block rolls back to it."""
        await self.execute(sa.text("SAVEPOINT runner"))
        try:
            yield
        except Exception:
            await self.execute(sa.text("ROLLBACK TO SAVEPOINT runner"))
            raise
        await self.execute(sa.text("RELEASE SAVEPOINT runner"))


def _as_it_is(value: Any) -> Any:
    return value


class SentStep:
    """A step that is awaited."""

    __slots__ = ("_step",)

    def __init__(self, step: Step) -> None:
        self._step = step

    def __await__(self) -> Generator[Step, list[Any], list[Any]]:
        return (yield self._step)


async def _sent(step: Step) -> list[Any]:
    return await SentStep(step)


class RenderedStatement(NamedTuple):
    """A statement with its values in the form of the driver."""

    sql: str
    values: Any

    def arguments(self, _: dict[str, Any]) -> Any:
        """Return the values."""
        return self.values


def _rendered(statement: Any, driver: sa.Dialect, parameters: Mapping[str, Any] | None) -> RenderedStatement:
    names = [*parameters] if parameters and isinstance(statement, sa.Insert | sa.Update) else None
    compiled = statement.compile(dialect=driver, column_keys=names)
    state = compiled.construct_expanded_state(parameters and dict(parameters))
    own = {name: bound.type.dialect_impl(driver).bind_processor(driver) for name, bound in compiled.binds.items()}
    processors = {**own, **state.processors}  # the latter of the items of expanded lists
    values = {
        name: convert(value) if (convert := processors.get(name)) else value for name, value in state.parameters.items()
    }
    if state.positiontup is not None:
        return RenderedStatement(state.statement, tuple(values[name] for name in state.positiontup))
    return RenderedStatement(state.statement, values)
