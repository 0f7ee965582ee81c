"""What goes wrong between a server and its clients: nothing hangs, and the next request is answered."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import salience
from salience.server import Limits, create_app
from salience.server.guard import host_names
from server.large import write_large_run
from server.live import served
from shapes import build

SLOW = {"text": "A fine film. " * 8, "methods": ["lime"], "settings": {"samples": 200_000}}
PATIENCE = 30.0
"""Seconds within which something has to happen on a busy machine."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    out = tmp_path_factory.mktemp("trouble") / "out"
    write_large_run(out / "large", 2000)
    (out / "later").mkdir()
    (out / "later" / "manifest.json").write_text('{"format": 99, "model": {"name": "x"}}', "utf-8")
    (out / "torn").mkdir()
    (out / "torn" / "manifest.json").write_text('{"format": 3, "mod', "utf-8")
    limits = Limits(workers=1, waiting=2, patience=1.0)
    return create_app({"bert": build("bert")}, folders=[out], limits=limits)


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    def listening(port: int) -> FastAPI:
        guard = next(one for one in app.user_middleware if "hosts" in one.kwargs)
        guard.kwargs["hosts"] = host_names("127.0.0.1", port)
        return app

    with served(listening) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=PATIENCE) as client:
        yield client


def _connected(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def _head(address: str, length: int) -> bytes:
    lines = ("POST /api/explain HTTP/1.1", f"Host: {address.removeprefix('http://')}")
    kind = ("Content-Type: application/json", f"Content-Length: {length}")
    return "\r\n".join((*lines, *kind, "", "")).encode()


def _present(app: FastAPI) -> int:
    return app.state.salience.work.lines["bert"].present


def _until(condition: Any) -> None:
    end = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < end, "it hangs"
        sleep(0.02)


def test_the_work_of_a_client_that_goes_away_ends(app: FastAPI, address: str, client: httpx.Client):
    body = json.dumps(SLOW).encode()
    with _connected(address) as gone:
        gone.sendall(_head(address, len(body)) + body)
        _until(lambda: _present(app) == 1)
    _until(lambda: _present(app) == 0)
    assert client.post("/api/predict", json={"text": "A fine film."}).status_code == 200


def test_a_client_that_goes_away_in_the_middle_of_an_answer_or_a_question(address: str, client: httpx.Client):
    body = json.dumps({"text": "A fine film.", "methods": ["gradient"]}).encode()
    for length, sent in ((len(body), body), (len(body), body[:10])):
        with _connected(address) as gone:
            gone.sendall(_head(address, length) + sent)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not a farewell
    assert client.post("/api/predict", json={"text": "A fine film."}).status_code == 200


def test_a_question_that_never_ends_is_given_up(address: str):
    with _connected(address) as slow:
        slow.sendall(_head(address, 1000) + b'{"text": ')
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def test_more_clients_than_can_wait_are_told_so(app: FastAPI, address: str, client: httpx.Client):
    body = json.dumps(SLOW).encode()
    sockets = [_connected(address) for _ in range(3)]
    for one in sockets:
        one.sendall(_head(address, len(body)) + body)
    _until(lambda: _present(app) == 3)
    answer = client.post("/api/predict", json={"text": "A fine film."})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    for one in sockets:
        one.close()
    _until(lambda: _present(app) == 0)
    assert client.post("/api/predict", json={"text": "A fine film."}).status_code == 200


def test_ten_megabytes_and_broken_json(client: httpx.Client):
    answer = client.post("/api/explain", json={"text": "a" * 10**7})
    assert (answer.status_code, "at most 1,048,576 are read" in answer.text) == (413, True)
    for body in (b'{"text": ', b"\xff\xfe", b"[]", b""):
        answer = client.post("/api/explain", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), body
        assert answer.json()["detail"]


def test_runs_of_another_format_are_named_and_not_listed(client: httpx.Client):
    assert [one["name"] for one in client.get("/api/runs").json()] == ["out/large"]
    for name, expected in (("out/later", "expected format 1 or 2 or 3"), ("out/torn", "manifest.json")):
        answer = client.get("/run", params={"run": name}, headers={"accept": "text/html"})
        assert answer.status_code == 422
        assert expected in answer.text


def test_a_run_that_grows_while_it_is_shown(client: httpx.Client, app: FastAPI):
    folder: Path = app.state.salience.folders.place("out/large")
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text("utf-8")) | {"finished": None}), "utf-8")
    before = client.get("/api/runs/texts", params={"run": "out/large", "sort": "confidence"}).json()
    assert before["total"] == 2000
    larger = write_large_run(folder.parent.parent / "larger", 3000)
    third = "part-00002.parquet"
    (larger / "parts" / third).rename(folder / "parts" / third)
    assert client.get("/api/runs/texts", params={"run": "out/large"}).json()["of"] in (2000, 3000), "not listed yet"
    (folder / "parts.jsonl").write_bytes((larger / "parts.jsonl").read_bytes())
    for asked in ({}, {"sort": "confidence"}, {"sort": "disagreement"}, {"search": "a"}):
        assert client.get("/api/runs/texts", params={"run": "out/large", **asked}).json()["of"] == 3000, asked
    (row,) = client.get("/api/runs/texts", params={"run": "out/large", "search": "2999"}).json()["rows"]
    assert client.get("/api/runs/text", params={"run": "out/large", "row": row["row"]}).status_code == 200


def test_a_port_in_use_is_named_at_once(address: str):
    with pytest.raises(salience.errors.BadInput, match="Address already in use; choose another with --port"):
        salience.server.serve(["no such model"], port=int(address.rpartition(":")[2]))
