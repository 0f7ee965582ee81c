"""Counterfactuals as marked texts: deleted words in [-…-], new ones in {+…+}, coloured where there are colours."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from salience.core.characters import visible
from salience.core.shares import percent
from salience.core.text import spans
from salience.views.evaluation import plain
from salience.views.html import STYLE, text_of
from salience.views.pages import document, table
from salience.views.sheet import label

if TYPE_CHECKING:
    from rich.console import RenderableType

    from salience.counterfactuals import Counterfactual, Counterfactuals, CounterfactualStudy, Edit

Part = tuple[str, str]
"""A part of the text, and what happened to it: nothing, "old" or "new"."""

Table = tuple[Sequence[str], list[list[str]]]

TITLE = "Counterfactuals"
STUDY = "Words edited until the decision changes"


def parts(text: str, edits: "Sequence[Edit]") -> Iterator[Part]:
    """The original text with its edits, in order."""
    places, end = spans(text), 0
    for edit in sorted(edits):
        start, stop = places[edit.at]
        yield text[end:start], ""
        if edit.kind == "insert":
            yield edit.after, "new"
            yield " ", ""
            end = start
            continue
        yield text[start:stop], "old"
        if edit.after:
            yield edit.after, "new"
        end = stop
    yield text[end:], ""


def headline(one: "Counterfactuals") -> str:
    """The decision, and what was found."""
    goal = label(one.to) if one.to is not None else f"a label other than {label(one.label)}"
    if one.flipped:
        return f"predicted {label(one.label)} ({percent(one.probability, 1)}); edits that lead to {goal}:"
    return f"predicted {label(one.label)} ({percent(one.probability, 1)}); no edit was found that leads to {goal}."


def facts(one: "Counterfactual") -> str:
    """The decision on an edited text, and how much was changed."""
    words = "1 word" if one.changed == 1 else f"{one.changed} words"
    fluency = "" if one.fluency is None else f", log-probability per token {one.fluency:+.2f}"
    return f"{label(one.label)} {percent(one.probability, 1)}: {words} changed ({percent(one.minimality)}){fluency}"


def nearest(one: "Counterfactuals") -> str:
    """What to do where nothing was found."""
    return "nearest, which does not change the decision (allow more edits, other kinds, or a beam search):"


# ------------------------------------------------------------------------------------------------------ terminal


def terminal(one: "Counterfactuals", *, colour: bool) -> "RenderableType":
    """The decision, and every counterfactual with its edits marked."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    head = Text.assemble((visible(one.model, keep=""), "bold"), "   ", headline(one))
    lines: list[RenderableType] = [head, Text()]
    shown = one.results if one.flipped else [n for n in [one.nearest] if n is not None]
    if not one.flipped and shown:
        lines.append(Text(nearest(one)))
    styles = {"old": "red strike", "new": "green bold"} if colour else {}
    for each in shown:
        text = Text(overflow="fold")
        for part, what in parts(one.text, each.edits):
            text.append(_marked(visible(part), what), styles.get(what, ""))
        lines += [Padding(text, (0, 0, 0, 2)), Padding(Text(facts(each), "dim"), (0, 0, 1, 2))]
    return Group(*lines, Text(f"words edited in the order of {visible(one.method, keep='')}", "dim"), Text())


def _marked(text: str, what: str) -> str:
    return f"[-{text}-]" if what == "old" else f"{{+{text}+}}" if what == "new" else text


def study_table(study: "CounterfactualStudy") -> Table:
    """Methods by what their order of words achieves."""
    head = ["", "flipped ↑", "words edited ↓", "against random", "words changed ↓", "log-probability ↑"]
    rows = [
        [
            name,
            str(one.flip_rate),
            str(one.edits),
            "–" if one.against_random is None else f"{one.against_random:.3f}",
            str(one.changed) if one.changed.n else "–",
            str(one.fluency) if one.fluency.n else "–",
        ]
        for name, one in study.results.items()
    ]
    return head, rows


def study_notes(study: "CounterfactualStudy") -> list[str]:
    """What the table shows."""
    clear = [n for n, one in study.results.items() if one.against_random is not None and one.against_random.clear]
    better = [n for n in clear if study.results[n].against_random.mean < 0]  # pyright: ignore
    named = ", ".join(better) if better else "no method"
    rest = [f"Texts without a word that may be edited are left out: {study.left_out}."] if study.left_out else []
    return [
        f"{study.texts} texts, {study.model}; edits: {', '.join(study.edits)}. 95 % intervals of the mean over texts.",
        "flipped: the share of texts whose decision changed. words edited: the share of a text's words edited "
        "in the method's order until the decision changed, all of them if it did not. words changed: the share of all "
        "words, punctuation included, that differs once edits that were not needed are taken back. log-probability: "
        "per token, minus the original's.",
        f"Significantly fewer edits than in random order (max-t over all methods, p ≤ 0.05): {named}.",
        *rest,
    ]


def study_facts(study: "CounterfactualStudy") -> Any:
    """The study as JSON data; undefined values are null."""
    return plain(study.to_dict())


# ------------------------------------------------------------------------------------------------------ pages


def page(every: "Sequence[Counterfactuals]") -> str:
    """A self-contained HTML page without scripts or external resources."""
    return document(TITLE, "\n".join(map(_article, every)), style=STYLE + EDITS)


def fragment(every: "Sequence[Counterfactuals]") -> str:
    """The same as a fragment, for a notebook cell."""
    return f"<div><style>{STYLE}{EDITS}</style>{''.join(map(_article, every))}</div>"


def study_page(study: "CounterfactualStudy") -> str:
    """The table of a data set as a page."""
    notes = "".join(f"<li>{text_of(note)}</li>" for note in study_notes(study))
    return document(STUDY, table(*study_table(study)), f"<ul>{notes}</ul>")


def _article(one: "Counterfactuals") -> str:
    shown = one.results if one.flipped else [n for n in [one.nearest] if n is not None]
    rest = "" if one.flipped or not shown else f'<p class="quiet">{text_of(nearest(one))}</p>'
    items = "".join(
        f'<section><h2>{text_of(label(each.label))}</h2><div><p class="text" dir="auto">'
        f'{marked(one.text, each.edits)}</p><p class="quiet">{text_of(facts(each))}</p></div></section>'
        for each in shown
    )
    return (
        f'<article class="salience counterfactual"><header><p class="quiet">model</p><p class="model">'
        f"<bdi>{text_of(one.model)}</bdi></p></header><p>{text_of(headline(one))}</p>{rest}{items}"
        f'<p class="legend quiet">words edited in the order of {text_of(one.method)}; '
        f"<del>deleted</del>, <ins>new</ins></p></article>"
    )


def marked(text: str, edits: "Sequence[Edit]") -> str:
    """The original text as HTML, with what is deleted and what is new."""
    tags = {"old": "del", "new": "ins"}
    return "".join(
        f"<{tags[what]}>{text_of(part)}</{tags[what]}>" if what else text_of(part) for part, what in parts(text, edits)
    )


EDITS = """
.salience del { background: color-mix(in srgb, var(--against) 45%, transparent); color: var(--ink); }
.salience ins { background: color-mix(in srgb, var(--for) 45%, transparent); color: var(--ink); font-weight: 600;
  margin: 0 .15em; }
"""
"""The style of edits, beside that of explanations."""
