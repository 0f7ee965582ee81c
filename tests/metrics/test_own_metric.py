"""A user's own function is a metric."""

import pytest
import torch
from torch import Tensor

import salience
from salience.errors import BadInput
from salience.metrics import METRICS, Metric, find_metric
from salience.models import Batch, Model

TEXTS = ["A fine film.", "Two hours I will never get back.", "Not bad, but far too long."]


def concentration(model: Model, batch: Batch, scores: Tensor, target: object, *, power: float = 2.0) -> Tensor:
    """The share of |scores| on the highest-scoring token, to some power."""
    size = scores.abs() * batch.content
    return (size.amax(1) / size.sum(1)) ** power


def test_a_function_is_measured_beside_the_others():
    result = salience.evaluate(salience.load(), TEXTS, "gradient", metrics=[concentration, "comprehensiveness"])
    assert result.metrics == ("concentration", "comprehensiveness")
    (explained,) = salience.explain(salience.load(), TEXTS[0], "gradient")
    size = torch.tensor(explained.content).abs()
    assert result.cells["gradient", "concentration"].values[0] == pytest.approx(float((size.max() / size.sum()) ** 2))
    assert result.cells["gradient", "concentration"].aspect == "custom"


def test_its_settings_are_set_by_its_name():
    one, two = (
        salience.evaluate(salience.load(), TEXTS, "gradient", metrics=concentration, **{"concentration.power": power})
        for power in (1.0, 2.0)
    )
    for a, b in zip(*(e.cells["gradient", "concentration"].values for e in (one, two)), strict=True):
        assert b == pytest.approx(a**2)
    with pytest.raises(BadInput, match="power"):
        salience.evaluate(salience.load(), TEXTS, metrics=concentration, **{"concentration.powr": 1.0})


def test_lower_may_be_better():
    metric = Metric(concentration, better="lower")
    result = salience.evaluate(salience.load(), TEXTS, ["gradient", "occlusion"], metrics=[metric])
    means = {m: result.cells[m, "concentration"].estimate.mean for m in ("gradient", "occlusion")}
    assert result.best("concentration") == min(means, key=lambda name: means[name])


def test_a_number_for_every_text():
    def short(model: Model, batch: Batch, scores: Tensor, target: object) -> Tensor:
        return scores.sum(1)[:1]

    with pytest.raises(BadInput, match=r"short returned values of shape \(1,\) for 3 texts"):
        salience.evaluate(salience.load(), TEXTS, "gradient", metrics=[short])


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_every_metric_is_described(metric: Metric):
    assert find_metric(metric.name) is metric
    assert metric.doc.strip()
    assert metric.better in ("higher", "lower")
    assert all(p.default is not p.empty for p in metric.settings.values())
