"""Training of rationale models: REINFORCE against enumeration, rates that are reached, resuming, and bad input."""

import json
from itertools import pairwise, product
from pathlib import Path
from random import Random

import pytest
import torch

import salience
from reviews import reviews
from salience.cli import run
from salience.data.examples import Example
from salience.errors import BadInput
from salience.models.pooled import Pooled, PooledConfig, word_tokenizer
from salience.models.rationale import Rationale, RationaleKind
from salience.training.loop import Recipe, fit, step_of
from salience.training.objectives import Step
from salience.training.rationale_models import (
    SelectionMonitor,
    calibrate,
    excess_rate,
    incoherence,
    rationale_objective,
    reinforced_task,
    selected,
)


def majority(count: int) -> list[Example]:
    """Texts of ten words; the label is that of most of them, so that every further word helps."""
    rng = Random(0)
    examples = []
    for number in range(count):
        label = number % 2
        words = [("bad", "good")[label if rng.random() < 0.7 else 1 - label] for _ in range(10)]
        examples.append(Example(str(number), " ".join(words), label))
    return examples


def small(kind: str, texts: list[str], units: int = 8, rate: float = 0.5) -> Rationale:
    tokenizer = word_tokenizer(texts, 30)
    config = PooledConfig(("no", "yes"), tokenizer.get_vocab_size(), "bilstm", embedding=units, hidden=units)
    return Rationale.new(Pooled.new(config, tokenizer), kind, rate=rate)  # pyright: ignore


@pytest.mark.parametrize(("kind", "rate"), [("hardkuma", 0.2), ("lei", 0.5)])
def test_a_model_learns_the_task_at_its_rate(kind: RationaleKind, rate: float):
    """Every further word helps, so that the task alone would select all; the share stays within two points."""
    examples = majority(128)
    model = small(kind, [str(e.text) for e in examples], rate=rate)
    objective, recipe = rationale_objective(kind, rate), Recipe(epochs=20, batch=8, rate=1e-2)
    epochs = list(fit(model, examples, objective=objective, recipe=recipe))
    assert abs(epochs[-1].losses["rate"]) < 0.02, [round(e.losses["rate"], 3) for e in epochs]
    assert epochs[-1].task < 0.8 * epochs[0].task
    assert epochs[-1].weights["rate"] > 0, "the multiplier holds the share down"


@pytest.mark.parametrize("kind", ["hardkuma", "lei"])
def test_an_undecided_generator_selects_its_rate(kind: RationaleKind):
    """All probabilities are near 0.3, and none is above ½; texts of different lengths weigh the same."""
    texts = [Example(str(i), " ".join(f"w{(7 * i + j) % 23}" for j in range(3 + i % 9))) for i in range(40)]
    model = small(kind, [str(e.text) for e in texts], rate=0.3)
    assert selected(model, texts) == 0
    for rate in (0.1, 0.3, 0.8):
        calibrate(model, texts, rate)
        assert selected(model, texts) == pytest.approx(rate, abs=0.02)


def test_reinforce_is_unbiased():
    """The mean of the estimated gradients is the gradient of the expected loss, enumerated over all selections."""
    example = Example("a", "good film bad", 1)
    model = small("lei", [str(example.text)], units=3)
    model.module.to(torch.float64).eval()
    encoded = model.encode([example.text])
    weight = model.module.select.weight

    def selected(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of one selection, and its probability."""
        batch = model.batch(encoded)
        e = model.words(batch.ids)
        choice = model.module(model.generator(batch, embeddings=e, hidden=True).hidden[-1])
        p = choice.logit.sigmoid()[0]
        logits = model.encoder(batch, embeddings=z[None, :, None] * e).logits
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1]))
        return loss, torch.where(z > 0, p, 1 - p).prod()

    every = [torch.tensor(z, dtype=torch.float64) for z in product((0.0, 1.0), repeat=3)]
    expected = sum(loss * p for loss, p in map(selected, every))
    (exact,) = torch.autograd.grad(expected, weight)  # pyright: ignore

    copies = 2000
    torch.manual_seed(0)
    model.module.train()
    step = step_of(model, [example] * copies, encoded * copies, rationale_objective("lei", 0.5))
    loss = reinforced_task(step)
    (estimated,) = torch.autograd.grad(loss.mean(), weight)
    assert torch.allclose(loss.mean(), expected.detach(), rtol=0.05)  # pyright: ignore
    assert (estimated - exact).abs().max() < 0.15 * exact.abs().max(), (estimated, exact)


def test_penalties_are_expectations_over_all_selections():
    model = small("lei", ["good film bad"])
    model.module.eval()
    with torch.no_grad():
        step: Step = step_of(
            model, [Example("a", "good film bad", 1)], model.encode(["good film bad"]), rationale_objective("lei", 0.4)
        )
    assert step.output.selection is not None
    p = step.output.selection.log_nonzero[0].exp().tolist()
    changes = rate = 0.0
    for z in product((0, 1), repeat=3):
        chance = 1.0
        for one, q in zip(z, p, strict=True):
            chance *= q if one else 1 - q
        changes += chance * sum(abs(a - b) for a, b in pairwise(z)) / 3
        rate += chance * sum(z) / 3
    assert incoherence(step).item() == pytest.approx(changes, abs=1e-5)
    assert excess_rate(step, rate=0.4).item() == pytest.approx(rate - 0.4, abs=1e-5)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_a_rate_outside_0_and_1_is_refused(rate: float):
    with pytest.raises(BadInput, match="must be above 0 and below 1; it is the share of tokens"):
        rationale_objective("hardkuma", rate)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps({"id": e.id, "text": e.text, "label": e.label}) for e in reviews(24)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    return folder


def test_the_command_trains_one_model_per_rate_and_resumes(data: Path, capsys: pytest.CaptureFixture[str]):
    train, out = str(data / "train.jsonl"), str(data / "out")
    command = ["train", "--data", train, "--validation", train, "--model", "sentiment_bilstm", "--out", out, "--quiet"]
    command += ["--rationale-model", "hardkuma", "--selection-rate", "0.2", "--selection-rate", "0.5", "--epochs", "1"]
    assert run(command) == 0
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["hardkuma", "hardkuma", "whole"]
    assert (data / "out" / "accuracy-against-rate.png").stat().st_size > 1000
    assert run(command) == 0
    assert capsys.readouterr().out == table
    model = salience.load(data / "out" / "rate-0.2" / "model")
    measures = SelectionMonitor(reviews(8))(model)
    assert 0 <= measures["selected"] <= 1
    assert run([*command[:-1], "2"]) == 2
    assert "holds another training (changed: training.recipe.epochs)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rationale-model", "hardkuma", "--selection-rate", "1"], "--selection-rate 1 must be above 0 and below 1"),
        (["--selection-rate", "0.5"], "only used with --rationale-model"),
        (["--rationale-model", "hardkum"], "'hardkum' is not one of 'lei', 'hardkuma'"),
        (["--rationale-model", "lei", "--variant", "shuffled"], "learns from labels alone; leave out --variant"),
        (["--rationale-model", "lei", "--weight", "2"], "leave out --weight"),
        (["--rationale-model", "lei", "--selection-rate=.1", "--selection-rate=.2"], "with --validation or --test"),
        (["--rationale-model", "lei", "--batch", "4", "--rate", "1e9", "--quiet"], "is not a number at step"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str, data: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["train", "--data", str(data / "train.jsonl"), "--out", str(data / "bad"), *arguments]) == 2
    assert message in capsys.readouterr().err
