"""The content of every view: explanations of one text as a sheet, with scores for its words or tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isclose
from typing import Any, Literal
from unicodedata import bidirectional

from salience.core.characters import visible
from salience.errors import BadInput, choose
from salience.explanations.explanation import SUMS, Explanation, directed
from salience.views.colours import Side, side

Level = Literal["word", "token"]
VIEWS = ("text", "bar", "waterfall")
"""The coloured text; a bar for every score; the scores added up, step by step."""
LEVELS = ("word", "token")
LISTED = 6
"""The number of labels listed with their probabilities."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A span of the text with its score, and the score relative to the strongest; ``name`` if the span is empty."""

    start: int
    end: int
    score: float
    relative: float
    name: str = ""
    signed: bool = True

    def shown(self, text: str) -> str:
        return self.name or text[self.start : self.end]

    def blank(self, text: str) -> bool:
        """Whether it is white space only, which needs a visible symbol to show its colour."""
        return self.shown(text).isspace()


@dataclass(frozen=True, slots=True)
class Sheet:
    """Explanations of the same value of the same text, in rows; a row of several is one method over layers."""

    rows: tuple[tuple[Explanation, ...], ...]

    @property
    def first(self) -> Explanation:
        return self.rows[0][0]

    @property
    def single(self) -> list[Explanation]:
        """The rows with one explanation."""
        return [row[0] for row in self.rows if len(row) == 1]

    @property
    def layered(self) -> list[tuple[Explanation, ...]]:
        """The rows with one method over several layers."""
        return [row for row in self.rows if len(row) > 1]

    def title(self, explanation: Explanation) -> str:
        """The method, with the settings that distinguish it from other rows of the same method."""
        settings = ", ".join(f"{k}={explanation.settings[k]}" for k in self.distinguishing(explanation))
        return visible(f"{explanation.method} ({settings})" if settings else explanation.method, keep="")

    def heading(self, explanation: Explanation) -> str:
        """The title, or for one of several layers the method and its layer."""
        layered = any(explanation in row for row in self.layered)
        one = f"{explanation.method}, layer {explanation.settings['layer']}" if layered else self.title(explanation)
        return visible(one, keep="")

    @property
    def every(self) -> list[Explanation]:
        """All explanations in order."""
        return [e for row in self.rows for e in row]

    def distinguishing(self, explanation: Explanation) -> list[str]:
        """The settings that distinguish this row from others of the same method."""
        rivals = [e for e in self.single if e.method == explanation.method]
        return [k for k in explanation.settings if any(e.settings.get(k) != explanation.settings[k] for e in rivals)]


def sheets(explanations: Sequence[Explanation]) -> list[Sheet]:
    """Group adjacent explanations of the same value of the same text; a repeated explanation starts a new sheet."""
    groups: list[list[Explanation]] = []
    for e in explanations:
        if groups and _same(groups[-1][0], e) and not any(_repeats(e, f) for f in groups[-1]):
            groups[-1].append(e)
        else:
            groups.append([e])
    return [Sheet(tuple(_rows(group))) for group in groups]


def _rows(group: Sequence[Explanation]) -> list[tuple[Explanation, ...]]:
    """Group one method at increasing layers into one row. Other settings may differ, since they can vary by layer."""
    rows: list[tuple[Explanation, ...]] = []
    for e in group:
        if rows and rows[-1][-1].method == e.method and _deeper(rows[-1][-1], e):
            rows[-1] += (e,)
        else:
            rows.append((e,))
    return rows


def _deeper(a: Explanation, b: Explanation) -> bool:
    before, after = a.settings.get("layer"), b.settings.get("layer")
    return isinstance(before, int) and isinstance(after, int) and before < after


def _same(a: Explanation, b: Explanation) -> bool:
    return (a.id, a.text, a.pair_at, a.model, a.target) == (b.id, b.text, b.pair_at, b.model, b.target)


def _repeats(a: Explanation, b: Explanation) -> bool:
    return a.method == b.method and dict(a.settings) == dict(b.settings)


