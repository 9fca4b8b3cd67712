"""Mount namespaces: folders that are read-only, full, hidden or of another user, for one test alone."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.conftest import Deployment

UNSHARE = ["unshare", "--mount", "--propagation", "private"]

USER = 54_321
"""A user id without an entry."""


def _is_allowed() -> bool:
    try:
        return os.getuid() == 0 and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_namespaces = pytest.mark.skipif(
    not _is_allowed(), reason="only root may make a mount namespace and become another user"
)


def private_ancestor(path: Path) -> Path | None:
    """The first folder of a path that other users may not enter."""
    return next((each for each in reversed((path, *path.parents)) if not each.stat().st_mode & 0o001), None)


def in_namespace(deployment: Deployment, script: str, *mounts: str, user: int | None = None) -> str:
    """A shell script in a mount namespace of its own, after some commands that mount.

    Args:
        deployment: its processes.
        script: the script.
        mounts: the commands.
        user: the user id of the script; the interpreter and the folder of the test become visible to it.
    """
    lines = []
    if user is not None:
        code = Path(__file__).parents[2]
        paths = [Path(sys.base_prefix), Path(sys.prefix), code, deployment.folder]
        moves = {path: ancestor for path in paths if (ancestor := private_ancestor(path))}
        lines.append("mount -t tmpfs none /mnt")
        for number, path in enumerate(moves):
            lines.append(f"mkdir /mnt/{number}; mount --bind {shlex.quote(str(path))} /mnt/{number}")
        for ancestor in sorted(set(moves.values())):
            lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(ancestor))}")
        for number, path in enumerate(moves):
            lines.append(f"mkdir -p {shlex.quote(str(path))}; mount --move /mnt/{number} {shlex.quote(str(path))}")
        subprocess.run(["chown", "-R", f"{user}:{user}", deployment.folder], check=True)
        deployment.folder.chmod(0o755)
        script = f"exec setpriv --reuid={user} --regid={user} --clear-groups sh -c {shlex.quote(script)}"
    # The working directory is that of the new mounts.
    lines += [*mounts, f"cd {shlex.quote(str(deployment.folder))}", script]
    return f"exec {' '.join(UNSHARE)} sh -ec {shlex.quote(chr(10).join(lines))}"


def own_shared_memory(folder: Path) -> tuple[str, ...]:
    """Commands that give a mount namespace a small /dev/shm of its own, in which the folder of the test stays."""
    return (
        "mkdir -p /mnt; mount -t tmpfs none /mnt; mkdir /mnt/folder",
        f"mount --bind {folder} /mnt/folder; mount -t tmpfs -o size=64k,mode=1777 none /dev/shm",
        f"mkdir -p {folder}; mount --move /mnt/folder {folder}",
    )
