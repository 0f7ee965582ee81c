"""What every view shows: the explanations of one text on one sheet, its words or tokens in their places."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isclose
from typing import Any, Literal
from unicodedata import bidirectional, category

from salience.errors import choose
from salience.explanation import Explanation

Level = Literal["word", "token"]
LEVELS = ("word", "token")
LISTED = 6
"""How many labels are listed with their probabilities."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the text with its score, raw and as a share of the strongest; ``name`` if it has no characters."""

    start: int
    end: int
    score: float
    relative: float
    name: str = ""

    def shown(self, text: str) -> str:
        return self.name or text[self.start : self.end]

    def blank(self, text: str) -> bool:
        """Whether it is white space alone, which shows its colour only if something visible stands there."""
        return self.shown(text).isspace()


@dataclass(frozen=True, slots=True)
class Sheet:
    """Explanations of the same number of the same text, in rows; a row of several is one method over layers."""

    rows: tuple[tuple[Explanation, ...], ...]

    @property
    def first(self) -> Explanation:
        return self.rows[0][0]

    @property
    def single(self) -> list[Explanation]:
        """The rows that are one explanation each."""
        return [row[0] for row in self.rows if len(row) == 1]

    @property
    def layered(self) -> list[tuple[Explanation, ...]]:
        """The rows that follow one method through the layers."""
        return [row for row in self.rows if len(row) > 1]

    def title(self, explanation: Explanation) -> str:
        """The method, with those settings that tell it from another row of the same method."""
        settings = ", ".join(f"{k}={explanation.settings[k]}" for k in self.telling(explanation))
        return f"{explanation.method} ({settings})" if settings else explanation.method

    def telling(self, explanation: Explanation) -> list[str]:
        """The settings that tell this row from another of the same method."""
        rivals = [e for e in self.single if e.method == explanation.method]
        return [k for k in explanation.settings if any(e.settings.get(k) != explanation.settings[k] for e in rivals)]


def sheets(explanations: Sequence[Explanation]) -> list[Sheet]:
    """Neighbours that explain the same number of the same text share a sheet; a repeated one starts the next."""
    groups: list[list[Explanation]] = []
    for e in explanations:
        if groups and _same(groups[-1][0], e) and not any(_repeats(e, f) for f in groups[-1]):
            groups[-1].append(e)
        else:
            groups.append([e])
    return [Sheet(tuple(_rows(group))) for group in groups]


def _rows(group: Sequence[Explanation]) -> list[tuple[Explanation, ...]]:
    """One method at ever deeper layers is one row. Other settings may differ, as a method may choose them by layer."""
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
    return (a.text, a.pair_at, a.model, a.target) == (b.text, b.pair_at, b.model, b.target)


def _repeats(a: Explanation, b: Explanation) -> bool:
    return a.method == b.method and dict(a.settings) == dict(b.settings)


def pieces(explanation: Explanation, level: str = "word") -> list[Piece]:
    """Words, or tokens with the special ones among them, in the order of the text."""
    if choose(level, LEVELS, "level") == "word":
        raw = [(w.start, w.end, w.score, "") for w in explanation.words()]
    else:
        raw = list(_tokens(explanation))
    strongest = max((abs(score) for _, _, score, name in raw if not name), default=0.0)
    return [Piece(a, b, s, _relative(s, strongest), name) for a, b, s, name in raw]


def _relative(score: float, strongest: float) -> float:
    return max(-1.0, min(1.0, score / strongest)) if strongest > 0 else 0.0


def _tokens(e: Explanation) -> Iterator[tuple[int, int, float, str]]:
    """Tokens that share characters (the bytes of one emoji) come as one; those without any keep their name."""
    found: list[tuple[int, int, float, str]] = []
    for token, (start, end), score in zip(e.tokens, e.offsets, e.scores, strict=True):
        place = found[-1][1] if found else 0
        if end <= start:
            found.append((place, place, score, token or "∅"))
        elif found and start < place and not found[-1][3]:
            first, _, known, _ = found[-1]
            found[-1] = (first, max(end, place), known + score, "")
        else:
            found.append((max(start, place), end, score, ""))
    yield from found


