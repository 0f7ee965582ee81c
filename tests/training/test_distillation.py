"""Distillation: every variant, stopping and resuming, and changed settings."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import salience
from reviews import reviews
from salience.cli import run
from salience.data import source
from salience.data.examples import Example, examples
from salience.errors import BadInput
from salience.models import load_to_train
from salience.training.distillation import VARIANTS, Callbacks, Distillation, distil
from salience.training.guides import by_explanations, by_rationales, shuffled_guides, uniform_guides
from salience.training.loop import Recipe, fit
from salience.training.monitors import AttentionMonitor, accuracy, agreeing_heads, important_heads
from salience.training.objectives import attention_to_explanation, regularised, smoothed
from shapes import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pretrained")
    build("bert").save(path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, count in (("train", 24), ("held", 8), ("more", 8)):
        lines = [{"id": e.id, "text": e.text, "label": e.label, "why": e.rationale} for e in reviews(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def of(data: Path, name: str, **columns: str):
    return source(data / f"{name}.jsonl", id="id", **({"label": "label", "rationale": "why"} | columns))


QUICK = Recipe(epochs=2, batch=8, rate=3e-3)


def test_agreeing_heads_are_selected_and_trained(folder: Path, data: Path, tmp_path: Path):
    messages: list[str] = []
    distillation = Distillation(penalty_settings={"heads": "agreeing"}, recipe=QUICK)
    result = distil(
        str(folder),
        of(data, "train"),
        tmp_path / "out",
        distillation,
        validation=of(data, "held"),
        callbacks=Callbacks(stage=messages.append),
    )
    (message,) = [stage for stage in messages if stage.startswith("selected the heads")]
    assert len(message.split(", ")) == 4
    assert result.epochs[-1].penalty < result.epochs[0].penalty
    control = dataclasses.replace(distillation, variant="shuffled")
    distil(str(folder), of(data, "train"), tmp_path / "control", control, callbacks=Callbacks(stage=messages.append))
    assert messages.count(message) == 2, "the control reads the same heads"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant(folder: Path, data: Path, tmp_path: Path, variant: str):
    distillation = Distillation(variant=variant, rounds=2, recipe=QUICK, weight=0.5)
    messages: list[str] = []
    result = distil(
        str(folder),
        of(data, "train"),
        tmp_path / "out",
        distillation,
        validation=of(data, "held"),
        tests={"held": of(data, "held")},
        callbacks=Callbacks(stage=messages.append),
    )
    assert [e.number for e in result.epochs] == [1, 2]
    assert 0 <= result.scores["held"] <= 1
    measured = set(result.epochs[-1].measures)
    assert "accuracy" in measured
    if variant not in ("vanilla", "smoothed"):
        assert measured >= {"attention_mass", "agreement", "held_out_agreement", "comprehensiveness", "sufficiency"}
        assert set(result.before) == measured
        assert "teacher/held" in result.scores
        assert any("explaining" in stage for stage in messages)
    plain = AutoModelForSequenceClassification.from_pretrained(result.student)
    ours = salience.load(result.student)
    (encoded,) = ours.encode(["a fine fox"])
    with torch.no_grad():
        assert torch.allclose(plain(torch.tensor([encoded.ids])).logits, ours(ours.batch([encoded])).logits, atol=1e-5)
    again = distil(
        str(folder),
        of(data, "train"),
        tmp_path / "out",
        distillation,
        validation=of(data, "held"),
        tests={"held": of(data, "held")},
    )
    assert again == dataclasses.replace(result, course=again.course), "a finished result was computed again"
    with pytest.raises(BadInput, match=r"started with course\.weight = 0\.5, not 2\.0"):
        distil(
            str(folder),
            of(data, "train"),
            tmp_path / "out",
            dataclasses.replace(distillation, weight=2.0),
            validation=of(data, "held"),
        )


def test_the_controls_keep_what_an_explanation_does_not_say():
    model = build("bert")
    texts = by_rationales(model, reviews(8))
    for seed in (0, 1):
        shuffled = shuffled_guides(model, texts, seed=seed)
        for before, after, tokens in zip(texts, shuffled, model.encode([e.text for e in texts]), strict=True):
            assert sorted(before.guide) == sorted(after.guide)
            assert all(w == 0 for w, special in zip(after.guide, tokens.special, strict=True) if special)
        assert shuffled == shuffled_guides(model, texts, seed=seed)
        assert shuffled[3:] == shuffled_guides(model, texts[3:], seed=seed), "the order depends on the other texts"
    assert shuffled_guides(model, texts, seed=0) != shuffled_guides(model, texts, seed=1)
    long = next(e for e in texts if len(e.text) > 20)
    guides = [shuffled_guides(model, [long], seed=seed)[0].guide for seed in range(200)]
    places = [i for guide in guides for i, weight in enumerate(guide) if weight]
    content = [i for i, special in enumerate(model.encode([long.text])[0].special) if not special]
    assert set(places) == set(content), "every token is marked at times"
    uniform = uniform_guides(model, texts)
    for e, tokens in zip(uniform, model.encode([e.text for e in texts]), strict=True):
        assert e.guide == tuple(float(not special) for special in tokens.special)


def test_controls_of_texts_without_marks_and_of_several_labels():
    model = build("bert")
    text = "the quick dull film jumps over the lazy dog"
    (tokens,) = model.encode([text])
    nothing = (0.0,) * len(tokens)
    marked = (0.0, 1.0, 0.5, *nothing[3:])
    for control in (shuffled_guides, uniform_guides):
        without = [Example("a", text, 0), Example("b", text, 0, None, nothing)]
        assert control(model, without) == without
    (both,) = shuffled_guides(model, [Example("c", text, 0, None, (marked, marked))])
    assert [sorted(one) for one in both.guide] == [sorted(marked)] * 2
    assert both.guide[0] != both.guide[1], "explanations of different labels are shuffled separately"


def test_a_control_is_trained_on_controlled_guides_and_measured_with_the_explanations(
    folder: Path, data: Path, tmp_path: Path
):
    course = Distillation(method="rationale", weight=2.0, recipe=dataclasses.replace(QUICK, seed=3))
    texts = examples(of(data, "train"))
    for variant in ("shuffled", "uniform", "smoothed"):
        one = dataclasses.replace(course, variant=variant)
        result = distil(str(folder), of(data, "train"), tmp_path / variant, one, validation=of(data, "held"))
        model = load_to_train(folder, 2, seed=3)
        guided = by_rationales(model, texts)
        guided = shuffled_guides(model, guided, seed=3) if variant == "shuffled" else uniform_guides(model, guided)
        objective = smoothed(2.0) if variant == "smoothed" else regularised(attention_to_explanation, 2.0)
        by_hand = list(fit(model, guided, objective=objective, recipe=one.recipe))
        assert [e.losses for e in result.epochs] == [e.losses for e in by_hand]
        if variant != "smoothed":
            held_out = by_rationales(model, examples(of(data, "held")))
            measured = AttentionMonitor(held_out, objective)(model)
            assert result.epochs[-1].measures["attention_mass"] == pytest.approx(measured["attention_mass"])


def test_a_uniform_control_that_would_teach_nothing_is_refused():
    for penalty in ("contrast", "gradient_to_explanation"):
        with pytest.raises(BadInput, match=f"{penalty} is constant .* use 'shuffled'"):
            Distillation("uniform", penalty=penalty)
    Distillation("uniform", penalty="gradient_to_explanation", penalty_settings={"criterion": "kl"})


class Stopped(Exception):
    pass


@pytest.mark.parametrize("at", ["training the teacher", "explaining", "training the student", "epoch"])
def test_resuming_gives_the_same_student_as_an_uninterrupted_run(folder: Path, data: Path, tmp_path: Path, at: str):
    distillation = Distillation(recipe=QUICK)

    def stage(name: str) -> None:
        if name.startswith(at):
            raise Stopped

    def epoch(name: str, _: object) -> None:
        if at == "epoch" and name == "student":
            raise Stopped

    whole = distil(str(folder), of(data, "train"), tmp_path / "whole", distillation)
    with pytest.raises(Stopped):
        distil(
            str(folder),
            of(data, "train"),
            tmp_path / "cut",
            distillation,
            callbacks=Callbacks(stage=stage, epoch=epoch),
        )
    result = distil(str(folder), of(data, "train"), tmp_path / "cut", distillation)
    a, b = (salience.load(t.student).module.state_dict() for t in (whole, result))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_human_rationales_and_unlabelled_texts(folder: Path, data: Path, tmp_path: Path):
    distillation = Distillation(method="rationale", recipe=dataclasses.replace(QUICK, epochs=8), weight=5.0)
    result = distil(str(folder), of(data, "train"), tmp_path / "a", distillation, validation=of(data, "held"))
    assert result.epochs[-1].penalty < result.epochs[0].penalty
    more = source(data / "more.jsonl", id="id")
    result = distil(str(folder), of(data, "train"), tmp_path / "b", Distillation(recipe=QUICK), unlabelled=more)
    assert len(salience.open_run(tmp_path / "b" / "explanations-unlabelled")) == 8
    taught = salience.open_run(tmp_path / "b" / "explanations")
    labels = {e.id: e.label for e in examples(of(data, "train"))}
    names = salience.load(tmp_path / "b" / "teacher").labels
    assert {name: e.target.label for name, (e,) in taught.rows()} == {k: names[v] for k, v in labels.items()}
    for variant in ("iterative", "refreshed", "fine_tuned"):
        with pytest.raises(BadInput, match="human rationales do not"):
            Distillation(method="rationale", variant=variant)
    refreshed = Distillation(variant="refreshed", recipe=QUICK)
    distil(str(folder), of(data, "train"), tmp_path / "c", refreshed, unlabelled=source(data / "more.jsonl"))
    with pytest.raises(BadInput, match="unlabelled texts need a teacher"):
        distil(str(folder), of(data, "train"), tmp_path / "d", Distillation(method="rationale"), unlabelled=more)


def test_a_teacher_of_another_tokenizer_is_refused(folder: Path, data: Path, tmp_path: Path):
    build("gpt2").save(tmp_path / "other")
    with pytest.raises(BadInput, match="another tokenizer"):
        distil(str(folder), of(data, "train"), tmp_path / "out", Distillation(recipe=QUICK), teacher=tmp_path / "other")


def test_a_changed_teacher_or_column_is_refused_and_new_tests_are_run(folder: Path, data: Path, tmp_path: Path):
    out, distillation = tmp_path / "out", Distillation(variant="vanilla", recipe=QUICK)
    first = distil(str(folder), of(data, "train"), out, distillation, tests={"t": of(data, "held")})
    second = distil(str(folder), of(data, "train"), out, distillation, tests={"t": of(data, "train")})
    assert second.scores["t"] == accuracy(salience.load(second.student), examples(of(data, "train")))
    assert first.tested != second.tested
    with pytest.raises(BadInput, match=r"started with data\.columns"):
        distil(str(folder), source(data / "train.jsonl", label="label"), out, distillation)
    with pytest.raises(BadInput, match="started with teacher"):
        distil(str(folder), of(data, "train"), out, distillation, teacher=out / "student")


def test_hidden_files_in_the_folder_are_left_alone(folder: Path, data: Path, tmp_path: Path):
    out = tmp_path / "out"
    distil(str(folder), of(data, "train"), out, Distillation(variant="vanilla", recipe=QUICK))
    (out / ".git").mkdir()
    distil(
        str(folder),
        of(data, "train"),
        out,
        Distillation(variant="vanilla", recipe=QUICK),
        tests={"t": of(data, "held")},
    )
    assert (out / ".git").is_dir()
    assert not list(out.glob(".*/checkpoint-*"))


def test_teacher_and_student_have_the_requested_dtype(folder: Path, data: Path, tmp_path: Path):
    distillation = Distillation(variant="fine_tuned", recipe=dataclasses.replace(QUICK, epochs=1))
    result = distil(str(folder), of(data, "train"), tmp_path / "out", distillation, dtype="float64")
    stored = AutoModelForSequenceClassification.from_pretrained(result.student, dtype="auto")
    assert stored.dtype == torch.float64


def test_contrast_explains_every_label(folder: Path, data: Path, tmp_path: Path):
    distillation = Distillation(
        penalty="contrast", recipe=dataclasses.replace(QUICK, epochs=6), form="positive", weight=5.0
    )
    result = distil(str(folder), of(data, "train"), tmp_path / "out", distillation, validation=of(data, "held"))
    assert sorted(f.name for f in tmp_path.glob("out/explanations-label-*")) == [
        f"explanations-label-{i}" for i in range(2)
    ]
    assert min(e.penalty for e in result.epochs[1:]) < result.epochs[0].penalty


def test_the_pooled_model_can_be_distilled(data: Path, tmp_path: Path):
    distillation = Distillation(recipe=dataclasses.replace(QUICK, rate=0.01))
    result = distil("sentiment_bilstm", of(data, "train"), tmp_path / "out", distillation, validation=of(data, "held"))
    assert salience.load(result.student).labels == salience.load("sentiment_bilstm").labels
    assert result.epochs[-1].task < result.epochs[0].task


def test_invalid_settings_and_data_are_refused(folder: Path, data: Path, tmp_path: Path):
    with pytest.raises(BadInput, match="share=0"):
        Distillation(share=0)
    with pytest.raises(BadInput, match="at least 0"):
        Distillation(weight=-1)
    with pytest.raises(BadInput, match="Did you mean 'heads'"):
        Distillation(penalty_settings={"head": "each"})
    with pytest.raises(BadInput, match="Did you mean 'gradient'"):
        Distillation(method="gradiant")
    with pytest.raises(BadInput, match="Did you mean 'kl'"):
        Distillation(penalty_settings={"divergence": "k"})
    with pytest.raises(BadInput, match="rounds=0"):
        Distillation(rounds=0)
    with pytest.raises(BadInput, match="explanations of every label"):
        Distillation(variant="refreshed", penalty="contrast")
    (data / "one.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}\n')
    with pytest.raises(BadInput, match="have the label 'x'"):
        distil(str(folder), source(data / "one.jsonl", label="label"), tmp_path / "one")
    (data / "new.jsonl").write_text('{"text": "a", "label": "unheard"}\n')
    with pytest.raises(BadInput, match=r"'unheard', which does not occur in the training data"):
        distil(str(folder), of(data, "train"), tmp_path / "new", validation=source(data / "new.jsonl", label="label"))
    with pytest.raises(BadInput, match="name the column of its labels"):
        distil(str(folder), source(data / "train.jsonl"), tmp_path / "out")
    (data / "odd.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": 1}\n')
    with pytest.raises(BadInput, match="all names or all whole numbers"):
        distil(str(folder), source(data / "odd.jsonl", label="label"), tmp_path / "odd")
    (data / "bad.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "", "label": "y"}\n')
    with pytest.raises(BadInput, match=r"1 of 2 rows .* line 2 .* empty"):
        distil(str(folder), source(data / "bad.jsonl", label="label"), tmp_path / "bad")


def test_explanations_of_other_texts_or_tokenizers_are_refused():
    model = build("bert")
    texts = [Example("a", "a fine fox", 0)]
    (matching,) = salience.explain(model, "a fine fox", "input_x_gradient")
    (guided,) = by_explanations(model, texts, {"a": [matching]}, share=0.4)
    assert sum(guided.guide) == 1 or sum(guided.guide) == 2
    with pytest.raises(BadInput, match="no explanation, the first of them 'a'"):
        by_explanations(model, texts, {"b": [matching]})
    (other,) = salience.explain(model, "a dull fox", "input_x_gradient")
    with pytest.raises(BadInput, match="explains another text"):
        by_explanations(model, texts, {"a": [other]})
    (mismatched,) = salience.explain(build("gpt2"), "a fine fox", "input_x_gradient")
    with pytest.raises(BadInput, match="another tokenizer"):
        by_explanations(model, texts, {"a": [mismatched]})


def test_monitor_measures():
    model = build("bert")
    texts = by_rationales(model, reviews(8))
    measures = AttentionMonitor(texts, regularised(attention_to_explanation))(model)
    masses = []
    for e in texts:
        (explained,) = salience.explain(model, e.text, "attention")
        masses.append(sum(s for s, g in zip(explained.scores, e.guide, strict=True) if g))
    assert measures["attention_mass"] == pytest.approx(sum(masses) / len(masses), rel=1e-4)
    assert measures["accuracy"] == accuracy(model, texts)
    assert measures["penalty"] > 0
    all_layers = AttentionMonitor(texts, regularised(attention_to_explanation), layers="all")(model)
    assert all_layers["attention_mass"] != measures["attention_mass"]
    heads = agreeing_heads(model, texts, 3)
    assert len(set(heads)) == 3
    assert all(1 <= layer <= model.layers for layer, _ in heads)


def test_the_command(folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["train", "--model", str(folder), "--data", str(data / "train.jsonl"), "--out", str(tmp_path / "out")]
    arguments += [
        "--validation",
        str(data / "held.jsonl"),
        "--epochs=1",
        "--rate=0.003",
        "--batch=8",
        "--with",
        "heads=each",
    ]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert "attention mass" in out
    assert "training the student" in err
    assert run([*arguments, "--json"]) == 0
    finished = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert finished["event"] == "finished"
    assert run([*arguments[:-2], "--with", "heads=none"]) == 2
    assert run([*arguments, "--weight=-1"]) == 2
    assert "at least 0" in capsys.readouterr().err


def test_reading_examples(data: Path):
    read = examples(of(data, "train"))
    assert [dataclasses.replace(e, guide=None) for e in read] == reviews(24)


def test_important_heads_are_those_whose_output_the_loss_depends_on():
    """The importance of a head is how the loss changes with a factor on its attention, by a difference quotient."""
    model = build("bert")
    model.module.double().eval()
    texts = reviews(4)
    batch = model.batch(model.encode([e.text for e in texts]))
    labels = torch.tensor([e.label for e in texts])

    def losses(layer: int, head: int, factor: float) -> torch.Tensor:
        def edit(site, a):
            scale = torch.ones(a.shape[1], dtype=a.dtype)
            if site.layer == layer:
                scale[head - 1] = factor
            return a * scale[:, None, None]

        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(batch, edit_attention=edit).logits, labels, reduction="none")

    heads = model.module.config.num_attention_heads
    importance = {
        (layer, head): float(((losses(layer, head, 1.001) - losses(layer, head, 0.999)) / 0.002).abs().sum())
        for layer in range(1, model.layers + 1)
        for head in range(1, heads + 1)
    }
    order = sorted(importance, key=importance.__getitem__, reverse=True)
    assert important_heads(model, texts, count=3) == order[:3]
