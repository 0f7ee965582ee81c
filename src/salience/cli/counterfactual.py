"""``salience counterfactual``: the smallest edits that change a decision, of single texts or over a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from salience.cli.checks import check_model, check_names
from salience.cli.options import (
    COUNT,
    DELIMITER,
    SEED,
    SETTINGS,
    ModelOptions,
    example_lines,
    gathered,
    given_options,
    model,
    pairs,
    source_of,
)
from salience.cli.output import check_distinct, print_points, print_table, written
from salience.core.characters import to_json, visible
from salience.errors import BadInput, choose

EDITS = ("delete", "replace", "insert")
STUDIED = ("integrated_gradients", "occlusion", "gradient")
TEXT_ONLY = ("--to", "--how", "--count", "--max-edits")
"""Options of the search for the edits of a single text."""


@dataclass(frozen=True, slots=True)
class EditOptions:
    """What may be edited, and where new words come from."""

    to: str | None
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    kinds: str
    fill: str | None
    candidates: tuple[str, ...]
    how: Any
    count: int
    most: int


edit_options = gathered(
    EditOptions,
    click.option("--to", metavar="LABEL", help="Label to reach.  [default: any other than the predicted one]"),
    click.option(
        "--method",
        "methods",
        metavar="NAME",
        multiple=True,
        help="Method whose scores give the order of the words; may be repeated with --data.",
    ),
    SETTINGS,
    click.option(
        "--edits",
        "kinds",
        metavar="KINDS",
        default="delete,replace",
        show_default=True,
        help="Kinds of edits: some of delete, replace, insert.",
    ),
    click.option("--fill", metavar="MODEL", help="Masked language model that proposes words.  [default: the model's]"),
    click.option(
        "--candidates",
        metavar="WORD=A,B|FILE",
        multiple=True,
        help="Words that may replace WORD; or a file with such lines.",
    ),
    click.option(
        "--how",
        type=click.Choice(["beam", "greedy"]),
        default="beam",
        show_default=True,
        help="Beam search, or strictly in the order of the scores.",
    ),
    click.option("--count", type=COUNT, default=3, show_default=True, help="Number of different counterfactuals."),
    click.option("--max-edits", "most", type=COUNT, default=6, show_default=True, help="Most words to edit."),
)


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """A data set to edit."""

    data: str | None
    out: Path | None
    text_column: str
    edited_column: str | None
    delimiter: str | None
    limit: int | None
    seed: int


study_options = gathered(
    StudyOptions,
    click.option("--data", metavar="DATA", help="Data set to edit, instead of TEXT."),
    click.option(
        "--out",
        metavar="FOLDER",
        type=click.Path(path_type=Path),
        help="With --data: folder for finished texts; run the same command to resume.",
    ),
    click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts."),
    click.option("--edited-column", metavar="NAME", help="Column of the same texts edited by people, to compare with."),
    DELIMITER,
    click.option("--limit", type=COUNT, metavar="N", help="Edit at most N texts, at even distances."),
    click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random order."),
)


@click.command(
    epilog=example_lines(
        'salience counterfactual "The film is not bad at all."',
        'salience counterfactual "A fine film." --to negative --edits replace --html edits.html',
        'salience counterfactual "A fine film." --candidates fine=dull,poor --edits replace',
        "salience counterfactual --data reviews.jsonl --out edits --method occlusion --method attention",
        "salience counterfactual --data pairs.csv --text-column original --edited-column edited",
    )
)
@click.argument("texts", metavar="[TEXT...]", nargs=-1)
@edit_options
@model
@study_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per text, or one for the data set.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML page.")
@click.option("--no-color", "plain", is_flag=True, help="Mark edits with [- -] and {+ +} only.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@click.pass_context
def counterfactual(
    context: click.Context,
    texts: tuple[str, ...],
    edit: EditOptions,
    model: ModelOptions,
    study: StudyOptions,
    as_json: bool,
    html: Path | None,
    plain: bool,
    quiet: bool,
) -> None:
    """Find the smallest edits of TEXT that change the model's decision.

    Words are edited in the order of an explanation: deleted, replaced or inserted. Every draft is judged by the model.

    With --data, whole texts of a data set are edited word by word, in the order of each method and in random order: a
    method that changes the decision with fewer edits explains it better.
    """
    if (study.data is None) == (not texts):
        raise BadInput("pass one or more TEXTs, or a data set with --data")
    _check_unused(context, data=study.data is not None)
    check_names(edit.methods)
    arguments = _arguments(edit)
    check_model(model.model, **model.options)
    if edit.fill is not None:
        check_model(edit.fill)
    with _opened(html) as file:
        if study.data is not None:
            _edit_data(study, edit, model, arguments, quiet, as_json, file)
        else:
            _edit_texts(texts, edit, model, arguments, quiet, as_json, plain, file)
    if html is not None:
        click.echo(visible(f"wrote {html}"), err=True)


def _check_unused(context: click.Context, *, data: bool) -> None:
    """Raise for options that have no meaning here: a study reaches any other label, in order, until it changes."""
    if data and (given := [o for o in given_options(context, EditOptions) if o in TEXT_ONLY]):
        raise BadInput(f"{given[0]} is for a TEXT; with --data, words are edited in order until the decision changes")
    if not data and (given := given_options(context, StudyOptions)):
        raise BadInput(f"{given[0]} is only used with --data, which names a whole data set")


def _opened(html: Path | None) -> Any:
    from contextlib import nullcontext

    if html is None:
        return nullcontext()
    check_distinct([html])
    return written(html)


def _arguments(edit: EditOptions) -> dict[str, Any]:
    """The arguments that single texts and data sets have in common."""
    kinds = [kind.strip() for kind in edit.kinds.split(",") if kind.strip()]
    for kind in kinds:
        choose(kind, EDITS, "kind of edit")
    return {"edits": kinds, "fill": edit.fill, "candidates": read_candidates(edit.candidates)}


def read_candidates(given: Sequence[str]) -> dict[str, list[str]]:
    """Parse WORD=A,B; a file holds one such line per word. A word that is given again gets more candidates."""
    from salience.data.formats import reading

    lines: list[str] = []
    for one in given:
        if "=" in one:
            lines.append(one)
        elif Path(one).is_file():
            with reading(one, UnicodeDecodeError):
                lines += [line for line in Path(one).read_text("utf-8-sig").splitlines() if line.strip()]
        else:
            raise BadInput(f"--candidates {one!r} is neither a file nor of the form WORD=A,B, such as bad=good,great")
    candidates: dict[str, list[str]] = {}
    for line in lines:
        word, equals, others = line.partition("=")
        words = [other.strip() for other in others.split(",") if other.strip()]
        if not (word.strip() and equals and words):
            raise BadInput(f"--candidates {line!r} is not of the form WORD=A,B, such as bad=good,great")
        candidates.setdefault(word.strip().casefold(), []).extend(words)
    return candidates


def _load(model: ModelOptions) -> Any:
    from salience.models import load

    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    return loaded


def _edit_texts(
    texts: Sequence[str],
    edit: EditOptions,
    model: ModelOptions,
    arguments: dict[str, Any],
    quiet: bool,
    as_json: bool,
    plain: bool,
    file: Any,
) -> None:
    if len(edit.methods) > 1:
        raise BadInput("one --method gives the order of the words of a TEXT; compare methods with --data")
    from salience.counterfactuals import counterfactual as find
    from salience.views import counterfactuals as view
    from salience.views.progress import counted

    search: dict[str, Any] = {"to": edit.to, "how": edit.how, "count": edit.count, "max_edits": edit.most}
    method = edit.methods[0] if edit.methods else None
    with counted("editing", quiet=quiet) as report:
        own = {**search, **arguments, **pairs(edit.settings)}
        results = find(_load(model), list(texts), method=method, report=report, **own)
    if file is not None:
        file.write(view.page(results).encode())
    if as_json:
        for one in results:
            click.echo(one.to_json())
    elif file is None:
        from rich.console import Console

        from salience.views.terminal import coloured

        console = Console(no_color=True if plain else None, highlight=False, emoji=False, markup=False)
        for one in results:
            console.print(view.terminal(one, colour=coloured(console)))


def _edit_data(
    study: StudyOptions,
    edit: EditOptions,
    model: ModelOptions,
    arguments: dict[str, Any],
    quiet: bool,
    as_json: bool,
    file: Any,
) -> None:
    columns = {"text_column": study.text_column, "pair_column": study.edited_column, "delimiter": study.delimiter}
    source = source_of(str(study.data), columns, labelled=False)
    from salience.counterfactuals import counterfactual_data
    from salience.data.examples import examples, sampled
    from salience.views import counterfactuals as view
    from salience.views.progress import counted

    every = examples(source)
    texts = every if study.limit is None else sampled(every, study.limit)
    with counted("editing", quiet=quiet) as report:
        result = counterfactual_data(
            _load(model),
            texts,
            edit.methods or STUDIED,
            out=study.out,
            seed=study.seed,
            report=report,
            **arguments,
            **pairs(edit.settings),
        )
    if file is not None:
        file.write(view.study_page(result).encode())
    if as_json:
        click.echo(to_json(view.study_facts(result)))
        return
    print_table(view.study_table(result))
    print_points(view.study_notes(result))
