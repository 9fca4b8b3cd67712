"""Code on the screen: tracebacks with the frames of libraries folded, and JSON with colours."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len

from runner.text import formatting
from runner.text.redact import mask
from runner.text.sanitize import count_noun
from tasktui.render.render import block, line
from tasktui.render.rows import BLANK, Part, Row, fit, wrapped

FRAME = re.compile(r'^\s*File "(?P<path>.*?)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
CHAINED = re.compile(
    r"\n*(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n*"
)
LIBRARY = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>", "/runner/engine/")
"""Parts of the paths of frames that are not the application's."""

MARKERS = re.compile(r"^\s*[\^~]+\s*$")
"""A line below the code that underlines its failing part."""

TOKEN = re.compile(
    r"(?P<json_string>[fbr]?\"[^\"]*\"|[fbr]?'[^']*')"
    r"|(?P<json_number>\b\d[\d_.]*\b)"
    r"|(?P<json_literal>\b(?:and|as|async|await|def|class|del|elif|else|except|for|from|if|import|in|is|lambda|not|or"
    r"|pass|raise|return|try|while|with|yield|None|True|False)\b)"
    r"|(?P<json_key>\b\w+(?=\())"
)
JSON_TOKEN = re.compile(
    r"(?P<json_key>\"(?:[^\"\\]|\\.)*\"(?=\s*:))|(?P<json_string>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<json_number>-?\b\d[\d.eE+-]*)|(?P<json_literal>\b(?:true|false|null)\b)|(?P<muted>[{}\[\],:]+)"
)
MOST_OF_MESSAGE = 8
"""Rows of a message that is folded."""

PATH_PARTS = 3
"""Folders of a path that are shown, from its end."""


class StackFrame(NamedTuple):
    """A frame of a traceback.

    Args:
        path: file of the code.
        code: the line of code; empty if the traceback has none.
    """

    path: str
    line: str
    function: str
    code: str

    @property
    def is_library(self) -> bool:
        """True if the frame is not the application's."""
        return any(part in self.path for part in LIBRARY)

    @property
    def package(self) -> str:
        """The package of a library frame."""
        parts = self.path.replace("\\", "/").split("/")
        for root in ("site-packages", "dist-packages"):
            if root in parts and parts.index(root) + 1 < len(parts):
                return parts[parts.index(root) + 1].removesuffix(".py")
        return "Python"


def highlighted(code: str, pattern: re.Pattern[str] = TOKEN) -> list[Part]:
    """Colour the tokens of a sanitized line."""
    parts: list[Part] = []
    place = 0
    for token in pattern.finditer(code):
        if token.start() > place:
            parts.append((code[place : token.start()], "text"))
        parts.append((token[0], token.lastgroup or "text"))
        place = token.end()
    return [*parts, (code[place:], "text")]


def error_rows(
    error_type: str, message: str, trace: str | None, width: int, *, reveal: bool, unfold: bool
) -> list[Row]:
    """An error with its whole message, and its traceback.

    Args:
        trace: the traceback; None if there is none.
        width: cells.
        reveal: show secrets.
        unfold: show all of a long message, and the frames of libraries.
    """
    first, *others = [text for text in block(mask(message, reveal=reveal)).splitlines() if text.strip()] or [""]
    title = [(formatting.brief(error_type), "bold dead"), (f": {first}" if first else "", "strong")]
    rows = [row for part in (title, *([(text, "text")] for text in others)) for row in wrapped(part, width)]
    if not unfold and (hidden := len(rows) - MOST_OF_MESSAGE) > 0:
        rows = [*rows[:MOST_OF_MESSAGE], [(f"{count_noun(hidden, 'more line')} of it, f unfolds", "italic faint")]]
    if not trace:
        return rows
    blocks = CHAINED.split(block(mask(trace, reveal=reveal)))
    frames = list(_frames(blocks[-1]))
    if not frames:
        return [*rows, *(fit([(text, "text")], width) for text in blocks[-1].splitlines())]
    rows += [BLANK, *_frame_rows(frames, width, unfold=unfold)]
    for cause in reversed(blocks[:-1]):
        last = next((text for text in reversed(cause.splitlines()) if text.strip()), "")
        name, colon, rest = last.strip().partition(":")
        rows += [BLANK, *wrapped([("caused by ", "muted"), (name, "retrying"), (f"{colon}{rest}", "text")], width)]
    return rows


