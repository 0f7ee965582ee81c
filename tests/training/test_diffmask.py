"""DiffMask: gates find what a model uses, keep the constraint, resume, and are refused by other models."""

from pathlib import Path
from random import Random

import pytest
import torch

import salience
from salience.cli import run
from salience.core.types import Model
from salience.data.examples import Example
from salience.errors import BadInput, BadModel, UnsupportedModel
from salience.models.gates import HIGH, LOW, TEMPERATURE, drawn, load_gates, log_nonzero, new_gates
from salience.models.pooled import Pooled, PooledConfig, word_tokenizer
from salience.training.diffmask import Masked, diffmask_objective, kl, same_decision, train_gates
from salience.training.loop import Recipe, fit
from salience.training.multipliers import DampedAscent, GradientAscent
from shapes import build

FILLERS = ("alpha", "beta", "gamma", "delta", "omega")
CUES = ("good", "bad")


def planted(count: int) -> list[str]:
    """Texts of seven words, one of which is a cue."""
    rng = Random(0)
    texts = []
    for number in range(count):
        words = [rng.choice(FILLERS) for _ in range(6)]
        words.insert(rng.randrange(7), CUES[number % 2])
        texts.append(" ".join(words))
    return texts


def one_word_model() -> Pooled:
    """A linear model whose logits read the first unit of the embeddings, which is 0 for all words but the cues."""
    tokenizer = word_tokenizer(planted(20), 20)
    config = PooledConfig(("no", "yes"), tokenizer.get_vocab_size(), "embedding", embedding=16, scoring="uniform")
    model = Pooled.new(config, tokenizer, name="one-word")
    with torch.no_grad():
        weight = model.module.words.weight
        weight[:, 0] = 0
        weight[tokenizer.token_to_id("good"), 0], weight[tokenizer.token_to_id("bad"), 0] = 14, -14
        model.module.classifier.weight.zero_()[:, 0] = torch.tensor([-1.0, 1.0])
        model.module.classifier.bias.zero_()
    return model


def test_gates_find_the_only_word_that_a_model_uses(tmp_path: Path):
    model = one_word_model()
    recipe = Recipe(epochs=15, batch=32, rate=3e-2, decay=0.0)
    result = train_gates(model, planted(320), tmp_path / "gates", margin=0.05, recipe=recipe)
    assert result.epochs[-1].measures["same"] == 1
    assert abs(result.epochs[-1].measures["kept"] - 1 / 7) < 0.05

    unseen = ["beta good alpha omega gamma delta beta", "omega gamma delta alpha alpha beta bad"]
    for e in salience.explain(model, unseen, "diff_mask", gates=str(tmp_path / "gates")):
        best = max(range(7), key=lambda i: e.scores[i])
        assert e.tokens[best] in CUES
        assert e.scores[best] > 0.5 > max(s for i, s in enumerate(e.scores) if i != best)
    layers = salience.explain(model, unseen[0], "diff_mask", gates=str(tmp_path / "gates"), layer="all")
    assert [e.settings["layer"] for e in layers] == [0, 1]
    assert all(a >= b for a, b in zip(layers[0].scores, layers[1].scores, strict=True)), "gates only close further"
    again = train_gates(model, planted(320), tmp_path / "gates", margin=0.05, recipe=recipe)
    assert again.epochs == result.epochs, "finished gates are not trained again"
    for damage in ("[", '[{"number": 1}]', '{"a": 1}'):
        (tmp_path / "gates" / "epochs.json").write_text(damage)
        with pytest.raises(BadInput, match=r"is damaged.*Delete it"):
            train_gates(model, planted(320), tmp_path / "gates", margin=0.05, recipe=recipe)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm", "bert_multi_label", "llama_lm"])
def test_gates_of_every_family_learn_and_resume(shape: str, tmp_path: Path):
    recipe = Recipe(epochs=2, batch=8, rate=1e-2, seed=1)
    examples = [Example(str(n), text) for n, text in enumerate(planted(16))]

    def trained(stop: int | None, folder: Path) -> Masked:
        model = build(shape)
        masked = Masked(new_gates(model), model)
        before = {name: p.clone() for name, p in model.module.named_parameters()}
        for epoch in fit(
            masked, examples, objective=diffmask_objective(model.layers), recipe=recipe, folder=folder, save_every=1
        ):
            if epoch.number == stop:
                break
        assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters()), "the model is frozen"
        return masked

    whole = trained(None, tmp_path / "whole").module.state_dict()
    trained(1, tmp_path / "parts")
    resumed = trained(None, tmp_path / "parts").module.state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    fresh = new_gates(build(shape)).state_dict()
    assert not torch.equal(whole["baseline"], fresh["baseline"])
    assert not torch.equal(whole["bias"], fresh["bias"])


def test_gates_are_stretched_binary_concrete_variables():
    torch.manual_seed(0)
    for logit in (-3.0, 0.0, 2.0):
        logits = torch.full((1, 100_000, 1), logit, dtype=torch.float64)
        z = drawn(logits)
        assert 0 <= z.min() <= z.max() <= 1
        zero = torch.sigmoid(torch.tensor(TEMPERATURE * torch.tensor(-LOW / HIGH).log().item() - logit)).item()
        assert abs((z == 0).double().mean().item() - zero) < 0.01
        assert abs(log_nonzero(logits)[0, 0, 0].exp().item() - (1 - zero)) < 1e-6


