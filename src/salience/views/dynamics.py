"""Views of training followed: lines for the terminal, charts, an HTML page with a slider for each text, JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from itertools import cycle
from math import isnan
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import salience
from salience.core.characters import visible
from salience.core.shares import percent
from salience.core.stats import Estimate
from salience.views import plots
from salience.views.colours import LIGHT, hexadecimal, ink, shade
from salience.views.evaluation import plain
from salience.views.pages import chart, document, listed, settings_table, table
from salience.views.plots import Axis, Line
from salience.views.schemes import BLUE, CYCLE, ORANGE, SOFT

if TYPE_CHECKING:
    from salience.dynamics import Dynamics, Flow, FollowedText, Order

TITLE = "How attention came to be"
COLUMNS = 4
"""Steps that the terminal shows of each text."""
DRAWN = 24
"""The most words of a text that a chart shows."""


# ------------------------------------------------------------------------------------------------------ in words


def sentences(result: "Dynamics") -> list[str]:
    """What was found, in words."""
    lines = _order(result.order) if result.order.texts else ["No text has a keyword and another word to compare."]
    unknown = dict.fromkeys(text.tokens[i] for text in result.followed.texts[: result.asked] for i in text.unknown)
    if unknown:
        lines.append(f"Not in the vocabulary, so all read as the same unknown word: {', '.join(unknown)}.")
    return [visible(line) for line in lines]


def _order(order: "Order") -> list[str]:
    """Whether relevance or attention comes first, and the steps of both."""
    r, a = order.relevance, order.attention
    never = [one.name for one in (r, a) if one.first is None]
    answers = {
        True: "Relevance separates keywords from other words before attention does",
        False: "Attention separates keywords from other words before relevance does",
        None: "Whether relevance or attention separates keywords first is not clear: "
        + (f"{' and '.join(never)} never {'do' if never[1:] else 'does'}" if never else _WHY),
    }
    above = [f"Above chance by ranks, relevance is {_from(r.first)} and attention {_from(a.first)}."]
    return [
        f"{answers[order.relevance_first]}, over {order.texts} texts.",
        *(above if len(never) < 2 else ()),
        _halves("ranks", r.half, a.half, order.lag),
        _halves("size", r.half_size, a.half_size, order.lag_size),
    ]


_WHY = "the criteria differ, or their intervals include 0"


def _halves(by: str, relevance: Estimate, attention: Estimate, lag: Estimate) -> str:
    """The steps at which both are half-way to what they are at the end, if they separate keywords at all then."""
    missing = [name for name, e in (("relevance", relevance), ("attention", attention)) if isnan(e.mean)]
    if missing:
        return f"By {by}, {' and '.join(missing)} {'do' if missing[1:] else 'does'} not separate keywords at the end."
    return (
        f"By {by}, relevance is half-way at step {_steps(relevance)} and attention at step {_steps(attention)}, a lag "
        f"of {_steps(lag)} steps."
    )


def _from(step: int | None) -> str:
    return "never" if step is None else f"from step {step:,} on"


def _steps(e: Estimate) -> str:
    """A step between recorded ones; the first steps with a decimal."""
    if isnan(e.mean):
        return "–"
    form = ".1f" if abs(e.mean) < 10 else ".0f"
    return f"{e.mean:{form}}" if isnan(e.low) else f"{e.mean:{form}} [{e.low:{form}}, {e.high:{form}}]"


def heading(result: "Dynamics") -> str:
    """What was trained."""
    last = result.followed.steps[-1]
    steps = "1 step" if last == 1 else f"{last:,} steps"
    return (
        f"{TITLE}: a classifier trained on {result.texts:,} texts of {result.data} for {steps}, accuracy "
        f"{percent(result.accuracy.mean, 1)} on {result.accuracy.n} others"
    )


def terminal(result: "Dynamics") -> RenderableType:
    """What was trained, then relevance and attention of the words that were asked for, at a few steps."""
    parts: list[RenderableType] = [Text(visible(heading(result)), style="bold")]
    for text in result.followed.texts[: result.asked]:
        label = visible(result.followed.labels[text.explained])
        legend = Text(f"relevance r for {label}, and attention a, after these steps", style="dim")
        parts += [Text(""), Text(visible(text.text), style="bold"), legend, _words(result, text)]
    return Group(*parts, Text(""))


def _words(result: "Dynamics", text: "FollowedText") -> Table:
    """One row per word: relevance for the explained label and attention, from the first step to the last."""
    steps = result.followed.steps
    shown = sorted({i * (len(steps) - 1) // (COLUMNS - 1) for i in range(COLUMNS)})
    words = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    words.add_column("\n", no_wrap=True)
    for what in "ra":
        for i in shown:
            words.add_column(f"{what}\n{steps[i]:,}", justify="right", no_wrap=True, min_width=len(f"{steps[i]:,}"))
    for t, token in enumerate(text.tokens):
        r, a = ([f"{x[i, t]:{form}}" for i in shown] for x, form in ((text.relevance, "+.2f"), (text.attention, ".3f")))
        words.add_row(Text(visible(token)), *(Text(number, no_wrap=True) for number in (*r, *a)))
    return words


def to_json(result: "Dynamics") -> dict[str, Any]:
    """The whole result; undefined numbers are null."""
    facts = {
        "data": result.data,
        "trained_on": result.texts,
        "accuracy": asdict(result.accuracy),
        "steps": list(result.followed.steps),
        "labels": list(result.followed.labels),
        "order": asdict(result.order) | {"relevance_first": result.order.relevance_first},
        "texts": [_text_json(text) for text in result.followed.texts[: result.asked]],
        "summary": sentences(result),
        "settings": {key: value if isinstance(value, int) else asdict(value) for key, value in result.settings.items()},
        "salience": salience.__version__,
    }
    return plain(facts)


def _text_json(text: "FollowedText") -> dict[str, Any]:
    return {
        "text": text.text,
        "tokens": list(text.tokens),
        "unknown": list(text.unknown),
        "label": text.explained,
        "attention": text.attention.tolist(),
        "relevance": text.relevance.tolist(),
        "probabilities": text.probabilities.tolist(),
    }


# ------------------------------------------------------------------------------------------------------ charts


STEPS = Axis("step (square root scale)", scale="sqrt")
"""Steps are drawn further apart at the beginning of training."""


def words_charts(steps: Sequence[int], text: "FollowedText", label: str) -> str:
    """Relevance of each word against the step, above attention of each word."""
    most = sorted(sorted(range(len(text.tokens)), key=lambda t: -float(text.attention[:, t].max()))[:DRAWN])
    names = {
        t: f"{text.tokens[t]} ({t + 1})" if text.tokens.count(text.tokens[t]) > 1 else text.tokens[t] for t in most
    }
    hues = dict(zip(most, cycle(CYCLE), strict=False))
    shown: list[str] = []
    for values, title in ((text.relevance, f"relevance for {label}"), (text.attention, "attention")):
        series = [Line(visible(names[t]), list(steps), values[:, t].tolist(), hues[t]) for t in most]
        made = plots.svg(plots.lines(series, STEPS, Axis(visible(title)), height=240))
        shown.append(chart(made, f"{visible(title)} of each word by step", plots.numbers(series, "step")))
    return "".join(shown)


def order_chart(order: "Order") -> str:
    """How far relevance and attention separate keywords from other words, with intervals, against the step."""
    courses = (order.relevance, order.attention, order.shuffled_relevance, order.shuffled_attention)
    hues = (ORANGE, BLUE, ORANGE, BLUE)
    series = [
        Line(
            course.name,
            list(order.steps),
            [e.mean for e in course.by_step],
            hue,
            dashed=number > 1,
            low=[e.low for e in course.by_step] if number < 2 else (),
            high=[e.high for e in course.by_step] if number < 2 else (),
        )
        for number, (course, hue) in enumerate(zip(courses, hues, strict=True))
    ]
    y = "P(keyword has grown more than another word)"
    made = plots.svg(plots.lines(series, STEPS, Axis(y)))
    return chart(made, f"{y}, by step", plots.numbers(series, "step"))


def flow_chart(flow: "Flow") -> Any:
    """Relevance of a filler and a keyword, and attention to the keyword, of the two-token flow."""
    courses = (
        ("relevance of the filler, b₀", flow.b0, SOFT),
        ("relevance of the keyword, b₁", flow.b1, ORANGE),
        ("attention, p", flow.p, BLUE),
    )
    times = [float(t) for t in flow.t]
    series = [Line(name, times, [float(v) for v in course], hue) for name, course, hue in courses]
    return plots.themed(plots.lines(series, Axis("time"), Axis(""), width=420, height=260))


# ------------------------------------------------------------------------------------------------------ a page


def page(result: "Dynamics") -> str:
    """A self-contained HTML page without scripts: the answer, its chart, and a slider and charts for each text."""
    texts = result.followed.texts[: result.asked]
    rows = [
        (name, "–" if course.first is None else f"{course.first:,}", _steps(course.half), _steps(course.half_size))
        for name, course in (("relevance", result.order.relevance), ("attention", result.order.attention))
    ]
    return document(
        escape(TITLE),
        f"<p>{escape(heading(result).removeprefix(TITLE + ': '))}. Created with salience {salience.__version__}.</p>",
        listed(sentences(result)),
        *(_section(result, number, text) for number, text in enumerate(texts)),
        f"<h2>Which comes first?</h2><p>{escape(EXPLAINED)}</p>",
        order_chart(result.order),
        table(("", "above chance from step", "half-way by ranks at step, 95 % interval", "half-way by size"), rows),
        f"<h2>Settings</h2>{settings_table(result.settings)}",
        style=_STYLE + "".join(_frame_rules(len(result.followed.steps))),
    )


EXPLAINED = (
    "Keywords are the words of a text that speak most for its label in a logistic regression on the words of the "
    "training texts; the followed model has no part in their choice. A curve at ½ does not separate them from other "
    "words. Half-way by ranks is the step at which a curve has come half of the way from ½ to its end; half-way by "
    "size the step at which the difference between keywords and other words is half of what it is at the end. As a "
    "control, as many words of each text are drawn at random."
)


def _section(result: "Dynamics", number: int, text: "FollowedText") -> str:
    label = result.followed.labels[text.explained]
    moving = slider(result.followed.steps, text, label, number)
    return f"<h2>{escape(visible(text.text))}</h2>{moving}{words_charts(result.followed.steps, text, label)}"


def slider(steps: Sequence[int], text: "FollowedText", label: str, number: int = 0) -> str:
    """One text through training: a row of steps, of which the arrow keys choose one, and the words at that step.

    The colour of a word is its relevance, the bar below it its attention. Its rules are those of the page.
    """
    strongest = float(abs(text.relevance).max()) or 1.0
    buttons = "".join(
        f'<input type="radio" name="step{number}" id="s{number}-{i}" class="i{i}" aria-label="step {step}"'
        f"{' checked' if i == len(steps) - 1 else ''}>"
        for i, step in enumerate(steps)
    )
    frames = "".join(
        f'<div class="frame f{i}"><p class="when">step {step:,}, P({escape(visible(label))}) = '
        f"{float(text.probabilities[i, text.explained]):.2f}</p><p>"
        f"{''.join(_word(text, i, t, strongest) for t in range(len(text.tokens)))}</p></div>"
        for i, step in enumerate(steps)
    )
    legend = (
        f"Orange words speak for {label}, blue ones against it; bars are attention. Choose a step with the mouse or "
        "with the arrow keys."
    )
    return (
        f'<fieldset class="slider"><legend>{escape(visible(legend))}</legend>{buttons}'
        f'<div class="frames">{frames}</div></fieldset>'
    )


def _word(text: "FollowedText", step: int, token: int, strongest: float) -> str:
    r, a = float(text.relevance[step, token]), float(text.attention[step, token])
    ground = shade(r / strongest, LIGHT)
    return (
        f'<span class="word" title="relevance {r:+.3f}, attention {a:.3f}">'
        f'<span style="background:{hexadecimal(ground)};color:{hexadecimal(ink(ground))}">'
        f'{escape(visible(text.tokens[token]))}</span><i style="width:{100 * a:.1f}%"></i></span> '
    )


def _frame_rules(steps: int) -> list[str]:
    """Show the frame of the chosen step."""
    return [f".slider .i{i}:checked ~ .frames .f{i} {{ display: block; }}" for i in range(steps)]


_STYLE = """
.slider { border: 1px solid #8884; border-radius: 12px; margin: 1rem 0; padding: .75rem 1rem; }
.slider legend { font-size: .85rem; padding: 0 .4rem; }
.slider input { margin: 0 .1rem; width: .9rem; height: .9rem; }
.frame { display: none; }
.when { font-variant-numeric: tabular-nums; margin: .75rem 0 .25rem; }
.word { display: inline-block; margin: 0 .1rem .5rem; vertical-align: top; }
.word > span { display: block; padding: .1rem .35rem; border-radius: 4px; }
.word > i { display: block; height: 5px; min-width: 1px; margin-top: 3px; background: #2f6fab; border-radius: 2px; }
"""
