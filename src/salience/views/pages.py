"""The elements of HTML pages: self-contained documents, tables and figures. No scripts, no external resources."""

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape

from salience.core.characters import visible

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\u202a-\u202e\u2066\u2067]")
"""Characters that HTML does not allow, and those that reverse the text around them."""


def document(title: str, *parts: str, style: str = "") -> str:
    """A complete page without scripts or external resources. The title must already be escaped."""
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f"{''.join(parts)}\n</main>\n</body>\n</html>\n"
    )
    return FORBIDDEN.sub(lambda match: visible(match[0]), page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, bold: Collection[tuple[int, int]] = ()) -> str:
    """An HTML table. The first cell of each row is its heading; ``bold`` holds (row, column) of other cells."""
    top = "".join(f"<th scope=col>{escape(cell)}</th>" if cell else "<td></td>" for cell in head)
    body = "".join(
        f"<tr><th scope=row>{escape(first)}</th>{''.join(_cell(c, (i, j) in bold) for j, c in enumerate(rest))}</tr>"
        for i, (first, *rest) in enumerate(rows)
    )
    made = f'<table class="report"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide" tabindex="0">{made}</div>'


def _cell(text: str, bold: bool) -> str:
    return f"<td>{f'<b>{escape(text)}</b>' if bold else escape(text)}</td>"


def figure(svg: bytes, *, fills: bool = False) -> str:
    """An SVG image as an HTML figure, in its own size or as wide as the page."""
    return f'<figure class="{"fills" if fills else "wide"}">{svg.decode()}</figure>'


STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; background: #f6f5f2; color: #1c1f24; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1, h2, h3 { font-weight: 600; line-height: 1.25; }
h1 { font-size: 1.6rem; margin: 0 0 1.5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 1rem; }
h3 { font-size: 1.05rem; margin: 2rem 0 .75rem; }
.wide { overflow-x: auto; }
.fills svg { display: block; width: 100%; height: auto; }
.report { border-collapse: collapse; margin: 1rem 0; }
.report th, .report td { padding: .25rem .9rem .25rem 0; text-align: start; border-bottom: 1px solid #8884;
  vertical-align: top; }
.report tbody th { white-space: nowrap; }
.report th { font-weight: 500; }
.report td { font-size: .9rem; font-variant-numeric: tabular-nums; white-space: pre; }
figure { margin: 1rem 0; padding: 1rem; background: #fff; border-radius: 12px; }
@media (prefers-color-scheme: dark) { body { background: #121417; color: #e9eaec; } }
"""
