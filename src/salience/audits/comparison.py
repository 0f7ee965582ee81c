"""Is attention as faithful as saliency methods? (Bastings & Filippova 2020)"""

from typing import Any

import numpy as np

from salience.audits.finding import Finding, Measure, above_chance, as_well_as
from salience.audits.study import Study
from salience.evaluation.evaluator import evaluate
from salience.methods import CONTROLS

METRIC = "comprehensiveness"


def comparison(study: Study) -> Finding:
    """Is attention as faithful as saliency methods?"""
    evaluation = evaluate(
        study.model, study.examples, metrics=(METRIC,), report=study.report, seed=study.seed, **_where_tested(study)
    )
    values = {name: np.array(evaluation.cells[name, METRIC].values) for name in evaluation.methods}
    others = [name for name in evaluation.real if name != "attention"]
    best = max(others, key=lambda name: evaluation.cells[name, METRIC].estimate.mean)
    lead = Measure.of(f"{METRIC}, attention − {best}", values["attention"] - values[best])
    over_random = Measure.of(f"{METRIC}, attention − random", values["attention"] - values["random"])
    each = [Measure.of(f"{METRIC}, {name}", values[name]) for name in ("attention", *others, *CONTROLS)]
    listed = ", ".join(f"{m.name.removeprefix(METRIC + ', ')} {m.mean}" for m in each)
    return Finding(
        test="comparison",
        question="Is attention as faithful as saliency methods?",
        measures=(lead, *each),
        expected="erasing the tokens with most attention changes the output as much as with the best method",
        verdict=above_chance(as_well_as(lead.estimate, more_is_explanation=True), over_random.estimate),
        answer=f"Mean {METRIC}: {listed}.",
        source="Bastings & Filippova 2020, arXiv:2010.05607; DeYoung et al. 2020, arXiv:1911.03429 (the metric)",
    )


def _where_tested(study: Study) -> dict[str, Any]:
    """The attention that is tested, as settings of the method."""
    tested = study.tested
    heads = "mean" if study.head is None else (study.head,)
    return {"attention.layer": tested["layers"][0], "attention.row": tested["row"], "attention.heads": heads}
