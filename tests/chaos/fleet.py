"""Fleet: runners and submitters as real processes, to be killed, frozen and revived."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self

from tests.chaos.journal import FOLDER, Event, Journal, read
from tests.programs import Program

TIMEOUT = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two checks of a condition. A check may read every row and every journal."""


class Target(Protocol):
    """A process to be killed or frozen."""

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    def wait(self) -> object: ...
    def send_signal(self, number: signal.Signals) -> None: ...


class Fleet:
    """Processes at work on one database.

    Args:
        url: URL of the database for the processes.
        home: a folder for journals and logs.
        settings: settings of the runners by name.
    """

    def __init__(self, url: str, home: Path, **settings: str) -> None:
        self.url = url
        self.home = home
        self.journals = home / "journals"
        self.journals.mkdir()
        self.journal = Journal(self.journals, "tests")
        self.runners: list[Program] = []
        self.others: list[Program] = []
        """Submitters."""
        self.operators: list[Program] = []
        self.draw_settings: Callable[[], Mapping[str, str]] = dict
        """Draws environment variables for the next runner."""
        self._settings = {f"TASKTUI_{name.upper()}": value for name, value in settings.items()}
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.runners, *self.others, *self.operators]:
            process.kill()
            process.wait()
        self.journal.close()

    def start_runner(self, **environment: str) -> Program:
        """Start a runner.

        Args:
            environment: variables that differ from those of the other runners.
        """
        process = self._start("tests.chaos.work", **{**self.draw_settings(), **environment})
        self.runners.append(process)
        return process

    def start_submitter(
        self, mix: str, seed: int, pause: float = 0.0, interval: float = 0.01, size: int = 1
    ) -> Program:
        """Start a program that submits without end.

        Args:
            mix: a name in MIXES.
            seed: seed of the tasks.
            pause: seconds between a submit and its commit.
            interval: seconds between two submits.
            size: tasks of one submit.
        """
        process = self._start("tests.chaos.submitter", mix, str(seed), str(size), str(pause), str(interval))
        self.others.append(process)
        return process

    def start_operator(self, seed: int, interval: float) -> Program:
        """Start a program that edits and terminates tasks.

        Args:
            seed: seed of its choices.
            interval: seconds between two operations.
        """
        process = self._start("tests.chaos.operator", str(seed), str(interval))
        self.operators.append(process)
        return process

    def revive(self) -> None:
        """Start a runner for each one that has died, as a service manager does."""
        for process in [process for process in self.runners if process.poll() is not None]:
            self.runners.remove(process)
            self.start_runner()

    def kill(self, process: Target) -> None:
        self.journal.write("kill", process.pid)
        process.kill()
        process.wait()
        for group in (self.runners, self.others, self.operators):
            group[:] = [other for other in group if other is not process]

    def freeze(self, process: Target) -> None:
        self.journal.write("freeze", process.pid)
        process.send_signal(signal.SIGSTOP)

    def thaw(self, process: Target) -> None:
        self.journal.write("thaw", process.pid)
        process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Let the runners drain, and wait until they are gone."""
        alive = [process for process in self.runners if process.poll() is None]
        for process in alive:
            process.send_signal(signal.SIGTERM)
        codes = {process.wait(TIMEOUT) for process in alive}
        young = -signal.SIGTERM  # it was still importing and had no tasks
        assert codes <= {0, young}, f"they ended with {codes}; log of the processes:\n{self.log()[-5000:]}"

    def history(self) -> list[Event]:
        return read(self.journals)

    def happened(self, what: str, **data: object) -> list[Event]:
        """The events of a kind with these data."""
        return [event for event in self.history() if event.what == what and data.items() <= event.data.items()]

    def has_ended_one(self) -> bool:
        """True if a body has ended. The journals of submitters, which grow fast, are not read."""
        return any(b'"what": "end"' in path.read_bytes() for path in self.journals.glob("runner-*.jsonl"))

    def log(self) -> str:
        """What all processes have written."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.home.glob("*.log")))

    def until(
        self, condition: Callable[[], bool], between: Callable[[], None] = lambda: None, timeout: float = TIMEOUT
    ) -> None:
        """Wait for a condition, and do something between two checks."""
        give_up, pause = time.monotonic() + timeout, FIRST_PAUSE
        while not condition():
            assert time.monotonic() < give_up, f"waited in vain; log of the processes:\n{self.log()[-5000:]}"
            between()
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _start(self, module: str, *arguments: str, **environment: str) -> Program:
        self._started += 1
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TASKTUI_")}
        own = {**self._database_of(module), FOLDER: str(self.journals), "XDG_CONFIG_HOME": str(self.home)}
        return Program(
            module,
            *arguments,
            log=self.home / f"{self._started:03d}.log",
            directory=self.home,
            environment=inherited | own | self._settings | environment,
        )

    def _database_of(self, module: str) -> Mapping[str, str]:
        """The environment variables that name the database of a program."""
        return {"TASKTUI_URL": self.url}