def notes(explanation: Explanation) -> list[str]:
    """What the reader should know of these scores: the gaps, and whether the model read the whole text."""
    found = [_gap(name, gap, explanation) for name, gap in explanation.gaps.items()]
    if explanation.unseen:
        unread = sum(end - start for start, end in explanation.unseen)
        found.append(f"the model did not read {unread} of the text's {len(explanation.text)} characters")
    return found


def parted(explanation: Explanation, start: int, end: int) -> Iterator[tuple[str, bool]]:
    """A stretch of the text in parts that the model read or did not read; the latter come with True."""
    at = start
    for first, last in explanation.unseen:
        a, b = max(first, at), min(last, end)
        if a < b:
            yield explanation.text[at:a], False
            yield explanation.text[a:b], True
            at = b
    yield explanation.text[at:end], False


SUMS = ("completeness", "conservation", "efficiency")
"""Gaps of a sum of scores from what it should be; they have the unit of the explained number."""
KEPT = 0.05
"""The share of the explained number from which on it is said where lrp's relevance went."""


def _gap(name: str, gap: float, e: Explanation) -> str:
    """A gap beside what it is a share of. A name that is not known here is told with its bare number."""
    strongest = max(map(abs, e.scores), default=0.0)
    if name in SUMS and e.value:
        kept = e.method == "lrp" and name == "conservation" and abs(gap / e.value) > KEPT
        told = f"{name} gap {_percent(gap / e.value)} of the explained number ({gap:+.3g})"
        return f"{told} (biases keep the rest)" if kept else told
    if name == "error" and strongest:
        return f"expected error of a score {_percent(gap / strongest)} of the strongest"
    if name == "fit":
        return f"the fitted line misses {_percent(gap)} of what it was fitted to"
    return f"{name.replace('_', ' ')} gap {gap:+.3g}"


def _percent(share: float) -> str:
    percent = 100 * abs(share)
    return "under 0.01 %" if percent < 0.01 else f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def explained(explanation: Explanation) -> str:
    """Which number is explained, and what it is."""
    target = explanation.target
    against = f" against {label(target.against)}" if target.against is not None else ""
    return f"{target.kind.replace('_', ' ')} of {label(target.label)}{against}"


WEIGHTS = ("attention", "attention_rollout", "attention_flow", "attention_relevance", "value_zeroing")
NORMS = ("gradient", "smooth_grad")
CLIPPED = ("layer_saliency", "attention_x_gradient")
CONTROLS = ("uniform", "position")


def signed(e: Explanation) -> bool:
    """Whether the method says which way a word speaks; norms and attention weights only say how much it mattered.

    It is the method that says so, not the scores: all words may happen to speak for the target. Only a method that is
    not known here is judged by its scores.
    """
    if e.method in (*WEIGHTS, *CONTROLS):
        return False
    if e.method in NORMS:
        return e.settings.get("reduction") == "sum"
    if e.method in CLIPPED:
        return e.settings.get("sign") != "positive"
    return any(score < 0 for score in e.scores) or e.method in _defaults()


def number(e: Explanation, score: float, form: str = ".4g") -> str:
    """A score in digits; a + is written only where it means something."""
    return format(score, f"+{form}" if signed(e) else form)


@dataclass(frozen=True, slots=True)
class Legend:
    """One line of the legend. Each of its two ends is words and a label."""

    signed: bool
    low: tuple[str, str]
    high: tuple[str, str]


def legends(sheet: Sheet) -> list[Legend]:
    """A line for methods that say for or against; one for those that say how much, named if both are there."""
    name = label(sheet.first.target.label)
    heads = [row[0] for row in sheet.rows]
    unsigned = list(dict.fromkeys(e.method for e in heads if not signed(e)))
    if all(map(signed, heads)):
        return [Legend(True, ("against ", name), ("for ", name))]
    if not any(map(signed, heads)):
        return [Legend(False, ("mattered little to ", name), ("much", ""))]
    both = Legend(True, ("against ", name), ("for ", name))
    return [both, Legend(False, (f"{', '.join(unsigned)}: from little", ""), ("to much", ""))]


