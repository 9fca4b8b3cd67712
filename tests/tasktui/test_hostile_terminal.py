"""The bytes that a console writes while its screens and dialogs show hostile texts."""

from collections.abc import Iterable
from unicodedata import category

import pytest
from rich.cells import cell_len

from runner.db.database import Database
from tasktui.render.render import line
from tasktui.screens import MODES
from tests.conftest import SqliteDatabases, on_postgresql
from tests.databases import use
from tests.store.every_operation import all_rows
from tests.tasktui.hostile import CORPUS, MARK, fill
from tests.tasktui.terminal import Terminal, escapes, text

SIZE = (110, 45)
INVISIBLE = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Unicode categories of invisible or active characters: controls, formats, unassigned, private, separators."""

ALL = "".join(CORPUS.values())
FEW = [*list(CORPUS.values())[::4], ALL]
"""Every text is in the task that has all of them; the screens also show some on their own."""

HELP = "─ Keys of "
ATTEMPTS = "─ ATTEMPTS"
"""The heading of a panel that only the task screen has."""
DOWN, ESCAPE = b"\x1b[6~", b"\x1b"
DIALOGS = {
    b"T": "Terminate 1 task?",
    b"R": "Retry 1 task?",
    b"D": "Delay 1 task?",
    b"P": "Resume queue",
    b"E": "as you saw it: version",
    b"Z": "Undo edit of",
}
"""The keys that open a dialog on a task, and a text that only this dialog shows."""


DOING_SOMETHING = [hostile for hostile in CORPUS.values() if any(category(sign) in INVISIBLE for sign in hostile)]


def inert(hostile: str) -> str:
    """Return a harmless text of the same width."""
    return MARK.ljust(cell_len(line(hostile)), "-")


def filled(url: str, texts: Iterable[str]) -> list[int]:
    """Write texts to a database and return the ids of their tasks."""

    async def work(database: Database) -> list[int]:
        return [await fill(database, text) for text in texts]

    return use(url, work)


def clicks() -> bytes:
    """Click at many positions in the middle of the screen."""
    places = [(column, row) for row in range(4, SIZE[1] - 4, 5) for column in (20, 60)]
    return b"".join(b"\x1b[<0;%d;%dM\x1b[<0;%d;%dm" % (*place, *place) for place in places)


def console_output(url: str, ids: Iterable[int]) -> bytes:
    """Return the bytes that a console writes on every screen and in every dialog of these tasks."""
    console = Terminal("--url", url, size=SIZE)
    try:
        console.sees(MARK)
        for id in ids:
            console.answers(b":task %d\r" % id, f"  {id}  ", ATTEMPTS, MARK)
            console.types(clicks())
            for key, title in DIALOGS.items():
                console.answers(key, title, MARK)
                console.types(clicks())
                console.answers(ESCAPE, f"  {id}  ", no=title)
        for mode in MODES.values():
            console.goes(mode.key, mode.title)
            console.sees(MARK)
            console.answers(DOWN + b"?", HELP)
            console.answers(ESCAPE, MARK, no=HELP)
        console.types(b"q")
        assert console.ends() == 0
    finally:
        console.close()
    return console.output


def assert_harmless(output: bytes, harmless: bytes) -> None:
    """Check that the output has the same escape bytes as the output for harmless texts."""
    assert [hostile for hostile in DOING_SOMETHING if hostile.encode() in output] == []
    assert escapes(output) <= escapes(harmless)
    left = {character for character in text(output) if category(character) in INVISIBLE}
    assert left <= set("\r\n"), ascii(left)


@pytest.fixture(scope="module")
def harmless(sqlite: SqliteDatabases, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes that a console writes for inert texts of the same widths."""
    url = sqlite.migrated(tmp_path_factory.mktemp("harmless"))
    *_, last = filled(url, map(inert, FEW))
    return console_output(url, [last])


@pytest.mark.slow
@on_postgresql
def test_hostile_texts_write_nothing_that_harmless_ones_do_not(migrated_url: str, harmless: bytes) -> None:
    *_, last = filled(migrated_url, FEW)
    before = use(migrated_url, all_rows)
    assert_harmless(console_output(migrated_url, [last]), harmless)
    assert use(migrated_url, all_rows) == before


@pytest.mark.slow
def test_each_hostile_text_does_nothing_in_any_dialog(migrated_url: str, harmless: bytes) -> None:
    ids = filled(migrated_url, CORPUS.values())
    before = use(migrated_url, all_rows)
    assert_harmless(console_output(migrated_url, ids), harmless)
    assert use(migrated_url, all_rows) == before


@pytest.mark.slow
def test_an_escape_sequence_that_slips_through_is_found(harmless: bytes) -> None:
    for hostile in DOING_SOMETHING:
        with pytest.raises(AssertionError):
            assert_harmless(harmless + hostile.encode(), harmless)
