"""Tables on a terminal and in a pipe."""

import pytest

from runner.cli.output import print_table
from runner.text.columns import Column, figure

COLUMNS: tuple[Column[tuple[str, str]], ...] = (
    figure("ID", lambda row: row[0]),
    Column("ERROR", lambda row: row[1]),
)
LONG = "timeout after " + "x" * 300 + " at the end"


def test_a_table_in_a_pipe_has_whole_cells(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    print_table(COLUMNS, [("1", LONG), ("2", "short")])
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["ID", "ERROR"]
    assert first.endswith("at the end")
    assert second.split() == ["2", "short"]


def test_a_table_fits_the_columns_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("1", LONG)])
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())
