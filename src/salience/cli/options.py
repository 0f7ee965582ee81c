"""Options shared by several commands; each group is passed to the command as one value."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import click

from salience.core.settings import (
    LARGEST,
    Fraction,
    Positive,
    Range,
    Seed,
    Share,
    described,
    fits,
    read_value,
    shortened,
)
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.data import Source

Command = Callable[..., None]


class Number(click.ParamType):
    """A number that fits an annotation, checked and described like the settings of the methods."""

    name = "number"

    def __init__(self, hint: Any) -> None:
        self.hint = hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind: type[int] | type[float] = next(iter(get_args(self.hint)), self.hint)
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            number = None
        if not fits(number, self.hint):
            self.fail(f"{shortened(value)} is not {described(self.hint)}", param, ctx)
        return number


COUNT = Number(Annotated[int, Range(1, LARGEST)])
SEED = Number(Seed)
SHARE = Number(Share)
FRACTION = Number(Fraction)
POSITIVE = Number(Positive)
ANY = Number(float)
WHOLE = Number(int)
EPOCHS = Number(Annotated[int, Range(1, 10_000)])
"""Also the range of other numbers of trainings, such as seeds."""
WORKERS = Number(Annotated[int, Range(1, 1024)])


class Commands(click.Group):
    """A group that refuses what its commands would take silently: an option given twice, and NUL characters."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if any("\0" in argument for argument in args):
            raise click.UsageError("an argument contains a NUL character; leave it out", ctx)
        if command is not None and not isinstance(command, click.Group):
            _check_repeated(command, click.Context(command, parent=ctx, info_name=name), rest)
        return name, command, rest


ONE_PER_TEXT = ("pairs", "answers", "against_answers")
"""Options that may be given twice with the same value."""


