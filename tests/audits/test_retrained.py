"""The tests that train twins: their numbers are those of the twins in the folder, and nothing is trained twice."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import salience
from audits.twins import model, texts
from salience.audits import RETRAINED, Audit, Callbacks, audit
from salience.audits.adversarial_twin import furthest
from salience.audits.adversary import Search
from salience.audits.deceptive_twin import judged
from salience.audits.erasure import fractions_to_flip
from salience.audits.manipulation import removed
from salience.audits.summary import sentences
from salience.audits.weights import Attended
from salience.core.stats import Estimate
from salience.data.examples import Example
from salience.errors import BadInput, BadModel, UnsupportedModel
from shapes import build

TRAIN, TEST = texts(48, 1), texts(20, 2)
SETTINGS = {
    "uniform_attention.seeds": 2,
    "seed_variation.seeds": 2,
    "adversarial_twin.weights": (0.0, 0.01),
    "manipulation.weights": (0.0, 1.0),
    "diverse_states.search": Search(steps=3, restarts=2),
    "word_tying.search": Search(steps=3, restarts=2),
}
TRAINING = {"epochs": 4, "rate": 0.03, "batch": 16}
NAMES = [test.__name__ for test in RETRAINED]


def run(out: Path | None, tests=NAMES, train=TRAIN, **options) -> Audit:
    settings = {key: value for key, value in SETTINGS.items() if key.partition(".")[0] in tests}
    options = {"retrain": train, "training": TRAINING, "out": out, "tests": tests, **options}
    return audit(options.pop("model", None) or model(), options.pop("data", TEST), **options, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "out"


@pytest.fixture(scope="module")
def findings(folder: Path) -> dict:
    return {finding.test: finding for finding in run(folder).findings}


def accuracy(twin: Path) -> float:
    """Read a twin and count its mistakes, one text at a time."""
    loaded = salience.load(twin)
    right = [loaded.label(int(loaded(loaded.batch(loaded.encode([e.text]))).logits.argmax())) == e.label for e in TEST]
    return float(np.mean(right))


def test_every_test_has_a_finding_that_names_its_source(findings):
    assert list(findings) == NAMES
    for finding in findings.values():
        assert finding.source
        assert finding.answer
        assert len(finding.measures[0].values) == len(TEST)


def test_accuracies_are_those_of_the_twins_in_the_folder(findings, folder):
    twins = folder / "twins"
    own = np.mean([accuracy(twins / f"standard-{seed}") for seed in range(2)])
    uniform = np.mean([accuracy(twins / f"uniform-{seed}") for seed in range(2)])
    finding = findings["uniform_attention"]
    assert finding.measures[1].estimate.mean == pytest.approx(own)
    assert finding.measures[2].estimate.mean == pytest.approx(uniform)
    assert finding.measures[0].estimate.mean == pytest.approx(own - uniform)
    adversarial = findings["adversarial_twin"]
    assert adversarial.measure("accuracy, λ = 0.01").estimate.mean == pytest.approx(
        accuracy(twins / "adversarial-0.01")
    )
    tied = findings["word_tying"].measure("accuracy, joined").estimate.mean
    assert tied == pytest.approx(accuracy(twins / "joined-64"))


def test_distances_between_twins_are_those_of_their_attention(findings, folder):
    base, other = (salience.load(folder / "twins" / f"standard-{seed}") for seed in range(2))
    for example, value in zip(TEST, findings["seed_variation"].measures[1].values, strict=True):
        a, b = (m(m.batch(m.encode([example.text])), attention="read").attention[0][0, 0, 0] for m in (base, other))
        middle = (a + b) / 2
        expected = sum((x * (x / middle).log()).sum() for x in (a, b)) / 2
        assert value == pytest.approx(expected.item(), abs=1e-5)


def test_the_audited_model_is_compared_with_its_twins_as_well(findings, folder):
    (measure,) = [m for m in findings["seed_variation"].measures if "audited model" in m.name]
    twins = [salience.load(folder / "twins" / f"standard-{seed}") for seed in range(2)]
    for example, value in zip(TEST, measure.values, strict=True):
        a, *others = (
            m(m.batch(m.encode([example.text])), attention="read").attention[0][0, 0, 0] for m in (model(), *twins)
        )
        each = [sum((x * (2 * x / (a + b)).log()).sum().item() for x in (a, b)) / 2 for b in others]
        assert value == pytest.approx(float(np.median(each)), abs=1e-5)
    assert "closer than by chance" in " ".join(sentences([findings["seed_variation"]]))


def test_attention_of_manipulated_twins_is_read_on_the_marked_tokens(findings, folder):
    twin = salience.load(folder / "twins" / "manipulated-1-mean")
    for example, value in zip(TEST, findings["manipulation"].measures[-1].values, strict=True):
        (encoded,) = twin.encode([example.text])
        a = twin(twin.batch([encoded]), attention="read").attention[0][0, 0, 0]
        ((start, end),) = example.rationale
        place = encoded.offsets.index((start, end))
        assert value == pytest.approx(a[place].item(), abs=1e-5)


def test_random_orders_of_a_twin_that_never_flip_count_as_its_whole_text(findings, folder):
    twin = salience.load(folder / "twins" / "lstm-128")
    own = Attended.of(twin, twin.batch(twin.encode([e.text for e in TEST])))
    expected, flipping = (fractions_to_flip(own, never=never)["random"].tolist() for never in (1.0, np.nan))
    assert findings["diverse_states"].measure("fraction to flip, random, lstm").values == pytest.approx(expected)
    assert any(a > b for a, b in zip(expected, flipping, strict=True)), "some texts flip in some orders only"


def test_nothing_is_trained_twice(findings, folder):
    def never(name, progress):
        raise AssertionError(name)

    announced = []
    callbacks = Callbacks(step=never, estimated=lambda *a: announced.append(a))
    again = {f.test: f for f in run(folder, callbacks=callbacks).findings}
    assert repr(again) == repr(findings)  # NaN is never equal to itself
    assert not announced


def test_the_twins_to_train_are_announced_once(tmp_path):
    announced = []
    run(tmp_path, ["uniform_attention"], callbacks=Callbacks(estimated=lambda *a: announced.append(a)))
    ((names, seconds),) = announced
    assert names == ["standard-0", "uniform-0", "standard-1", "uniform-1"]
    assert seconds > 0
    assert sorted(p.name for p in (tmp_path / "twins").iterdir()) == sorted(names)


def test_an_audit_that_is_stopped_goes_on_and_ends_with_the_same_twins(findings, folder, tmp_path):
    def stop(name, progress):
        if name == "uniform-1" and progress.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ["uniform_attention"], callbacks=Callbacks(step=stop))
    trained = []
    result = run(tmp_path, ["uniform_attention"], callbacks=Callbacks(step=lambda name, _: trained.append(name)))
    assert set(trained) == {"uniform-1"}
    assert result.findings[0] == findings["uniform_attention"]


KILLER = """
import os, random, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from audits.test_retrained import run

