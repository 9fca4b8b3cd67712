"""Passwords from a program such as a password manager; never logged or repeated."""

import shlex
import subprocess
from typing import NoReturn

from runner.errors import InvalidSettings

PASSWORD_TIMEOUT = 30.0
"""Seconds allowed for a password command."""


def read_password(command: str, where: str, timeout: float = PASSWORD_TIMEOUT) -> str:
    """Run a program and return the first line of its output as the password.

    Neither its output nor its arguments appear in logs or messages.

    Args:
        command: command line, split as a shell does, but run without a shell.
        where: origin of the command, for messages.
        timeout: seconds until the program is killed.

    Returns:
        The password.

    Raises:
        InvalidSettings: the program cannot be started, fails, takes too long, or prints no usable password.
    """
    output = _output(_arguments(command, where), where, timeout)
    try:
        password = output.decode().splitlines()[0]
    except UnicodeDecodeError:
        _reject(where, "the program's output is not UTF-8 text")
    except IndexError:
        password = ""
    if not password or not password.isprintable():
        _reject(where, "the first line of the program's output is empty or contains control characters")
    return password


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
