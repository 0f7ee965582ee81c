"""Everything that salience raises on purpose. The command turns each into one line and exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class SalienceError(Exception):
    """A mistake that the caller can mend; the message names the remedy."""


class BadInput(SalienceError):
    """A text, label, method or setting that cannot be used."""


class UnsupportedModel(SalienceError):
    """This model lacks what the method needs; a silent answer would be a wrong one."""


class BadModel(SalienceError):
    """The model cannot be loaded, or it returned numbers that mean nothing."""


class NotLearnt(BadModel):
    """Training did not bring the model to what a test of explanations rests on."""


class SalienceWarning(UserWarning):
    """Something that a caller should know, and may want. The command shows each as one line."""


class TruncatedText(SalienceWarning):
    """The model saw only a part of a text."""


class UnfinishedRun(SalienceWarning):
    """Some texts of a data set are not explained yet."""


class DoubtfulRationale(SalienceWarning):
    """What people are said to have marked looks like a mistake."""


def choose(value: object, options: Iterable[str], what: str) -> str:
    """Return ``value`` if it is one of ``options``; otherwise raise, naming the nearest."""
    known = list(options)
    if isinstance(value, str) and value in known:
        return value
    raise BadInput(unknown(value, known, what))


def unknown(value: object, known: Iterable[str], what: str) -> str:
    """The sentence for an unknown name: what came, what is nearest, what there is."""
    names = list(known)
    near = get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {value!r}.{hint} Known: {', '.join(names)}."


def too_long(number: int, limit: int, unseen: Iterable[tuple[int, int]]) -> str:
    """The sentence for a text of which the model sees only a part; without spans, no whole character was lost."""
    places = " and ".join(f"{start} to {end}" for start, end in unseen)
    what = f"characters {places} were" if places else "white space or a part of a character was"
    return f"text {number} is longer than the {limit} tokens that the model can read; {what} not seen"
