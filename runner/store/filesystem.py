"""filesystem: refuse a SQLite file where its locks do not hold, before it is opened."""

import os
import re
from pathlib import Path

from runner.errors import UnsafeFile

MOUNTS = Path("/proc/self/mountinfo")
MOUNT_POINT = 4
"""Its place among the fields of a line."""

NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "vboxsf"})
NETWORK_FUSE = frozenset(
    [
        "curlftpfs",
        "davfs",
        "davfs2",
        "gcsfuse",
        "glusterfs",
        "goofys",
        "gvfsd-fuse",
        "rclone",
        "s3fs",
        "smbnetfs",
        "sshfs",
        "vmhgfs-fuse",
    ]
)
"""Programs behind FUSE that reach another machine; many others (overlays, encryption, NTFS) serve a local disk."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """Find the type of the file system that a path lies on.

    Args:
        path: absolute, and without symbolic links.
        mountinfo: the text of /proc/self/mountinfo, as proc_pid_mountinfo(5) describes it.

    Returns:
        Its type, such as ext4, nfs4 or fuse.sshfs; None when no mount point leads to the path.
    """
    longest, found = "", None
    for line in mountinfo.split("\n"):
        mount, dash, source = line.partition(" - ")
        fields = mount.split(" ")
        if not dash or len(fields) <= MOUNT_POINT:
            continue
        point = _unescaped(fields[MOUNT_POINT])
        # What was mounted later on the same point hides what was there.
        if len(point) >= len(longest) and _is_below(path, point):
            longest, found = point, source.split(" ")[0]
    return found


def is_remote(filesystem: str) -> bool:
    """Tell whether a type of file system reaches over a network, or out of a virtual machine."""
    kind, _, program = filesystem.partition(".")
    return filesystem in NETWORK or (kind == "fuse" and program in NETWORK_FUSE)


def refuse_remote(file: str) -> None:
    """Refuse a file that lies on a network mount; where /proc does not tell, nothing is refused.

    Args:
        file: its path, which need not exist yet.

    Raises:
        UnsafeFile: it lies on one.
    """
    filesystem = filesystem_of(os.path.realpath(file), read_mounts())
    if filesystem is not None and is_remote(filesystem):
        raise UnsafeFile(path=file, filesystem=filesystem)


def read_mounts() -> str:
    """The mounts that this process sees; empty on systems without /proc."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")  # as paths are decoded
    except OSError:
        return ""


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def identity(path: str | Path) -> tuple[int, int]:
    """Which file stands at a path: another one that is put in its place has another identity.

    Raises:
        FileNotFoundError: none does.
    """
    found = Path(path).stat()
    return found.st_dev, found.st_ino
