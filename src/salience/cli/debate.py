"""``salience paper``: the papers of the attention debate."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_model
from salience.cli.options import COUNT, DELIMITER, DEVICE, EPOCHS, example_lines, source_of
from salience.cli.output import write_into
from salience.core.characters import visible
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.audits import Callbacks
    from salience.data import Source
    from salience.data.pairs import Pair
    from salience.training.loop import TrainingProgress

DEBATE = {
    "jain_wallace_2019": """Attention is not Explanation.

    Attention is compared with gradients and leave-one-out, shuffled, and replaced by adversarial weights, in a BiLSTM
    and a model without recurrence.
    """,
    "serrano_smith_2019": """Is Attention Interpretable?

    Attention weights are set to zero, one or many, until the decision flips.
    """,
    "wiegreffe_pinter_2019": """Attention is not not Explanation.

    Twins are trained with uniform attention, other seeds, frozen weights, and against the model.
    """,
    "pruthi_2020": """Learning to Deceive with Attention.

    Models are trained to hide which words they use. --impermissible-column marks these words.
    """,
    "mohankumar_2020": """Transparent and Explainable Attention Models.

    An LSTM is trained with diverse or orthogonal states, and its attention is tested again.
    """,
    "tutek_snajder_2020": """Staying True to Your Word.

    A BiLSTM is trained to keep the identity of its words, and its attention is tested again.
    """,
}
"""The papers, with the help of their commands."""

IMPERMISSIBLE = click.option(
    "--impermissible-column",
    required=True,
    metavar="NAME",
    help="Column of the words that attention should hide: a list of indices or [start, end] spans of words, or a "
    "number of words from the start.",
)
ENCODER = click.option("--model", metavar="ENCODER", help="Pretrained transformer to manipulate as well.")


VECTORS = click.option(
    "--vectors",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Word vectors to start from: lines of `word v1 v2 ...`, or a .npy matrix with its words in a .txt "
    "file of the same name.",
)

TESTED = click.option(
    "--tested",
    type=COUNT,
    metavar="N",
    help="Test on at most N texts of each data set, at even distances; leaving words out of long texts takes hours.",
)


def commands(size: Callable[..., Any], out: Callable[..., Any]) -> list[click.Command]:
    """The commands of all papers that train classifiers; ``size`` and ``out`` are options that all papers share."""
    return [*(_command(name, size, out) for name in DEBATE), _output_relevance(size, out)]


def _command(name: str, size: Callable[..., Any], out: Callable[..., Any]) -> click.Command:
    deceives = name == "pruthi_2020"

    def run(**options: Any) -> None:
        _run(name, options)

    run = with_data(run, VECTORS, TESTED, size, out, *((ENCODER, IMPERMISSIBLE) if deceives else ()))
    marked = " --impermissible-column impermissible" if deceives else ""
    data = "gender=pronouns" if deceives else "sst2=sst2"
    examples = example_lines(
        f"salience paper {name} --data {data}{marked} --out out",
        f"salience paper {name} --data {data}{marked} --size full --out full     (hours; can be resumed)",
    )
    return click.command(name, help=DEBATE[name], epilog=examples)(run)


def _output_relevance(size: Callable[..., Any], out: Callable[..., Any]) -> click.Command:
    examples = example_lines(
        "salience paper output_relevance --data sst2=sst2 --out out",
        "salience paper output_relevance --data sst2=sst2 --copying --aligned multi30k_aligned --gold gold.jsonl "
        "--out out",
        "salience paper output_relevance --data sst2=sst2 --data imdb=imdb --size full --out full     (hours)",
    )
    return click.command("output_relevance", help=OUTPUT_RELEVANCE, epilog=examples)(
        with_data(_run_output_relevance, TESTED, size, out, COPYING, ALIGNED, GOLD)
    )


COPYING = click.option(
    "--copying",
    "copies",
    is_flag=True,
    help="Also train networks to copy sequences, about a minute each: 4 of each kind, 20 with --size full.",
)

ALIGNED = click.option(
    "--aligned",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder of pairs `src`, `trg` with word alignments `align`, in files train.* and test.* of JSON Lines; words "
    "are looked up by co-occurrence.",
)

GOLD = click.option(
    "--gold",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Pairs `src`, `trg` of the opposite direction with word alignments `sure` by people, in which the words are "
    "looked up instead; needs --aligned.",
)

OUTPUT_RELEVANCE = """Understanding Attention Training via Output Relevance.

