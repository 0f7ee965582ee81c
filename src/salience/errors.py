"""The exceptions and warnings of salience. The command line prints an error as one line and exits with code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class SalienceError(Exception):
    """Base class of all errors that the caller can fix; the message says how."""


class BadInput(SalienceError):
    """A text, label, method or setting that cannot be used."""


class UnsupportedModel(SalienceError):
    """The model lacks what the method needs, so that scores would be wrong."""


class BadModel(SalienceError):
    """The model cannot be loaded, or its output is NaN or infinite."""


class NotLearnt(BadModel):
    """The model did not learn what a test of explanations relies on."""


class Diverged(BadModel):
    """The loss of a training, or its gradient, is not a number."""


class SalienceWarning(UserWarning):
    """Base class of all warnings. The command line prints each as one line."""


class TruncatedText(SalienceWarning):
    """The text was truncated: the model did not see all of it."""


class ImpreciseScores(SalienceWarning):
    """The scores of a text are no larger than rounding errors."""


class UnfinishedRun(SalienceWarning):
    """Some texts of a data set are not explained yet."""


class UnknownLabel(SalienceWarning):
    """Texts have labels that are not among the model's."""


class DamagedRun(SalienceWarning):
    """Parts of a run are missing or changed, and are made again."""


class DoubtfulRationale(SalienceWarning):
    """A human rationale looks like a mistake in the data."""


NAMES_ELSEWHERE = {
    "ig": "integrated_gradients",
    "intgrad": "integrated_gradients",
    "saliency": "gradient",
    "grad": "gradient",
    "vanilla_gradient": "gradient",
    "ixg": "input_x_gradient",
    "gxi": "input_x_gradient",
    "gradient_x_input": "input_x_gradient",
    "shap": "kernel_shap",
    "shapley": "kernel_shap",
    "owen": "partition_shap",
    "expected_gradients": "gradient_shap",
    "attnlrp": "lrp",
    "loo": "occlusion",
    "leave_one_out": "occlusion",
    "rollout": "attention_rollout",
    "flow": "attention_flow",
    "steps": "nodes",
    "n_steps": "nodes",
    "n_samples": "samples",
    "num_samples": "samples",
    "nsamples": "samples",
    "stdevs": "noise",
    "baselines": "baseline",
    "aopc": "comprehensiveness",
    "f1": "token_f1",
    "iou": "iou_f1",
    "auc": "roc_auc",
    "sensitivity": "max_sensitivity",
}
"""What other libraries and papers call methods, settings and metrics; the first name that exists here is suggested."""


def choose(value: object, options: Iterable[str], what: str, of: str = "") -> str:
    """Return ``value`` if it is one of ``options``; otherwise raise and suggest the closest option."""
    known = list(options)
    if isinstance(value, str) and value in known:
        return value
    raise BadInput(unknown(value, known, what, of))


def unknown(value: object, known: Iterable[str], what: str, of: str = "") -> str:
    """The message for an unknown name: the name, the closest known one, and all known ones.

    >>> unknown("l_2", ["l1", "l2"], "reduction", "gradient")
    "unknown reduction 'l_2' of gradient. Did you mean 'l2'? Known: l1, l2."
    """
    names = list(known)
    near = _named_elsewhere(str(value), names) or get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    whose = f" of {of}" if of else ""
    return f"unknown {what} {value!r}{whose}.{hint} Known: {', '.join(names)}."


def _named_elsewhere(value: str, names: Iterable[str]) -> list[str]:
    """The name that other libraries call ``value``; settings of one method are written ``method.setting``."""
    method, dot, name = value.casefold().replace("-", "_").rpartition(".")
    suggested = method + dot + NAMES_ELSEWHERE.get(name, "")
    return [suggested] if suggested in names else []


def too_long(number: int, limit: int, unseen: Iterable[tuple[int, int]]) -> str:
    """The message for a truncated text; without spans, no whole character was cut off."""
    places = " and ".join(f"{start} to {end}" for start, end in unseen)
    what = f"characters {places} were" if places else "white space or a part of a character was"
    return f"text {number} is longer than the {limit} tokens that the model can read; {what} not seen"
