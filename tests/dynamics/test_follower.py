"""Following a training: what is recorded, resuming, files of other trainings, bad input."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import salience
from dynamics.planted import KEYWORDS, SMALL, planted
from salience.core.passes import forward
from salience.data.examples import Example, encode_examples
from salience.dynamics import Callbacks, read_follow
from salience.dynamics.classifiers import Classifiers
from salience.dynamics.recording import checkpoints, snapshots
from salience.errors import BadInput, TruncatedText, UnsupportedModel
from salience.training.loop import Recipe, TrainingProgress
from shapes import TEXTS, build

QUICK = Recipe(epochs=3, batch=16, rate=1e-2, warmup=0.0, decay=0.0)


def classifiers(
    folder: Path, *, labels: int = 3, count: int = 160, recipe: Recipe = QUICK, **shape: object
) -> Classifiers:
    texts = planted(count + 20, labels=labels)
    return Classifiers.new(folder, texts[:count], texts[count:], shape={**SMALL, **shape}, recipe=recipe, checkpoints=8)


def test_a_snapshot_is_attention_and_relevance_that_add_up_to_the_output():
    model = build("pooled_bilstm")
    encoded = model.encode(TEXTS)
    bias = model.module.classifier.bias.detach().numpy()
    for one, tokens in zip(snapshots(model, encoded), encoded, strict=True):
        output = forward(model, model.batch([tokens]), hidden=True, attention="read")
        h, W = output.hidden[1][0], model.module.classifier.weight.detach()
        assert one.attention == pytest.approx(output.attention[0][0, 0, 0].numpy(), abs=1e-6)
        for c in range(3):
            for t in range(len(tokens)):
                r = float(W[c] @ h[t]) - float(np.mean([W[k] @ h[t] for k in range(3)]))
                assert one.relevance[c, t] == pytest.approx(r, abs=1e-5)
        logits = one.relevance @ one.attention + bias
        assert one.probabilities == pytest.approx(np.exp(logits) / np.exp(logits).sum(), abs=1e-5)


def test_models_without_a_sum_are_refused():
    model = build("bert")
    with pytest.raises(UnsupportedModel, match="tiny-bert cannot be followed"):
        snapshots(model, model.encode(TEXTS))


def test_steps_lie_closer_at_the_beginning():
    assert checkpoints(4, 30) == [0, 1, 2, 3, 4]
    steps = checkpoints(1000, 30)
    assert (steps[0], steps[-1], len(steps)) == (0, 1000, 30)
    assert (np.diff(steps, n=2) >= -1).all()


def test_what_is_recorded_of_a_training(tmp_path: Path):
    own = classifiers(tmp_path, count=320)
    model, followed = own("standard", seed=3)
    assert followed.steps == tuple(own.steps)
    assert followed.labels == ("negative", "neutral", "positive")
    assert followed.accuracy[-1] > 0.8 > 0.6 > followed.accuracy[0]
    untrained = own.start.fresh(own.start.labels, 3)
    for at, one in ((0, untrained), (-1, model)):
        for text, expected in zip(followed.texts, snapshots(one, encode_examples(one, own.followed)), strict=True):
            assert text.attention[at] == pytest.approx(expected.attention, abs=1e-6)
            assert text.relevances[at] == pytest.approx(expected.relevance, abs=1e-5)
    text = followed.texts[0]
    assert text.tokens == tuple(str(own.followed[0].text).split())
    assert text.label == followed.labels.index(str(own.followed[0].label))
    keyword = next(i for i, token in enumerate(text.tokens) if token in KEYWORDS[str(own.followed[0].label)])
    assert text.relevance[-1].argmax() == keyword


class Stopped(Exception):
    pass


@pytest.mark.parametrize(("stop", "resumes"), [(1, 1), (7, 5), (11, 11), (12, 11), (25, 25)])
def test_an_interrupted_training_resumes_and_loses_nothing(
    tmp_path: Path, stop: int, resumes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("salience.training.twins.SAVE_EVERY", 4)
    _, expected = classifiers(tmp_path / "whole")("standard")
    own = classifiers(tmp_path / "stopped")
    (tmp_path / "stopped" / "tokenizer.json").write_bytes((tmp_path / "whole" / "tokenizer.json").read_bytes())

    def interrupt(_: str, progress: TrainingProgress) -> None:
        if progress.step == stop:
            raise Stopped

    own = classifiers(tmp_path / "stopped")
    with pytest.raises(Stopped):
        replace(own, report=interrupt)("standard")
    steps: list[int] = []
    _, followed = replace(own, report=lambda _, progress: steps.append(progress.step))("standard")
    assert steps == list(range(resumes, 31))
    assert followed.steps == expected.steps
    for a, b in zip(followed.texts, expected.texts, strict=True):
        assert np.array_equal(a.attention, b.attention)
        assert np.array_equal(a.relevances, b.relevances)


def test_a_trained_classifier_is_not_trained_again_unless_its_record_is_gone(tmp_path: Path):
    own = classifiers(tmp_path)
    own("standard")
    steps: list[str] = []
    watched = replace(own, report=lambda name, _: steps.append(name))
    watched("standard")
    assert not steps
    (tmp_path / "standard.parquet").unlink()
    watched("standard")
    assert len(steps) == 30
    other_texts = replace(watched, followed=own.followed[:3])
    other_texts("standard")
    assert len(steps) == 60


def test_the_file_of_another_training_is_refused(tmp_path: Path):
    own = classifiers(tmp_path)
    own("standard")
    for other in (replace(own, recipe=replace(QUICK, rate=1e-3)), replace(own, train=own.train[:-1])):
        with pytest.raises(BadInput, match=r"standard.parquet follows another model, or a training with other texts"):
            other("standard")
    with pytest.raises(BadInput, match="follows another model"):
        own("standard", seed=1)
    with pytest.raises(BadInput, match="follows another model"):
        read_follow(tmp_path / "standard.parquet", training="0" * 32)
    assert read_follow(tmp_path / "standard.parquet").labels == own.start.labels


def test_files_that_are_no_record(tmp_path: Path):
    with pytest.raises(BadInput, match="there is no file"):
        read_follow(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name in ("text", "other"):
        with pytest.raises(BadInput, match="is not a follow file, or is damaged"):
            read_follow(tmp_path / f"{name}.parquet")


def test_a_record_that_lost_steps_is_not_continued(tmp_path: Path):
    own = classifiers(tmp_path)
    following = own.following("standard")
    model = own.start.fresh(own.start.labels, 0)
    following.record(model, 0)
    with pytest.raises(BadInput, match=f"does not hold step {own.steps[1]}"):
        following.record(model, own.steps[2])
    with pytest.raises(BadInput, match="follows other texts, or other steps"):
        replace(following, examples=own.followed[:2]).record(model, own.steps[1])


# ------------------------------------------------------------------------------------------------------ salience.follow


def follow(folder: Path | None, texts: object = (), **settings: object) -> salience.dynamics.Dynamics:  # type: ignore
    given: dict[str, object] = {
        "training": {"epochs": 4, "batch": 16, "rate": 1e-2}, "shape": SMALL, "sentences": 40, "checkpoints": 12,
        **settings,
    }  # fmt: skip
    return salience.follow(planted(400, labels=3), texts, out=folder, **given)


def test_follow_answers_and_resumes(tmp_path: Path):
    seconds: list[float] = []
    result = follow(
        tmp_path / "out", ["this film is splendid", "a zyzzy film"], callbacks=Callbacks(estimated=seconds.append)
    )
    assert len(seconds) == 1
    assert result.asked == 2
    assert len(result.followed.texts) == 42
    assert result.accuracy.mean > 0.9
    assert result.order.texts == 40
    assert result.order.relevance.by_step[-1].mean > 0.9
    assert result.words.accuracy > 0.9
    great, unknown = result.followed.texts[:2]
    assert great.label is None
    assert result.followed.labels[great.explained] == "positive"
    assert unknown.unknown == (1,)
    again = follow(tmp_path / "out", ["this film is splendid", "a zyzzy film"], callbacks=Callbacks(seconds.append))
    assert len(seconds) == 1
    assert repr(again.order) == repr(result.order)
    with pytest.raises(BadInput, match=r"holds another training \(changed: texts\)"):
        follow(tmp_path / "out", ["this film is dull"])
    with pytest.raises(BadInput, match=r"holds another training \(changed: training\)"):
        follow(tmp_path / "out", ["this film is splendid", "a zyzzy film"], seed=1)


def test_a_text_longer_than_the_limit_is_cut_with_a_warning():
    with pytest.warns(TruncatedText):
        result = follow(None, ["this film is a splendid story"], shape={**SMALL, "longest": 4}, training={"epochs": 1})
    assert result.followed.texts[0].tokens == ("this", "film", "is", "a")


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ([Example("a", "fine film")], {}, "there are no texts to train on"),
        ([Example(str(i), "fine film") for i in range(20)], {}, "need labels, and '1' has none"),
        ([Example(str(i), "fine film", "good") for i in range(20)], {}, "training needs at least two labels"),
        ([Example(str(i), ("a", "b"), "xy"[i % 2]) for i in range(20)], {}, "'1' is a pair of texts"),
        (planted(40), {"checkpoints": 1}, "checkpoints=1 must be at least 2"),
        (planted(40), {"sentences": 0}, "sentences=0 must be at least 1"),
        (planted(40), {"texts": ["  "]}, "empty or only white space"),
        (planted(40), {"test": [Example("x", "fine", "splendid")]}, "splendid"),
        (planted(40), {"test": [Example("x", "fine")]}, "there are no texts to follow"),
        (planted(40), {"training": {"epochs": 0}}, "epochs=0 must be at least 1"),
    ],
)
def test_bad_input(data: list[Example], settings: dict[str, object], message: str):
    texts = settings.pop("texts", ())
    with pytest.raises(BadInput, match=message):
        salience.follow(data, texts, shape=SMALL, **settings)


def test_a_refused_call_leaves_nothing_that_refuses_the_corrected_one(tmp_path: Path):
    settings = {"out": tmp_path / "out", "shape": SMALL, "training": {"epochs": 1}, "checkpoints": 2}
    other = [Example("x", "a fine film", "no such label")]
    with pytest.raises(BadInput, match="unknown label 'no such label'"):
        salience.follow(planted(40), test=other, **settings)
    assert salience.follow(planted(40), sentences=2, **settings).texts == 36


def test_a_folder_with_something_else_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(BadInput, match=r"thesis.tex and no dynamics.json"):
        follow(tmp_path)


def test_relu_attention_is_two_layers_with_relu_between_them():
    model = build("pooled_bilstm").fresh(("a", "b"), 0, scoring="relu")
    batch = model.batch(model.encode(TEXTS[:1]))
    output = forward(model, batch, hidden=True, attention="read")
    u = (
        torch.relu(output.hidden[1][0] @ model.module.key.weight.T + model.module.key.bias)
        @ model.module.query.weight[0]
    )
    torch.testing.assert_close(output.attention[0][0, 0, 0], u.softmax(0).detach())


@pytest.mark.parametrize("facts", [b"[]", b"{}", b"null", b"{"])
def test_a_file_with_other_facts_is_no_follow_file(tmp_path: Path, facts: bytes):
    pq.write_table(pa.table({"step": [0]}).replace_schema_metadata({b"salience_follow": facts}), tmp_path / "f.parquet")
    with pytest.raises(BadInput, match=r"is not a follow file, or is damaged: .*delete it to train again"):
        read_follow(tmp_path / "f.parquet")


def test_a_training_whose_record_was_deleted_starts_over(tmp_path: Path):
    """The record cannot be made up for, so neither a finished training nor a begun one is continued."""

    class Stopped(Exception): ...

    def stop(progress: TrainingProgress) -> None:
        if progress.step == 7:
            raise Stopped

    settings = {"out": tmp_path, "shape": SMALL, "training": {"epochs": 2, "batch": 8}, "checkpoints": 4}
    with pytest.raises(Stopped):
        salience.follow(planted(40), callbacks=Callbacks(step=stop), **settings)
    (tmp_path / "standard.parquet").unlink()
    assert salience.follow(planted(40), **settings).followed.steps[0] == 0
