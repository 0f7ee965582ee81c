"""Does one good initialisation of a head rescue a model of eight? Copying with several heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

import torch

from salience.core.jobs import results, study
from salience.core.stats import Estimate, share
from salience.data.copying import Sequences
from salience.dynamics.copying import LEARNT, CopyPoint, CopyRecipe, Size, copier, copy_curve, curve_of
from salience.errors import NotLearnt, choose
from salience.models.seq2seq import Head, Seq2SeqNetwork

BAD = 0.6
"""A head is bad if a model of this head alone has an attention accuracy below this at the last step.

The authors judge by token accuracy. But after 200 steps, networks whose attention never finds the symbol copy 16 to
87 % of the symbols.
"""

CHECKED = 3
"""Trainings of a single head, with different sequences, that must agree."""

OTHERS = 1
"""The seed of all weights but the heads'.

Of the seeds 0 to 6 it is the only one with which the first head does not learn to copy. With seed 0, six of the first
seven heads were good and none bad: a search for bad heads would take days.
"""

HEADS = 8
MOST = 100
"""Initialisations that are tried at most."""

Verdict = Literal["good", "bad", "neither"]
Group = Literal["bad", "rescued", "random"]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True, slots=True)
class HeadSize:
    """How many models of each group are trained, and from how many bad and good heads theirs are drawn."""

    draws: int
    bad: int
    good: int


HEAD_SIZES: Mapping[str, HeadSize] = {"quick": HeadSize(3, 8, 1), "full": HeadSize(10, 12, 3)}


@dataclass(frozen=True, slots=True)
class CheckedHead:
    """An initialisation of a head, and what models that have this head alone do at their last step."""

    head: int
    verdict: Verdict
    accuracies: tuple[float, ...]
    attention: tuple[float, ...]
    """Attention accuracy."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "CheckedHead":
        return cls(stored["head"], stored["verdict"], tuple(stored["accuracies"]), tuple(stored["attention"]))


@dataclass(frozen=True, slots=True)
class HeadDraw:
    """A model of eight heads, trained until it copies or the steps are used up."""

    group: Group
    draw: int
    heads: tuple[int, ...]
    curve: tuple[CopyPoint, ...]

    @property
    def learnt(self) -> bool:
        return self.curve[-1].accuracy >= LEARNT

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "HeadDraw":
        return cls(stored["group"], stored["draw"], tuple(stored["heads"]), curve_of(stored["curve"]))


@dataclass(frozen=True, slots=True)
class Heads:
    """Initialisations of heads, and models made of them: of bad ones, of bad ones and a good one, and of any."""

    recipe: CopyRecipe
    checked: tuple[CheckedHead, ...]
    draws: tuple[HeadDraw, ...]

    def of(self, group: Group) -> list[HeadDraw]:
        return [draw for draw in self.draws if draw.group == group]

    def successes(self, group: Group) -> Estimate:
        """The share of models that learn to copy, with its exact binomial interval."""
        return share([draw.learnt for draw in self.of(group)], fewest=1)


def heads(
    *,
    size: Size = "quick",
    recipe: CopyRecipe = CopyRecipe(),  # noqa: B008
    folder: str | Path | None = None,
    workers: int = 1,
    report: Callable[[CheckedHead | HeadDraw], None] = lambda _: None,
) -> Heads:
    """Find good and bad initialisations of a head, and train models of eight heads that are made of them.

    A head is good if a model with this head alone copies permutations after at most 200 steps, in three trainings. All
    models start from the same weights except for their heads. With a ``folder``, the same call resumes.

    Paper: Snell et al. 2021, arXiv:2103.07601, section 5
    """
    wanted = HEAD_SIZES[choose(size, HEAD_SIZES, "size")]
    place = None if folder is None else Path(folder)
    with study(place, {**asdict(recipe), "others": OTHERS}):
        checked = _search(place, workers, wanted, recipe, report)
        pools = {verdict: [one.head for one in checked if one.verdict == verdict] for verdict in ("bad", "good")}
        # Sizes share a folder but not their pools of heads, so a file is named by the heads that were drawn. Numbers
        # are seeds of sequences, which are not those on which the heads were chosen.
        jobs = {
            f"{group}-{draw:03d}-{'.'.join(map(str, own))}": partial(_train, group, draw, own, recipe)
            for draw in range(CHECKED, CHECKED + wanted.draws)
            for group in GROUPS
            for own in [_drawn(group, draw, pools)]
        }
        draws: list[HeadDraw] = []
        for draw in results(jobs, HeadDraw.of, place, workers=workers):
            draws.append(draw)
            report(draw)
    return Heads(recipe, tuple(checked), tuple(sorted(draws, key=lambda d: (GROUPS.index(d.group), d.draw))))


