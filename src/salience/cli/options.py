"""Options that several commands share, each group of them gathered into one value."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from salience.errors import BadInput

Command = Callable[..., None]


def examples(*lines: str) -> str:
    """The foot of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def gathered(group: type[Any], *options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Options that reach a command as one value, named after its class. Each fills the field of its name."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> None:
            value = group(**{field.name: given.pop(field.name) for field in fields(group)})
            command(**given, **{group.__name__.lower(): value})

        for option in reversed(options):
            run = option(run)
        return run

    return decorate


def given(context: click.Context, group: type[Any]) -> list[str]:
    """The options of a group that stand on the command line."""
    names = {field.name for field in fields(group)}
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]


@dataclass(frozen=True, slots=True)
class Model:
    """Which model, and how it is loaded."""

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
        """What :func:`salience.load` takes beside the name."""
        names = ("task", "device", "dtype", "revision", "allow_pickle", "trust_remote_code")
        return {name: getattr(self, name) for name in names}


model = gathered(
    Model,
    click.option("--model", default="sentiment", show_default=True, help="Bundled name, folder or Hugging Face name."),
    click.option("--task", metavar="TASK", help="classify or generate, where the checkpoint does not tell."),
    click.option("--device", help="Such as cpu or cuda.  [default: cpu]"),
    click.option("--dtype", default="float32", show_default=True, help="Of the weights, such as bfloat16."),
    click.option("--revision", metavar="NAME", help="The version of a Hugging Face model."),
    click.option(
        "--budget", type=click.IntRange(min=1), metavar="N", help="Tokens per pass.  [default: found by itself]"
    ),
    click.option(
        "--allow-pickle", is_flag=True, help="Open pickled weights, which can run code. Only if you trust them."
    ),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model. Only if you trust it."),
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is explained, and by which methods."""

    methods: tuple[str, ...]
    target: str | None
    against: str | None
    kind: Any
    settings: tuple[str, ...]
    layer: str | None
    seed: int | None

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.methods or ("integrated_gradients",)

    def set(self) -> dict[str, Any]:
        """The settings; a seed only where a method draws at random, since the others need none."""
        from salience.methods import find
        from salience.settings import settings_of

        found = {} if self.layer is None else {"layer": _value(self.layer)}
        found |= pairs(self.settings)
        if self.seed is not None and any("seed" in settings_of(find(name)) for name in self.chosen):
            found = {"seed": self.seed} | found
        return found


question = gathered(
    Question,
    click.option(
        "--method", "methods", metavar="NAME", multiple=True, help="May be repeated. [default: integrated_gradients]"
    ),
    click.option("--target", metavar="LABEL", help="The label to explain.  [default: the predicted one]"),
    click.option("--against", metavar="LABEL", help="Explain the target's lead over this label."),
    click.option(
        "--kind",
        type=click.Choice(["logit", "probability", "log_probability"]),
        default="logit",
        show_default=True,
        help="The scale of the explained number.",
    ),
    click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="A method's setting; METHOD.KEY=VALUE for one."
    ),
    click.option("--layer", metavar="N|all", help="The layer to explain, or all of them."),
    click.option("--seed", type=int, help="For methods that draw at random.  [default: 0]"),
)


def pairs(given: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE options as settings."""
    return dict(map(_pair, given))


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise BadInput(f"--set {text!r} is not of the form key=value")
    return key.strip(), _value(value)


def _value(text: str) -> Any:
    """JSON where it is JSON, otherwise the string itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Display:
    """Where and how explanations appear."""

    level: str
    as_json: bool
    html: Path | None
    png: Path | None
    svg: Path | None
    plain: bool

    @property
    def files(self) -> list[tuple[str, Path]]:
        """Pages and pictures to be written, by kind."""
        named = (("html", self.html), ("png", self.png), ("svg", self.svg))
        return [(kind, path) for kind, path in named if path is not None]


display = gathered(
    Display,
    click.option(
        "--level", type=click.Choice(["word", "token"]), default="word", show_default=True, help="What is shown."
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per text and method, a line each."),
    click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a web page."),
    click.option("--png", metavar="FILE", type=click.Path(path_type=Path), help="Write a picture."),
    click.option("--svg", metavar="FILE", type=click.Path(path_type=Path), help="Write a scalable picture."),
    click.option("--no-color", "plain", is_flag=True, help="Mark words by + and - instead of colours."),
)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole data set, and how it is worked on."""

    data: str | None
    out: Path | None
    text_column: str
    pair_column: str | None
    id_column: str | None
    target_column: str | None
    split: str | None
    subset: str | None
    limit: int | None
    rows_per_part: int
    max_rejected: float
    engine: str
    workers: int | None
    address: str | None
    dry_run: bool
    quiet: bool

    @property
    def columns(self) -> dict[str, Any]:
        """What :func:`salience.data.source` takes beside the name."""
        return {
            "text": self.text_column,
            "pair": self.pair_column,
            "id": self.id_column,
            "label": self.target_column,
            "split": self.split,
            "subset": self.subset,
        }

    @property
    def work(self) -> dict[str, Any]:
        """What :func:`salience.explain_data` takes beside the question."""
        names = ("engine", "address", "rows_per_part", "max_rejected", "limit")
        return {"workers": self.workers or "auto", **{name: getattr(self, name) for name in names}}


whole = gathered(
    Whole,
    click.option("--data", metavar="DATA", help="A whole data set: a file, folder, glob, or the name of a data set."),
    click.option("--out", metavar="RUN", type=click.Path(path_type=Path), help="The folder for the run over --data."),
    click.option(
        "--text-column", default="text", show_default=True, metavar="NAME", help="Where --data has its texts."
    ),
    click.option("--pair-column", metavar="NAME", help="Where it has the second texts of pairs."),
    click.option("--id-column", metavar="NAME", help="Where it has ids.  [default: the row's number]"),
    click.option("--target-column", metavar="NAME", help="Where it has the label to explain of each text."),
    click.option("--split", metavar="NAME", help="The split of a data set by name, such as train."),
    click.option("--subset", metavar="NAME", help="The configuration of a data set by name."),
    click.option("--limit", type=int, metavar="N", help="Only the first N rows; more of them at a later start."),
    click.option(
        "--rows-per-part", type=int, default=1000, show_default=True, metavar="N", help="Rows of a part file."
    ),
    click.option(
        "--max-rejected", type=float, default=0.1, show_default=True, help="Share of bad rows that is let pass."
    ),
    click.option("--engine", default="local", show_default=True, metavar="ENGINE", help="local, or ray for a cluster."),
    click.option(
        "--workers", type=int, metavar="N", help="Processes, or actors on a cluster.  [default: as many as pay]"
    ),
    click.option("--address", metavar="ADDRESS", help="The Ray cluster.  [default: one on this machine]"),
    click.option("--dry-run", is_flag=True, help="Tell what the run would cost, from a few texts, and stop."),
    click.option("--quiet", is_flag=True, help="No progress."),
)
