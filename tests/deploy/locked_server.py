"""A PostgreSQL server that asks for a password, and the secrets of containers for it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.postgres import Server, find_programs

PASSWORD = "correct horse"

HANDLERS = """
import time
from pathlib import Path
from runner import handler

@handler("shop.pack")
def pack() -> str:
    return "packed"

@handler("shop.hold")
def hold() -> None:
    Path("started").touch()
    while not Path("go").exists():
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    """A server that asks its role `shop` for a password; `postgres` needs none."""
    if (programs := find_programs()) is None:
        pytest.skip("no PostgreSQL")
    with Server(programs) as server:
        rules = server.home / "data" / "pg_hba.conf"
        rules.write_text(f"host all shop 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(server.url(), autocommit=True) as owner:
            owner.execute(f"CREATE ROLE shop LOGIN PASSWORD '{PASSWORD}'".encode())
            owner.execute("CREATE DATABASE shop OWNER shop")
            owner.execute("SELECT pg_reload_conf()")
        yield server


def url_of(server: Server) -> str:
    """The URL of the role that needs a password, without it."""
    return server.url("shop").replace("postgres@", "shop@")


def mounted(folder: Path, **secrets: str) -> Path:
    """A folder of secrets as Kubernetes mounts it: the file is read-only, behind two links."""
    version = folder / "secrets" / "..2026_11_28_06_30_00.123"
    version.mkdir(parents=True)
    (version.parent / "..data").symlink_to(version.name)
    for name, text in secrets.items():
        (version / name).write_text(text)
        (version / name).chmod(0o440)
        (version.parent / name).symlink_to(Path("..data", name))
    return version.parent


def environment_of(folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a container: our programs, no home, and nothing of this user."""
    (folder / "shop").mkdir(exist_ok=True)
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "tasks.py").write_text(HANDLERS)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(["", *filter(None, [os.environ.get("PYTHONPATH")])]),
    } | variables