def _search(
    place: Path | None, workers: int, wanted: HeadSize, recipe: CopyRecipe, report: Callable[[CheckedHead], None]
) -> list[CheckedHead]:
    """Check initialisations until there are enough of both kinds; as many at a time as there are workers."""
    checked: list[CheckedHead] = []
    for start in range(0, MOST, workers):
        jobs = {f"head-{head:03d}": partial(_check, head, recipe) for head in range(start, min(start + workers, MOST))}
        for one in results(jobs, CheckedHead.of, place, workers=workers):
            checked.append(one)
            report(one)
        checked.sort(key=lambda one: one.head)
        # The shortest list that is enough, so that the models are the same for any number of workers.
        for n in range(start + 1, len(checked) + 1):
            if _count(checked[:n], "bad") >= wanted.bad and _count(checked[:n], "good") >= wanted.good:
                return checked[:n]
    bad, good = _count(checked, "bad"), _count(checked, "good")
    raise NotLearnt(f"of {len(checked)} initialisations of a head, {bad} are bad and {good} good: too few")


def _count(checked: Sequence[CheckedHead], verdict: Verdict) -> int:
    return sum(one.verdict == verdict for one in checked)


def _check(head: int, recipe: CopyRecipe) -> dict[str, Any]:
    """Train a model of one head several times; as soon as two trainings differ, it is neither good nor bad."""
    ends: list[CopyPoint] = []
    verdict: Verdict = "neither"
    for seed in range(CHECKED):
        ends.append(_curve([head], seed, recipe)[-1])
        verdicts: set[Verdict] = {_verdict(end) for end in ends}
        verdict = verdicts.pop() if len(verdicts) == 1 else "neither"
        if verdict == "neither":
            break
    return asdict(CheckedHead(head, verdict, tuple(end.accuracy for end in ends), tuple(end.attention for end in ends)))


def _verdict(end: CopyPoint) -> Verdict:
    return "good" if end.accuracy >= LEARNT else "bad" if end.attention < BAD else "neither"


def _drawn(group: Group, draw: int, pools: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The heads of a model. Heads of the random group were never checked."""
    rng = Random(f"{group} {draw}")
    if group == "random":
        return tuple(MOST + HEADS * draw + number for number in range(HEADS))
    if group == "rescued":
        return (*rng.sample(pools["bad"], HEADS - 1), rng.choice(pools["good"]))
    return tuple(rng.sample(pools["bad"], HEADS))


def _train(group: Group, draw: int, chosen: tuple[int, ...], recipe: CopyRecipe) -> dict[str, Any]:
    return asdict(HeadDraw(group, draw, chosen, _curve(chosen, draw, recipe)))


def _curve(chosen: Sequence[int], seed: int, recipe: CopyRecipe) -> tuple[CopyPoint, ...]:
    """Train a model of these heads until it copies."""
    sequences = Sequences("permutation", recipe.length)
    network = with_heads(sequences, recipe, chosen)
    points: list[CopyPoint] = []
    for point in copy_curve(network, sequences, recipe, seed):
        points.append(point)
        if point.accuracy >= LEARNT:
            break
    return tuple(points)


def with_heads(sequences: Sequences, recipe: CopyRecipe, chosen: Sequence[int]) -> Seq2SeqNetwork:
    """A network of GRUs with heads of these seeds; everything else is the same for all of them."""
    network = copier(sequences, recipe, OTHERS, cell="gru", shared=False, heads=len(chosen))
    for place, seed in enumerate(chosen):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1 + seed)
            network.heads[place] = Head(recipe.hidden, recipe.hidden)
    return network
