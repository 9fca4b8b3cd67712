"""File access: whether users other than this one and root may replace a file, by its folders and links.

The rule is that of OpenSSH for `authorized_keys`: every folder above the file must belong to a trusted user and be
writable by no other one. Links count by their own folder and by their target.
"""

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path

TRUSTED = frozenset({0, os.geteuid()})
"""User ids that may write the file: root and this user."""

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

MOST_LINKS = 40
"""Maximum number of links on a path, as in Linux."""


def replaceable(file: Path) -> str:
    """Find a folder or link through which other users may replace a file.

    Args:
        file: path of an existing file.

    Returns:
        The problem, with advice; empty if there is none.
    """
    # Not resolve(), which would hide the folders of the links.
    path, pending, links = Path("/"), list(reversed(file.absolute().parts[1:])), 0
    while pending:
        if problem := _folder_problem(path):
            return problem
        path = path.parent if pending[-1] == ".." else path / pending[-1]
        del pending[-1]
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            continue
        links += 1
        if links > MOST_LINKS:
            return f"{file} passes more than {MOST_LINKS} links"
        if status.st_uid not in TRUSTED:
            return f"another user owns the link {path}"
        target = path.readlink()
        path = Path("/") if target.is_absolute() else path.parent
        pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return ""


def _folder_problem(folder: Path) -> str:
    status = folder.stat()
    if status.st_uid not in TRUSTED:
        return f"another user owns the folder {folder}"
    # In a sticky folder such as /tmp, only the owner of a file may rename or delete it.
    if not status.st_mode & WRITABLE_BY_OTHERS or status.st_mode & stat.S_ISVTX:
        return ""
    if not status.st_mode & stat.S_IWOTH and _is_own_group(status.st_gid):
        return ""
    return f"they may write the folder {folder}; run chmod go-w {shlex.quote(str(folder))}"


def _is_own_group(group_id: int) -> bool:
    """True for the private group that Debian, Ubuntu and Fedora create for each user: its name, and no other member."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
