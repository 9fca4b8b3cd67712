"""A minimal terminal emulator: it turns the output of the console into displayed text."""

import codecs
import re

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
        self._cells: dict[tuple[int, int], str] = {}
        self._marked: set[tuple[int, int]] = set()
        self._mark = False
        self._line = self._column = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    @property
    def text(self) -> str:
        """The lines without trailing spaces."""
        last = max((line for line, _ in self._cells), default=-1)
        width = max((column for _, column in self._cells), default=-1) + 1
        lines = ("".join(self._cells.get((line, column), " ") for column in range(width)) for line in range(last + 1))
        return "\n".join(line.rstrip() for line in lines)

    @property
    def marked(self) -> str:
        """The text in bold or reverse video, with spaces for the rest: the current position."""
        return "".join(self._cells[place] if place in self._marked else " " for place in sorted(self._cells))

    def feed(self, written: bytes) -> None:
        """Process output."""
        text = self._rest + self._decoder.decode(written)
        begun = BEGUN.search(text)
        end = begun.start() if begun else len(text)
        self._rest = text[end:]
        place = 0
        for found in SEQUENCE.finditer(text, 0, end):
            self._put(text[place : found.start()])
            self._obey(found)
            place = found.end()
        self._put(text[place:end])

    def _put(self, text: str) -> None:
        for character in text:
            width = cell_len(character)
            self._cells[self._line, self._column] = character
            (self._marked.add if self._mark else self._marked.discard)((self._line, self._column))
            for beyond in range(1, width):
                self._cells[self._line, self._column + beyond] = ""
            self._column += width

    def _obey(self, found: re.Match[str]) -> None:
        match found["final"] or found[0]:
            case "\r":
                self._column = 0
            case "\n":
                self._line += 1
            case "H":
                line, _, column = (found["parameters"] or "1;1").partition(";")
                self._line, self._column = int(line) - 1, int(column or 1) - 1
            case "J":
                self._cells.clear()
            case "m":
                kinds = COLOUR.sub("", found["parameters"]).split(";")
                self._mark = bool({"1", "7"} & set(kinds)) or (self._mark and not {"", "0", "22", "27"} & set(kinds))
