"""Whatever holds texts can be explained; what only looks like it is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from transformers import pipeline

import salience
from salience.data import source
from salience.data.texts import texts_of
from salience.errors import BadInput
from shapes import build

TEXTS = ["A fine film.", "Not bad at all."]
ROWS = [{"text": text, "stars": 3} for text in TEXTS]
COLUMNS = {"text": TEXTS, "stars": [3, 4]}
HOLDERS: dict[str, Any] = {
    "list": TEXTS,
    "generator": (text for text in TEXTS),
    "rows": ROWS,
    "pandas frame": pd.DataFrame(COLUMNS),
    "pandas series": pd.Series(TEXTS, index=[7, 8]),
    "polars frame": pl.DataFrame(COLUMNS),
    "polars series": pl.Series(TEXTS),
    "numpy": np.array(TEXTS),
    "data set": datasets.Dataset.from_dict(COLUMNS),
    "column of a data set": datasets.Dataset.from_dict(COLUMNS)["text"],
    "arrow": pa.table(COLUMNS),
}


@pytest.mark.parametrize("holder", [name for name in HOLDERS if name != "generator"])
def test_what_holds_texts_is_explained_and_evaluated(holder: str):
    model = build("bert")
    expected = salience.explain(model, TEXTS, "gradient")
    assert salience.explain(model, HOLDERS[holder], "gradient") == expected
    evaluation = salience.evaluate(model, HOLDERS[holder], "gradient", metrics="comprehensiveness")
    assert evaluation.texts == 2


def test_a_generator_is_read_once():
    assert texts_of(HOLDERS["generator"]) == TEXTS


@pytest.mark.parametrize("holder", ["pandas frame", "polars frame", "data set", "rows"])
def test_other_columns_and_pairs_are_named(holder: str):
    table = {"premise": ["A man sleeps."], "hypothesis": ["Nobody sleeps."]}
    data = {
        "pandas frame": pd.DataFrame(table),
        "polars frame": pl.DataFrame(table),
        "data set": datasets.Dataset.from_dict(table),
        "rows": [{name: column[0] for name, column in table.items()}],
    }[holder]
    assert texts_of(data, text_column="premise") == ["A man sleeps."]
    pairs = texts_of(data, text_column="premise", pair_column="hypothesis")
    assert pairs == [("A man sleeps.", "Nobody sleeps.")]
    with pytest.raises(BadInput, match=r"has no column 'text'.*Its columns: 'premise', 'hypothesis'.*text_column"):
        texts_of(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"text": TEXTS}, r"a dict holds texts by name \('text'\), not texts"),
        (datasets.DatasetDict(train=datasets.Dataset.from_dict(COLUMNS)), r"pass one of them, such as data\['train'\]"),
        (pl.DataFrame(COLUMNS).lazy(), "call its collect"),
        (pd.DataFrame({"review": TEXTS}), "has no column 'text'. Did you mean 'review'"),
        (pd.Series(["A fine film.", None]), "text 1 is neither a string nor a pair of strings"),
        ([["a", "b", "c"]], "text 0 is neither a string nor a pair of strings"),
        (3, "a value of type int holds no texts"),
        (None, "a value of type NoneType holds no texts"),
        (b"A fine film.", "a value of type bytes holds no texts"),
        ({"A fine film."}, "a value of type set holds no texts"),
        (Path("reviews.csv"), "reviews.csv is a file"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_holds_no_texts_is_refused(data: Any, reason: str):
    for use in (salience.explain, salience.evaluate):
        with pytest.raises(BadInput, match=reason):
            use(build("bert"), data, "gradient")


@pytest.mark.parametrize("holder", ["rows", "pandas frame", "data set"])
def test_a_data_set_in_memory_becomes_a_run_that_resumes(holder: str, tmp_path: Path):
    run = salience.explain_data(build("bert"), HOLDERS[holder], tmp_path / "run", "gradient")
    expected = salience.explain(build("bert"), TEXTS, "gradient")
    assert [row[0].scores for _, row in run.rows()] == [pytest.approx(e.scores, abs=1e-6) for e in expected]
    again = salience.explain_data(build("bert"), HOLDERS[holder], tmp_path / "run", "gradient")
    assert again.manifest == run.manifest
    with pytest.raises(BadInput, match="the data has changed"):
        salience.explain_data(build("bert"), ["Another."], tmp_path / "run", "gradient")


def test_a_run_names_the_column_of_a_file(tmp_path: Path):
    pd.DataFrame({"body": TEXTS}).to_csv(tmp_path / "a.csv", index=False)
    run = salience.explain_data(build("bert"), tmp_path / "a.csv", tmp_path / "run", "gradient", text_column="body")
    assert run.manifest["finished"]["texts"] == 2
    assert len(salience.explain(build("bert"), source(tmp_path / "a.csv", text="body"), "gradient")) == 2


def test_a_model_is_a_name_a_pair_or_a_pipeline_too(tmp_path: Path):
    model = build("bert")
    model.save(tmp_path / "model")
    expected = [e.scores for e in salience.explain(model, TEXTS, "gradient")]
    pair = (model.module, model.tokenizer)
    classify = pipeline("text-classification", model=model.module, tokenizer=model.tokenizer)
    for one in (tmp_path / "model", str(tmp_path / "model"), pair, list(pair), classify):
        scores = [e.scores for e in salience.explain(one, TEXTS, "gradient")]
        assert scores == [pytest.approx(s, abs=1e-6) for s in expected]
    assert salience.evaluate(classify, TEXTS, "gradient", metrics="comprehensiveness").texts == 2
    assert salience.explain_data(pair, TEXTS, tmp_path / "run", "gradient").manifest["finished"]["texts"] == 2


@pytest.mark.parametrize(
    "model", [None, 3, ("a", "b"), [], {}, object(), build("bert").module, build("bert").tokenizer]
)
def test_anything_else_is_no_model(model: Any, tmp_path: Path):
    example = salience.data.Example("0", TEXTS[0], 0)
    for use in (
        lambda: salience.explain(model, TEXTS),
        lambda: salience.evaluate(model, TEXTS),
        lambda: salience.explain_data(model, TEXTS, tmp_path / "run"),
        lambda: next(iter(salience.fit(model, [example]))),
    ):
        with pytest.raises(BadInput, match=r"or salience\.wrap\(model, tokenizer\)"):
            use()


def test_a_name_cannot_be_trained_in_place():
    with pytest.raises(BadInput, match=r"load it first: model = salience\.load\('sentiment'\)"):
        next(iter(salience.fit("sentiment", [salience.data.Example("0", TEXTS[0], 0)])))


def test_no_library_of_frames_is_imported():
    code = "import sys\nfrom salience.data.texts import texts_of\ntexts_of(['a'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pandas", "polars", "datasets", "torch"} & {*done.stdout.split()}


def test_a_tuple_of_two_strings_is_a_pair_and_any_other_a_sequence():
    assert texts_of(("A fine film.", "A bore.")) == [("A fine film.", "A bore.")]
    assert texts_of(("A fine film.", "A bore.", "Good")) == ["A fine film.", "A bore.", "Good"]
    assert texts_of((("A", "B"), ("C", "D"))) == [("A", "B"), ("C", "D")]
