"""page: a self-contained HTML page, for a browser, a phone or paper. It loads nothing and runs no script."""

from collections.abc import Sequence

from runner.text.blocks import Block, Words, in_html

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --dim: #59636e; --back: #fff; --line: #d1d9e0; --soft: #f6f8fa;
  --good: #1a7f37; --later: #4b8fd6; --bad: #cf222e; --warn: #9a6700; --slow: #8250df; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --dim: #9198a1; --back: #0d1117; --line: #3d444d; --soft: #151b23;
    --good: #3fb950; --later: #58a6ff; --bad: #f85149; --warn: #d29922; --slow: #bc8cff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 3rem; color: var(--text); background: var(--back);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
p { margin: .5rem 0; }
ul { margin: .5rem 0; padding-left: 1.25rem; overflow-wrap: anywhere; }
.note, figcaption, dt { color: var(--dim); font-size: .85rem; }
code, pre { font: .85em/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .75rem; overflow-x: auto; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.figures div { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; background: var(--soft); }
.figures dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.figures dd.note { font-size: .85rem; }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 600; font-size: .8rem; white-space: nowrap; }
td code { overflow-wrap: break-word; }
td:last-child:not(.number) { min-width: 18rem; }
.number { text-align: right; white-space: nowrap; }
figure { margin: 1rem 0; overflow-x: auto; }
figcaption span { margin-left: 1rem; white-space: nowrap; }
figcaption i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .3rem; }
svg { width: 100%; min-width: 36rem; height: auto; display: block; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); stroke-width: 1; }
.tip { fill: transparent; }
.tip:hover { fill: var(--text); fill-opacity: .08; }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.good { background: var(--good); fill: var(--good); stroke: none; } polyline.good { fill: none; stroke: var(--good); }
.later { background: var(--later); fill: var(--later); } polyline.later { fill: none; stroke: var(--later); }
.bad { background: var(--bad); fill: var(--bad); } polyline.bad { fill: none; stroke: var(--bad); }
.warn { background: var(--warn); fill: var(--warn); } polyline.warn { fill: none; stroke: var(--warn); }
.slow { background: var(--slow); fill: var(--slow); } polyline.slow { fill: none; stroke: var(--slow); }
@media print { body { max-width: none; padding: 0; font-size: 11px; } h2 { break-after: avoid; }
  figure, tr, .figures div { break-inside: avoid; } .scroll, figure, pre { overflow: visible; }
  pre { white-space: pre-wrap; } svg { min-width: 0; }
  * { print-color-adjust: exact; } }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A page that a text from the database could change would still load nothing and run nothing."""


def page(title: Words, blocks: Sequence[Block]) -> str:
    """Write a report as one HTML page."""
    heading, plain = in_html(title), in_html(title if isinstance(title, str) else "".join(title))
    body = "\n".join(block.html() for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{plain}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{heading}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )
