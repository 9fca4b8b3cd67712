"""The recording of the first page, a session at the shop of `tests.shop`: `python -m tests.recording FILE`.

A runner of its own, whose gateway answers again, executes the retried tasks.
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from tests.tasktui.terminal import Terminal

CAST = Path(__file__).parent.parent / "docs" / "assets" / "console.cast"
SIZE = (120, 40)
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

TOKEN = re.compile(r"\x1b\[([?\d;:]*)([A-Za-z])|([^\x1b])")

HIDE_CURSOR = "\x1b[?25l"

LOOK = 2.2
"""Seconds for which a viewer looks at a screen."""


def main(cast: Path) -> None:
    """Record the session."""
    cast.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "tests.shop", f"{folder}/shop.db"], check=True)
        Path(folder, "shop_tasks.py").write_text(HANDLERS)
        url = f"sqlite:///{folder}/shop.db"
        terminal = Terminal("--url", url, "--record", str(cast), "--theme", "dark", size=SIZE)
        try:
            _session(terminal, lambda: _start(url, folder))
            terminal.ends()
        finally:
            terminal.close()
    _shorten(cast)
    print(cast, cast.stat().st_size)


def _start(url: str, folder: str) -> subprocess.Popen[bytes]:
    """Start a runner, and close the breaker."""
    program = [sys.executable, "-m", "runner"]
    handlers = ["-H", "shop_tasks", "--queues", "payments"]
    runner = subprocess.Popen([*program, "work", "--url", url, *handlers], cwd=folder, stderr=subprocess.PIPE)
    assert runner.stderr is not None
    while b"started on" not in runner.stderr.readline():
        pass
    threading.Thread(target=runner.stderr.read, daemon=True).start()
    close = ["limit", "handler", "payments.charge", "--breaker", "close", "--url", url]
    subprocess.run([*program, *close], check=True, stdout=subprocess.DEVNULL)
    return runner


def _session(terminal: Terminal, start_runner: Callable[[], subprocess.Popen[bytes]]) -> None:
    """Type as an operator would."""
    terminal.sees("NEEDS ATTENTION", "RUN TIME")
    terminal.drains(LOOK)
    terminal.answers(b"w", "will not run again")
    terminal.drains(LOOK)
    terminal.types(b"\x1b")
    terminal.drains(1)
    terminal.answers(b"4", "no answer from paygate", "LATEST")
    terminal.drains(LOOK)
    runner = start_runner()
    try:
        terminal.answers(b"R", "in stages")
        terminal.drains(LOOK)
        for letter in "gateway answers":
            terminal.types(letter.encode())
            terminal.drains(0.06)
        terminal.answers(b"\r", "Type ")
        terminal.drains(0.5)
        terminal.types(b"shop.db")
        terminal.drains(1)
        terminal.types(b"\r")
        terminal.drains(10)
        terminal.answers(b"8", "OPERATIONS")
        terminal.drains(LOOK)
        terminal.answers(b"1", "NEEDS ATTENTION")
        terminal.drains(LOOK)
        terminal.types(b"q")
        terminal.drains(1)
    finally:
        runner.terminate()
        runner.wait()


class _Grid:
    """The cells of the screen, each a sign with its style."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], tuple[str, str]] = {}
        self._row = self._column = 1
        self._style = ""

    def feed(self, output: str) -> None:
        """Draw the output of the console: places, styles, signs and erasures of the screen."""
        for match in TOKEN.finditer(output):
            values, final, sign = match.groups()
            if sign == "\n":
                self._row += 1
            elif sign == "\r":
                self._column = 1
            elif sign:
                self.cells[self._row, self._column] = (sign, self._style)
                self._column += 1
            elif final == "m":
                self._style = "" if values in ("", "0") else values
            elif final == "H":
                row, _, column = values.partition(";")
                self._row, self._column = int(row or 1), int(column or 1)
            elif final == "J":
                self.cells.clear()


def _changed(grid: _Grid, shown: dict[tuple[int, int], tuple[str, str]]) -> str:
    """The output that draws the cells which have changed."""
    parts: list[str] = []
    end, last = (0, 0), ""
    for place, cell in sorted(grid.cells.items()):
        if shown.get(place) == cell:
            continue
        parts += [] if place == end else [f"\x1b[{place[0]};{place[1]}H"]
        parts += [] if cell[1] == last else [f"\x1b[0;{cell[1]}m" if cell[1] else "\x1b[0m"]
        parts.append(cell[0])
        shown[place], end, last = cell, (place[0], place[1] + 1), cell[1]
    return "".join(parts)


def _shorten(cast: Path) -> None:
    """Keep four pictures a second, and of each the cells that have changed."""
    head, *lines = cast.read_text(encoding="utf-8").splitlines()
    grid, kept = _Grid(), [head]
    shown: dict[tuple[int, int], tuple[str, str]] = {}
    events = [(at, text) for at, kind, text in map(json.loads, lines) if kind == "o"]
    for (at, text), following in zip(events, [*events[1:], (float("inf"), "")], strict=True):
        grid.feed(text)
        if int(following[0] * 4 if following[1] else -1) != int(at * 4):
            changed = _changed(grid, shown) if len(grid.cells) > SIZE[0] else ""
            changed = HIDE_CURSOR + changed if changed and len(kept) == 1 else changed
            kept += [json.dumps([round(at, 2), "o", changed], ensure_ascii=False)] if changed else []
    cast.write_text("\n".join(kept) + "\n", encoding="utf-8")
    cast.chmod(0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else CAST)
