"""How much does attention vary between training runs? (Wiegreffe & Pinter 2019, section 3.2)"""

from collections.abc import Sequence

import numpy as np
import torch

from salience.audits.finding import Finding, Measure, by_share
from salience.audits.study import Study, standard_name
from salience.core.distances import jensen_shannon
from salience.core.settings import Pairs


def seed_variation(study: Study, *, seeds: Pairs = 5) -> Finding:
    """How much does attention vary between training runs?"""
    base = study.standard(0)
    twins = [study.standard(seed) for seed in range(1, seeds)]
    between = np.median([study.distances(base, twin) for twin in twins], axis=0)
    to_model = np.median([study.distances(study.model, twin) for twin in (base, *twins)], axis=0)
    attention = study.attention(base)
    by_chance = np.array([_to_shuffled(a, study.seed) for a in attention])
    closer = Measure.share("texts whose attention varies less than by chance", between < by_chance, between)
    measures = (
        closer,
        Measure.of("distance between seeds (JSD)", between, "size"),
        Measure.of("distance to shuffled attention (JSD)", by_chance, "size"),
        Measure.of("largest attention weight", [float(a.max()) for a in attention], "size"),
        Measure.of("distance of the audited model to its twins (JSD)", to_model, "size"),
    )
    return Finding(
        test="seed_variation",
        question="Do training runs with other seeds attend more alike than by chance?",
        measures=measures,
        expected="attention of another seed is closer than shuffled attention, in most texts",
        verdict=by_share(closer.estimate, more_is_explanation=True),
        answer=(
            f"Between {seeds} seeds, attention differs (JSD) by {measures[1]}, from its own weights shuffled "
            f"by {measures[2]}; it varies less than by chance in {closer} of the texts. The audited model differs from "
            f"its twins by {measures[4]}."
        ),
        source="Wiegreffe & Pinter 2019, arXiv:1908.04626, section 3.2",
    )


def _to_shuffled(a: torch.Tensor, seed: int, shuffles: int = 20) -> float:
    """The median distance between weights and the same weights in another order; NaN for a single weight."""
    if len(a) < 2:
        return np.nan
    rng = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(len(a), generator=rng) for _ in range(shuffles)])
    return float(jensen_shannon(a.expand(shuffles, -1), a[orders]).median())


def seed_variation_twins(*, seeds: Pairs = 5) -> Sequence[str]:
    """The names of the twins that the test trains."""
    return [standard_name(seed) for seed in range(seeds)]
