"""The training loop: it learns, resumes from any step, and leaves the caller's random state and modes alone."""

from functools import partial
from pathlib import Path

import pytest
import torch

from reviews import reviews
from salience.core.types import Model
from salience.data.examples import Example
from salience.errors import BadInput, BadModel
from salience.training.guides import by_rationales
from salience.training.loop import Epoch, Probe, Recipe, Recorder, TrainingProgress, fit, guides_of, labels_of
from salience.training.objectives import (
    TASK,
    Objective,
    Over,
    Step,
    Term,
    attention_to_explanation,
    every,
    gradient_to_explanation,
    labelled,
    regularised,
    task_loss,
)
from shapes import build


def weights(model: Model) -> dict[str, torch.Tensor]:
    return {name: values.clone() for name, values in model.module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


QUICK = Recipe(epochs=2, batch=8, rate=1e-3, seed=3)


@pytest.mark.parametrize("shape", ["bert", "roberta", "distilbert", "electra", "gpt2", "pooled_bilstm"])
@pytest.mark.parametrize("penalty", [attention_to_explanation, gradient_to_explanation])
def test_every_architecture_learns_task_and_penalty(shape: str, penalty: object):
    model = build(shape)
    examples = by_rationales(model, reviews())
    modes = [m.training for m in model.module.modules()]
    rng_state = torch.random.get_rng_state()
    steps: list[TrainingProgress] = []
    recipe = Recipe(epochs=6, batch=8, rate=3e-3, seed=3)
    epochs = list(fit(model, examples, objective=regularised(penalty, 0.1), recipe=recipe, report=steps.append))
    assert [e.number for e in epochs] == list(range(1, 7))
    assert min(e.task for e in epochs[1:]) < epochs[0].task or penalty is gradient_to_explanation
    assert epochs[-1].task + 0.1 * epochs[-1].penalty < epochs[0].task + 0.1 * epochs[0].penalty
    assert [s.step for s in steps] == list(range(1, 37))
    assert modes == [m.training for m in model.module.modules()]
    assert torch.equal(rng_state, torch.random.get_rng_state())
    assert not any(p.grad is not None and not p.grad.isfinite().all() for p in model.module.parameters())


def test_the_seed_determines_the_weights():
    results = []
    for seed in (3, 3, 4):
        model = build("bert")
        list(fit(model, reviews(), recipe=Recipe(epochs=1, batch=8, rate=1e-3, seed=seed)))
        results.append(weights(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


def test_splitting_a_batch_gives_the_same_update():
    results = []
    for budget in (10_000, 25):
        model = build("bert", dtype=torch.float64)  # Adam amplifies the rounding errors of gradients near 0
        for part in model.module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        model.executor.budget = budget
        examples = by_rationales(model, reviews(16))
        list(fit(model, examples, objective=regularised(attention_to_explanation), recipe=Recipe(1, 16, 1e-3)))
        results.append(weights(model))
    for name in results[0]:
        assert torch.allclose(results[0][name], results[1][name], atol=1e-6), name


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 5, 6, 7, 11])
def test_training_resumes_where_it_was_stopped(tmp_path: Path, stop: int):
    objective = regularised(attention_to_explanation, 0.5, "rise", layers="all")
    probe = lambda model: {"norm": float(model.words.weight.detach().norm())}  # noqa: E731
    whole = build("bert")
    examples = by_rationales(whole, reviews())
    expected = list(fit(whole, examples, objective=objective, recipe=QUICK, probes=[Probe(probe)]))

    def report(step: TrainingProgress) -> None:
        if step.step == stop:
            raise Stopped

    broken = build("bert")
    run = partial(
        fit, examples=examples, objective=objective, recipe=QUICK, probes=[Probe(probe)], folder=tmp_path, save_every=2
    )
    with pytest.raises(Stopped):
        list(run(broken, report=report))
    again = build("bert")
    epochs = list(run(again))
    assert same(weights(whole), weights(again))
    for a, b in zip(epochs, expected, strict=True):
        assert (a.number, a.measures) == (b.number, b.measures)
        assert (a.losses, a.weights) == (pytest.approx(b.losses), pytest.approx(b.weights))
    assert list(run(build("bert"))) == epochs, "finished epochs were trained again"
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path):
    list(fit(build("bert"), reviews(), recipe=QUICK, folder=tmp_path))
    with pytest.raises(BadInput, match="another model, or with other examples"):
        list(fit(build("bert"), reviews(), recipe=Recipe(epochs=5), folder=tmp_path))
    with pytest.raises(BadInput, match="another model, or with other examples"):
        list(fit(build("bert", seed=1), reviews(), recipe=QUICK, folder=tmp_path))


