"""The recordings of the documentation, of a real console at the shop of `tests.shop`: `python -m tests.casts`.

A scene whose texts do not appear ends the program with an error.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests import shop
from tests.tasktui.terminal import Terminal

DOCS = Path(__file__).parent.parent / "docs"

READ, TYPE = 1.6, 0.06
"""Seconds in which a viewer reads a screen, and between two typed letters."""

MOMENT = 0.25
"""Seconds of the outputs that a recording joins."""

KEYS = {"enter": b"\r", "escape": b"\x1b", "down": b"\x1b[B", "ctrl+x": b"\x18", "tab": b"\t"}


@dataclass(frozen=True)
class Scene:
    """A recording.

    Args:
        steps: keys, `=texts` that are typed letter by letter, `?texts` for which the next step waits, and RUNNER.
        production: a profile of production, which begins read-only.
        size: columns and rows of the terminal.
    """

    steps: tuple[str, ...]
    production: bool = False
    size: tuple[int, int] = (100, 30)


RUNNER = "&runner"
"""The step that starts a runner whose gateway answers again, and closes the breaker."""

HANDLERS = """
import time
from typing import Any
from runner import handler


def answered(**order: Any) -> str:
    time.sleep(0.01)
    return "charged"


for name in ("payments.charge", "payments.refund", "payments.capture"):
    handler(name, queue="payments", breaker="20/1m")(answered)
"""


CAUSE = ("?Overview", "4", "?no answer from paygate")
RETRY = (*CAUSE, "R", "?in stages")
CONFIRMED = (*RETRY, "=paygate answers again", "enter", "=shop", "enter", "?waiting for 1")
SCENES = {
    "console": Scene(
        (
            *("?RUN TIME", "w", "?will not run again", "escape", *CAUSE, RUNNER, "R", "?in stages"),
            *("=paygate answers again", "enter", "=shop", "enter", "?waiting for 1", "?✓ 1,890"),
            *("8", "?OPERATIONS", "1", "?NEEDS ATTENTION"),
        ),
        size=(120, 40),
    ),
    "canary": Scene(CONFIRMED),
    "why": Scene(
        (
            "?WAIT, LAST",
            "w",
            "?will not run again",
            "enter",
            "?Runs again",
            "w",
            "?Why is",
            "escape",
            "escape",
            "?WAIT, LAST",
        )
    ),
    "failures": Scene((*CAUSE, "down", "?LATEST", "s", "?LAST 24 H", "o", "enter", "?failure:")),
    "undo": Scene((*CONFIRMED, "ctrl+x", "8", "?paygate answers", "Z", "?Undo")),
    "lock": Scene(
        (
            *("?READ-ONLY", "4", "?no answer from paygate", "R", "?read-only", ":", "=write 10m paygate is back"),
            *("enter", "?WRITE", "R", "?in stages", "escape", ":", "=lock", "enter", "?READ-ONLY"),
        ),
        production=True,
    ),
}
"""The scene of each recording."""


@contextmanager
def _runner() -> Iterator[None]:
    """A runner of the shop, as in RUNNER."""
    Path("shop_tasks.py").write_text(HANDLERS)
    program, profile = [sys.executable, "-m", "runner"], ["--profile", "shop", "--config", "tasktui.toml"]
    work = [*program, "work", *profile, "--handlers", "shop_tasks", "--queues", "payments"]
    with Path("runner.log").open("wb") as log, subprocess.Popen(work, stderr=log) as process:
        try:
            while b"started on" not in Path("runner.log").read_bytes():
                time.sleep(0.05)
            close = ["limit", "handler", "payments.charge", "--breaker", "close"]
            subprocess.run([*program, *close, *profile], check=True, stdout=subprocess.DEVNULL)
            yield
        finally:
            process.terminate()


def _step(terminal: Terminal, step: str, background: ExitStack) -> None:
    """Do a step at the pace of a person."""
    if step == RUNNER:
        background.enter_context(_runner())
        return
    match step[0], step[1:]:
        case "?", text if text:
            terminal.sees(text)
            terminal.drains(READ)
        case "=", text if text:
            for letter in text:
                terminal.types(letter.encode())
                terminal.drains(TYPE)
            terminal.drains(READ / 2)
        case _:
            terminal.types(KEYS.get(step, step.encode()))
            terminal.drains(READ / 2)


def record(name: str, folder: Path) -> Path:
    """Record a scene into a folder."""
    scene, path = SCENES[name], folder / f"{name}.cast"
    path.unlink(missing_ok=True)
    shop.NOW = datetime.now(UTC)
    asyncio.run(shop.main(Path("shop.db")))
    production = f"production = {str(scene.production).lower()}"
    Path("tasktui.toml").write_text(f'[profiles.shop]\nurl = "sqlite:///shop.db"\n{production}\n')
    terminal = Terminal("--profile", "shop", "--config", "tasktui.toml", "--record", str(path), size=scene.size)
    with ExitStack() as background:
        background.callback(terminal.close)
        for step in scene.steps:
            _step(terminal, step, background)
        terminal.drains(READ)
    shrink(path, scene.size[1])
    path.chmod(0o644)
    return path


SGR = re.compile(r"\x1b\[([0-9;]*)m")


def smaller(text: str) -> str:
    """An output in which each style is set once, where it begins."""
    parts, style, shown = SGR.split(text), "", ""
    output = [parts[0]]
    for code, part in zip(parts[1::2], parts[2::2], strict=True):
        style = "" if code in ("", "0") else f"{style};{code}".strip(";")
        if part and style != shown:
            output.append(f"\x1b[0;{style}m" if style else "\x1b[m")
            shown = style
        output.append(part)
    return "".join(output) + ("\x1b[m" if shown else "")


def changed(text: str, rows: dict[int, str]) -> str:
    """An output without the rows that are on the screen already.

    Args:
        rows: the outputs of whole rows on the screen, by line; they are updated.
    """
    first, *parts = re.split(r"(?=\x1b\[\d+;\d+H)", text)
    output = [first]
    for part in parts:
        line, column = map(int, re.findall(r"\d+", part)[:2])
        if column > 1 or rows.get(line) != (part := part.rstrip("\n")):
            rows[line] = part if column == 1 else ""
            output.append(part)
    return "".join(output)


def shrink(path: Path, height: int) -> None:
    """Join the outputs of a moment, and forget those that a whole screen of a number of rows hides at once."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    moments: list[tuple[float, str]] = []
    for at, _, text in map(json.loads, lines):
        last = moments[-1] if moments else (-1.0, "")
        if at - last[0] > MOMENT:
            moments.append((at, text))
        else:
            whole = text.startswith("\x1b[1;1H") and text.count("\n") >= height - 1
            moments[-1] = (last[0], text if whole and len(moments) > 1 else last[1] + text)
    rows: dict[int, str] = {}
    outputs = [(at, smaller(changed(text, rows))) for at, text in moments]
    events = [json.dumps([round(at, 2), "o", text], ensure_ascii=False) for at, text in outputs if text]
    path.write_text("\n".join([header, *events, ""]), encoding="utf-8")


def main(folder: Path, names: list[str]) -> None:
    """Record scenes, all of them unless some are named."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or SCENES:
        with tempfile.TemporaryDirectory() as scratch, chdir(scratch):
            path = record(name, folder)
        print(path, f"{path.stat().st_size:,} bytes")


if __name__ == "__main__":
    os.environ |= {"LOGNAME": "ana", "TZ": "UTC"}
    time.tzset()
    main(Path(sys.argv[1]).absolute() if sys.argv[1:] else DOCS / "casts", sys.argv[2:])
