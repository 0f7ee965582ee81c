"""``salience serve``: explanations in a browser."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import click

from salience.cli.checks import check_model
from salience.cli.options import DEVICE, DTYPE, Number, example_lines
from salience.core.settings import Range
from salience.errors import BadInput

PORT = 8765
PORTS = Number(Annotated[int, Range(0, 65535)])
NEEDED = ("fastapi", "uvicorn")


@click.command(
    epilog=example_lines(
        "salience serve",
        "salience serve out                                 (with the runs and reports below the folder out)",
        "salience serve --model sentiment --model my-model  (two models side by side)",
        "SALIENCE_TOKEN=... salience serve --host 0.0.0.0 --name my-machine",
    )
)
@click.argument("folders", metavar="[FOLDER...]", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--model", "models", metavar="NAME", multiple=True, help="Model to serve; may be repeated.  [default: sentiment]"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve at; another one needs a token.")
@click.option("--port", type=PORTS, default=PORT, show_default=True, help="Port; 0 for any that is free.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="Other host name that it is opened by.")
@click.option("--token", envvar="SALIENCE_TOKEN", help="Secret that every request needs.  [default: $SALIENCE_TOKEN]")
@DEVICE
@DTYPE
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
def serve(
    folders: tuple[Path, ...],
    models: tuple[str, ...],
    host: str,
    port: int,
    names: tuple[str, ...],
    token: str | None,
    device: str | None,
    dtype: str,
    opened: bool,
) -> None:
    """Show explanations as a web page of this machine: explore texts and runs, compare methods and models.

    Below each FOLDER, runs and saved reports are shown. Nothing is sent anywhere, and other machines cannot reach
    the page unless --host names another address, which needs a token.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise BadInput(f"the web page needs {missing[0]}, which is not installed; run `pip install 'salience[serve]'`")
    options = {"device": device, "dtype": dtype}
    for name in models:
        check_model(name, **options)
    if wrong := [folder for folder in folders if not folder.is_dir()]:
        raise BadInput(f"{wrong[0]} is not a folder; name folders with runs or reports")
    from salience.models.loading import Checkpoint
    from salience.server import serve as start

    def ready(address: str) -> None:
        click.echo(f"salience is at {address}   (Ctrl-C ends it)", err=True)
        if opened:
            click.launch(address)

    checkpoints = [Checkpoint(name, options) for name in models or ("sentiment",)]
    start(checkpoints, folders=folders, host=host, port=port, token=token, names=names, ready=ready)
