"""The command ``salience``. Each subcommand is one library call; heavy imports are deferred until needed."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from io import TextIOWrapper

import click

import salience
from salience.cli.alignment import alignment
from salience.cli.audit import audit
from salience.cli.catalogue import methods, metrics, models
from salience.cli.copying import copying
from salience.cli.counterfactual import counterfactual
from salience.cli.diffmask import diffmask
from salience.cli.dynamics import dynamics
from salience.cli.evaluate import evaluate
from salience.cli.explain import explain
from salience.cli.heads import heads
from salience.cli.options import Commands, example_lines
from salience.cli.papers import paper
from salience.cli.runs import compare, export, show, summary
from salience.cli.sequences import audit_sequences
from salience.cli.serve import serve
from salience.cli.train import train
from salience.cli.translation import translation
from salience.cli.trials import trial
from salience.core.characters import visible
from salience.errors import SalienceError, SalienceWarning

QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that silence the underlying libraries. Values set by the user are kept."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: run a command and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 success, 1 internal error, 2 user error, 130 interrupted."""
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
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # the message is the help text
            error.show()
            return 2
        return _fail(2, _usage(error))
    except SalienceError as error:
        return _fail(2, str(error))
    except (KeyboardInterrupt, click.Abort):
        return _interrupted(arguments)
    except BrokenPipeError:
        # Python flushes standard output again on exit; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if os.environ.get("SALIENCE_DEBUG"):
            traceback.print_exc()
        place = "" if error.filename is None else f": {error.filename}"
        return _fail(2, f"{error.strerror or error}{place}")
    except Exception as error:
        if interrupts:
            return _interrupted(arguments)
        if _out_of_memory(error):
            return _fail(2, "out of memory; use a smaller model or smaller settings, or free some memory")
        if os.environ.get("SALIENCE_DEBUG"):
            traceback.print_exc()
        return _fail(1, f"unexpected {type(error).__name__}: {error} (set SALIENCE_DEBUG=1 for the traceback)")


def _interrupted(arguments: Sequence[str] | None) -> int:
    if "--out" in (sys.argv if arguments is None else arguments):
        return _fail(130, "interrupted; run the same command again to resume from what is saved")
    return 130


def _out_of_memory(error: Exception) -> bool:
    """Whether torch or Python could not get the memory that it asked for."""
    if isinstance(error, MemoryError):
        return True
    if "torch" not in sys.modules:
        return False
    from salience.core.executor import out_of_memory

    return out_of_memory(error)


def _fail(code: int, message: str) -> int:
    click.echo(f"salience: {_one_line(message)}", err=True)
    return code


def _one_line(message: str) -> str:
    return visible(" ".join(message.split()))


def _usage(error: click.ClickException) -> str:
    """The message of a wrong call, with the command that explains the right one."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    message = error.format_message().rstrip(".")
    see = " See" if message.endswith(("?", ")")) else "; see"
    return message if context is None else f"{message}{see} `{context.command_path} --help`"


@contextmanager
def _warnings_in_one_line() -> Generator[None]:
    """Print our own warnings as one line each, and hide those of the underlying libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SalienceWarning)
        warnings.showwarning = lambda message, *_, **__: _fail(0, f"warning: {message}")
        yield


@contextmanager
def _noting_interrupts(seen: list[int]) -> Generator[None]:
    """Record interrupts: an import interrupted by Ctrl-C may raise some other error, which is not a bug."""

    def note(number: int, frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # interrupts are handled elsewhere, such as by nohup or a test
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example_lines('salience explain "A fine film."', "salience methods", "salience explain --help"),
)
@click.version_option(salience.__version__, prog_name="salience")
def cli() -> None:
    """Explain the predictions of text models, and evaluate the explanations."""


COMMANDS = (
    explain, serve, counterfactual, evaluate, audit, audit_sequences, heads, trial, show, summary, export, compare,
    train, diffmask, dynamics, copying, translation, alignment, paper, methods, metrics, models,
)  # fmt: skip
for command in COMMANDS:
    cli.add_command(command)
# `salience test` is the former name of `salience trial`.
former = copy(trial)
former.hidden = True
cli.add_command(former, "test")
