"""clipboard: the program that puts a text on the clipboard of this desktop, beside the escape sequence of the terminal.

OSC 52 reaches the terminal of the operator, also over SSH, but some terminals ignore it, and none confirms it.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping
from typing import Any

from textual.app import App

LIMIT = 2.0
"""Seconds that a program may take."""

PROGRAMS = (
    ("TMUX", ("tmux", "load-buffer", "-w", "-")),
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("WSL_DISTRO_NAME", ("clip.exe",)),
    ("", ("pbcopy",)),
)
"""Programs that read a text, each with the variable without which it is not used; pbcopy needs none."""


def programs(environment: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Find the programs to run: that of tmux, and the first one of the desktop. Over SSH, no desktop is here."""
    remote = "SSH_CONNECTION" in environment
    usable = [
        (variable, words)
        for variable, words in PROGRAMS
        if (not variable or environment.get(variable))
        and not (remote and variable != "TMUX")
        and shutil.which(words[0])
    ]
    tmux = [words for variable, words in usable if variable == "TMUX"]
    desktop = [words for variable, words in usable if variable != "TMUX"]
    return [*tmux, *desktop[:1]]


def copy(app: App[Any], text: str) -> None:
    """Copy a text by the terminal, and by the programs unless the application has no terminal."""
    app.copy_to_clipboard(text)
    if not app.is_headless:
        app.run_worker(put(text, os.environ), group="clipboard")


async def put(text: str, environment: Mapping[str, str]) -> None:
    """Pass a text to the programs; a program that fails or takes long changes nothing else."""
    for words in programs(environment):
        with contextlib.suppress(OSError, TimeoutError):
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(LIMIT):
                    await process.communicate(text.encode())
            finally:
                if process.returncode is None:
                    process.kill()