def _check_repeated(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Raise if an option that takes one value is given twice, or another one twice with the same value."""
    values, _, order = command.make_parser(context).parse_args(list(arguments))
    for option, times in Counter(p for p in order if isinstance(p, click.Option)).items():
        if not option.multiple and not option.is_flag and times > 1:
            raise click.UsageError(f"{option.opts[0]} is given twice; it takes one value", context)
        given = Counter(values[str(option.name)]) if option.multiple and option.name not in ONE_PER_TEXT else Counter()
        if twice := [value for value, count in given.items() if count > 1]:
            raise click.UsageError(f"{option.opts[0]} {twice[0]} is given twice", context)


def example_lines(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def gathered(group: type[Any], *options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Pass options to a command as one value of the class ``group``. Each option fills the field of its name."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**values: Any) -> None:
            value = group(**{field.name: values.pop(field.name) for field in fields(group)})
            command(**values, **{group.__name__.removesuffix("Options").lower(): value})

        for option in reversed(options):
            run = option(run)
        return run

    return decorate


def given_options(context: click.Context, group: type[Any] | Collection[str]) -> list[str]:
    """The options of a group, or of these names, that were passed on the command line."""
    names = {field.name for field in fields(group)} if isinstance(group, type) else group
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model to use, and how to load it."""

    model: str
    task: str | None
    device: str | None
    dtype: str
    revision: str | None
    allow_pickle: bool
    trust_remote_code: bool
    budget: int | None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of :func:`salience.load` other than the name."""
        names = ("task", "device", "dtype", "revision", "allow_pickle", "trust_remote_code")
        return {name: getattr(self, name) for name in names}


DEVICE = click.option("--device", help="Device, such as cpu or cuda.  [default: cpu]")
DTYPE = click.option(
    "--dtype", default="float32", show_default=True, help="Data type of the weights, such as bfloat16."
)
REVISION = click.option("--revision", metavar="NAME", help="Revision of a Hugging Face model.")
TRUST = click.option(
    "--trust-remote-code", is_flag=True, help="Run code shipped with the model. Use only if you trust it."
)
SETTINGS = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of all methods that have it; METHOD.KEY=VALUE for one method.",
)

model = gathered(
    ModelOptions,
    click.option(
        "--model", default="sentiment", show_default=True, help="Bundled model, folder or Hugging Face model."
    ),
    click.option("--task", metavar="TASK", help="classify or generate, if the checkpoint is ambiguous."),
    DEVICE,
    DTYPE,
    REVISION,
    click.option("--budget", type=COUNT, metavar="N", help="Maximum tokens per pass.  [default: auto]"),
    click.option(
        "--allow-pickle", is_flag=True, help="Load pickled weights, which can run code. Use only if you trust them."
    ),
    TRUST,
)


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """How to load a model that is to be trained."""

    device: str | None
    dtype: str
    revision: str | None
    trust_remote_code: bool

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of :func:`salience.models.load_to_train` that were set, and the device."""
        usual = {"dtype": "float32", "revision": None, "trust_remote_code": False}
        given = {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
        return {"device": self.device, **given}


loading = gathered(LoadingOptions, DEVICE, DTYPE, REVISION, TRUST)


@dataclass(frozen=True, slots=True)
class Question:
    """What to explain, and by which methods."""

    methods: tuple[str, ...]
    target: str | None
    against: str | None
    kind: Any
    settings: tuple[str, ...]
    layer: str | None
    seed: int | None

    def set(self) -> dict[str, Any]:
        """The settings; the seed is included only if a method uses one."""
        from salience.core.settings import settings_of
        from salience.explanations.explainer import DEFAULTS, prepare
        from salience.methods import find_method

        named = self.methods or DEFAULTS  # the model, not loaded yet, decides between these
        settings = {} if self.layer is None else {"layer": read_value(self.layer)}
        settings |= pairs(self.settings)
        if self.seed is not None and any("seed" in settings_of(find_method(name)) for name in named):
            settings = {"seed": self.seed} | settings
        prepare(named, settings)  # rejects unknown settings, which could be mistaken for other arguments
        return settings


question = gathered(
    Question,
    click.option(
        "--method",
        "methods",
        metavar="NAME",
        multiple=True,
        help="Method; may be repeated.  [default: integrated_gradients; of a language model: lrp]",
    ),
    click.option("--target", metavar="LABEL", help="Label to explain.  [default: the predicted label]"),
    click.option("--against", metavar="LABEL", help="Explain the difference between the target and this label."),
    click.option(
        "--kind",
        type=click.Choice(["logit", "probability", "log_probability"]),
        default="logit",
        show_default=True,
        help="Scale of the explained value.",
    ),
    SETTINGS,
    click.option("--layer", metavar="N|all", help="Layer to explain, or all layers."),
    click.option("--seed", type=SEED, help="Seed of randomised methods.  [default: 0]"),
)


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The answer of a language model to explain: which one, and in which form."""

    generate: int | None
    generation: tuple[str, ...]
    answers: tuple[str, ...]
    against_answers: tuple[str, ...]
    chat: Path | None
    passages: str | None
    by: Any
    segments: str | None
    per: Any
    through_answer: bool
    token: str | None
    dependence: bool
    answer_column: str | None
    against_answer_column: str | None
    chat_column: str | None
    context_column: str | None

    @property
    def how(self) -> dict[str, Any]:
        """The settings of generation."""
        return pairs(self.generation, "--generation")


answer_options = gathered(
    AnswerOptions,
    click.option("--generate", type=COUNT, metavar="N", help="Generate an answer of at most N tokens and explain it."),
    click.option(
        "--generation", metavar="NAME=VALUE", multiple=True, help="Setting of generate, such as do_sample=true."
    ),
    click.option("--answer", "answers", metavar="ANSWER", multiple=True, help="Explain this answer; once per TEXT."),
    click.option(
        "--against-answer",
        "against_answers",
        metavar="ANSWER",
        multiple=True,
        help="Explain why the answer rather than this one; once per TEXT.",
    ),
    click.option("--chat", metavar="FILE", type=click.Path(path_type=Path), help="JSON file of messages, as a prompt."),
    click.option("--context", "passages", metavar="FILE", help="Passages that TEXT is a question about, one per row."),
    click.option(
        "--by",
        type=click.Choice(["word", "sentence", "line", "paragraph", "turn", "document"]),
        help="Segments of the prompt to score.",
    ),
    click.option("--segments", metavar="REGEX", help="Score the matches of a regular expression in the prompt."),
    click.option(
        "--per",
        type=click.Choice(["token", "answer"]),
        default="token",
        show_default=True,
        help="Explain each token of the answer, or only the whole.",
    ),
    click.option("--through-answer", is_flag=True, help="Pass credit of the answer's own tokens on to the prompt."),
    click.option("--token", metavar="N|WORD", help="Colour the prompt by the Nth token, or a part, of the answer."),
    click.option(
        "--dependence", is_flag=True, help="Show the tokens of the answer that depend on --context, and on which cues."
    ),
    click.option("--answer-column", metavar="NAME", help="With --data: column of the answers."),
    click.option("--against-answer-column", metavar="NAME", help="With --data: column of answers to compare with."),
    click.option("--chat-column", metavar="NAME", help="With --data: column of chats, instead of texts."),
    click.option("--context-column", metavar="NAME", help="With --data: column of lists of passages."),
)


def pairs(texts: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Parse KEY=VALUE options into settings."""
    parsed = [_pair(text, option) for text in texts]
    if twice := [key for key, count in Counter(key for key, _ in parsed).items() if count > 1]:
        raise BadInput(f"{option} {twice[0]} is given twice; it takes one value")
    return dict(parsed)


RESERVED = (
    "address", "budget", "data", "engine", "erase", "explained", "kind", "limit", "max_rejected", "method", "metrics",
    "model", "out", "pair_column", "report", "rows_per_part", "seed", "target", "text_column", "workers",
)  # fmt: skip
"""Arguments of :func:`salience.evaluate` and ``evaluate_data`` that a setting of a method could be mistaken for."""


def evaluation_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Parse the settings of an evaluation: KEY=VALUE of methods, METHOD.KEY=VALUE or METRIC.KEY=VALUE."""
    settings = pairs(texts)
    if taken := [name for name in settings if name in RESERVED]:
        name = taken[0]
        raise BadInput(f"--set {name} is ambiguous; use METHOD.{name}=... for a method, or the option of that name")
    return settings


EXAMPLES = {"--set": "samples=100", "--generation": "temperature=0.7"}


def _pair(text: str, option: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise BadInput(f"{option} {text!r} is not of the form key=value; use, for example, {option} {EXAMPLES[option]}")
    return key.strip(), read_value(value)


@dataclass(frozen=True, slots=True)
class Display:
    """Where and how explanations are shown."""

    level: str
    view: str
    as_json: bool
    html: Path | None
    png: Path | None
    svg: Path | None
    plain: bool

    @property
    def files(self) -> list[tuple[str, Path]]:
        """The files to write, by kind."""
        named = (("html", self.html), ("png", self.png), ("svg", self.svg))
        return [(kind, path) for kind, path in named if path is not None]


display = gathered(
    Display,
    click.option(
        "--level",
        type=click.Choice(["word", "token"]),
        default="word",
        show_default=True,
        help="Show words, or the tokens of the model.",
    ),
    click.option(
        "--view",
        type=click.Choice(["text", "bar", "waterfall"]),
        default="text",
        show_default=True,
        help="Coloured text, bars of all scores, or the sum of the scores step by step.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per text and method, one per line."),
    click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML page."),
    click.option("--png", metavar="FILE", type=click.Path(path_type=Path), help="Write a PNG image."),
    click.option("--svg", metavar="FILE", type=click.Path(path_type=Path), help="Write an SVG image."),
    click.option("--no-color", "plain", is_flag=True, help="Mark words with + and - instead of colours."),
)


@dataclass(frozen=True, slots=True)
class DataOptions:
    """A data set, and how to process it."""

    data: str | None
    out: Path | None
    text_column: str
    pair_column: str | None
    id_column: str | None
    label_column: str | None
    target_column: str | None
    keep: tuple[str, ...]
    split: str | None
    subset: str | None
    delimiter: str | None
    limit: int | None
    rows_per_part: int | None
    max_rejected: float
    engine: str
    workers: int | None
    address: str | None
    dry_run: bool
    quiet: bool

    @property
    def work(self) -> dict[str, Any]:
        """The arguments of :func:`salience.explain_data` that control the run."""
        names = ("engine", "address", "max_rejected", "limit")
        named = {name: getattr(self, name) for name in names}
        return {"workers": self.workers or "auto", "rows_per_part": self.rows_per_part or TEXTS_PER_PART, **named}


TEXTS_PER_PART = 1000
"""Rows per output file of a run, unless another number is given."""

DELIMITER = click.option(
    "--delimiter", metavar="CHAR", help="Separator of the fields of CSV files, such as ';'.  [default: a comma]"
)

data_options = gathered(
    DataOptions,
    click.option("--data", metavar="DATA", help="Data set to explain: a file, folder, glob or Hugging Face dataset."),
    click.option("--out", metavar="RUN", type=click.Path(path_type=Path), help="Run folder to write --data into."),
    click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts."),
    click.option("--pair-column", metavar="NAME", help="Column of the second text of sentence pairs."),
    click.option("--id-column", metavar="NAME", help="Column of the ids.  [default: the row number]"),
    click.option("--label-column", metavar="NAME", help="Column of the true labels, to keep with the explanations."),
    click.option("--target-column", metavar="NAME", help="Column of the label to explain."),
    click.option("--keep", metavar="NAME", multiple=True, help="Other column to keep; may be repeated."),
    click.option("--split", metavar="NAME", help="Split of a Hugging Face dataset, such as train."),
    click.option("--subset", metavar="NAME", help="Configuration of a Hugging Face dataset."),
    DELIMITER,
    click.option("--limit", type=COUNT, metavar="N", help="Explain only the first N texts; a run can continue later."),
    click.option(
        "--rows-per-part", type=COUNT, metavar="N", help="Rows per output file.  [default: 1000; 20 of answers]"
    ),
    click.option(
        "--max-rejected", type=FRACTION, default=0.1, show_default=True, help="Allowed share of invalid rows."
    ),
    click.option("--engine", default="local", show_default=True, metavar="ENGINE", help="local, or ray for a cluster."),
    click.option(
        "--workers",
        type=WORKERS,
        metavar="N",
        help="Number of processes, or of actors on a cluster.  [default: auto]",
    ),
    click.option("--address", metavar="ADDRESS", help="Address of the Ray cluster.  [default: this machine]"),
    click.option("--dry-run", is_flag=True, help="Estimate the cost of the run from a few texts, and exit."),
    click.option("--quiet", is_flag=True, help="Do not show progress."),
)


def source_of(name: str | Path, options: Mapping[str, Any], *, labelled: bool = True) -> "Source":
    """A data set with the columns that the options name; without labels and rationales if not ``labelled``."""
    from salience.data import source

    return source(
        name,
        text=options.get("text_column") or "text",
        pair=options.get("pair_column"),
        id=options.get("id_column"),
        label=options.get("label_column") if labelled else None,
        rationale=options.get("rationale_column") if labelled else None,
        spans=options.get("spans") or "characters",
        delimiter=options.get("delimiter"),
        split=options.get("split"),
        subset=options.get("subset"),
        target=options.get("target_column"),
        chat=options.get("chat_column"),
        context=options.get("context_column"),
        against=options.get("against_answer_column"),
        keep=options.get("keep") or (),
    )


def sample_source(**columns: str) -> "Source":
    """The bundled sentences, as a data set with these columns, by default with their rationales."""
    from salience.models import sample_file

    return source_of(sample_file(), {"id_column": "id", **(columns or {"rationale_column": "rationale_spans"})})