def test_the_divergence_is_that_of_torch():
    p, q = torch.randn(4, 3), torch.randn(4, 3)
    categorical, bernoulli = torch.distributions.Categorical, torch.distributions.Bernoulli
    expected = torch.distributions.kl_divergence(categorical(logits=p), categorical(logits=q))
    assert torch.allclose(kl(p, q, "softmax"), expected, atol=1e-6)
    expected = torch.distributions.kl_divergence(bernoulli(logits=p), bernoulli(logits=q)).sum(1)
    assert torch.allclose(kl(p, q, "sigmoid"), expected, atol=1e-5)


def test_decisions_are_those_of_all_labels():
    p, q = torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[3.0, -1.0], [1.0, 2.0]])
    assert same_decision(p, q, "softmax").tolist() == [True, False]
    assert same_decision(p, q, "sigmoid").tolist() == [False, True], "the second label is no longer predicted"


def test_multipliers_follow_their_formulas():
    weight = average = total = 0.0
    for c in (0.5, -0.2, 0.1):
        weight, average = DampedAscent(rate=0.1, damping=3.0, smoothing=0.6, high=9.0)(weight, average, c)
        total += average
        assert weight == pytest.approx(3.0 * average + 0.1 * total), "a proportional and an integral part"
    assert average == pytest.approx(0.4 * (0.36 * 0.5 + 0.6 * -0.2 + 0.1))
    assert DampedAscent(rate=1.0, damping=0.0, smoothing=0.0, high=2.0)(1.5, 0.0, 1.0)[0] == 2.0
    assert DampedAscent(rate=1.0, damping=0.0, smoothing=0.0, high=2.0)(-1.5, 0.0, -1.0)[0] == -2.0

    parameter = torch.tensor(3.0, requires_grad=True)
    optimiser = torch.optim.RMSprop([parameter], lr=0.3, alpha=0.99)
    alpha, square = 3.0, 0.0
    for c in (0.5, -0.2, 0.1):
        optimiser.zero_grad()
        (-c * parameter).backward()  # ascent
        optimiser.step()
        alpha, square = GradientAscent()(alpha, square, c)
        assert alpha == pytest.approx(parameter.item(), abs=1e-4)
    assert GradientAscent()(0.0, 1.0, -5.0)[0] == 0


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "gates"
    new_gates(build("pooled_bilstm")).save(folder)
    return folder


def test_gates_that_hide_too_much_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    gates = ["diffmask", "--data", "sample", "--limit", "16", "--epochs", "1", "--quiet", "--model", "sentiment_bilstm"]
    assert run([*gates, "--margin", "1e-9", "--out", str(tmp_path / "strict")]) == 0
    warned = capsys.readouterr().err
    assert "warning: the constraint is not met" in warned
    assert "and 1e-09 are allowed. Train for more steps" in warned
    assert run([*gates, "--margin", "100", "--out", str(tmp_path / "lax")]) == 0
    assert capsys.readouterr().err == ""


def test_gates_of_another_model_are_refused(gates: Path):
    other: Model = build("pooled_bilstm", seed=5)
    with pytest.raises(
        BadInput, match="another model, tiny-bilstm, or for another data type: the digest of tiny-bilstm differs"
    ):
        salience.explain(other, "A fine film.", "diff_mask", gates=str(gates))
    with pytest.raises(BadInput, match="trained for another model"):
        salience.explain(other, "A fine film.", "diff_mask", gates=load_gates(gates, build("pooled_bilstm")))


def test_bad_gates_and_settings_are_refused(gates: Path, tmp_path: Path):
    model = build("pooled_bilstm")
    with pytest.raises(BadInput, match=r"diff_mask needs gates that were trained for tiny-bilstm.*salience diffmask"):
        salience.explain(model, "A fine film.", "diff_mask")
    with pytest.raises(BadModel, match=r"holds no gates: config\.json is missing"):
        salience.explain(model, "A fine film.", "diff_mask", gates=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "gates.safetensors").write_bytes((gates / "gates.safetensors").read_bytes())
    with pytest.raises(BadModel, match="holds no gates but something else"):
        salience.explain(model, "A fine film.", "diff_mask", gates=str(tmp_path))
    with pytest.raises(BadInput, match="margin=0 must be above 0"):
        train_gates(model, ["A fine film."], tmp_path / "new", margin=0)
    with pytest.raises(UnsupportedModel, match="predicts a number"):
        train_gates(build("bert_regression"), ["A fine film."], tmp_path / "new")


def test_gates_beside_their_model_need_no_name(gates: Path):
    model = build("pooled_bilstm")
    model.save(gates.parent)
    loaded = salience.load(gates.parent)
    new_gates(loaded).save(gates.parent / "gates")
    [found] = salience.explain(loaded, "A fine film.", "diff_mask")
    assert found.settings["gates"] == str(gates.parent / "gates")