def pieces(explanation: Explanation, level: str = "word") -> list[Piece]:
    """Words, or tokens including special ones, in the order of the text."""
    if choose(level, LEVELS, "level") == "word":
        raw = [(w.start, w.end, w.score, "") for w in explanation.words()]
    else:
        raw = list(_tokens(explanation))
    strongest = max((abs(score) for _, _, score, name in raw if not name), default=0.0)
    return [Piece(a, b, s, _relative(s, strongest), name, signed(explanation)) for a, b, s, name in raw]


def _relative(score: float, strongest: float) -> float:
    return max(-1.0, min(1.0, score / strongest)) if strongest > 0 else 0.0


def _tokens(e: Explanation) -> Iterator[tuple[int, int, float, str]]:
    """Merge tokens that share characters (the bytes of one emoji); tokens without characters keep their name."""
    merged: list[tuple[int, int, float, str]] = []
    for token, (start, end), score in zip(e.tokens, e.offsets, e.scores, strict=True):
        place = merged[-1][1] if merged else 0
        if end <= start:
            merged.append((place, place, score, token or "∅"))
        elif merged and start < place and not merged[-1][3]:
            first, _, known, _ = merged[-1]
            merged[-1] = (first, max(end, place), known + score, "")
        else:
            merged.append((max(start, place), end, score, ""))
    yield from merged


MOST = 20
"""The number of bars of one explanation; weaker scores are added up in one more."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A score drawn from ``low`` to ``high``, both shares of the width; ``side`` is None for totals and 0."""

    name: str
    score: str
    low: float
    high: float
    side: Side | None


def bars(e: Explanation, level: str = "word", view: str = "bar") -> list[Bar]:
    """All scores, the strongest first: as bars from 0, or in a waterfall, each from where the one before it ends."""
    scores = _strongest_first(e, level)
    if choose(view, VIEWS, "view") == "bar":
        return _on_one_scale([(name, number(e, score), 0.0, score, _side(e, score)) for name, score in scores])
    if not signed(e):
        raise BadInput(f"a waterfall adds scores up, but those of {e.method} have no sign; use the view 'bar'")
    rest = e.value - sum(score for _, score in scores)
    rows: list[_Step] = [("rest", f"{rest:+.4g}", 0.0, rest, None)]
    for name, score in scores:
        end = rows[-1][3]
        rows.append((name, number(e, score), end, end + score, _side(e, score)))
    return _on_one_scale([*rows, (explained(e), f"{e.value:.4g}", 0.0, e.value, None)])


def _strongest_first(e: Explanation, level: str) -> list[tuple[str, float]]:
    ranked = sorted(pieces(e, level), key=lambda piece: -abs(piece.score))
    named = [(label(" ".join(p.shown(e.text).split()) or p.shown(e.text)), p.score) for p in ranked[:MOST]]
    others = ranked[MOST:]
    return [*named, (f"{len(others)} other {level}s", sum(p.score for p in others))] if others else named


_Step = tuple[str, str, float, float, Side | None]
"""The name, the score in digits, the beginning and the end of a bar, and its side."""

ROOM = 0.06
"""The least share of the width on either side of 0 where there are scores, so that small ones have a place."""


def _side(e: Explanation, score: float) -> Side | None:
    return side(score, signed(e)) if score else None


def _on_one_scale(rows: Sequence[_Step]) -> list[Bar]:
    """Bars with their ends as shares of the range of all ends."""
    ends = [end for _, _, a, b, _ in rows for end in (a, b)]
    least, most = min(ends, default=0.0), max(ends, default=0.0)
    if least < 0 < most:
        least, most = min(least, -ROOM * (most - least)), max(most, ROOM * (most - least))
    width = most - least or 1.0
    return [
        Bar(name, score, (min(a, b) - least) / width, (max(a, b) - least) / width, side)
        for name, score, a, b, side in rows
    ]