Classifiers with attention of their own and with uniform attention are trained and followed, and the claims of the
slides are tested one by one.
"""


def with_data(run: Callable[..., None], *own: Callable[..., Any]) -> Callable[..., None]:
    """Add the options of a paper that trains classifiers on data sets by name."""
    for option in (
        click.option("--quiet", is_flag=True, help="Do not show progress."),
        DEVICE,
        DELIMITER,
        click.option("--epochs", type=EPOCHS, help="Epochs of each training.  [default: set by --size]"),
        click.option(
            "--limit", type=COUNT, metavar="N", help="Train on at most N texts of each data set, and test on N."
        ),
        *own,
        click.option("--labels", metavar="A,B", help="Keep only the texts of these labels."),
        click.option(
            "--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels."
        ),
        click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts."),
        click.option(
            "--data",
            "sets",
            required=True,
            metavar="NAME=DATA",
            multiple=True,
            help="Data set with its name; may be repeated. DATA is a folder with one file train.* and one test.*, or "
            "two files: TRAIN,TEST.",
        ),
    ):
        run = option(run)
    return run


def _run(name: str, options: dict[str, Any]) -> None:
    """Check what can be checked before the imports that take seconds, then run the protocol of the paper."""
    columns = options | {"rationale_column": options.get("impermissible_column"), "spans": "words"}
    sources = {data: (source_of(train, columns), source_of(test, columns)) for data, train, test in data_sets(options)}
    encoder = options.get("model")
    if encoder is not None:
        check_model(encoder)
    if (vectors := options["vectors"]) is not None and not vectors.is_file():
        raise BadInput(f"there is no file {vectors}; --vectors names a file of word vectors")
    from salience.models.loading import check_device
    from salience.papers.debate import run
    from salience.papers.debate_report import page, terminal, to_json

    check_device(options["device"])
    with _callbacks(options["quiet"]) as callbacks:
        result = run(
            import_module(f"salience.papers.{name}").PAPER,
            {data: _read(*parts, options["labels"]) for data, parts in sources.items()},
            options["out"],
            callbacks=callbacks,
            encoder=encoder,
            **{key: options[key] for key in ("size", "limit", "tested", "epochs", "vectors", "device")},
        )
    _write(options, {"result.json": to_json(result), "report.html": page(result)}, terminal(result))


def _write(options: dict[str, Any], files: dict[str, str], shown: Any) -> None:
    """Write the results into the folder, and print them."""
    from rich.console import Console

    write_into(options["out"], files)
    Console(highlight=False, emoji=False, markup=False).print(shown)
    if not options["quiet"]:
        click.echo(visible(f"wrote {options['out'] / 'report.html'}"), err=True)


def _aligned_parts(folder: Path | None, gold: Path | None) -> "tuple[list[Pair], ...]":
    """Pairs to count words in, and pairs to look them up in; none without a folder."""
    from salience.data.pairs import read_pairs

    if folder is None:
        if gold is not None:
            raise BadInput("--gold needs --aligned, the pairs in which words are counted")
        return ()
    train = read_pairs(_split(folder, "train"), "src", "trg", sure="align")
    if gold is None:
        return train, read_pairs(_split(folder, "test"), "src", "trg", sure="align")
    return train, [pair.reversed() for pair in read_pairs(gold, "src", "trg", sure="sure")]


def _run_output_relevance(**options: Any) -> None:
    """Check what can be checked before the imports that take seconds, then test the claims."""
    pairs = _aligned_parts(options["aligned"], options["gold"])
    sources = {data: (source_of(train, options), source_of(test, options)) for data, train, test in data_sets(options)}
    from salience.models.loading import check_device
    from salience.papers.output_relevance import AlignedPairs, run
    from salience.papers.output_relevance_report import page, terminal, to_json

    check_device(options["device"])
    with _callbacks(options["quiet"]) as callbacks:
        result = run(
            {data: _read(*parts, options["labels"]) for data, parts in sources.items()},
            options["out"],
            callbacks=callbacks,
            aligned=AlignedPairs(*pairs, by_people=options["gold"] is not None) if pairs else None,
            **{key: options[key] for key in ("size", "limit", "tested", "epochs", "device", "copies")},
        )
    _write(options, {"result.json": to_json(result), "report.html": page(result)}, terminal(result))


@contextmanager
def _callbacks(quiet: bool) -> "Generator[Callbacks]":
    """Report each test, and the training of each model."""
    from salience.audits import Callbacks
    from salience.views.progress import named

    with named(quiet=quiet) as report:

        def step(name: str, progress: "TrainingProgress") -> None:
            if (shown := report(f"training {name}")) is not None:
                shown(progress.step, progress.of)

        yield Callbacks(report, step=step)


# ------------------------------------------------------------------------------------------------------ data sets


def data_sets(options: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The name, training file and test file of each data set."""
    sets = [_set(one) for one in options["sets"]]
    names = [name for name, *_ in sets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"two data sets are named {twice[0]}; give each its own name")
    return sets


def _set(text: str) -> tuple[str, str, str]:
    name, equals, data = text.partition("=")
    if not (equals and data and re.fullmatch(r"\w[\w.-]*", name)):
        raise BadInput(
            f"{text!r} is not of the form NAME=DATA, with a name of letters, digits, dots and hyphens; use, for "
            "example, sst2=folder"
        )
    if Path(data).is_dir():
        return name, _split(Path(data), "train"), _split(Path(data), "test")
    train, comma, test = data.partition(",")
    if not (train and comma and test) or "," in test:
        raise BadInput(
            f"{data!r} is neither a folder that holds train.* and test.* nor two files; use, for example, "
            f"{name}=train.jsonl,test.jsonl"
        )
    return name, train, test


def _split(folder: Path, split: str) -> str:
    from salience.data.formats import format_of

    files = [file for file in sorted(folder.glob(f"{split}.*")) if format_of(file.name) is not None]
    if len(files) != 1:
        listed = ", ".join(file.name for file in files) or "none"
        raise BadInput(f"{folder} must hold one data file {split}.*, such as {split}.jsonl; it holds {listed}")
    return str(files[0])


def _read(train: "Source", test: "Source", labels: str | None) -> Any:
    """The labelled texts of a data set; with ``labels``, only those of these labels."""
    from salience.data.examples import examples
    from salience.papers.debate import Data

    data = Data(examples(train), examples(test))
    return data if labels is None else data.of_labels([label.strip() for label in labels.split(",")])
