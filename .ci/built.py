"""Check the built site: it loads nothing from other hosts, examples are code, and the search knows other words."""

import json
import re
import sys
from pathlib import Path

SITE = Path(__file__).parent.parent / "build" / "site"
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc="(https?:)?//|<link[^>]*\shref="(?:https?:)?//[^>]*stylesheet"""
)
IN_STYLES = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//""")
EXAMPLES = 10
"""The docstrings with examples, at least."""

SOUGHT = (
    *("worker", "job", "cron job", "periodic", "dead letter", "workflow", "DAG", "idempotent", "autoscaling", "Docker"),
    *("Flask", "beat", "broker", "canvas", "countdown", "exactly once", "Kubernetes", "result backend", "worker pool"),
)
"""Words that people type into the search; the page of other words has each of them."""

PROMPT = re.compile(r"<p>(?:<[^>]+>)*(?:&gt;){3}|<blockquote>\s*<blockquote>")


def faults(page: Path) -> list[str]:
    """The faults of a page."""
    text = page.read_text(encoding="utf-8")
    found = [f"loads {match[0]}" for match in LOADED.finditer(text)]
    return found + [f"an example that is not code: {match[0]}" for match in PROMPT.finditer(text)]


def main() -> None:
    """Print the faults of all pages."""
    pages = sorted(SITE.rglob("*.html"))
    found = [f"{page.relative_to(SITE)}: {fault}" for page in pages for fault in faults(page)]
    found += [
        f"{style}: loads from another host" for style in SITE.rglob("*.css") if IN_STYLES.search(style.read_text())
    ]
    index = json.loads((SITE / "search" / "search_index.json").read_text())["docs"]
    words = [section["text"] for section in index if section["location"].startswith("other-words.html")]
    texts = re.sub(r"<[^>]+>", "", " ".join(words)).lower()
    found += [f"the search finds no page for {word!r}" for word in SOUGHT if word.lower() not in texts]
    examples = sum(page.read_text().count("Examples:</span>") for page in pages)
    if not pages or examples < EXAMPLES:
        found.append(f"{len(pages)} pages, {examples} examples")
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