def remarks(e: Explanation, view: str) -> list[str]:
    """The notes below bars: what their sides mean, below a waterfall what its first step is, and on the scores."""
    sides = [f"+ counts for {label(e.target.name)}, - against it"] if signed(e) else []
    if view != "waterfall":
        return [*sides, *notes(e)]
    add_up = any(name in e.gaps for name in SUMS)
    rest = "the value at the baseline" if add_up else f"scores of {visible(e.method, keep='')} need not add up"
    return [f"rest: the explained number minus these scores ({rest})", *sides, *notes(e)]


def notes(explanation: Explanation) -> list[str]:
    """Notes on these scores: their gaps, and how much of the text the model did not read."""
    lines = [_gap(name, gap, explanation) for name, gap in explanation.gaps.items()]
    if explanation.unseen:
        unread = sum(end - start for start, end in explanation.unseen)
        lines.append(f"the model did not read {unread} of the text's {len(explanation.text)} characters")
    return lines


def split_unread(explanation: Explanation, start: int, end: int) -> Iterator[tuple[str, bool]]:
    """Split a span of the text into parts; True marks those that the model did not read."""
    at = start
    for first, last in explanation.unseen:
        a, b = max(first, at), min(last, end)
        if a < b:
            yield explanation.text[at:a], False
            yield explanation.text[a:b], True
            at = b
    yield explanation.text[at:end], False


KEPT = 0.05
"""The share of the explained value above which a conservation gap of lrp is explained."""


def _gap(name: str, gap: float, e: Explanation) -> str:
    """A gap, relative to its reference value where that is known."""
    strongest = max(map(abs, e.scores), default=0.0)
    if name in SUMS and e.value:
        kept = e.method == "lrp" and name == "conservation" and abs(gap / e.value) > KEPT
        text = f"{name} gap {_percent(gap / e.value)} of the explained number ({gap:+.3g})"
        return f"{text} (not every step of lrp conserves relevance)" if kept else text
    # Runs of earlier versions store the estimate of integrated_gradients as "error".
    if strongest and (name == "typical_error" or (name, e.method) == ("error", "integrated_gradients")):
        return f"typical error of a score, not a bound: {_percent(gap / strongest)} of the strongest"
    if name == "error" and strongest:
        return f"error of a score, with 95 % confidence: at most {_percent(gap / strongest)} of the strongest"
    if name == "sink":
        return f"{_percent(gap)} of all scores, in absolute value, on the first token, the attention sink of decoders"
    if name == "fit":
        return f"the linear fit leaves {_percent(gap)} of the variance unexplained"
    return f"{visible(name.replace('_', ' '), keep='')} gap {gap:+.3g}"


def _percent(share: float) -> str:
    percent = 100 * abs(share)
    return "under 0.01 %" if percent < 0.01 else f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def explained(explanation: Explanation) -> str:
    """A description of the explained value."""
    target = explanation.target
    against = f" against {label(str(target.against))}" if target.against is not None else ""
    return f"{target.kind.replace('_', ' ')} of {label(target.name)}{against}"


def identified(e: Explanation) -> tuple[str, str]:
    """The id of the text and its true label, with the prediction where it differs; empty if they are not known."""
    if e.label is None:
        return visible(e.id or "", keep=""), ""
    predicted = max(e.probabilities, key=lambda name: e.probabilities[name], default=e.label)
    wrong = f", predicted: {label(predicted)}" if predicted != e.label and e.label in e.probabilities else ""
    return visible(e.id or "", keep=""), f"label: {label(e.label)}{wrong}"


def signed(e: Explanation) -> bool:
    """Whether the scores have a direction; norms and attention weights only have a magnitude.

    The method determines this, since all scores of a text may happen to be positive.
    """
    return directed(e.signed, e.scores)


def number(e: Explanation, score: float, form: str = ".4g") -> str:
    """A score in digits; a + is written only where it means something."""
    return format(score, f"+{form}" if signed(e) else form)


