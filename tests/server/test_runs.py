"""Pages of a run are the texts that the run itself finds; two runs are compared text by text."""

import json
import shutil
from math import isnan
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest
from scipy.stats import spearmanr
from starlette.testclient import TestClient

import salience
from salience.cli import run
from salience.errors import BadInput
from salience.runs.browsing import Browser, Query
from salience.runs.comparison import compare_runs, words_agreement
from shapes import build


def ids(browser: Browser, **query: object) -> list[str]:
    return [line.id for line in browser.page(Query(**query)).lines]  # pyright: ignore


@pytest.mark.parametrize("sort", ["confidence", "-confidence", "disagreement"])
def test_orders_are_those_of_the_run(folder: Path, sort: str):
    known = list(salience.open_run(folder / "run").texts(sort=sort))
    page = Browser(folder / "run").page(Query(sort=sort))
    assert [line.id for line in page.lines] == [text.id for text in known]
    for line, text in zip(page.lines, known, strict=True):
        assert line.confidence == pytest.approx(text.confidence)
        assert line.disagreement == (pytest.approx(text.disagreement) if sort == "disagreement" else None)
        assert (line.prediction, line.wrong, line.label) == (text.prediction, text.wrong, text.label)


def test_filters_and_search(folder: Path):
    browser, known = Browser(folder / "run"), salience.open_run(folder / "run")
    assert ids(browser, wrong=True) == [text.id for text in known.texts(wrong=True)]
    assert ids(browser, label="LABEL_1") == ["b", "d"]
    assert ids(browser, search="FILM") == ["a", "nasty"]
    assert ids(browser, search="nast") == ["nasty"]
    assert ids(browser, search="[") == []
    assert ids(browser, first=1, count=2) == ["b", "nasty"]
    assert ids(browser, sort="length")[0] == "a"
    page = browser.page(Query(search="film", count=1))
    assert (len(page.lines), page.total, page.of) == (1, 2, 4)
    assert [browser.labels(), browser.text(1).id] == [["LABEL_0", "LABEL_1"], "b"]


def test_texts_with_unfaithful_explanations(folder: Path, client: TestClient):
    stored = ds.dataset(folder / "evaluated" / "parts").to_table(columns=["id", "comprehensiveness"]).to_pylist()
    values = {one["id"]: one["comprehensiveness"] for one in stored}
    for method in ("gradient", "input_x_gradient"):
        low = [name for name, of in values.items() if of[method] <= of["random"]]
        asked = {"run": "out/run", "low": True, "method": method}
        rows = client.get("/api/runs/texts", params=asked).json()["rows"]
        assert [row["id"] for row in rows] == low
        rows = client.get("/api/runs/texts", params={**asked, "low": False, "sort": "faithfulness"}).json()["rows"]
        assert [row["id"] for row in rows] == sorted(values, key=lambda name: values[name][method])
        assert [row["faithfulness"] for row in rows] == [values[row["id"]][method] for row in rows]
    page = client.get("/run", params={"run": "out/run", "low": True}).text
    assert "comprehensiveness ↑" in page
    assert "no better than that of random scores" in page


def test_an_evaluation_of_another_model_is_not_used(folder: Path, client: TestClient):
    answer = client.get("/api/runs/texts", params={"run": "out/other", "low": True})
    assert (answer.status_code, "salience evaluate --data" in answer.json()["detail"]) == (422, True)
    page = client.get("/run", params={"run": "out/other"}).text
    assert "low (no better than random)" not in page
    assert "To filter by faithfulness" in page
    assert client.get("/api/runs/texts", params={"run": "out/run", "low": True, "method": "lime"}).status_code == 422


def test_texts_on_which_methods_disagree(folder: Path):
    browser, known = Browser(folder / "run"), salience.open_run(folder / "run")
    expected = [text.id for text in known.texts() if (text.disagreement or 0) >= 1]
    page = browser.page(Query(opposed=True))
    assert [line.id for line in page.lines] == expected
    assert all(line.disagreement is not None for line in page.lines)


def test_what_a_run_cannot_show(folder: Path, tmp_path: Path):
    salience.explain_data(build("bert"), ["A film.", "Good"], tmp_path / "bare", "gradient")
    browser = Browser(tmp_path / "bare")
    with pytest.raises(BadInput, match="has no labels"):
        browser.page(Query(wrong=True))
    with pytest.raises(BadInput, match="has only one"):
        browser.page(Query(sort="disagreement"))
    with pytest.raises(BadInput, match="has no row 99"):
        browser.text(99)
    with pytest.raises(BadInput, match="unknown order"):
        Query(sort="id")


