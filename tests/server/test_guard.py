"""Who may ask: the host, the origin, the token, the type and the size of a request."""

from importlib import import_module
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from salience.cli import run
from salience.errors import BadInput
from salience.server import Limits, create_app, serve
from salience.server.guard import host_names, is_loopback
from shapes import build

ASKED = {"text": "A fine film."}


@pytest.fixture(scope="module")
def locked() -> TestClient:
    """A server with a token."""
    app = create_app({"bert": build("bert")}, token="s3cret", hosts=frozenset({"testserver"}))
    return TestClient(app, follow_redirects=False)


@pytest.mark.parametrize("host", ["evil.example", "testserver.evil.example", "testserver:8000", "", "127.0.0.1"])
def test_other_hosts_are_refused(client: TestClient, host: str):
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "open it as" in answer.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver.evil.example"},
    ],
)
def test_requests_of_other_sites_are_refused(client: TestClient, headers: dict[str, str]):
    assert client.post("/api/predict", json=ASKED, headers=headers).status_code == 403
    assert client.delete("/api/jobs/x", headers=headers).status_code == 403


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin", "origin": "http://testserver"}, {}])
def test_requests_of_our_own_pages_and_of_programs_are_answered(client: TestClient, headers: dict[str, str]):
    assert client.post("/api/predict", json=ASKED, headers=headers).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_read(client: TestClient, kind: str):
    answer = client.post("/api/predict", content=b'{"text": "a"}', headers={"content-type": kind})
    assert answer.status_code == 415


def test_a_text_of_ten_megabytes_is_refused_before_it_is_read(client: TestClient):
    answer = client.post("/api/explain", json={"text": "a" * 10**7})
    assert answer.status_code == 413
    assert "at most 20,000 are read" in answer.json()["detail"]


def test_a_body_that_does_not_say_its_length_is_measured(client: TestClient):
    pieces = (b" " * 1000 for _ in range(100))
    answer = client.post("/api/predict", content=pieces, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_every_answer_has_the_security_headers(client: TestClient):
    for answer in (client.get("/"), client.get("/nothing"), client.get("/", headers={"host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe-inline" not in policy.split("style-src")[0]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_token_is_needed_and_kept_in_a_cookie(locked: TestClient):
    assert locked.get("/").status_code == 403
    assert locked.post("/api/predict", json=ASKED, headers={"authorization": "Bearer wrong"}).status_code == 403
    assert locked.post("/api/predict", json=ASKED, headers={"authorization": "Bearer s3cret"}).status_code == 200
    answer = locked.get("http://testserver//evil.example/?token=s3cret&text=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/evil.example/?text=a")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    locked.cookies.set("salience-token", "s3cret")
    assert locked.get("/").status_code == 200


def test_hosts_of_an_address():
    assert host_names("127.0.0.1", 80) >= {"localhost", "[::1]", "127.0.0.1:80"}
    assert host_names("::1", 9000) == {"127.0.0.1:9000", "localhost:9000", "[::1]:9000"}
    assert host_names("0.0.0.0", 9000, ["Box"]) == {"0.0.0.0:9000", "box:9000"}
    assert [is_loopback(name) for name in ("::1", "127.9.9.9", "localhost", "0.0.0.0", "box")] == [True] * 3 + [
        False
    ] * 2


@pytest.mark.parametrize(
    "name",
    ["out/../secret", "out/..", "out/link", "/etc", "out//run", "secret", "out/./run", "out/\0", "..", "out/old"],
)
def test_nothing_outside_the_folders_is_reached(client: TestClient, name: str):
    answer = client.get("/api/runs/texts", params={"run": name})
    assert answer.status_code in (404, 422), answer.text


@pytest.mark.parametrize("name", ["out/link.html", "out/link/page.html", "out/../secret/page.html", "out/texts.jsonl"])
def test_only_saved_pages_below_the_folders_are_served(client: TestClient, name: str):
    assert client.get("/reports/saved", params={"name": name}).status_code == 404


def test_saved_pages_may_do_nothing(client: TestClient):
    assert [one["name"] for one in client.get("/api/reports").json()] == ["out/page.html"]
    page = client.get("/reports/saved", params={"name": "out/page.html"})
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "Saved." in page.text


def test_a_full_queue_is_said(app: FastAPI, client: TestClient):
    line = app.state.salience.work.lines["bert"]
    before, line.present = line.present, 10_000
    try:
        answer = client.post("/api/predict", json=ASKED)
    finally:
        line.present = before
    assert answer.status_code == 503
    assert "requests wait for bert already" in answer.json()["detail"]


def test_what_takes_too_long_is_ended():
    app = create_app({"bert": build("bert")}, limits=Limits(seconds=0.3), hosts=frozenset({"testserver"}))
    slow = {"text": "A fine film. " * 8, "methods": ["lime"], "settings": {"samples": 100_000}}
    with TestClient(app) as client:
        answer = client.post("/api/explain", json=slow)
        assert answer.status_code == 504
        assert "background" in answer.json()["detail"]
        assert client.post("/api/predict", json=ASKED).status_code in (200, 504)


def test_another_address_needs_a_token():
    with pytest.raises(BadInput, match="needs a token"):
        serve(["sentiment"], host="0.0.0.0")


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use; choose another with --port" in capsys.readouterr().err
    assert run(["serve", "--model", "sentimant"]) == 2
    assert "sentimant" in capsys.readouterr().err
    assert run(["serve", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_without_the_extra_the_remedy_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_module("salience.cli.serve"), "find_spec", lambda _: None)
    assert run(["serve"]) == 2
    assert "pip install 'salience[serve]'" in capsys.readouterr().err