def test_other_texts_of_a_term_are_another_training(tmp_path: Path):
    def training(over: Over) -> list[Epoch]:
        objective = Objective((TASK, Term(task_loss, over=over)))
        return list(fit(build("bert"), reviews(), objective=objective, recipe=QUICK, folder=tmp_path))

    training(every)
    with pytest.raises(BadInput, match="another model, or with other examples"):
        training(labelled)


def test_a_nan_loss_stops_with_the_step_and_texts(tmp_path: Path):
    model = build("bert")

    def broken(step: Step) -> torch.Tensor:
        return attention_to_explanation(step) * (float("nan") if steps else 1.0)

    steps: list[TrainingProgress] = []
    run = fit(
        model,
        by_rationales(model, reviews()),
        objective=regularised(broken),
        recipe=QUICK,
        folder=tmp_path,
        report=steps.append,
        save_every=1,
    )
    with pytest.raises(BadModel, match=r"not a number at step 2 of 12, in the texts \d+"):
        list(run)
    assert (tmp_path / "checkpoint-0000001-000").is_dir()


def test_a_nan_gradient_changes_no_weight(tmp_path: Path):
    model = build("bert")

    def steep(step: Step) -> torch.Tensor:
        """Zero, with an infinite derivative."""
        return (step.output.logits.sum(1) * 0).abs().sqrt()

    before = weights(model)
    with pytest.raises(BadModel, match="the gradient is not a number at step 1 of 12") as error:
        list(fit(model, by_rationales(model, reviews()), objective=regularised(steep), recipe=QUICK, folder=tmp_path))
    assert "checkpoint" not in str(error.value)
    assert same(before, weights(model))


def test_resuming_ignores_the_global_seed_and_the_budget(tmp_path: Path):
    """Training seeds each step itself, and resumes with the budget it started with."""
    examples, objective = by_rationales(build("bert"), reviews()), regularised(attention_to_explanation)
    whole = build("bert")
    list(fit(whole, examples, objective=objective, recipe=QUICK))
    cut = build("bert")
    run = fit(cut, examples, objective=objective, recipe=QUICK, folder=tmp_path)
    next(run)
    torch.manual_seed(99)
    again = build("bert")
    again.executor.budget = 16
    state = torch.random.get_rng_state()
    list(fit(again, examples, objective=objective, recipe=QUICK, folder=tmp_path))
    assert torch.equal(state, torch.random.get_rng_state())
    assert same(weights(whole), weights(again))


def test_labels_and_guides():
    model = build("bert_multi_label")
    labels = labels_of(model, [Example("a", "x", ("LABEL_0", 2)), Example("b", "y"), Example("c", "z", 1)])
    assert labels.tolist() == [[1, 0, 1], [-100] * 3, [0, 1, 0]]
    assert labels_of(build("bert_regression"), [Example("a", "x", 2.5)]).tolist() == [[2.5]]
    with pytest.raises(BadInput, match="learns one label"):
        labels_of(build("bert"), [Example("a", "x", 0.5)])
    with pytest.raises(BadInput, match="unknown label"):
        labels_of(build("bert"), [Example("a", "x", "LABEL_9")])
    encoded = model.encode(["a fine film", "a film"])
    with pytest.raises(BadInput, match="must have one weight for each"):
        guides_of([Example("a", "a fine film", 0, None, (1.0,))], encoded[:1], torch.device("cpu"))


@pytest.mark.parametrize("recipe", [{"epochs": 0}, {"batch": 0}, {"rate": 0.0}])
def test_invalid_recipes_and_empty_data(recipe: dict[str, float]):
    with pytest.raises(BadInput):
        Recipe(**recipe)
    with pytest.raises(BadInput, match="nothing to train on"):
        next(iter(fit(build("bert"), [])))


def test_a_recorder_is_called_at_its_steps_and_again_after_a_checkpoint(tmp_path: Path):
    called: list[tuple[int, float]] = []

    def record(model: Model, step: int) -> None:
        called.append((step, float(model.words.weight.detach().norm())))
        if len(called) == 4:
            raise Stopped

    probes = [Recorder(record, steps=range(0, 13, 3)), Probe(lambda _: {"one": 1.0}, steps=[3])]
    settings = {"recipe": QUICK, "probes": probes, "folder": tmp_path, "save_every": 4}
    with pytest.raises(Stopped):
        list(fit(build("pooled_bilstm"), reviews(), **settings))
    assert [step for step, _ in called] == [0, 3, 6, 9]
    epochs = list(fit(build("pooled_bilstm"), reviews(), **settings))
    assert [step for step, _ in called] == [0, 3, 6, 9, 9, 12]
    assert called[3] == called[4]  # with the same model
    assert epochs[0].steps == {3: {"one": 1.0}}
