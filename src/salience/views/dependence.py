"""The tokens of an answer that depend on its context, in a terminal."""

from typing import TYPE_CHECKING

from salience.core.characters import visible
from salience.views.sheet import label

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from salience.generation import ContextDependence, Dependent

CUES = 5
"""The most cues that are listed for a token."""


def terminal(result: "ContextDependence", *, width: int = 80) -> "RenderableType":
    """The answer with the dependent tokens underlined, and for each the word without context and its cues."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    count = f"{len(result.dependent)} of {len(result.answer_tokens)} tokens depend on the context"
    rule = f"KL(with context ‖ without) of at least {result.threshold:.2f}, the mean plus one standard deviation"
    parts: list[RenderableType] = [
        Text.assemble((visible(result.model, keep=""), "bold"), (f"   {count}", "dim")),
        Text(),
        Text("answer", "bold"),
        Padding(_answer(result), (0, 0, 0, 2), expand=False),
        Text(),
    ]
    if result.dependent:
        parts += [Padding(_table(result, width - 2), (0, 0, 0, 2), expand=False), Text()]
    method = f"cues by {result.method}: why the token, and not the one without context"
    return Group(*parts, Text(f"  {rule}", "dim"), Text(f"  {method}", "dim"), Text())


def _answer(result: "ContextDependence") -> "Text":
    from rich.text import Text

    chosen, text, at = {one.position for one in result.dependent}, Text(overflow="fold"), 0
    for number, (start, end) in enumerate(result.answer_offsets):
        text.append(visible(result.answer[at : max(at, start)]))
        text.append(visible(result.answer[max(at, start) : end]), "bold underline" if number in chosen else "")
        at = max(at, end)
    return text


def _said(result: "ContextDependence", position: int) -> str:
    """A token of the answer as it reads; one without text, such as the end of the answer, by its name."""
    start, end = result.answer_offsets[position]
    return result.answer[start:end].strip() or result.answer_tokens[position]


def _table(result: "ContextDependence", width: int) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", width=width)
    for name, side in (("token", "left"), ("KL", "right"), ("without context", "left")):
        table.add_column(name, justify=side, no_wrap=True, max_width=20)  # pyright: ignore[reportArgumentType]
    table.add_column("cues in the context", ratio=1)
    for one in result.dependent:
        instead = one.instead.strip() or one.instead
        row = (label(_said(result, one.position)), f"{one.divergence:.2f}", label(instead), _cues(result, one))
        table.add_row(*(Text(cell) for cell in row))
    return table


def _cues(result: "ContextDependence", one: "Dependent") -> str:
    """The strongest cues with their scores; none where the model says the same token without context."""
    named = [f"{label(result.prompt[c.start : c.end].strip())} {c.score:+.2f}" for c in one.cues[:CUES]]
    more = len(one.cues) - CUES
    return ", ".join(named) + (f" and {more} more" if more > 0 else "") or "none"
