"""Objectives of named terms: with and without the task, against a reference model, probed at chosen steps."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from reviews import reviews
from salience.core.passes import forward
from salience.core.types import Model
from salience.errors import BadInput
from salience.training import (
    TASK,
    Objective,
    Probe,
    Recipe,
    Step,
    Term,
    accuracy,
    attention_to_explanation,
    by_rationales,
    every,
    fit,
    regularised,
)
from shapes import build

QUICK = Recipe(epochs=2, batch=8, rate=1e-3, seed=3)


def weights(model: Model) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in model.module.state_dict().items()}


def total_variation(step: Step) -> Tensor:
    """How far the prediction is from the reference model's: ½ Σ |p − p'|."""
    assert step.reference is not None
    mine, theirs = step.output.logits.softmax(-1), step.reference.logits.softmax(-1)
    return (mine - theirs).abs().sum(1) / 2


def test_a_model_learns_to_imitate_a_reference_without_any_label():
    reference, model = build("pooled_bilstm", seed=1), build("pooled_bilstm", seed=2)
    before = weights(reference)
    objective = Objective((Term(total_variation, over=every, attention=False),), reference=reference)
    examples = reviews()
    epochs = list(fit(model, examples, objective=objective, recipe=Recipe(epochs=12, batch=8, rate=0.02)))
    assert epochs[-1].losses["total_variation"] < 0.4 * epochs[0].losses["total_variation"]
    assert epochs[-1].task == 0.0
    assert all(torch.equal(before[name], values) for name, values in weights(reference).items())
    batch = model.batch(model.encode([e.text for e in examples[:8]]))
    same = forward(model, batch).logits.argmax(1) == forward(reference, batch).logits.argmax(1)
    assert same.float().mean() >= 0.75


def test_the_loss_is_the_weighted_sum_of_the_terms():
    model = build("bert")
    examples = by_rationales(model, reviews(16))
    objective = Objective((TASK, Term(attention_to_explanation, 0.5, "rise"), Term(entropy, -0.1, over=every)))
    losses: list[float] = []
    (epoch,) = fit(
        model, examples, objective=objective, recipe=Recipe(1, 16, 1e-9), report=lambda p: losses.append(p.loss)
    )
    assert set(epoch.losses) == {"task", "attention_to_explanation", "entropy"}
    assert losses == pytest.approx([sum(epoch.weights[n] * loss for n, loss in epoch.losses.items())])
    assert epoch.weights == {"task": 1.0, "attention_to_explanation": 0.0, "entropy": -0.1}


def entropy(step: Step) -> Tensor:
    """Of the last layer's attention, over all rows."""
    a = step.output.attention[-1].clamp_min(1e-9)
    return -(a * a.log()).sum(-1).mean((1, 2))


def test_terms_have_names_of_their_own():
    with pytest.raises(BadInput, match="the names of its terms must differ"):
        Objective((TASK, TASK))
    with pytest.raises(BadInput, match="at least one term"):
        Objective(())
    assert Objective((TASK, Term(entropy, name="sharp"))).names == ("task", "sharp")


def test_probes_measure_at_chosen_steps_and_survive_a_stop(tmp_path: Path):
    calls: list[float] = []

    def measure(model: Model) -> dict[str, float]:
        calls.append(float(model.words.weight.detach().norm()))
        return {"norm": calls[-1]}

    probes = [Probe(measure, steps=range(0, 100, 2)), Probe(lambda model: {"accuracy": accuracy(model, reviews(8))})]
    whole = list(fit(build("bert"), reviews(), recipe=QUICK, probes=probes))
    assert list(whole[0].steps) == [0, 2, 4, 6]
    assert list(whole[1].steps) == [8, 10, 12]
    assert all(set(epoch.measures) == {"accuracy"} for epoch in whole)
    assert len(set(calls)) == len(calls), "the model did not change between the steps"
    run = fit(build("bert"), reviews(), recipe=QUICK, probes=probes, folder=tmp_path)
    next(run)
    run.close()
    resumed = list(fit(build("bert"), reviews(), recipe=QUICK, probes=probes, folder=tmp_path))
    assert [epoch.steps for epoch in resumed] == [epoch.steps for epoch in whole]


def test_memory_that_runs_out_in_training_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """Without dropout, the same weights come out; gradients of a part that failed are not counted twice."""
    expected, model = build("bert", dtype=torch.float64), build("bert", dtype=torch.float64)
    for one in (expected, model):
        for part in one.module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
    examples, recipe = by_rationales(model, reviews(16)), Recipe(1, 8, 1e-3)
    objective = regularised(attention_to_explanation)
    list(fit(expected, examples, objective=objective, recipe=recipe))
    real, failures = torch.autograd.grad, [1, 1]

    def scarce(*args: object, **options: object) -> object:
        result = real(*args, **options)  # type: ignore[arg-type]
        if failures and isinstance(args[1], list):  # the parameters, not the inputs of a trial pass
            failures.pop()
            raise torch.OutOfMemoryError("out of memory")
        return result

    monkeypatch.setattr(torch.autograd, "grad", scarce)
    list(fit(model, examples, objective=objective, recipe=recipe))
    assert not failures
    for name, values in weights(expected).items():
        assert torch.allclose(values, weights(model)[name], atol=1e-9), name
