"""The command ``salience``: each subcommand is one call of the library. Heavy imports wait until they are needed."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper

import click

import salience
from salience.cli.catalogue import methods, models
from salience.cli.evaluate import evaluate
from salience.cli.explain import explain
from salience.cli.options import examples
from salience.cli.papers import paper
from salience.cli.runs import export, show
from salience.cli.train import train
from salience.cli.trials import test
from salience.errors import SalienceError, SalienceWarning

QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Keeps the libraries beneath from writing between our lines. What the user has set stays."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: runs a command and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """0: done. 1: a fault of ours, or nobody reads on. 2: a mistake that the user can mend. 130: interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    interrupts: list[int] = []
    try:
        with _warnings_in_one_line(), _noting_interrupts(interrupts):
            code = cli.main(arguments, prog_name="salience", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return 2
    except SalienceError as error:
        return _fail(2, str(error))
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # Python flushes standard output once more on its way out; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if interrupts:
            return 130
        if os.environ.get("SALIENCE_DEBUG"):
            traceback.print_exc()
        return _fail(1, f"unexpected {type(error).__name__}: {error} (SALIENCE_DEBUG=1 shows where)")


def _fail(code: int, message: str) -> int:
    click.echo(f"salience: {_one_line(message)}", err=True)
    return code


def _one_line(message: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(message.split()))


@contextmanager
def _warnings_in_one_line() -> Generator[None]:
    """Our own warnings as one line each; those of the libraries beneath are for developers and stay silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SalienceWarning)
        warnings.showwarning = lambda message, *_, **__: _fail(0, f"warning: {message}")
        yield


@contextmanager
def _noting_interrupts(seen: list[int]) -> Generator[None]:
    """An import that Ctrl-C breaks off may fail with some other error; the note tells that it was no fault."""

    def note(number: int, frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # someone else, such as nohup or a test, decides on interrupts
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples('salience explain "A fine film."', "salience methods", "salience explain --help"),
)
@click.version_option(salience.__version__, prog_name="salience")
def cli() -> None:
    """Why did the model say that, and can the explanation be believed?"""


for command in (explain, evaluate, test, show, export, train, paper, methods, models):
    cli.add_command(command)
