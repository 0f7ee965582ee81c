"""Called by mkdocs: tidies what docstrings need for tools but readers of the reference do not."""

import re

FLAG = re.compile(r'\s*<span class="c1"># doctest: [^<]*</span>')
ROLE = re.compile(r":(?:func|class|meth|mod):(?=<code>)")


def on_page_content(html: str, **_: object) -> str:
    """Remove flags of doctest, and the roles of Sphinx in front of names."""
    return ROLE.sub("", FLAG.sub("", html))