out, rng, kills = Path(sys.argv[2]), random.Random(3), 0
while True:
    child = os.fork()  # start without importing everything again
    if child == 0:
        run(out, ["uniform_attention"])
        os._exit(0)
    if kills < 8:
        time.sleep(rng.uniform(0.01, 0.5))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status):
        break
    kills += 1
print(kills, os.WEXITSTATUS(status))
"""


@pytest.mark.slow
def test_a_killed_audit_can_be_resumed(findings, folder, tmp_path):
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", KILLER, tests, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    kills, code = map(int, done.stdout.split())
    assert kills > 0
    assert code == 0
    for name in ("standard-0", "uniform-1"):
        whole, resumed = (load_file(f / "twins" / name / "model.safetensors") for f in (folder, tmp_path / "out"))
        for key, weight in whole.items():
            torch.testing.assert_close(resumed[key], weight)
    assert run(tmp_path / "out", ["uniform_attention"]).findings[0] == findings["uniform_attention"]


def test_a_damaged_twin_is_named_with_the_remedy(tmp_path):
    run(tmp_path, ["seed_variation"])
    (tmp_path / "seed_variation.json").unlink()
    weights = tmp_path / "twins" / "standard-1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(BadModel, match=r"the twin in .*standard-1 is damaged.*Delete that folder"):
        run(tmp_path, ["seed_variation"])


@pytest.mark.parametrize("file", ["state.json", "model.safetensors", "state.safetensors"])
def test_a_damaged_checkpoint_is_named_with_the_remedy(tmp_path, file):
    def stop(name, progress):
        if progress.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ["seed_variation"], callbacks=Callbacks(step=stop))
    (checkpoint,) = (tmp_path / "twins" / "standard-0.training").glob("checkpoint-*")
    (checkpoint / file).write_bytes(b"[]")
    with pytest.raises(BadModel, match=r"the checkpoint .* is damaged: .*Delete it to train from the start"):
        run(tmp_path, ["seed_variation"])


def test_another_training_set_is_refused_in_the_same_folder(findings, folder):
    with pytest.raises(BadInput, match="changed: training data or recipe"):
        run(folder, train=TRAIN[:-4])


def test_labels_are_needed_on_both_sides():
    with pytest.raises(BadInput, match="labelled texts to test on, and '0' has no label"):
        run(None, ["seed_variation"], data=[replace(e, label=None) for e in TEST])
    with pytest.raises(BadInput, match="all texts to train on have the label 'no'"):
        run(None, ["seed_variation"], train=TRAIN[::2])
    with pytest.raises(BadInput, match="there are no texts to train on"):
        run(None, ["seed_variation"], train=[])


def test_a_test_that_trains_needs_texts_to_train_on():
    with pytest.raises(BadInput, match=r"seed_variation trains twins.*--retrain"):
        audit(model(), TEST, tests="seed_variation")


def test_manipulation_needs_marked_tokens():
    plain = [replace(e, rationale=None) for e in TRAIN]
    with pytest.raises(BadInput, match="--impermissible-column"):
        run(None, ["manipulation"], train=plain, data=[replace(e, rationale=None) for e in TEST])


def test_what_cannot_be_run_is_left_out_with_the_reason():
    plain = [replace(e, rationale=None) for e in TRAIN]
    small = {"permutation.shuffles": 2, "adversary.search": Search(steps=2, restarts=1)}
    few = [replace(e, rationale=None) for e in TEST[:8]]
    options = {"training": {**TRAINING, "epochs": 1}, **{k: v for k, v in SETTINGS.items() if "manipulation" not in k}}
    result = audit(model(), few, retrain=plain, **options, **small)
    assert list(result.left_out) == ["manipulation"]
    assert "--impermissible-column" in result.left_out["manipulation"]
    assert len(result.findings) == 6 + len(NAMES) - 1
    assert len(result.summary) == len(result.findings)


def test_divided_texts_train_on_four_fifths(tmp_path):
    run(tmp_path, ["seed_variation"], data=[*TRAIN, *TEST][:60:1], train="divided")
    epochs = json.loads((tmp_path / "twins" / "standard-0" / "epochs.json").read_text())
    assert len(epochs) == TRAINING["epochs"]


@pytest.mark.parametrize("name", ["uniform_attention", "seed_variation", "frozen_weights", "word_tying"])
def test_transformers_have_no_twins_that_are_trained_from_scratch(name: str, tmp_path: Path):
    bert = build("bert")
    labelled = [Example(str(i), text, i % 2) for i, text in enumerate(["a fine film", "a dull film"] * 8)]
    with pytest.raises(
        UnsupportedModel, match=f"^{name} cannot be run on .* pooled classifier such as sentiment_bilstm"
    ):
        audit(bert, labelled, tests=["permutation", name], retrain=labelled, training={"epochs": 1}, out=tmp_path / "a")
    assert not (tmp_path / "a").exists(), "nothing is trained or tested first"


@pytest.mark.parametrize("shape", ["bert", "gpt2"])
def test_transformers_are_deceived_and_manipulated_as_copies(shape):
    transformer = build(shape)
    before = {name: values.clone() for name, values in transformer.module.state_dict().items()}
    labelled = [
        Example(str(i), text, i % 2, ((2, 6),)) for i, text in enumerate(["a fine film", "a dull film and long"] * 6)
    ]
    options = {"retrain": labelled, "training": {"epochs": 1, "rate": 1e-3}, "manipulation.weights": (1.0,)}
    for separate in (False, True) if shape == "bert" else (False,):
        result = audit(
            transformer,
            labelled,
            tests=["deceptive_twin", "manipulation"],
            **options,
            **{"manipulation.separate": separate, "manipulation.heads": "max"},
        )
        assert [f.test for f in result.findings] == ["deceptive_twin", "manipulation"]
    assert all(torch.equal(values, before[name]) for name, values in transformer.module.state_dict().items())


# ------------------------------------------------------------------------------------------------------ known answers


def test_weights_that_explain_help_a_model_without_context_and_uniform_ones_do_not():
    """Forty random words per text, and few texts: only weights that mark the decisive word tell it from chance."""
    train, test = ([Example(e.id, e.text, e.label) for e in texts(n, seed, words=40)] for n, seed in ((16, 3), (60, 4)))
    verdicts = {}
    for name, guide in (("decisive", decisive_among_noise()), ("indifferent", decisive_among_noise(scale=0.0))):
        result = audit(
            guide, test, tests="frozen_weights", retrain=train, training={"epochs": 12, "rate": 0.05, "batch": 8}
        )
        verdicts[name] = result.findings[0].verdict
    assert verdicts == {"decisive": "explanation", "indifferent": "unclear"}


def decisive_among_noise(scale: float = 12.0):
    """Embeddings alone, with nearly all attention on the decisive words, or with uniform attention."""
    built = model("embedding", scoring="dot")
    with torch.no_grad():
        built.module.words.weight[:, 1] = 0.0
        for word in ("good", "bad"):
            built.module.words.weight[built.tokenizer.token_to_id(word), 1] = 1.0
        built.module.query.weight.zero_()
        built.module.query.weight[0, 1] = scale * 6**0.5
    return built


def test_attention_that_uniform_weights_replace_is_not_needed():
    """The decisive word stands alone: uniform attention reads it as well as any other."""
    train, test = ([Example(e.id, e.text, e.label) for e in texts(n, seed, words=1)] for n, seed in ((48, 3), (60, 4)))
    (finding,) = run(None, ["uniform_attention"], train, data=test, training={**TRAINING, "epochs": 12}).findings
    assert finding.measures[2].estimate.mean == 1
    assert finding.verdict == "no explanation"


def test_the_furthest_adversary_is_chosen_among_those_that_are_as_accurate():
    assert furthest({0.0: 0.8, 1.0: 0.79, 2.0: 0.6}, {0.0: 0.1, 1.0: 0.5, 2.0: 0.69}, 0.8) == (1.0, True)
    assert furthest({2.0: 0.6, 3.0: 0.5}, {2.0: 0.3, 3.0: 0.35}, 0.8) == (2.0, False)
    # One that only imitates is no adversary, however accurate.
    assert furthest({0.0: 0.7, 2.0: 0.6, 3.0: 0.5}, {0.0: 0.1, 2.0: 0.5, 3.0: 0.6}, 0.8) == (2.0, False)
    assert furthest({0.0: 0.8, 2.0: 0.6, 3.0: 0.5}, {0.0: 0.1, 2.0: 0.5, 3.0: 0.6}, 0.8) == (2.0, False)
    assert furthest({0.0: 0.8, 2.0: 0.6}, {0.0: 0.1, 2.0: 0.3}, 0.8) == (0.0, True)


def test_a_twin_whose_attention_stayed_says_nothing_about_deception(tmp_path):
    options = {"retrain": TRAIN, "training": {"epochs": 1, "rate": 1e-9}, "tests": "deceptive_twin"}
    (finding,) = audit(decisive_among_noise(), TEST, out=tmp_path, **options, **{"deceptive_twin.weight": 0.0}).findings
    assert finding.measures[0].estimate.low > 0
    assert finding.measure("distance of attention (JSD)").estimate.mean < 0.01
    assert finding.verdict == "unclear"
    assert "distance (JSD) of" in finding.answer.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("twin", "fall", "distance", "same", "verdict"),
    [
        (-0.2, -0.5, 0.5, 0.9, "no explanation"),
        (0.2, -0.1, 0.5, 0.9, "explanation"),
        (0.2, -0.1, 0.35, 0.9, "unclear"),  # attention has not moved
        (-0.2, -0.5, 0.35, 0.9, "no explanation"),  # attention that has turned against influence has moved
        (-0.2, 0.0, 0.5, 0.9, "unclear"),  # it was against influence before
        (-0.2, -0.5, 0.5, 0.4, "unclear"),  # the output has changed
        (0.0, -0.5, 0.5, 0.9, "unclear"),
    ],
)
def test_deception_needs_a_fall_and_its_absence_other_attention(twin, fall, distance, same, verdict):
    def near(mean: float) -> Estimate:
        return Estimate(mean, mean - 0.05, mean + 0.05, 20)

    assert judged(near(twin), near(fall), distance=near(distance), same=near(same)) == verdict


def test_spans_are_removed_from_the_text_in_any_order():
    example = Example("0", "she said that he left", "x", ((14, 16), (0, 3)))
    assert removed(example).text == " said that  left"
    assert removed(Example("1", "she", "x", ((0, 3),))) is None


def test_texts_that_are_nothing_but_impermissible_tokens_are_refused_before_anything_is_trained(tmp_path):
    alone = [replace(e, text=e.text.split()[0], rationale=((0, 9),)) for e in TEST]
    for train, test, what in ((TRAIN, alone, "test on"), (alone, TEST, "train on")):
        with pytest.raises(BadInput, match=f"nothing is left of the texts to {what}"):
            run(tmp_path, ["uniform_attention", "manipulation"], train=train, data=test)
    assert not list(tmp_path.iterdir())


def test_labels_that_the_model_does_not_know_are_refused_before_anything_is_trained(tmp_path):
    other = [*TEST[:-1], replace(TEST[-1], label="maybe")]
    for train, test in ((TRAIN, other), (other, TEST)):
        with pytest.raises(BadInput, match=r"unknown label 'maybe' of small\..*no, yes"):
            run(tmp_path, ["seed_variation"], train=train, data=test, callbacks=Callbacks(step=pytest.fail))
    assert not (tmp_path / "twins").exists()


def test_what_is_asked_in_vain_is_refused():
    with pytest.raises(BadInput, match="none of the tests permutation trains twins"):
        run(None, ["permutation"])
    with pytest.raises(BadInput, match="leave out the layer and the head"):
        run(None, ["manipulation"], layer=1)
    with pytest.raises(BadInput, match="weights of manipulation is empty"):
        audit(model(), TEST, tests="manipulation", retrain=TRAIN, **{"manipulation.weights": ()})
    with pytest.raises(BadInput, match="seeds of seed_variation takes"):
        audit(model(), TEST, tests="seed_variation", retrain=TRAIN, **{"seed_variation.seeds": 1})
    with pytest.raises(UnsupportedModel, match="separate keeps tokens of an encoder"):
        audit(model(), TEST, tests="manipulation", retrain=TRAIN, **{"manipulation.separate": True})


def test_other_labels_of_the_tested_texts_are_refused_in_the_same_folder(findings, folder):
    changed = [replace(TEST[0], label="yes"), *TEST[1:]]
    with pytest.raises(BadInput, match="changed: labels of the texts"):
        run(folder, data=changed)


def test_texts_of_impermissible_tokens_alone_are_left_out_of_the_comparison(tmp_path):
    alone = Example("alone", "good", "yes", ((0, 4),))
    (finding,) = run(tmp_path, ["manipulation"], data=[*TEST, alone]).findings
    assert finding.measures[0].estimate.n == len(TEST)
    assert np.isnan(finding.measures[1].values[-1])


def test_another_layer_and_head_are_deceived_where_they_are_tested():
    bert = build("bert")
    labelled = [Example(str(i), text, i % 2) for i, text in enumerate(["a fine film", "a dull film and long"] * 4)]
    options = {"retrain": labelled, "training": {"epochs": 1, "rate": 1e-3}, "tests": "deceptive_twin"}
    one, other = (audit(bert, labelled, layer=1, head=head, **options).findings[0] for head in (1, 2))
    assert one.measure("distance of attention (JSD)").values != other.measure("distance of attention (JSD)").values
