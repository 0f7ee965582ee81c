"""Teacher, explanations, student: each variant, and what happens when it is stopped or begun differently."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import salience
from salience import teaching
from salience.cli import run
from salience.data import source
from salience.errors import BadInput
from salience.guards import Guards, accuracy, agreeing_heads
from salience.lessons import Example, by_explanations, by_rationales, examples
from salience.objectives import Objective, attention_to_explanation
from salience.teaching import Course, Telling, teach
from salience.train import Recipe
from shapes import build
from test_train import reviews


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


def test_heads_that_agree_already_are_found_and_taught(folder: Path, data: Path, tmp_path: Path):
    told: list[str] = []
    course = Course(penalty_settings={"heads": "agreeing"}, recipe=QUICK)
    found = teach(
        str(folder),
        of(data, "train"),
        tmp_path / "out",
        course,
        validation=of(data, "held"),
        telling=Telling(stage=told.append),
    )
    (said,) = [what for what in told if what.startswith("teaching the heads")]
    assert len(said.split(", ")) == 4
    assert found.epochs[-1].penalty < found.epochs[0].penalty


@pytest.mark.parametrize("variant", teaching.VARIANTS)
def test_every_variant(folder: Path, data: Path, tmp_path: Path, variant: str):
    course = Course(variant=variant, rounds=2, recipe=QUICK, weight=0.5)
    told: list[str] = []
    found = teach(
        str(folder),
        of(data, "train"),
        tmp_path / "out",
        course,
        validation=of(data, "held"),
        tests={"held": of(data, "held")},
        telling=Telling(stage=told.append),
    )
    assert [e.number for e in found.epochs] == [1, 2]
    assert 0 <= found.scores["held"] <= 1
    measured = set(found.epochs[-1].measures)
    assert "accuracy" in measured
    if variant != "vanilla":
        assert measured >= {"attention_mass", "agreement", "held_out_agreement", "comprehensiveness", "sufficiency"}
        assert set(found.before) == measured
        assert "teacher/held" in found.scores
        assert any("explaining" in what for what in told)
    plain = AutoModelForSequenceClassification.from_pretrained(found.student)
    ours = salience.load(found.student)
    (encoded,) = ours.encode(["a fine fox"])
    with torch.no_grad():
        assert torch.allclose(plain(torch.tensor([encoded.ids])).logits, ours(ours.batch([encoded])).logits, atol=1e-5)
    again = teach(
        str(folder),
        of(data, "train"),
        tmp_path / "out",
        course,
        validation=of(data, "held"),
        tests={"held": of(data, "held")},
    )
    assert again == dataclasses.replace(found, course=again.course), "what is finished is not done again"
    with pytest.raises(BadInput, match=r"begun with course\.weight = 0\.5, not 2\.0"):
        teach(
            str(folder),
            of(data, "train"),
            tmp_path / "out",
            dataclasses.replace(course, weight=2.0),
            validation=of(data, "held"),
        )


class Stopped(Exception):
    pass


@pytest.mark.parametrize("at", ["training the teacher", "explaining", "training the student", "epoch"])
def test_a_stopped_course_ends_as_if_it_had_not_been(folder: Path, data: Path, tmp_path: Path, at: str):
    course = Course(recipe=QUICK)

    def stage(what: str) -> None:
        if what.startswith(at):
            raise Stopped

    def epoch(who: str, _: object) -> None:
        if at == "epoch" and who == "student":
            raise Stopped

    whole = teach(str(folder), of(data, "train"), tmp_path / "whole", course)
    with pytest.raises(Stopped):
        teach(str(folder), of(data, "train"), tmp_path / "cut", course, telling=Telling(stage=stage, epoch=epoch))
    found = teach(str(folder), of(data, "train"), tmp_path / "cut", course)
    a, b = (salience.load(t.student).module.state_dict() for t in (whole, found))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_rationales_of_people_and_texts_without_labels(folder: Path, data: Path, tmp_path: Path):
    course = Course(method="rationale", recipe=dataclasses.replace(QUICK, epochs=8), weight=5.0)
    found = teach(str(folder), of(data, "train"), tmp_path / "a", course, validation=of(data, "held"))
    assert found.epochs[-1].penalty < found.epochs[0].penalty
    more = source(data / "more.jsonl", id="id")
    found = teach(str(folder), of(data, "train"), tmp_path / "b", Course(recipe=QUICK), unlabelled=more)
    assert len(salience.open_run(tmp_path / "b" / "explanations-unlabelled")) == 8
    for variant in ("iterative", "refreshed", "fine_tuned"):
        with pytest.raises(BadInput, match="people's rationales need none"):
            Course(method="rationale", variant=variant)
    refreshed = Course(variant="refreshed", recipe=QUICK)
    teach(str(folder), of(data, "train"), tmp_path / "c", refreshed, unlabelled=source(data / "more.jsonl"))
    with pytest.raises(BadInput, match="texts without labels"):
        teach(str(folder), of(data, "train"), tmp_path / "d", Course(method="rationale"), unlabelled=more)


def test_a_teacher_of_another_tokenizer_is_refused(folder: Path, data: Path, tmp_path: Path):
    build("gpt2").save(tmp_path / "other")
    with pytest.raises(BadInput, match="another tokenizer"):
        teach(str(folder), of(data, "train"), tmp_path / "out", Course(recipe=QUICK), teacher=tmp_path / "other")


def test_another_teacher_or_column_is_another_course_and_other_tests_are_tested(
    folder: Path, data: Path, tmp_path: Path
):
    out, course = tmp_path / "out", Course(variant="vanilla", recipe=QUICK)
    first = teach(str(folder), of(data, "train"), out, course, tests={"t": of(data, "held")})
    second = teach(str(folder), of(data, "train"), out, course, tests={"t": of(data, "train")})
    assert second.scores["t"] == accuracy(salience.load(second.student), examples(of(data, "train")))
    assert first.tested != second.tested
    with pytest.raises(BadInput, match=r"begun with data\.columns"):
        teach(str(folder), source(data / "train.jsonl", label="label"), out, course)
    with pytest.raises(BadInput, match="begun with teacher"):
        teach(str(folder), of(data, "train"), out, course, teacher=out / "student")


def test_what_lies_hidden_in_the_folder_is_left_alone(folder: Path, data: Path, tmp_path: Path):
    out = tmp_path / "out"
    teach(str(folder), of(data, "train"), out, Course(variant="vanilla", recipe=QUICK))
    (out / ".git").mkdir()
    teach(str(folder), of(data, "train"), out, Course(variant="vanilla", recipe=QUICK), tests={"t": of(data, "held")})
    assert (out / ".git").is_dir()
    assert not list(out.glob(".*/checkpoint-*"))


def test_the_precision_asked_for_is_that_of_teacher_and_student(folder: Path, data: Path, tmp_path: Path):
    course = Course(variant="fine_tuned", recipe=dataclasses.replace(QUICK, epochs=1))
    found = teach(str(folder), of(data, "train"), tmp_path / "out", course, dtype="float64")
    stored = AutoModelForSequenceClassification.from_pretrained(found.student, dtype="auto")
    assert stored.dtype == torch.float64


def test_contrast_explains_every_label(folder: Path, data: Path, tmp_path: Path):
    course = Course(penalty="contrast", recipe=dataclasses.replace(QUICK, epochs=6), form="positive", weight=5.0)
    found = teach(str(folder), of(data, "train"), tmp_path / "out", course, validation=of(data, "held"))
    assert sorted(f.name for f in tmp_path.glob("out/explanations-label-*")) == [
        f"explanations-label-{i}" for i in range(2)
    ]
    assert min(e.penalty for e in found.epochs[1:]) < found.epochs[0].penalty


def test_the_pooled_model_is_taught_as_well(data: Path, tmp_path: Path):
    course = Course(recipe=dataclasses.replace(QUICK, rate=0.01))
    found = teach("sentiment_bilstm", of(data, "train"), tmp_path / "out", course, validation=of(data, "held"))
    assert salience.load(found.student).labels == salience.load("sentiment_bilstm").labels
    assert found.epochs[-1].task < found.epochs[0].task


def test_what_cannot_be_taught(folder: Path, data: Path, tmp_path: Path):
    with pytest.raises(BadInput, match="share=0"):
        Course(share=0)
    with pytest.raises(BadInput, match="at least 0"):
        Course(weight=-1)
    with pytest.raises(BadInput, match="Did you mean 'heads'"):
        Course(penalty_settings={"head": "each"})
    with pytest.raises(BadInput, match="Did you mean 'gradient'"):
        Course(method="gradiant")
    with pytest.raises(BadInput, match="Did you mean 'kl'"):
        Course(penalty_settings={"divergence": "k"})
    with pytest.raises(BadInput, match="rounds=0"):
        Course(rounds=0)
    with pytest.raises(BadInput, match="explanations of every label"):
        Course(variant="refreshed", penalty="contrast")
    (data / "one.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}\n')
    with pytest.raises(BadInput, match="have the label 'x'"):
        teach(str(folder), source(data / "one.jsonl", label="label"), tmp_path / "one")
    (data / "new.jsonl").write_text('{"text": "a", "label": "unheard"}\n')
    with pytest.raises(BadInput, match=r"'unheard', which no text for training has"):
        teach(str(folder), of(data, "train"), tmp_path / "new", validation=source(data / "new.jsonl", label="label"))
    with pytest.raises(BadInput, match="name the column of its labels"):
        teach(str(folder), source(data / "train.jsonl"), tmp_path / "out")
    (data / "odd.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": 1}\n')
    with pytest.raises(BadInput, match="all names or all whole numbers"):
        teach(str(folder), source(data / "odd.jsonl", label="label"), tmp_path / "odd")
    (data / "bad.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "", "label": "y"}\n')
    with pytest.raises(BadInput, match=r"1 of 2 rows .* line 2 .* empty"):
        teach(str(folder), source(data / "bad.jsonl", label="label"), tmp_path / "bad")


def test_explanations_of_other_texts_or_tokenizers_are_refused():
    model = build("bert")
    given = [Example("a", "a fine fox", 0)]
    (right,) = salience.explain(model, "a fine fox", "input_x_gradient")
    (guided,) = by_explanations(model, given, {"a": [right]}, share=0.4)
    assert sum(guided.guide) == 1 or sum(guided.guide) == 2
    with pytest.raises(BadInput, match="no explanation, the first of them 'a'"):
        by_explanations(model, given, {"b": [right]})
    (other,) = salience.explain(model, "a dull fox", "input_x_gradient")
    with pytest.raises(BadInput, match="is of another text"):
        by_explanations(model, given, {"a": [other]})
    (foreign,) = salience.explain(build("gpt2"), "a fine fox", "input_x_gradient")
    with pytest.raises(BadInput, match="another tokenizer"):
        by_explanations(model, given, {"a": [foreign]})


def test_guards_measure_what_they_say():
    model = build("bert")
    given = by_rationales(model, reviews(8))
    found = Guards(given, Objective(attention_to_explanation))(model)
    masses = []
    for e in given:
        (explained,) = salience.explain(model, e.text, "attention")
        masses.append(sum(s for s, g in zip(explained.scores, e.guide, strict=True) if g))
    assert found["attention_mass"] == pytest.approx(sum(masses) / len(masses), rel=1e-4)
    assert found["accuracy"] == accuracy(model, given)
    assert found["penalty"] > 0
    (taught,) = [Guards(given, Objective(attention_to_explanation), layers="all")(model)]
    assert taught["attention_mass"] != found["attention_mass"]
    heads = agreeing_heads(model, given, 3)
    assert len(set(heads)) == 3
    assert all(1 <= layer <= model.layers for layer, _ in heads)


def test_the_command(folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["train", "--model", str(folder), "--data", str(data / "train.jsonl"), "--out", str(tmp_path / "out")]
    asked += [
        "--validation",
        str(data / "held.jsonl"),
        "--epochs=1",
        "--rate=0.003",
        "--batch=8",
        "--with",
        "heads=each",
    ]
    assert run(asked) == 0
    out, err = capsys.readouterr()
    assert "attention mass" in out
    assert "training the student" in err
    assert run([*asked, "--json"]) == 0
    finished = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert finished["event"] == "finished"
    assert run([*asked[:-2], "--with", "heads=none"]) == 2
    assert run([*asked, "--weight=-1"]) == 2
    assert "at least 0" in capsys.readouterr().err


def test_reading_examples(data: Path):
    found = examples(of(data, "train"))
    assert [dataclasses.replace(e, guide=None) for e in found] == reviews(24)
