"""A whole data set on the command line: the run with its progress, and the estimate of its cost."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import DataOptions
from salience.cli.output import report_rejected
from salience.core.characters import to_json, visible

if TYPE_CHECKING:
    from salience.runs.driver import CostEstimate
    from salience.views.progress import Report


def run_data(data: DataOptions, as_json: bool, work: "Callable[[Report], object]") -> None:
    """Call ``work``, which writes the run folder, with a report of its progress, and print what was done."""
    folder = Path(str(data.out))
    earlier = _finished(folder)
    try:
        with _reporter(as_json, data.quiet) as report:
            work(report)
    except KeyboardInterrupt:
        if not data.quiet:
            click.echo("Stopped. Finished parts are saved; run the same command to resume.", err=True)
        raise
    done: Any = _finished(folder)
    if as_json:
        click.echo(to_json({"event": "finished", "run": str(data.out), **done}))
        return
    report_rejected(folder)
    if not data.quiet:
        cut = f"; {done['truncated']:,} truncated to the maximum length of the model" if done["truncated"] else ""
        status = f"{data.out} is already complete:" if done == earlier else f"explained into {data.out}:"
        click.echo(visible(f"{status} {done['texts']:,} texts{cut}"), err=True)


def _finished(folder: Path) -> object:
    """How the run in a folder finished, if there is a finished run."""
    from salience.runs.folder import read_manifest

    return read_manifest(folder)["finished"] if (folder / "manifest.json").is_file() else None


def _reporter(as_json: bool, quiet: bool) -> "AbstractContextManager[Report]":
    from salience.views import progress

    if as_json:
        return progress.events()
    if quiet:
        return progress.silence()
    return progress.bar() if sys.stderr.isatty() else progress.lines()


def print_estimate(
    data: DataOptions, as_json: bool, estimate: "Callable[[Callable[[int, int], None] | None], CostEstimate]"
) -> None:
    """Print what a run would cost; ``estimate`` is called with a report of its progress."""
    from salience.views.progress import counted, duration, size

    with counted("estimating", quiet=data.quiet) as report:
        cost = estimate(report)
    if as_json:
        click.echo(to_json(asdict(cost)))
        return
    click.echo(f"{cost.texts:,} texts, about {cost.tokens:,} tokens")
    click.echo(f"about {cost.passes:,} passes of up to {cost.budget:,} tokens")
    click.echo(f"about {duration(cost.seconds)} with one worker, and {size(cost.bytes)} on disk")
    click.echo(f"measured on a sample of {cost.sample} texts")
