"""One application for all tests: two tiny classifiers, a language model, and a folder with runs and reports."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import salience
from salience.server import Limits, create_app
from shapes import build

NASTY = 'A fine <script>alert("x")</script> film & a <b>bold</b> one.'
ROWS = [
    {"id": "a", "text": "A fine film.", "label": "LABEL_0"},
    {"id": "b", "text": "It is a truly, truly awful mess.", "label": "LABEL_1"},
    {"id": "nasty", "text": NASTY, "label": "LABEL_0"},
    {"id": "d", "text": "Good, but the plot drags on.", "label": "LABEL_1"},
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two models, a saved page, a link that leads out, and a folder of another format."""
    place = tmp_path_factory.mktemp("served") / "out"
    place.mkdir()
    data = place / "texts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    rows = salience.data.source(str(data), id="id", label="label")
    for name, shape in (("run", "bert"), ("other", "distilbert")):
        salience.explain_data(build(shape), rows, place / name, ["gradient", "input_x_gradient"], rows_per_part=2)
    salience.evaluate_data(
        build("bert"), rows, place / "evaluated", ["gradient", "input_x_gradient"], metrics="comprehensiveness"
    )
    (place / "page.html").write_text("<title>A &lt;page&gt;</title><p>Saved.</p>", "utf-8")
    secret = place.parent / "secret"
    secret.mkdir()
    (secret / "page.html").write_text("<p>secret</p>", "utf-8")
    (place / "link").symlink_to(secret)
    (place / "link.html").symlink_to(secret / "page.html")
    (place / "old").mkdir()
    (place / "old" / "manifest.json").write_text('{"format": 99}', "utf-8")
    return place


@pytest.fixture(scope="session")
def app(folder: Path) -> FastAPI:
    models = {"bert": build("bert"), "distilbert": build("distilbert"), "gpt2": build("gpt2_lm")}
    limits = Limits(characters=2000, body=20_000)
    return create_app(models, folders=[folder], limits=limits, hosts=frozenset({"testserver", "localhost"}))


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SALIENCE_TOKEN", raising=False)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
