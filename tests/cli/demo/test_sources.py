from pathlib import Path

import pytest

from runner.cli.demo_round import LIBRARY, SUBSTITUTES, SourceFile, is_complete, library, substitutes


@pytest.mark.slow
def test_every_source_file_of_the_library_is_found_once() -> None:
    sources = library()
    others = {"site-packages", "dist-packages"}
    expected = {path for path in LIBRARY.rglob("*.py") if not others & set(path.relative_to(LIBRARY).parts)}
    assert {source.path for source in sources} == expected
    assert len(sources) == len(expected) > 500


def test_other_peoples_packages_are_left_out(tmp_path: Path) -> None:
    for name in ("json/decoder.py", "site-packages/other.py", "json/decoder.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert library(tmp_path) == [SourceFile(tmp_path / "json/decoder.py", "json/decoder.py")]


def test_the_order_is_mixed_and_always_the_same() -> None:
    names = [source.name for source in library()]
    assert names == [source.name for source in library()] != sorted(names)


def test_a_library_without_broken_files_is_not_complete(tmp_path: Path) -> None:
    assert not is_complete([SourceFile(tmp_path / "test/support.py", "test/support.py")])
    assert is_complete([SourceFile(tmp_path / "bad.py", "test/tokenizedata/bad.py")])


def test_substitutes_stay_where_the_user_keeps_such_things(cache: Path) -> None:
    made = substitutes()
    assert {source.path.parent for source in made} == {cache / "tasktui" / "demo"}
    assert {source.path.name: source.path.read_bytes() for source in made} == SUBSTITUTES


def test_substitutes_find_a_place_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert all(source.path.is_relative_to(tmp_path) and source.path.is_file() for source in substitutes())