def _frames(trace: str) -> Iterator[StackFrame]:
    lines = trace.splitlines()
    for index, text in enumerate(lines):
        if match := FRAME.match(text):
            following = lines[index + 1] if index + 1 < len(lines) else ""
            code = "" if FRAME.match(following) or MARKERS.match(following) else following.strip()
            yield StackFrame(
                match["path"], match["line"], match["function"] or "", code if following[:1] == " " else ""
            )


def _frame_rows(frames: Sequence[StackFrame], width: int, *, unfold: bool) -> Iterator[Row]:
    own = [frame for frame in frames if not frame.is_library]
    failing = own[0] if own else frames[-1]
    hidden: list[StackFrame] = []
    for frame in frames:
        if frame.is_library and not unfold and own:
            hidden.append(frame)
            continue
        yield from _folded(hidden)
        hidden = []
        folder = "/".join(frame.path.split("/")[-PATH_PARTS:])
        location: list[Part] = [(folder, "text"), (":", "faint"), (frame.line, "json_number")]
        function = [(" in ", "faint"), (frame.function, "json_key")] if frame.function else []
        yield fit([*location, *function], width)
        if frame.code and frame is failing:
            marked = [("▌", "dead"), (f"{frame.line:>5}   ", "bold dead on tint_dead")]
            code = [(text, f"{spec} on tint_dead") for text, spec in highlighted(frame.code)]
            yield fit([*marked, *code, (" " * width, "on tint_dead")], width)
        elif frame.code:
            yield fit([(f"{frame.line:>6}   ", "faint"), *highlighted(frame.code)], width)
    yield from _folded(hidden)


def _folded(hidden: Sequence[StackFrame]) -> Iterator[Row]:
    if hidden:
        packages = list(dict.fromkeys(frame.package for frame in hidden))
        names = line(" and ".join(packages[:3]), 60)
        number = f"{len(hidden)} frame{'' if len(hidden) == 1 else 's'}"
        yield [(f"{number} of {names} folded, f unfolds", "italic faint")]


def payload_rows(value: Any, width: int, most: int | None = None) -> list[Row]:
    """Decoded JSON over several lines, with colours.

    Args:
        value: the value, redacted.
        width: cells.
        most: maximum number of rows, before long lists and objects in an object are folded; None for all.
    """
    lines = block(json.dumps(value, indent=2, ensure_ascii=False)).split("\n")
    if most is None or len(lines) <= most:
        return [fit(highlighted(text, JSON_TOKEN), width) for text in lines]
    rows = [highlighted(text, JSON_TOKEN) for text in lines] if not isinstance(value, dict) else _members(value, width)
    hidden = [(f"{len(rows) - most:,} more lines, f unfolds", "italic faint")] if len(rows) > most else []
    return [*(fit(row, width) for row in rows[:most]), *([hidden] if hidden else [])]


def _members(value: dict[str, Any], width: int) -> list[list[Part]]:
    """An object with a line for each member; a member that does not fit into its line is folded."""
    rows = [highlighted("{", JSON_TOKEN)]
    for place, (key, member) in enumerate(value.items(), 1):
        name, comma = line(json.dumps(key, ensure_ascii=False)), "," if place < len(value) else ""
        text = line(json.dumps(member, ensure_ascii=False), 2 * width)
        if isinstance(member, list | dict) and cell_len(name) + cell_len(text) + 5 > width:
            left, right = "[]" if isinstance(member, list) else "{}"
            fold = (f" {count_noun(len(member), 'item')}, f unfolds ", "italic faint")
            rows.append([*highlighted(f"  {name}: {left}", JSON_TOKEN), fold, *highlighted(right + comma, JSON_TOKEN)])
        else:
            rows.append(highlighted(f"  {name}: {text}{comma}", JSON_TOKEN))
    return [*rows, highlighted("}", JSON_TOKEN)]


def payload_line(value: Any, width: int) -> Row:
    """Decoded JSON in one line."""
    return fit(highlighted(line(json.dumps(value, ensure_ascii=False), 2 * width), JSON_TOKEN), width)
