"""``salience explain``: explains single texts, or a whole data set into a run folder."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from salience.cli.answers import AnswerCall, answers_in_words, explain_answer_data, explain_answers, show_dependence
from salience.cli.checks import check_model, check_names
from salience.cli.datasets import print_estimate, run_data
from salience.cli.interactions import check_interactions, explain_pairs
from salience.cli.options import (
    AnswerOptions,
    DataOptions,
    Display,
    ModelOptions,
    Question,
    answer_options,
    data_options,
    display,
    example_lines,
    given_options,
    model,
    question,
    source_of,
)
from salience.cli.output import print_wide, progress_bar, sink
from salience.errors import BadInput
from salience.runs.engines import check_engine

if TYPE_CHECKING:
    from salience.core.text import Text
    from salience.core.types import Model

WINDOW = 32
"""Texts explained at a time; their results are shown while the next ones are computed."""


@click.command(
    epilog=example_lines(
        'salience explain "A fine film."',
        'salience explain "A fine film." --method gradient --method integrated_gradients',
        'salience explain "A fine film." --target negative --kind probability',
        'salience explain "A man sleeps." --pair "Nobody sleeps." --model my-nli-folder',
        'salience explain "A fine film." --set nodes=200 --html why.html --png why.png',
        'salience explain "A fine film." --view waterfall',
        'salience explain "The film is not bad." --interactions         (what pairs of words do together)',
        'salience explain "The film is not bad." --interactions shapley_taylor --html pairs.html',
        "salience explain - --json < reviews.txt > scores.jsonl",
        "salience explain --data reviews.jsonl --out run        (a data set; run again to resume)",
        'salience explain --model gpt2 --target " Paris" "The capital of France is"',
        'salience explain "The capital of France is" --model my-lm --generate 12      (why these words)',
        'salience explain "The capital of France is" --model my-lm --answer Paris --against-answer London',
        "salience explain --chat chat.json --model my-lm --generate 64 --by turn",
        'salience explain "Who won?" --context passages.jsonl --model my-lm --generate 64 --by document',
        'salience explain "Who won?" --context passages.jsonl --model my-lm --generate 64 --dependence',
        'salience explain --model my-translator "Ein Mann schläft."        (which word made each word)',
    )
)
@click.argument("texts", metavar="[TEXT...]", nargs=-1)
@click.option("--decoded", is_flag=True, help="Show the words that each token decodes to in the layers of --layer.")
@click.option("--pair", "pairs", metavar="TEXT", multiple=True, help="Second text of a sentence pair; once per TEXT.")
@click.option(
    "--interactions",
    metavar="[NAME]",
    is_flag=False,
    flag_value="pairwise_occlusion",
    help="Explain pairs of words, by pairwise_occlusion (the default), shapley_taylor, shapley_interaction, "
    "archipelago or integrated_hessians.",
)
@question
@answer_options
@display
@model
@data_options
@click.pass_context
def explain(
    context: click.Context,
    texts: tuple[str, ...],
    decoded: bool,
    pairs: tuple[str, ...],
    interactions: str | None,
    question: Question,
    answer: AnswerOptions,
    display: Display,
    model: ModelOptions,
    data: DataOptions,
) -> None:
    """Show how much each word of TEXT contributed to the prediction.

    Quote each TEXT; every TEXT is explained separately. Use - to read texts from standard input, one per line,
    and -- before a text that starts with a dash.

    With --generate, --answer, --chat or --context, the answer of a language model is explained: how much each part
    of the prompt contributed to each token of the answer.

    With --interactions, pairs of words are explained: what two words do together that neither does alone.

    With --data and --out, a whole data set is explained into a folder of Parquet files. Finished parts are
    saved; run the same command to resume. `salience show` and `salience export` read the folder.
    """
    asked = given_options(context, AnswerOptions)
    if interactions is not None:
        others = [*asked, *(["--decoded"] if decoded else []), *_data_only(context)]
        check_interactions(interactions, question, display, others)
        explain_pairs(interactions, _given(texts, pairs)[: data.limit], model, question, display, data.quiet)
    elif asked or (data.data is None and question.target is None and answers_in_words(model.model)):
        if pairs or decoded or display.view != "text":
            raise BadInput("an answer is explained word by word; leave out --pair, --decoded and --view")
        call = AnswerCall(model, question, answer, display, data, _given_kind(context, question), asked)
        call.check(data_only=_data_only(context))
        _explain_answers(call, texts)
    elif data.data is None:
        check_names(question.methods)
        _check_texts_only(_data_only(context), question, display, decoded)
        _explain_texts(_given(texts, pairs)[: data.limit], model, question, display, data.quiet, decoded=decoded)
    else:
        check_names(question.methods)
        _check_run_only(texts, pairs, decoded, display)
        _explain_data(model, question, data, display.as_json)


def _data_only(context: click.Context) -> list[str]:
    """The given options that have a meaning only for a whole data set."""
    return [one for one in given_options(context, DataOptions) if one not in ("--quiet", "--limit")]


def _check_texts_only(data_only: Sequence[str], question: Question, display: Display, decoded: bool) -> None:
    if data_only:
        raise BadInput(f"{data_only[0]} is only used with --data, which names a whole data set")
    if decoded and (question.layer is None or display.as_json or display.files):
        raise BadInput("--decoded prints the words of layers in the terminal; name a --layer, or --layer all")


def _check_run_only(texts: Sequence[str], pairs: Sequence[str], decoded: bool, display: Display) -> None:
    if texts or pairs or decoded or display.files:
        raise BadInput(
            "--data writes a run folder; leave out TEXT, --pair, --decoded, --html, --png and --svg, and pass --out"
        )


def _given_kind(context: click.Context, question: Question) -> Any:
    """The scale that was asked for; log-probabilities of words add up over an answer, so they are the default."""
    given = context.get_parameter_source("kind") is click.core.ParameterSource.COMMANDLINE
    return question.kind if given else "log_probability"


def _explain_answers(call: AnswerCall, texts: Sequence[str]) -> None:
    """Explain the answers to some prompts, or to those of a data set."""
    if call.data.data is None:
        show = show_dependence if call.answer.dependence else explain_answers
        show(call, [str(text) for text in _texts(texts, ())[: call.data.limit]] if texts else [])
    else:
        _check_run_only(texts, (), False, call.display)
        check_engine(call.data.engine, call.data.address)
        explain_answer_data(call)


# ------------------------------------------------------------------------------------------------------ texts


def _explain_texts(
    texts: "list[Text]", model: ModelOptions, question: Question, display: Display, quiet: bool, *, decoded: bool
) -> None:
    with sink(display) as show:
        check_model(model.model, **model.options)
        from salience.core.target import Target
        from salience.explanations.explainer import default_method, explain_each, prepare
        from salience.models import load

        settings = question.set()  # checked before the model is loaded
        loaded = load(model.model, **model.options)
        methods = prepare(question.methods or default_method(loaded), settings)
        loaded.executor.budget = model.budget or loaded.executor.budget
        target = Target(question.target, question.against, question.kind)
        with progress_bar(len(texts), quiet) as step:
            rows = explain_each(loaded, texts, methods, [target] * len(texts), window=WINDOW)
            for text, row in zip(texts, rows, strict=True):
                step()
                show(row)
                if decoded:
                    _print_decoded(loaded, text, question.set())


def _print_decoded(model: "Model", text: "Text", settings: "Mapping[str, Any]") -> None:
    """Print the words that the states of the chosen layers decode to."""
    from salience.methods.attention import layer_number
    from salience.methods.decoding import decode_layers
    from salience.views.terminal import decoded_table

    layers = decode_layers(model, text, head=settings.get("head"))
    if settings["layer"] != "all":
        number = layer_number(settings["layer"], model, of=model.layers, first=min(layers))
        layers = {number: layers[number]}
    print_wide(decoded_table(layers))


def _given(texts: Sequence[str], pairs: Sequence[str]) -> "list[Text]":
    if not texts:
        raise BadInput("no TEXT; pass a text, or a whole data set with --data and --out")
    return _texts(texts, pairs)


def _texts(texts: Sequence[str], pairs: Sequence[str]) -> "list[Text]":
    from salience.data.texts import warn_about_files

    warn_about_files(texts)
    read = [line for text in texts for line in (_lines() if text == "-" else [text])]
    for text in (*read, *pairs):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadInput(f"the text {text!r} is not valid UTF-8; encode it as UTF-8")
    if not read:
        raise BadInput("standard input has no text; pass one text per line")
    if pairs and len(pairs) != len(read):
        raise BadInput(f"--pair was given {len(pairs)} times for {len(read)} texts; pass it once per text")
    return list(zip(read, pairs, strict=True)) if pairs else list(read)


def _lines() -> list[str]:
    """The lines of standard input that are not blank."""
    try:
        lines = sys.stdin.buffer.read().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not valid UTF-8: {error}") from error
    return [line.rstrip("\r") for line in lines if line.strip()]


# ------------------------------------------------------------------------------------------------------ data sets


def _explain_data(model: ModelOptions, question: Question, data: DataOptions, as_json: bool) -> None:
    """Explain a data set into a run folder, or print what that would cost."""
    check_engine(data.engine, data.address)
    if data.dry_run:
        _estimate(model, question, data, as_json)
    elif data.out is None:
        raise BadInput("--data needs --out, the run folder to write, or --dry-run")
    else:
        _run(model, question, data, as_json)


def _estimate(model: ModelOptions, question: Question, data: DataOptions, as_json: bool) -> None:
    """Print what a run would cost."""
    check_model(model.model, **model.options)
    source = source_of(str(data.data), asdict(data))
    from salience.models.loading import Checkpoint
    from salience.runs.driver import estimate

    print_estimate(
        data,
        as_json,
        lambda report: estimate(
            Checkpoint(model.model, model.options),
            source,
            question.methods or None,
            target=question.target,
            against=question.against,
            kind=question.kind,
            limit=data.limit,
            report=report,
            **question.set(),
        ),
    )


def _run(model: ModelOptions, question: Question, data: DataOptions, as_json: bool) -> None:
    check_model(model.model, **model.options)
    source = source_of(str(data.data), asdict(data))
    from salience.models.loading import Checkpoint
    from salience.runs.driver import explain_data

    run_data(
        data,
        as_json,
        lambda report: explain_data(
            Checkpoint(model.model, model.options),
            source,
            str(data.out),
            question.methods or None,
            target=question.target,
            against=question.against,
            kind=question.kind,
            budget=model.budget,
            report=report,
            **data.work,
            **question.set(),
        ),
    )
