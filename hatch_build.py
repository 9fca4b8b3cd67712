"""Build hook: the package page, whose links and pictures lead to the repository that REPOSITORY_URL names.

README.md has relative links, which a package index does not follow. Without the variable, as in a checkout, the page
stays as it is and has no addresses.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "REPOSITORY_URL"

LINK = re.compile(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)]+)\)")
"""A relative link, or with an exclamation mark a picture."""


class PackagePage(MetadataHookInterface):
    """The fields `readme` and `urls` of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get(VARIABLE, "").rstrip("/"):
            tag = f"v{metadata['version']}"
            text = with_absolute_links(text, repository, tag)
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/add-to-your-project.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Let the links and pictures of a page lead to the files of a tag."""

    def absolute(match: re.Match[str]) -> str:
        mark, words, path = match.groups()
        return f"{mark}[{words}]({repository}/{'raw' if mark else 'blob'}/{tag}/{path})"

    return LINK.sub(absolute, text)
