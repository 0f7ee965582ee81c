"""What teaching with explanations did: a gain counts only if it is one against the control as well."""

from collections.abc import Iterable, Mapping

from salience.core.stats import Difference

FEWEST_SEEDS = 2
"""The fewest seeds for a verdict. The interval of one seed says nothing about other seeds."""


NO_DIFFERENCE = "no difference"
ONLY_SHUFFLED, NO_BETTER = "better than shuffled only", "no better than shuffled"


def verdict(
    difference: Difference | None,
    control: Difference | None,
    *,
    seeds: int,
    controlled: bool,
    gain: str = "better than none",
    harm: str = "harms",
    helps: str = "helps",
    lower: bool = False,
    learnt: bool = True,
) -> str:
    """Judge the difference from students without explanations, and that from students of shuffled ones.

    Without ``learnt``, most of those that it is compared with are no better than the most frequent label.
    ``controlled`` tells whether there ought to be a control; its own students have none. With ``lower``, a lower
    number is a gain.
    """
    if difference is None:
        return ""
    if seeds < FEWEST_SEEDS:
        return "too few seeds"
    if not learnt:
        return "what it is compared with has not learnt"
    sign = -1 if lower else 1
    if not difference.clear:
        better = controlled and control is not None and control.clear and sign * control.mean > 0
        return ONLY_SHUFFLED if better else NO_DIFFERENCE
    if sign * difference.mean < 0:
        return harm
    if not controlled:
        return gain
    if control is None:
        return f"{gain}; control not run"
    return helps if control.clear and sign * control.mean > 0 else NO_BETTER


def by_verdict(judged: Iterable[tuple[str, str]], words: Mapping[str, str]) -> list[str]:
    """A sentence for each verdict, with the names that it holds for, and one for what could not be judged.

    ``judged`` are names with their verdicts.

    >>> by_verdict([("lrp", "helps"), ("lime", "not run")], {"helps": "Helps", "harms": "Harms"})
    ['Helps: lrp.', 'Harms: nowhere.', 'Not judged: lime (not run).']
    """
    pairs = [(name, own) for name, own in judged if own != NO_DIFFERENCE]
    said = [
        f"{text}: {'; '.join(name for name, own in pairs if own == one) or 'nowhere'}." for one, text in words.items()
    ]
    rest = [f"{name} ({own or 'nothing to compare with'})" for name, own in pairs if own not in words]
    return [*said, *([f"Not judged: {'; '.join(rest)}."] if rest else [])]
