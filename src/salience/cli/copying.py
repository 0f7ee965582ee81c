"""``salience copying``: can attention be learnt from sequences without co-occurrence?"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from salience.cli.options import EPOCHS, WORKERS, example_lines
from salience.cli.output import check_place, print_result
from salience.errors import BadInput

KINDS = ("permutation", "iid", "distinct")


@click.command(
    epilog=example_lines(
        "salience copying --out copying --html copying.html",
        "salience copying --kind permutation --seeds 20 --out copying",
        "salience copying --size full --out copying           (an hour; run again to resume)",
        "salience copying --heads --out heads",
    )
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Kind of sequences; may be repeated.  [default: all]",
)
@click.option("--seeds", type=EPOCHS, metavar="N", help="Runs of each kind.  [default: 4; 20 in the full size]")
@click.option("--steps", type=EPOCHS, default=200, show_default=True, help="Steps of each training.")
@click.option("--size", type=click.Choice(["quick", "full"]), default="quick", show_default=True, help="Size.")
@click.option("--heads", "by_heads", is_flag=True, help="Test whether one good head rescues a model of eight heads.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for finished runs; run the same command to resume.",
)
@click.option("--workers", type=WORKERS, help="Processes.  [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def copying(by_heads: bool, kinds: tuple[str, ...], seeds: int | None, **options: Any) -> None:
    """Test whether attention can be learnt without co-occurrence.

    Networks learn to copy sequences. In permutations every symbol occurs with every other one equally often, so output
    relevance cannot be learnt under uniform attention, and many runs fail to learn attention. Independent symbols have
    no such problem.
    """
    if by_heads and (kinds or seeds):
        raise BadInput("--heads trains on permutations, as many models as --size says; leave out --kind and --seeds")
    if options["html"] is not None:
        check_place(options["html"])
    (_heads if by_heads else _copying)(kinds, seeds, options)


def _copying(kinds: tuple[Any, ...], seeds: int | None, options: dict[str, Any]) -> None:
    from salience.core.processes import cores
    from salience.dynamics.copying import CopyRecipe, copying, seeds_of
    from salience.views import copying as views

    result = copying(
        kinds or KINDS,
        recipe=CopyRecipe(steps=options["steps"]),
        seeds=seeds_of(options["size"]) if seeds is None else range(seeds),
        folder=options["out"],
        workers=options["workers"] or cores(),
        report=lambda run: _say(
            f"{run.kind}, seed {run.seed}: accuracy {run.last.accuracy:.3f}, attention {run.last.attention:.3f}",
            options,
        ),
    )
    rates = {kind: asdict(result.failures(kind)) for kind in result.kinds}
    print_result(
        options,
        [views.copying_table(result)],
        views.copying_notes(result),
        {**asdict(result), "failures": rates},
        lambda: views.copying_page(result),
    )


def _heads(_: tuple[Any, ...], __: int | None, options: dict[str, Any]) -> None:
    from salience.core.processes import cores
    from salience.dynamics.copying import CopyRecipe
    from salience.dynamics.heads import GROUPS, CheckedHead, HeadDraw, heads
    from salience.views import copying as views

    def report(done: CheckedHead | HeadDraw) -> None:
        if isinstance(done, CheckedHead):
            _say(f"head {done.head}: {done.verdict}", options)
        else:
            _say(f"{done.group} {done.draw}: accuracy {done.curve[-1].accuracy:.3f}", options)

    result = heads(
        size=options["size"],
        recipe=CopyRecipe(steps=options["steps"]),
        folder=options["out"],
        workers=options["workers"] or cores(),
        report=report,
    )
    rates = {group: asdict(result.successes(group)) for group in GROUPS}
    print_result(
        options,
        [views.heads_table(result)],
        views.heads_notes(result),
        {**asdict(result), "successes": rates},
        lambda: views.heads_page(result),
    )


def _say(line: str, options: dict[str, Any]) -> None:
    if not options["quiet"]:
        click.echo(line, err=True)
