"""What comes with the package: two sentiment models and a sample with known reasons."""

import gzip
import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import salience
from salience.core.rows import predict
from salience.core.types import Model
from salience.models import BUNDLED

DATA = Path(__file__).parents[3] / "shared" / "data"
CARD = {"sentiment": 0.863, "sentiment_bilstm": 0.861}
"""SST-2 test accuracy as the cards state it."""


def sample() -> list[dict[str, object]]:
    text = files("salience.models.bundled").joinpath("sample.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def predictions(model: Model, texts: list[str]) -> list[str]:
    columns = predict(model, model.encode(texts)).argmax(1).tolist()
    return [model.label(column) for column in columns]


def accuracy(model: Model, texts: list[str], labels: list[str]) -> float:
    return sum(p == label for p, label in zip(predictions(model, texts), labels, strict=True)) / len(texts)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_models_are_right_about_most_of_the_sample(name: str):
    rows = sample()
    assert (
        accuracy(salience.load(name), [r["text"] for r in rows], [r["label"] for r in rows]) > 0.65
    )  # it is hard on purpose


@pytest.mark.parametrize("name", BUNDLED)
def test_model_cards_state_the_measured_accuracy(name: str):
    path = DATA / "sst2" / "test.jsonl"
    if not path.exists():
        pytest.skip("the SST-2 test split is not beside the checkout")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    labels = ["positive" if r["label"] else "negative" for r in rows]
    measured = accuracy(salience.load(name), [r["text"] for r in rows], labels)
    assert measured == pytest.approx(CARD[name], abs=0.002)
    card = files("salience.models.bundled").joinpath(name, "README.md").read_text("utf-8")
    assert f"{100 * CARD[name]:.1f} %" in card


def test_the_bundled_models_stay_small():
    folder = Path(str(files("salience.models.bundled")))
    assert sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) < 12e6


def test_the_samples_reasons_are_whole_words_of_its_texts():
    rows = sample()
    assert len(rows) >= 100
    assert {r["label"] for r in rows} == {"positive", "negative"}
    for row in rows:
        text = row["text"]
        assert row["rationale_spans"]
        for start, end in row["rationale_spans"]:
            assert 0 <= start < end <= len(text)
            assert text[start:end] == text[start:end].strip()


@pytest.mark.parametrize("method", ["integrated_gradients", "lrp", "occlusion"])
def test_explanations_of_the_sample_point_at_its_reasons_more_often_than_chance(method: str):
    """For texts that the model gets right, the top word lies in the rationale more often than a random word does."""
    model = salience.load("sentiment_bilstm")
    rows = sample()[:60]
    results = salience.explain(model, [r["text"] for r in rows], [method, "random"])
    hits = {method: 0, "random": 0}
    for number, explanation in enumerate(results):
        row = rows[number // 2]
        if explanation.target.label == row["label"]:
            top = explanation.top(0.01)[0]
            hits[explanation.method] += any(a <= top.start < b for a, b in row["rationale_spans"])
    assert hits[method] >= 2 * hits["random"], hits


def test_the_bundled_transformer_decodes_its_layers_with_its_own_head():
    (results,) = salience.explain(salience.load(), "A fine film.", "layer_saliency")
    assert results.settings["head"] == "own"
    assert any(s > 0 for s in results.scores)


def test_no_sentence_of_the_sample_stands_in_a_data_set():
    if not DATA.exists():
        pytest.skip("no data sets beside the checkout")
    texts = {str(r["text"]).casefold() for r in sample()}
    for path in (DATA / "sst2" / "train.jsonl.gz", DATA / "sst5" / "train.jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            assert not texts & {json.loads(line)["text"].casefold() for line in lines}


def test_loading_keeps_to_one_dtype():
    assert {p.dtype for p in salience.load().module.parameters()} == {torch.float32}