@dataclass(frozen=True, slots=True)
class Legend:
    """One line of the legend. Each end is a prefix and a label."""

    signed: bool
    low: tuple[str, str]
    high: tuple[str, str]


def legends(sheet: Sheet) -> list[Legend]:
    """One legend for signed methods and one for unsigned ones, which are named if both are present."""
    name = label(sheet.first.target.name)
    heads = [row[0] for row in sheet.rows]
    unsigned = list(dict.fromkeys(e.method for e in heads if not signed(e)))
    if all(map(signed, heads)):
        return [Legend(True, ("against ", name), ("for ", name))]
    if not any(map(signed, heads)):
        return [Legend(False, ("little", ""), ("much; these scores have no sign", ""))]
    both = Legend(True, ("against ", name), ("for ", name))
    return [both, Legend(False, (f"{visible(', '.join(unsigned), keep='')}: from little", ""), ("to much", ""))]


def is_number(explanation: Explanation) -> bool:
    """Whether the model is a regression model, whose output is the explained logit itself."""
    outputs, target = explanation.probabilities, explanation.target
    if target.kind != "logit" or target.name not in outputs:
        return False
    value = outputs[target.name] - (outputs.get(str(target.against), 0.0) if target.against is not None else 0.0)
    return isclose(value, explanation.value, rel_tol=1e-6, abs_tol=1e-9)


def listed(explanation: Explanation) -> tuple[list[tuple[str, float]], int]:
    """The most likely labels, always including the explained ones, and the number of labels left out."""
    outputs: Mapping[str, float] = explanation.probabilities
    ranked = sorted(outputs.items(), key=lambda item: -item[1])
    requested = (explanation.target.label, explanation.target.against)
    shown = [item for rank, item in enumerate(ranked) if rank < LISTED or item[0] in requested]
    return shown, len(ranked) - len(shown)


def label(name: str) -> str:
    """A label on one line with visible outer spaces, which distinguish the tokens of a language model.

    >>> label(" Paris"), label("\\n\\n")
    ('␣Paris', '⏎⏎')
    """
    if name.isspace():
        return "".join(_SPACES.get(c, "␣") for c in name.replace("\r\n", "\n"))
    inner = name.strip(" ")
    before, after = len(name) - len(name.lstrip(" ")), len(name) - len(name.rstrip(" "))
    return visible("␣" * before + inner + "␣" * after, keep="")


_SPACES = {"\n": "⏎", "\r": "⏎", "\t": "⇥"}


def right_to_left(text: str) -> bool:
    """Whether the first character with a strong direction is right-to-left."""
    strong = (bidirectional(c) for c in text)
    return next((d != "L" for d in strong if d in ("L", "R", "AL")), False)


COUNTED = ("nodes", "samples")
"""Settings that are shown as a count, such as 17 nodes."""

SHORT = 70
"""The maximum length of the line of settings; HTML pages list all of them."""


def chosen(sheet: Sheet, e: Explanation) -> str:
    """The settings that differ from the defaults, set by the user or chosen by the method, in one short line."""
    defaults = _defaults().get(e.method)
    if defaults is None:
        return ""
    known = sheet.distinguishing(e)
    parts = [_setting(k, v) for k, v in e.settings.items() if k not in known and v not in (None, defaults.get(k))]
    while len(" · ".join(parts)) > SHORT:
        parts.pop()
    return " · ".join(parts)


def _setting(name: str, value: object) -> str:
    if name in COUNTED and value != 1:
        return f"{value} {name}"
    return visible(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}", keep="")


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    """The defaults of every method. Imported late, so that stored explanations can be shown without torch."""
    from salience.core.settings import settings_of
    from salience.methods import METHODS

    return {m.__name__: {name: p.default for name, p in settings_of(m).items()} for m in METHODS}


def plain_settings(explanation: Explanation) -> dict[str, Any]:
    """Settings for display; None is shown as chosen by the method."""
    return {k: "chosen by the method" if v is None else v for k, v in explanation.settings.items()}
