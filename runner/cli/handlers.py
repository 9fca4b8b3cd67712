"""The handlers that a command loads, and `runner check --against`: the payloads of live tasks checked against them."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import Connection, open_database
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.errors import (
    CodecFailed,
    DatabaseRefused,
    HandlersNotFound,
    InvalidInput,
    InvalidPayload,
    KeyMissing,
    Undecodable,
)
from runner.filter.fields import suggestion
from runner.handlers.call_options import CallOptions
from runner.handlers.discovery import discover
from runner.handlers.keyring import Keyring
from runner.handlers.parameters import StoredSignature
from runner.handlers.registry import Handler, Registry
from runner.operations.names import handler_warning
from runner.operations.new_task import DERIVED
from runner.queries.signatures import stored_signature
from runner.queries.task_list.payloads import MOST_PAYLOADS, PayloadRow, newest_payloads, oldest_payloads
from runner.settings import Settings
from runner.text.sanitize import count_noun, one_line

Modules = Annotated[tuple[str, ...], Parameter(name=("--handlers", "-H"))]
"""The option -H; may be repeated."""


def load_handlers(settings: Settings) -> Registry:
    """Import the modules named in the settings, and the modules that installed packages register.

    Returns:
        The handlers by name.

    Raises:
        HandlersNotFound: a module cannot be imported.
        DuplicateHandler: two handlers have the same name.
    """
    with _from_here():
        try:
            return discover(settings.handlers)
        except HandlersNotFound as error:
            if not _is_hidden(error.__cause__) or (namesake := _namesake()) is None:
                raise
            why = f"{error.fields['why']}. Your {namesake} and tasktui's package have the same name: rename yours"
            raise HandlersNotFound(module=error.fields["module"], why=why) from error


def _is_hidden(cause: BaseException | None) -> bool:
    """True if an import failed because a part of a package `runner` is missing."""
    return isinstance(cause, ImportError) and (cause.name or "").partition(".")[0] == "runner"


def _namesake() -> Path | None:
    """Return a file or folder `runner` in the current directory that is not this one: its modules import this one."""
    module, package, folder = Path("runner.py"), Path("runner", "__init__.py"), Path("runner")
    if package.is_file():
        return None if package.samefile(Path(__file__).parent.parent / "__init__.py") else package
    return module if module.is_file() else folder if any(folder.glob("*.py")) else None


UNREAD = (
    "this login may not read the registry of handlers, so the arguments of {} are not checked, and its queue and other "
    "options do not apply; load its code with -H"
)


class HandlerRegistry:
    """The handlers that runners have registered, for a command that has not loaded their code.

    Notices about a handler go to standard error, each once.

    Args:
        read: executes a read operation; None without a database.
        has_modules: True if -H named modules.
        checks: compare payloads with the stored signatures.
        on_codec: called with the name and the codec of each handler whose signature was read.
    """

    def __init__(
        self,
        read: Callable[..., Any] | None = None,
        loaded: Collection[str] = (),
        *,
        has_modules: bool = False,
        checks: bool = True,
        on_codec: Callable[[str, str | None], object] = lambda _name, _codec: None,
    ) -> None:
        self.checks, self._on_codec = checks, on_codec
        self._read, self._loaded, self._has_modules = read, tuple(loaded), has_modules
        self._signatures: dict[str, StoredSignature | None] = {}
        self._notices: set[str] = set()

    def signature(self, name: str) -> StoredSignature | None:
        """Read the signature that the runners of a handler stored last, and warn about an unknown handler.

        Returns:
            None if there is none, or if this login may only submit.
        """
        if self._read is not None and name not in self._signatures:
            self._signatures[name] = None
            try:
                self._signatures[name] = signature = self._read(stored_signature, name)
                if signature is not None:
                    self._on_codec(name, signature.codec)
                self._notify(self._unknown(name))
            except DatabaseRefused:  # the role of producers does not read the registry
                self._notify(UNREAD.format(name))
        return self._signatures.get(name)

    def report_missing(self, name: str, signature: StoredSignature, call_options: CallOptions) -> None:
        """Warn about values that only the code of a handler derives from the arguments."""
        present = {name for name, value in call_options._asdict().items() if value is not None}
        if missing := [DERIVED[name] for name in signature.derived if name in DERIVED and name not in present]:
            names = " and ".join(missing)
            self._notify(f"the code of {name} derives {names}, which this task does not have; load the code with -H")

    def _unknown(self, name: str) -> str:
        if self._has_modules:
            require_loaded(name, self._loaded)
        assert self._read is not None  # noqa: S101 - the caller has a database
        warning: str = self._read(handler_warning, name)
        return f"{warning}; the task waits until a runner has it" if warning else ""

    def _notify(self, notice: str) -> None:
        if notice and notice not in self._notices:
            self._notices.add(notice)
            print_stderr(f"runner: {notice}")


def require_loaded(name: str, loaded: Collection[str]) -> None:
    """Refuse a handler that the modules of -H do not have.

    Raises:
        InvalidInput: with the most similar name.
    """
    if name not in loaded:
        similar = suggestion(name, tuple(loaded))
        why = f"no handler named {name!r} in the modules of -H{similar}; correct the name, or submit by name without -H"
        raise InvalidInput(why=why)


NO_REGISTRY = HandlerRegistry()
"""Without a database."""


def find_samples() -> None:
    """Let Python find the package sample_handlers of a wheel; a checkout has it at its top.

    The wheel holds it in a folder of its own, because no module of an application may meet that name by accident.
    """
    folder = Path(__file__).parent.parent / "samples"
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def _from_here() -> Iterator[None]:
    """Search the current directory first for the named modules, and last for all later imports.

    If it stayed first, any file there (queue.py, email.py) would replace a standard module. A file runner.py harms only
    modules that mean to import it: this package is already imported.
    """
    here = str(Path.cwd())
    find_samples()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


EXAMPLES = 5
"""Tasks that are named per handler."""


@dataclass(slots=True)
class PayloadCheck:
    """The check of the tasks of one handler.

    Args:
        known: True if the new code has it.
        tasks: number of checked tasks.
        failures: number of payloads that do not fit.
        examples: the first of them, with the reason.
    """

    handler: str
    known: bool
    tasks: int = 0
    failures: int = 0
    examples: list[str] = field(default_factory=list)


class PayloadReport(NamedTuple):
    """The check of the live tasks against the handlers of a module.

    Args:
        complete: False if only the oldest and the newest of very many tasks were checked.
    """

    module: str
    complete: bool
    handlers: list[PayloadCheck]


async def check_against(module: str, connection: Connection, *, json: bool) -> int:
    """Check the payloads of live tasks against the handlers of a module; return the exit code.

    Args:
        json: print one JSON document.
    """
    settings = connection.settings(handlers=(module,))
    handlers = load_handlers(settings)
    async with open_database(settings) as database:
        checks, complete = await _check(database, handlers, Keyring(settings))
    if json:
        print_json(PayloadReport(module, complete, checks))
    else:
        _print(module, checks, complete=complete)
    return Exit.ERROR if any(item.failures or not item.known for item in checks) else Exit.OK


async def _check(
    database: Database, handlers: Mapping[str, Handler], keyring: Keyring
) -> tuple[list[PayloadCheck], bool]:
    """Check all live tasks, or the oldest and the newest of very many."""
    checks: dict[str, PayloadCheck] = {}
    after, count = 0, 0
    while count < MOST_PAYLOADS:
        rows = await database.read(oldest_payloads, after)
        if not rows:
            return _sorted(checks), True
        for row in rows:
            _check_row(row, handlers, checks, keyring)
        after, count = rows[-1].id, count + len(rows)
    for row in await database.read(newest_payloads, after):
        _check_row(row, handlers, checks, keyring)
    return _sorted(checks), False


def _sorted(checks: Mapping[str, PayloadCheck]) -> list[PayloadCheck]:
    return [checks[name] for name in sorted(checks)]


def _check_row(
    row: PayloadRow, handlers: Mapping[str, Handler], checks: dict[str, PayloadCheck], keyring: Keyring
) -> None:
    handler = handlers.get(row.handler)
    item = checks.setdefault(row.handler, PayloadCheck(row.handler, handler is not None))
    item.tasks += 1
    if handler is None:
        return
    try:
        handler.signature.decode(keyring.opened(row.payload, row.handler, "payload") or row.payload)
    except KeyMissing:  # no reason why the new code would fail
        return
    except (InvalidPayload, Undecodable, CodecFailed) as error:
        item.failures += 1
        if len(item.examples) < EXAMPLES:
            why = error.fields["why"] if isinstance(error, InvalidPayload) else error
            item.examples.append(f"task {row.id}: {why}")


def _print(module: str, checks: list[PayloadCheck], *, complete: bool) -> None:
    total = Counter(fit=sum(item.tasks - item.failures for item in checks if item.known))
    for item in checks:
        name = one_line(item.handler)
        if not item.known:
            print_line(f"✗ {name}: {module} has no such handler, and {count_noun(item.tasks, 'task')} would wait")
        elif item.failures:
            print_line(f"✗ {name}: {item.failures:,} of {count_noun(item.tasks, 'payload')} would fail")
            for example in item.examples:
                print_line(f"    {one_line(example)}")
        else:
            print_line(f"✓ {name}: {count_noun(item.tasks, 'payload')} fit")
    if not checks:
        print_line("No tasks are waiting, blocked or running.")
    elif not complete:
        print_line(f"Sampled: the oldest {MOST_PAYLOADS:,} live tasks and the newest; {total['fit']:,} payloads fit.")
