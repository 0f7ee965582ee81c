"""What the API answers is what the library says; what it cannot answer, it says in one line."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, get_args

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import salience
from salience.core.settings import settings_of
from salience.errors import BadInput, UnsupportedModel
from salience.methods import METHODS
from salience.server import Limits, create_app
from salience.server.questions import FILES
from salience.server.served import families, method_names
from server.conftest import NASTY
from shapes import build

TEXT = "Not bad at all: the cast is splendid."


def test_models_are_listed_with_their_labels_and_methods(client: TestClient):
    models = {one["name"]: one for one in client.get("/api/models").json()}
    assert list(models) == ["bert", "distilbert", "gpt2"]
    assert models["bert"]["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert (models["gpt2"]["kind"], models["gpt2"]["labels"]) == ("language model", [])


def test_a_prediction_is_that_of_the_library(client: TestClient):
    answer = client.post("/api/predict", json={"text": TEXT}).json()
    (e,) = salience.explain(build("bert"), TEXT, "gradient")
    assert answer["probabilities"] == pytest.approx(dict(e.probabilities))
    assert answer["label"] == e.target.label


def test_explanations_are_those_of_the_library(client: TestClient):
    asked = {"text": TEXT, "methods": ["gradient", "occlusion"], "target": "LABEL_1", "kind": "probability"}
    answer = client.post("/api/explain", json=asked).json()
    library = salience.explain(build("bert"), TEXT, ["gradient", "occlusion"], target="LABEL_1", kind="probability")
    for mine, theirs in zip(answer["explanations"], library, strict=True):
        expected = json.loads(theirs.to_json())
        assert mine["scores"] == pytest.approx(expected.pop("scores"))
        assert {mine[k] == expected[k] for k in ("text", "method", "tokens", "target", "words")} == {True}
    (pair,) = answer["agreement"]
    assert (pair["one"], pair["other"]) == ("gradient", "occlusion")
    assert -1 <= pair["spearman"] <= 1


def test_a_changed_word_is_predicted_as_the_changed_text(client: TestClient):
    edited = client.post("/api/edit", json={"text": TEXT, "start": 4, "end": 7, "replacement": "good"}).json()
    assert edited["text"] == TEXT.replace("bad", "good")
    alone = client.post("/api/predict", json={"text": edited["text"]}).json()
    assert edited["after"]["probabilities"] == pytest.approx(alone["probabilities"])
    for name, change in edited["changes"].items():
        difference = edited["after"]["probabilities"][name] - edited["before"]["probabilities"][name]
        assert change == pytest.approx(difference)


def test_models_are_compared_on_one_text(client: TestClient):
    asked = {"text": TEXT, "models": ["bert", "distilbert"], "methods": ["gradient"]}
    answer = client.post("/api/compare", json=asked).json()
    p, q = (one["probabilities"] for one in answer["predictions"])
    assert answer["distance"] == pytest.approx(sum(abs(p[n] - q[n]) for n in p) / 2)
    assert [a["one"].partition(":")[0] for a in answer["agreement"]] == ["bert"]


def test_attention_rows_add_up_to_one(client: TestClient):
    answer = client.post("/api/attention", json={"text": TEXT}).json()
    for layer in answer["layers"]:
        for head in layer:
            assert all(sum(row) == pytest.approx(1, abs=0.01) for row in head)
            assert len(head) == len(answer["tokens"])


def test_an_answer_is_explained(client: TestClient):
    answer = client.post("/api/answer", json={"prompt": "The cast is", "tokens": 3, "method": "gradient"}).json()
    assert answer["prompt"] == "The cast is"
    assert len(answer["matrix"]) == len(answer["answer_tokens"])
    shown = client.post("/page/answer", json={"prompt": "The cast is", "tokens": 2, "method": "gradient"})
    assert 'class="salience answers' in shown.text


def test_requests_that_wait_for_the_same_methods_share_their_passes(client: TestClient, app: FastAPI):
    texts = ["A fine film.", TEXT, "It is a truly, truly awful mess.", "Good, but the plot drags on."]
    bodies = [{"text": text, "methods": ["gradient"]} for text in texts] + [{"text": "a", "target": "LABEL_9"}]
    line, sizes = app.state.salience.work.lines["bert"], list[int]()
    blocked = Event()
    busy = [line.threads.submit(blocked.wait) for _ in range(line.limits.workers)]
    take = line.take

    def counted(key: object) -> list[Any]:
        sizes.append(len(places := take(key)))
        return places

    line.take = counted
    try:
        with ThreadPoolExecutor(len(bodies)) as threads:
            answers = [threads.submit(client.post, "/api/explain", json=body) for body in bodies]
            while line.present < len(bodies):
                time.sleep(0.01)
            blocked.set()
            *explained, wrong = [answer.result() for answer in answers]
    finally:
        blocked.set()
        del line.take
    assert [one.result() for one in busy] == [True] * len(busy)
    assert max(sizes) == len(texts)
    assert wrong.status_code == 422
    for text, answer in zip(texts, explained, strict=True):
        (alone,) = salience.explain(build("bert"), text, "gradient")
        assert answer.json()["explanations"][0]["scores"] == pytest.approx(alone.scores, abs=1e-5)


def test_a_mistake_in_one_of_several_requests_is_its_own():
    app = create_app({"bert": build("bert")}, limits=Limits(workers=1), hosts=frozenset({"testserver"}))
    line = app.state.salience.work.lines["bert"]
    with TestClient(app) as client, ThreadPoolExecutor(2) as threads:
        blocked = Event()
        line.threads.submit(blocked.wait)
        asked = [{"text": "A film.", "methods": ["gradient"], "target": name} for name in ("LABEL_1", "LABEL_9")]
        answers = [threads.submit(client.post, "/api/explain", json=body) for body in asked]
        while line.present < 2:
            time.sleep(0.01)
        blocked.set()
        assert [answer.result().status_code for answer in answers] == [200, 422]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("predict", {"text": "a", "model": "brt"}, 422, "unknown model 'brt'. Did you mean 'bert'?"),
        ("explain", {"text": "a", "methods": ["ig"]}, 422, "Did you mean 'integrated_gradients'?"),
        ("explain", {"text": "a", "target": "LABEL_9"}, 422, "LABEL_9"),
        ("explain", {"text": "a", "settings": {"head": "/etc/passwd"}}, 422, "names a file"),
        ("explain", {"text": "a", "settings": {"layer_saliency.head": "x"}}, 422, "names a file"),
        ("explain", {"text": "a", "methods": ["diff_mask"], "settings": {"gates": "/etc"}}, 422, "names a file"),
        ("explain", {"text": "a", "settings": {"nodess": 3}}, 422, "Did you mean 'nodes'?"),
        ("explain", {"text": "a", "extra": 1}, 422, "extra"),
        ("explain", {"methods": ["gradient"]}, 422, "text: Field required"),
        ("explain", {"text": "  "}, 422, "only white space"),
        ("explain", {"text": "x" * 3000}, 413, "3,000 characters; at most 2,000"),
        ("explain", {"text": "a", "methods": ["gradient"] * 9}, 422, "at most 8"),
        ("edit", {"text": "abc", "start": 2, "end": 9}, 422, "not within the 3 characters"),
        ("edit", {"text": "abc", "start": 0, "end": 3}, 422, "nothing would be left"),
        ("compare", {"text": "a", "models": ["bert", "bert"]}, 422, "two different models"),
        ("answer", {"prompt": "a", "model": "bert"}, 422, "bert has not an answer"),
        ("answer", {}, 422, "one of prompt and messages"),
        ("answer", {"prompt": "a", "answer": "x" * 2000}, 413, "2,001 characters; at most 2,000"),
        ("answer", {"prompt": "a", "tokens": 9999}, 422, "at most 256"),
        ("jobs", {"work": "explain"}, 422, "needs texts"),
        ("jobs", {"work": "words", "run": "out/none"}, 404, "there is no 'out/none'"),
    ],
)
def test_what_cannot_be_answered(client: TestClient, path: str, body: dict[str, Any], status: int, message: str):
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["detail"]


def test_broken_json_is_named_as_such(client: TestClient):
    answer = client.post("/api/explain", content=b'{"text": ', headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["detail"][:20]) == (400, "the body is not JSON")


def test_lone_surrogates_and_nan_are_refused(client: TestClient):
    headers = {"content-type": "application/json"}
    for body in (b'{"text": "\\ud800"}', b'{"text": "a", "settings": {"nodes": NaN}}'):
        assert client.post("/api/explain", content=body, headers=headers).status_code == 422


def test_texts_are_shown_and_never_obeyed(client: TestClient):
    asked = {"text": NASTY, "methods": ["gradient", "attention"], "layer": "all"}
    edit = {"text": NASTY, "start": 0, "end": 1, "replacement": "<script>"}
    pages = [
        client.post("/page/explain", json=asked),
        client.post("/page/edit", json=edit),
        client.post("/page/attention", json={"text": NASTY}),
        client.get("/", params={"text": NASTY}),
        client.get("/run", params={"run": "out/run"}),
        client.get("/run/text", params={"run": "out/run", "row": 2}),
        client.get("/compare/runs", params={"one": NASTY, "other": NASTY}),
        client.get("/run", params={"run": NASTY}, headers={"accept": "text/html"}),
    ]
    for page in pages:
        scripts = re.findall(r"<script[^>]*>", page.text)
        assert not [tag for tag in scripts if 'type="module" src="/static/' not in tag], page.url


def test_every_page_opens_and_links_only_to_this_server(client: TestClient):
    paths = [
        "/",
        "/answers",
        "/compare",
        "/runs",
        "/run?run=out/run",
        "/reports",
        "/report?name=out/page.html",
        "/jobs",
    ]
    for path in [*paths, "/api", "/run/words?run=out/run", "/compare/runs?one=out/run&other=out/other"]:
        page = client.get(path)
        assert page.status_code == 200, path
        for address in re.findall(r'(?:href|src|action)="([^"]+)"', page.text):
            assert address.startswith(("/", "#", "data:,")), address
            if address.startswith("/static/"):
                assert client.get(address).status_code == 200


def test_jobs_end_with_a_page_and_can_be_cancelled(client: TestClient):
    long = {"work": "explain", "texts": [TEXT] * 200, "methods": ["lime"], "settings": {"samples": 2000}}
    slow = client.post("/api/jobs", json=long).json()
    quick = [
        client.post("/api/jobs", json={"work": "words", "run": "out/run"}).json(),
        client.post("/api/jobs", json={"work": "compare", "run": "out/run", "other": "out/other"}).json(),
        client.post("/api/jobs", json={"work": "explain", "texts": ["A film."], "methods": ["gradient"]}).json(),
    ]
    assert [_ended(client, job["id"])["state"] for job in quick] == ["done"] * 3  # they do not wait for the slow one
    assert client.get(f"/api/jobs/{slow['id']}").json()["state"] == "running"
    client.delete(f"/api/jobs/{slow['id']}")
    assert _ended(client, slow["id"])["state"] == "cancelled"
    page = client.get("/jobs/result", params={"id": quick[2]["id"]})
    assert "<mark" in page.text
    assert "sandbox" in page.headers["content-security-policy"]
    assert client.get("/jobs/result", params={"id": slow["id"]}).status_code == 404


def _ended(client: TestClient, name: str) -> dict[str, Any]:
    for _ in range(1200):
        job = client.get(f"/api/jobs/{name}").json()
        if job["state"] not in ("waiting", "running"):
            return job
        time.sleep(0.1)
    pytest.fail(f"{job} has not ended")


def test_edits_that_flip_the_decision_are_those_of_the_library(client: TestClient):
    asked = {"text": TEXT, "edits": 3, "found": 2, "kinds": ["delete"]}
    flips = client.post("/api/flip", json=asked).json()
    (expected,) = salience.counterfactual(build("bert"), [TEXT], edits=("delete",), count=2, max_edits=3)
    assert [one["text"] for one in flips] == [one.text for one in expected.results]
    before = client.post("/api/predict", json={"text": TEXT}).json()["label"]
    for one in flips:
        assert client.post("/api/predict", json={"text": one["text"]}).json()["label"] == one["label"] != before
    refused = client.post("/api/flip", json=asked | {"pair": "b"})
    assert refused.status_code == 422
    assert "leave out pair" in refused.text


def test_no_setting_that_takes_any_string_can_be_set():
    """Such a setting is the name of a file or folder."""
    free = {
        name
        for method in METHODS
        for name, setting in settings_of(method).items()
        if str in (setting.annotation, *get_args(setting.annotation))
    }
    assert free == set(FILES)


@pytest.mark.parametrize("shape", ["bert", "pooled_bilstm"])
def test_only_methods_that_can_explain_a_model_are_offered(shape: str):
    model = build(shape)
    offered = set(method_names(model))
    refused = {m.__name__ for m in METHODS} - offered
    assert refused >= {"diff_mask", "selection"}
    for name in refused:
        with pytest.raises((UnsupportedModel, BadInput)):
            salience.explain(model, "A fine film.", name)
    for name in offered - {"layer_saliency"}:  # which needs a language model head
        salience.explain(model, "A fine film.", name)
    assert sorted(name for names in families().values() for name in names) == sorted(m.__name__ for m in METHODS)
