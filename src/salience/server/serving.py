"""Start the server: check the address, load the models, and serve until interrupted."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from salience.errors import BadInput
from salience.models.loading import Checkpoint
from salience.server.app import LOOPBACK, PORT, create_app
from salience.server.guard import host_names, is_loopback
from salience.server.limits import Limits


def serve(
    models: Sequence[str | Checkpoint] = ("sentiment",),
    *,
    folders: Sequence[str | Path] = (),
    host: str = LOOPBACK,
    port: int = PORT,
    token: str | None = None,
    names: Sequence[str] = (),
    limits: Limits = Limits(),  # noqa: B008
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve models, and the runs and reports below some folders, as a web page; returns when interrupted.

    Only programs of this machine reach it, unless ``host`` is another address; that needs a ``token``. ``names`` are
    other host names that it is opened by. ``ready`` is called with the address once it accepts requests.

    >>> serve(["sentiment", "sentiment_bilstm"], folders=["out"])                   # doctest: +SKIP
    """
    if not is_loopback(host) and not token:
        raise BadInput(
            f"{host} can be reached from other machines; that needs a token: set SALIENCE_TOKEN, or leave out --host"
        )
    listening = _listen(host, port)
    with listening:
        actual = listening.getsockname()[1]
        checkpoints = [Checkpoint(one) if isinstance(one, str) else one for one in models]
        if len({one.name for one in checkpoints}) < len(checkpoints):
            raise BadInput("a model is named twice; name each once")
        loaded = {one.name: one.load() for one in checkpoints}
        hosts = host_names(host, actual, names)
        share_cores(limits.workers)
        app = create_app(loaded, folders=folders, limits=limits, token=token, hosts=hosts)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{actual}/"
        _run(app, listening, lambda: ready(f"{address}?token={token}" if token else address))


def share_cores(workers: int) -> None:
    """Let the passes that run at once share the cores: threads that compete for a core wait for each other."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def _listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections, or a clear error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(256)
    except OSError as error:
        listening.close()
        why = error.strerror or str(error)
        raise BadInput(f"cannot serve at {host}:{port}: {why}; choose another with --port, or 0 for any") from error
    return listening


def _run(app: object, listening: socket.socket, ready: Callable[[], None]) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    ready()
    uvicorn.Server(config).run(sockets=[listening])
