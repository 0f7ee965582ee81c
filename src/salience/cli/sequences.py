"""``salience audit-sequences``: can attention hide which word an encoder-decoder uses?"""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import COUNT, EPOCHS, example_lines
from salience.cli.output import print_result
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.audits.sequence_manipulation import SequenceStudy

TASKS = ("copy", "reverse", "flip")


@click.command(
    "audit-sequences",
    epilog=example_lines(
        "salience audit-sequences --task copy --out audit",
        "salience audit-sequences --aligned multi30k_aligned --out audit      (train.* and test.* with `align`)",
    ),
)
@click.option(
    "--task",
    "tasks",
    type=click.Choice(TASKS),
    multiple=True,
    help="Task; may be repeated.  [default: all three, unless --aligned is given]",
)
@click.option(
    "--aligned",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Translate pairs `src`, `trg` with word alignments `align`: a folder with files train.* and test.*.",
)
@click.option("--limit", type=COUNT, metavar="N", help="Train on at most N pairs.  [default: 5000]")
@click.option("--epochs", type=EPOCHS, help="Epochs of each training.  [default: 15; 5 for translation]")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for checkpoints; run the same command to resume.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per task.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def audit_sequences(tasks: tuple[Any, ...], **options: Any) -> None:
    """Test whether attention can hide which word an encoder-decoder uses.

    Models learn to copy, to reverse, to swap neighbours, or to translate, while attention to the aligned word is
    penalised.
    """
    from salience.audits.sequence_manipulation import sequence_folder, sequence_manipulation
    from salience.views.audit import MARKS
    from salience.views.progress import quietly, stages

    chosen = tasks or (() if options["aligned"] else TASKS)
    with sequence_folder(options["out"]):
        for study in _studies(chosen, options):
            with quietly() if options["quiet"] else stages(sys.stderr.isatty()) as bar:
                finding = sequence_manipulation(study, step=bar.stage)
            rows = [[m.name, str(m)] for m in finding.measures]
            notes = [
                f"{finding.question} The result is {MARKS[finding.verdict]}.",
                f"If attention were an explanation: {finding.expected}.",
                finding.source,
            ]
            print_result(options, [((finding.test, ""), rows)], notes, asdict(finding))


def _studies(tasks: tuple[Any, ...], options: dict[str, Any]) -> "list[SequenceStudy]":
    from salience.audits.sequence_manipulation import RECIPE, TRANSLATED, rearranging, translating

    limit, out, epochs = options["limit"] or 5000, options["out"], options["epochs"]
    recipe, slower = (one if epochs is None else replace(one, epochs=epochs) for one in (RECIPE, TRANSLATED))
    studies = [rearranging(task, train=limit, test=max(1, limit // 10), folder=out, recipe=recipe) for task in tasks]
    if options["aligned"] is not None:
        train, test = (_pairs(options["aligned"], name, limit) for name in ("train", "test"))
        studies.append(translating(train, test, folder=out, recipe=slower))
    return studies


def _pairs(folder: Path, name: str, limit: int) -> Any:
    from salience.data.pairs import read_pairs

    if not (files := sorted(folder.glob(f"{name}.jsonl*"))):
        what = "is a file; name its folder" if folder.is_file() else f"holds no file {name}.jsonl or {name}.jsonl.gz"
        raise BadInput(f"{folder} {what}")
    return read_pairs(files[0], "src", "trg", sure="align", limit=limit)
