"""A minimal terminal emulator: it turns the output of the console into displayed text."""

import codecs
import re
from collections.abc import Iterator

from rich.cells import cell_len

SEQUENCE = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^\[\]]|\r|\n"
)
BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?)?\Z")
"""An incomplete escape sequence."""

COLOUR = re.compile(r"[34]8;(?:2;\d+;\d+;\d+|5;\d+);?")


class Display:
    """A grid of cells and a cursor."""

    def __init__(self) -> None:
        self._cells: dict[int, list[str]] = {}
        self._marks: dict[int, list[bool]] = {}
        self._mark = False
        self._line = self._column = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    @property
    def text(self) -> str:
        """The lines without trailing spaces."""
        last = max(self._cells, default=-1)
        return "\n".join("".join(self._cells.get(line, ())).rstrip() for line in range(last + 1))

    @property
    def marked(self) -> str:
        """The text in bold or reverse video, with spaces for the rest: the current position."""
        cells = ((cell, mark) for line in sorted(self._cells) for cell, mark in self._line_with_marks(line))
        return "".join(cell if mark else " " for cell, mark in cells)

    def _line_with_marks(self, line: int) -> Iterator[tuple[str, bool]]:
        return zip(self._cells[line], self._marks[line], strict=True)

    def feed(self, written: bytes) -> None:
        """Process output."""
        text = self._rest + self._decoder.decode(written)
        begun = BEGUN.search(text)
        end = begun.start() if begun else len(text)
        self._rest = text[end:]
        place = 0
        for match in SEQUENCE.finditer(text, 0, end):
            self._put(text[place : match.start()])
            self._obey(match)
            place = match.end()
        self._put(text[place:end])

    def _put(self, text: str) -> None:
        if not text:
            return
        cells = list(text) if text.isascii() else _cells_of(text)
        line, marks = self._cells.setdefault(self._line, []), self._marks.setdefault(self._line, [])
        end = self._column + len(cells)
        gap = self._column - len(line)
        if gap > 0:
            line += [" "] * gap
            marks += [False] * gap
        line[self._column : end] = cells
        marks[self._column : end] = [self._mark] * len(cells)
        self._column = end

    def _obey(self, match: re.Match[str]) -> None:
        match match["final"] or match[0]:
            case "\r":
                self._column = 0
            case "\n":
                self._line += 1
            case "H":
                line, _, column = (match["parameters"] or "1;1").partition(";")
                self._line, self._column = int(line) - 1, int(column or 1) - 1
            case "J":
                self._cells.clear()
                self._marks.clear()
            case "m":
                kinds = COLOUR.sub("", match["parameters"]).split(";")
                self._mark = bool({"1", "7"} & set(kinds)) or (self._mark and not {"", "0", "22", "27"} & set(kinds))


def _cells_of(text: str) -> list[str]:
    """The characters that have a width, each followed by an empty cell for each further column that it covers."""
    cells = []
    for character in text:
        if width := cell_len(character):
            cells += [character, *[""] * (width - 1)]
    return cells
