"""The systems of the comparison, and the installation of the packages that they need."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PEERS = Path(__file__).parent / "peers"
NODE_PACKAGES = ("graphile-worker@0.17.3",)
WORKFLOWS = ("steps", "flows", "restart", "restart2", "takeover", "takeover2")
"""The parts of workflows."""


class System(NamedTuple):
    """A row of the tables."""

    name: str
    title: str
    database: str
    """`postgresql` or `sqlite`."""
    script: str
    packages: tuple[str, ...] = ()
    """From PyPI, besides those of this project."""
    most: int = 1_000_000
    """Tasks of a slow system."""
    note: str = ""
    workflows: tuple[str, ...] = ()
    """Its parts of workflows."""
    tasks: bool = True
    """False for a system with no other parts."""

    def has(self, part: str) -> bool:
        """True if a part measures this system."""
        return part in self.workflows if part in WORKFLOWS else self.tasks

    @property
    def in_node(self) -> bool:
        """True for a program in Node."""
        return self.script.endswith(".js")


SYSTEMS = {
    system.name: system
    for system in (
        System("ours", "this project", "postgresql", "ours.py", workflows=WORKFLOWS),
        System("ours-sqlite", "this project, SQLite", "sqlite", "ours.py", workflows=WORKFLOWS),
        System("served", "this project, HTTP executors", "postgresql", "served.py", note="batches of 100"),
        System("graphile", "Graphile Worker", "postgresql", "graphile.js", note="local queue of 500"),
        System(
            "pgqueuer",
            "PGQueuer",
            "postgresql",
            "pgqueuer.py",
            ("pgqueuer==1.6.0",),
            note="batches of 1,000; of 10 for the latency",
        ),
        System(
            "procrastinate",
            "Procrastinate",
            "postgresql",
            "procrastinate.py",
            ("procrastinate==3.10.0",),
            most=5_000,
            note="5,000 tasks at most",
        ),
        System(
            "huey", "Huey", "sqlite", "huey.py", ("huey==3.5.4",), most=20_000, note="no bulk submit; runs at most once"
        ),
        System(
            "dbos",
            "DBOS",
            "postgresql",
            "dbos.py",
            ("dbos==3.4.0",),
            note="only `steps`, `flows` and `restart`: a process takes over workflows of its own name when it starts",
            workflows=("steps", "flows", "restart"),
            tasks=False,
        ),
        System(
            "absurd",
            "absurd",
            "postgresql",
            "absurd.py",
            ("absurd-sdk==0.5.1", "absurdctl==0.5.1"),
            note="only the parts of workflows; `flows` with 16 tasks at a time, polls every 50 ms",
            workflows=WORKFLOWS,
            tasks=False,
        ),
        System(
            "loop", "loop without features", "postgresql", "loop.py", note="500 tasks per claim", workflows=("steps",)
        ),
    )
}


class Home:
    """The folder of installed packages, kept between runs."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "tasktui-benchmarks"

    @property
    def node(self) -> Path:
        """The folder of the packages of Node."""
        return self.folder / "node"

    def command(self, system: System) -> list[str]:
        """The command line of a system, without a verb."""
        script = str(PEERS / system.script)
        if system.in_node:
            return ["node", script]
        return [sys.executable, "-P", script]

    def environment(self, system: System) -> dict[str, str]:
        """The variables that make its packages importable; those of this project come first."""
        paths = [str(PEERS.parent.parent), *([str(self._target(system))] if system.packages else [])]
        return {"PYTHONPATH": os.pathsep.join(paths), "BENCH_NODE": str(self.node)}

    def install(self, system: System) -> str:
        """Install the packages of a system. Returns why it cannot take part, or nothing."""
        if system.in_node:
            if not shutil.which("npm"):
                return "npm is not installed"
            if not (self.node / "node_modules" / "graphile-worker").exists():
                self.node.mkdir(parents=True, exist_ok=True)
                command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.node), *NODE_PACKAGES]
                return _run(command)
        elif system.packages and not self._target(system).exists():
            target = ["--target", str(self._target(system)), *system.packages]
            if shutil.which("uv"):
                return _run(["uv", "pip", "install", "--python", sys.executable, *target])
            return _run([sys.executable, "-m", "pip", "install", *target])
        return ""

    def _target(self, system: System) -> Path:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / f"{system.packages[0]}-python{version}"


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip()[-500:] if done.returncode else ""
