"""hatch_build.py: the links and pictures of the package page lead to the repository."""

import importlib.util
import re
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
