"""Measure the built site in Chromium, if it is installed: no page, table and line of code is wider than its place.

A page of its own loads every page of the site into frames as wide as a desktop and as a phone. On the desktop,
tables fit without scrolling, and lines of code without a wrap.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread

SITE = Path(__file__).parent.parent / "build" / "site"
DESKTOP, PHONE = 1280, 390
"""Pixels of CSS."""

FEWEST_BLOCKS = 100
"""Blocks of code of the site, at least."""

RESULTS: Queue[tuple[int, list[str]]] = Queue()

MEASURE = """<!doctype html><body><script>
const pages = PAGES, found = [];
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  const loaded = new Promise(done => frame.onload = done);
  frame.src = page;
  document.body.append(frame);
  await loaded;
  const shown = frame.contentDocument;
  for (const tab of shown.querySelectorAll(".tabbed-block")) tab.style.display = "block";
  const wide = shown.documentElement.scrollWidth;
  if (wide > width) found.push(`${page}: ${wide} pixels on a screen of ${width}`);
  if (width === DESKTOP) {
    for (const table of shown.querySelectorAll(".md-typeset__scrollwrap"))
      if (table.scrollWidth > table.clientWidth + 1)
        found.push(`${page}: a table is ${table.scrollWidth - table.clientWidth} pixels too wide`);
    for (const code of shown.querySelectorAll("pre > code")) {
      code.style.whiteSpace = code.closest(".doc-signature") ? "" : "pre";
      if (code.scrollWidth > code.clientWidth + 1)
        found.push(`${page}: ${code.scrollWidth - code.clientWidth} pixels too wide: ${code.textContent.slice(0, 60)}`);
    }
  }
  frame.remove();
  return shown.querySelectorAll("pre > code").length;
}
(async () => {
  let blocks = 0;
  for (const page of pages) for (const width of [DESKTOP, PHONE]) blocks += await measure(page, width);
  await fetch("/measure", {method: "POST", body: JSON.stringify([blocks, found])});
})();
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """The site, and the page that measures it."""

    def do_GET(self) -> None:
        """Answer with a file, or with the measuring page."""
        if self.path != "/measure":
            return super().do_GET()
        values = {"PAGES": json.dumps([*names()]), "DESKTOP": str(DESKTOP), "PHONE": str(PHONE)}
        content = re.sub(r"\b(PAGES|DESKTOP|PHONE)\b", lambda name: values[name[1]], MEASURE).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(content)
        return None

    def do_POST(self) -> None:
        """Take the result of the measuring page."""
        RESULTS.put(tuple(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Requests are not printed."""


class Server(ThreadingHTTPServer):
    """A server without a traceback for each connection that the browser closes early."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Errors are closed connections."""


def names() -> Iterator[str]:
    """The pages by their paths in the site."""
    return (f"/{page.relative_to(SITE)}" for page in sorted(SITE.rglob("*.html")))


def main() -> None:
    """Print what does not fit."""
    if not (chromium := shutil.which("chromium")):
        sys.exit(print("chromium is not installed: the width of pages is not measured"))
    server = Server(("127.0.0.1", 0), partial(Handler, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        address = f"http://127.0.0.1:{server.server_port}/measure"
        command = [chromium, *options, f"--user-data-dir={profile}", address]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as browser:  # noqa: S603 - the installed browser
            try:
                blocks, found = RESULTS.get(timeout=300)
            finally:
                browser.terminate()
    if blocks < FEWEST_BLOCKS:
        found.append(f"{blocks} blocks of code were measured")
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
