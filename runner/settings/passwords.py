"""Passwords from a program, such as a password manager: never logged, never repeated."""

import shlex
import subprocess
from typing import NoReturn

from runner.errors import InvalidSettings

PASSWORD_TIMEOUT = 30.0
"""Seconds that a password command may take."""


def read_password(command: str, where: str, timeout: float = PASSWORD_TIMEOUT) -> str:
    """Run a program and take the first line it prints for the password.

    What it prints is neither logged nor part of any message, and neither are its arguments.

    Args:
        command: split like a shell does, but run without one.
        where: the place it is written in, for messages.
        timeout: seconds until it is stopped.

    Returns:
        The password.

    Raises:
        InvalidSettings: it cannot be started, fails, takes too long, or prints no usable password.
    """
    output = _output(_arguments(command, where), where, timeout)
    try:
        password = output.decode().splitlines()[0]
    except UnicodeDecodeError:
        _refuse(where, "the program printed something that is not UTF-8 text")
    except IndexError:
        password = ""
    if not password or not password.isprintable():
        _refuse(where, "the program's first line is empty or holds control characters, and so is no password")
    return password


def _refuse(where: str, why: str) -> NoReturn:
    raise InvalidSettings(where=where, why=why) from None


def _arguments(command: str, where: str) -> list[str]:
    try:
        arguments = shlex.split(command)
    except ValueError:
        _refuse(where, "a quotation mark is never closed")
    if not arguments:
        _refuse(where, "it is empty")
    return arguments


def _output(arguments: list[str], where: str, timeout: float) -> bytes:
    program = arguments[0]
    # Its complaints are dropped as well: nobody knows whether they repeat the secret.
    silent = subprocess.DEVNULL
    try:
        # Whoever may write the user's configuration file may run programs as this user anyway.
        with subprocess.Popen(arguments, stdin=silent, stdout=subprocess.PIPE, stderr=silent) as process:  # noqa: S603
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                # Not run(timeout=): it waits for grandchildren that hold the pipe open.
                process.kill()
                _refuse(where, f"the program {program} took longer than {timeout:g} seconds")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its arguments hold a NUL"
        _refuse(where, f"the program {program} cannot be started: {why}")
    if process.returncode != 0:
        _refuse(where, f"the program {program} failed with exit status {process.returncode}; run it by hand to see why")
    return output
