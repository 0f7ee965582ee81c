"""An application behind a real server at a free port of this machine."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from fastapi import FastAPI

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")


@contextmanager
def served(make: Callable[[int], FastAPI]) -> Iterator[str]:
    """The address of an application, which is made for its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(make(port), log_level="error", lifespan="on"))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