def is_number(explanation: Explanation) -> bool:
    """Whether the model says numbers, not probabilities: then the explained logit is what it says itself."""
    said, target = explanation.probabilities, explanation.target
    if target.kind != "logit" or target.label not in said:
        return False
    value = said[target.label] - (said.get(target.against, 0.0) if target.against is not None else 0.0)
    return isclose(value, explanation.value, rel_tol=1e-6, abs_tol=1e-9)


def listed(explanation: Explanation) -> tuple[list[tuple[str, float]], int]:
    """The likeliest labels with the explained ones among them, and how many more there are."""
    said: Mapping[str, float] = explanation.probabilities
    ranked = sorted(said.items(), key=lambda item: -item[1])
    asked = (explanation.target.label, explanation.target.against)
    shown = [item for rank, item in enumerate(ranked) if rank < LISTED or item[0] in asked]
    return shown, len(ranked) - len(shown)


def label(name: str) -> str:
    """A label on one line, its outer spaces visible: they tell a language model's tokens apart.

    >>> label(" Paris"), label("\\n\\n")
    ('␣Paris', '⏎⏎')
    """
    if name.isspace():
        return "".join(_SPACES.get(c, "␣") for c in name.replace("\r\n", "\n"))
    inner = name.strip(" ")
    before, after = len(name) - len(name.lstrip(" ")), len(name) - len(name.rstrip(" "))
    return visible("␣" * before + inner + "␣" * after, keep="")


_SPACES = {"\n": "⏎", "\r": "⏎", "\t": "⇥"}


def visible(text: str, keep: str = "\n") -> str:
    """The text with whatever a terminal would obey made visible: control characters, direction marks, lone surrogates.

    >>> visible("a\\x1b[31m")
    'a␛[31m'
    """
    return "".join(c if c in keep else _symbol(c) for c in text)


_JOINERS = "\u200c\u200d"
"""Scripts and emoji are spelled with these; they move nothing else."""


def _symbol(c: str) -> str:
    kind = category(c)
    if c == "\t":
        return "    "
    if kind == "Cc":
        return chr(0x2400 + ord(c)) if ord(c) < 32 else "␡" if ord(c) == 127 else f"⟨{ord(c):02X}⟩"
    if kind == "Cs":
        return "\ufffd"
    if kind in ("Cf", "Zl", "Zp") and c not in _JOINERS and not 0xE0000 <= ord(c) <= 0xE007F:
        return f"⟨{ord(c):04X}⟩"
    return c


def right_to_left(text: str) -> bool:
    """Whether the first letter with a direction runs from right to left."""
    strong = (bidirectional(c) for c in text)
    return next((d != "L" for d in strong if d in ("L", "R", "AL")), False)


COUNTED = ("nodes", "samples")
"""Settings that read better behind their number: 17 nodes."""

SHORT = 70
"""Characters in the line of settings; what does not fit is left to the views that tell all."""


def chosen(sheet: Sheet, e: Explanation) -> str:
    """The settings that are not the defaults, set by the user or chosen by the method, in one short line."""
    defaults = _defaults().get(e.method)
    if defaults is None:
        return ""
    known = sheet.telling(e)
    told = [_setting(k, v) for k, v in e.settings.items() if k not in known and v not in (None, defaults.get(k))]
    while len(" · ".join(told)) > SHORT:
        told.pop()
    return " · ".join(told)


def _setting(name: str, value: object) -> str:
    if name in COUNTED and value != 1:
        return f"{value} {name}"
    return visible(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}", keep="")


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    """The defaults of every known method. Imported late: a stored explanation can be shown without torch."""
    from salience.methods import METHODS
    from salience.settings import settings_of

    return {m.__name__: {name: p.default for name, p in settings_of(m).items()} for m in METHODS}


def plain_settings(explanation: Explanation) -> dict[str, Any]:
    """Settings as they are told to the reader; None reads as the method's own choice."""
    return {k: "chosen by the method" if v is None else v for k, v in explanation.settings.items()}
