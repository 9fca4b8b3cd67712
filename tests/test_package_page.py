"""The package page, whose links and pictures lead to the repository, and the release that publishes it."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.pages import PROJECT, README


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", PROJECT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(hook: ModuleType) -> dict[str, Any]:
    metadata: dict[str, Any] = {"version": "0.1.0"}
    hook.PackagePage(str(PROJECT), {}).update(metadata)
    return metadata


def test_links_and_pictures_lead_to_the_files_of_the_tag(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOSITORY_URL", "https://example.org/tasktui/")
    metadata = page(hook)
    assert metadata["urls"]["Source"] == "https://example.org/tasktui"
    targets = re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])
    assert all(target.startswith(("https://", "http://", "#")) for target in targets), targets
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", metadata["readme"]["text"])
    assert pictures
    for picture in pictures:
        path = picture.removeprefix("https://example.org/tasktui/raw/v0.1.0/")
        assert (PROJECT / path).is_file(), picture
    links = [link.partition("#")[0] for link in targets if "/blob/" in link]
    for link in links:
        assert (PROJECT / link.removeprefix("https://example.org/tasktui/blob/v0.1.0/")).is_file(), link


def test_without_the_variable_the_page_is_the_readme(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPOSITORY_URL", raising=False)
    metadata = page(hook)
    assert metadata["readme"]["text"] == README.read_text()
    assert "urls" not in metadata


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed tree whose version has its heading in the changelog."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(PROJECT / ".ci" / "publish", tmp_path / ".ci")
    shutil.copy(README, tmp_path)
    shutil.copytree(PROJECT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.svg", "*.cast"))
    (tmp_path / "pyproject.toml").write_text('version = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [0.1.0] - 2026-12-01\n")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_release_names_each_page_that_calls_it_not_yet_published(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOSITORY_URL", "https://example.org/tasktui")
    done = subprocess.run([".ci/publish", "--dry-run"], cwd=tree, capture_output=True, text=True, check=False)
    named = done.stderr.partition("not yet on PyPI: ")[2].split()
    mentions = [page for page in (tree / "docs").glob("*.md") if "on PyPI" in page.read_text()]
    assert done.returncode == 1
    assert sorted(named) == sorted(["README.md", *(f"docs/{page.name}" for page in mentions)])
