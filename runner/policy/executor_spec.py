"""Executor specification: the name and the engine of an external executor, from the setting `executors`."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from runner.errors import InvalidSettings, UnknownExecutor
from runner.handlers.registry import EXECUTOR_NAME, OWN_EXECUTORS, Handler

ENGINES = ("dask", "ray")
"""The engines with an address. Any other specification is the path of a function."""

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

CHOICES = "use dask:ADDRESS, ray:ADDRESS, or package.module:function that returns a concurrent.futures.Executor"


class ExecutorSpec(NamedTuple):
    """One external executor.

    Args:
        engine: `dask`, `ray`, `futures`, or `http` for executors that pull.
        address: the address of the cluster, or the path package.module:function.
    """

    name: str
    engine: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} ({self.address if self.engine == 'futures' else f'{self.engine}:{self.address}'})"


def parse_executors(parts: Sequence[str]) -> dict[str, ExecutorSpec]:
    """Parse the setting `executors`.

    Args:
        parts: such as gpu=dask:tcp://scheduler:8786.

    Raises:
        InvalidSettings: a part is not valid, or a name occurs twice.
    """
    specs: dict[str, ExecutorSpec] = {}
    for part in parts:
        name, equals, text = (each.strip() for each in part.partition("="))
        engine, _, address = text.partition(":")
        if not (equals and EXECUTOR_NAME.fullmatch(name) and name not in (*OWN_EXECUTORS, *specs)):
            why = f"{part!r} does not begin with a new name and =, such as gpu=dask:tcp://scheduler:8786"
        elif engine == "ray" and any(spec.engine == engine for spec in specs.values()):
            why = f"{part!r} is a second cluster of Ray: a process can connect to one"
        elif engine in ENGINES and address:
            specs[name] = ExecutorSpec(name, engine, address)
            continue
        elif engine not in ENGINES and _PATH.fullmatch(text):
            specs[name] = ExecutorSpec(name, "futures", text)
            continue
        else:
            why = f"{text!r} is no engine: {CHOICES}"
        raise InvalidSettings(where="executors", why=why)
    return specs


def external_executors(
    parts: Sequence[str], handlers: Mapping[str, Handler], pulled: Collection[str] = ()
) -> dict[str, ExecutorSpec]:
    """Return the external executors that handlers of a runner use.

    Args:
        parts: the setting `executors`.
        pulled: names of executors that pull over HTTP, which the setting does not have.

    Raises:
        InvalidSettings: the setting is not valid.
        UnknownExecutor: a handler uses an executor that the setting does not name.
    """
    specs = parse_executors(parts) | {name: ExecutorSpec(name, "http", "pull") for name in pulled}
    used: dict[str, ExecutorSpec] = {}
    for handler in handlers.values():
        name = handler.external
        if name is None:
            continue
        if name not in specs:
            known = ", ".join((*OWN_EXECUTORS, *sorted(specs)))
            raise UnknownExecutor(handler=handler.name, executor=name, known=known)
        used[name] = specs[name]
    return used
