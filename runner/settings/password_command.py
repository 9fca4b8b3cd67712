"""Password command: a program that prints the password of a database.

Passwords of some servers expire, such as the tokens of a cloud, which are valid for 15 minutes. A connection that fails
runs the program again, at most once a minute; see `runner.db.connector`.
"""

import logging
import shlex
import subprocess
import threading
import time
from typing import NoReturn

from runner.errors import InvalidSettings

logger = logging.getLogger(__name__)

PASSWORD_TIMEOUT = 30.0
"""Seconds allowed for a password command."""


def read_password(command: str, where: str, timeout: float = PASSWORD_TIMEOUT) -> str:
    """Run a program and return the first line of its output as the password.

    Neither its output nor its arguments appear in logs or messages.

    Args:
        command: command line, split as a shell does, but run without a shell.
        where: origin of the command, for messages.
        timeout: seconds until the program is killed.

    Raises:
        InvalidSettings: the program cannot be started, fails, takes too long, or prints no usable password.
    """
    output = read_output(command, where, timeout)
    try:
        password = output.decode().splitlines()[0]
    except UnicodeDecodeError:
        _reject(where, "the program's output is not UTF-8 text")
    except IndexError:
        password = ""
    if not password or not password.isprintable():
        _reject(where, "the first line of the program's output is empty or contains control characters")
    return password


RENEWAL_SECONDS = 60.0
"""Minimum seconds between two runs of a program for the same database."""


class PasswordCommand:
    """A program whose output is the password, and the password that it printed last.

    Args:
        command: command line; see `read_password`.
        where: origin of the command, for messages.

    Raises:
        InvalidSettings: see `read_password`.
    """

    def __init__(self, command: str, where: str) -> None:
        self._command, self._where, self._lock = command, where, threading.Lock()
        self.password = read_password(command, where)
        self._read_at = time.monotonic()
        COMMANDS[self.password] = self

    def renew(self, failed: str) -> str | None:
        """Return a password to try instead of one with which a connection failed. The call blocks.

        Args:
            failed: the password of the connection.

        Returns:
            None if there is no other one, or if the program ran a short time ago.
        """
        with self._lock:
            if self.password != failed:  # another connection has renewed it
                return self.password
            if time.monotonic() - self._read_at < RENEWAL_SECONDS:
                return None
            self._read_at = time.monotonic()
            try:
                self.password = read_password(self._command, self._where)
            except InvalidSettings as error:
                logger.warning("the password cannot be renewed: %s", error)
            return self.password if self.password != failed else None


COMMANDS: dict[str, PasswordCommand] = {}
"""The commands of this process by their first password, which the URLs of its connections carry."""


def read_output(command: str, where: str, timeout: float = PASSWORD_TIMEOUT) -> bytes:
    """Run a program and return its output, which holds a secret; the rest is as for `read_password`."""
    return _output(_arguments(command, where), where, timeout)


def _reject(where: str, why: str) -> NoReturn:
    raise InvalidSettings(where=where, why=why) from None


def _arguments(command: str, where: str) -> list[str]:
    try:
        arguments = shlex.split(command)
    except ValueError:
        _reject(where, "a quotation mark is not closed")
    if not arguments:
        _reject(where, "it is empty")
    return arguments


def _output(arguments: list[str], where: str, timeout: float) -> bytes:
    program = arguments[0]
    # Standard error is dropped too, because it may repeat the secret.
    discard = subprocess.DEVNULL
    try:
        # A process that can write this user's configuration file can run programs as this user anyway.
        with subprocess.Popen(arguments, stdin=discard, stdout=subprocess.PIPE, stderr=discard) as process:  # noqa: S603
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                # Not run(timeout=), which waits for grandchildren that keep the pipe open.
                process.kill()
                _reject(where, f"the program {program} took longer than {timeout:g} seconds")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its arguments contain a NUL"
        _reject(where, f"the program {program} cannot be started: {why}")
    if process.returncode != 0:
        _reject(where, f"the program {program} failed with exit status {process.returncode}; run it by hand to see why")
    return output