def test_a_run_that_grows_is_shown_as_it_is(folder: Path, tmp_path: Path):
    """Parts are taken away, and come back while the run is looked at."""
    shutil.copytree(folder / "run", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest | {"finished": None}), "utf-8")
    last = tmp_path / "run" / "parts" / "part-00001.parquet"
    aside = last.rename(tmp_path / "aside")
    browser = Browser(tmp_path / "run")
    assert ids(browser) == ["a", "b"]
    aside.rename(last)
    assert ids(browser) == ["a", "b", "nasty", "d"]


def test_a_damaged_run_is_named(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / "parts" / "part-00000.parquet").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="is damaged"):
        Browser(tmp_path / "run").page(Query())


def test_the_page_of_a_run(client: TestClient):
    page = client.get("/run", params={"run": "out/run", "sort": "disagreement", "search": "film"})
    assert "2 texts match." in page.text
    assert [run["name"] for run in client.get("/api/runs").json()] == ["out/other", "out/run"]
    rows = client.get("/api/runs/texts", params={"run": "out/run", "count": 2}).json()
    assert [row["id"] for row in rows["rows"]] == ["a", "b"]
    (one, other) = client.get("/api/runs/text", params={"run": "out/run", "row": 1}).json()
    assert (one["id"], one["method"], other["method"]) == ("b", "gradient", "input_x_gradient")


def test_runs_are_compared(folder: Path):
    a, b = (list(salience.open_run(folder / name).texts()) for name in ("run", "other"))
    result = compare_runs(folder / "run", folder / "other")
    same = [x.prediction == y.prediction for x, y in zip(a, b, strict=True)]
    assert (result.texts, result.only, result.same.mean) == (4, (0, 0), pytest.approx(np.mean(same)))
    far = [
        sum(abs(p - y.first.probabilities[n]) for n, p in x.first.probabilities.items()) / 2
        for x, y in zip(a, b, strict=True)
    ]
    assert result.distance.mean == pytest.approx(np.mean(far))
    assert [text.distance for text in result.by_prediction] == pytest.approx(sorted(far, reverse=True))
    for text in result.by_explanation:
        assert text.predictions[0] == text.predictions[1]
    x, y = a[1].explanations["gradient"], b[1].explanations["gradient"]
    expected = spearmanr([w.score for w in x.words()], [w.score for w in y.words()]).statistic
    assert words_agreement(x, y) == pytest.approx(expected)


def test_magnitudes_are_compared_where_a_method_has_no_sign(folder: Path):
    explained = list(salience.open_run(folder / "run").texts())
    for text in explained:
        norm, signed = (np.array(e.content) for e in text.explanations.values())
        assert text.disagreement == pytest.approx(1 - spearmanr(norm, abs(signed)).statistic)
    one, other = explained[1].explanations.values()
    words = [[w.score for w in e.words()] for e in (one, other)]
    assert words_agreement(one, other) == pytest.approx(spearmanr(words[0], np.abs(words[1])).statistic)


def test_runs_of_other_data_are_not_compared(folder: Path, tmp_path: Path):
    salience.explain_data(build("bert"), ["Good", "A film."], tmp_path / "bare", "gradient")
    with pytest.raises(BadInput, match="row 0 is another text"):
        compare_runs(folder / "run", tmp_path / "bare")
    salience.explain_data(build("bert"), ["Good"], tmp_path / "lime", "lime", samples=10)
    with pytest.raises(BadInput, match="no method in common"):
        compare_runs(folder / "run", tmp_path / "lime")


def test_salience_compare(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    names = [str(folder / "run"), str(folder / "other")]
    assert run(["compare", *names]) == 0
    out = capsys.readouterr().out
    assert "same prediction:" in out
    assert "rank correlation of the words by gradient" in out
    assert run(["compare", *names, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["texts"] == 4
    assert run(["compare", *names, "--html", str(tmp_path / "page.html")]) == 0
    assert "<script" not in (tmp_path / "page.html").read_text("utf-8")
    assert run(["compare", names[0], str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert not isnan(facts["distance"]["mean"])
