"""The command ``salience``: each subcommand is one call of the library. Heavy imports wait until they are needed."""

import dataclasses
import json
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import TextIOWrapper
from pathlib import Path
from threading import Timer
from typing import IO, TYPE_CHECKING, Any

import click

import salience
from salience.errors import BadInput, SalienceError, TruncatedText

if TYPE_CHECKING:
    from salience.data import Source
    from salience.explanation import Explanation
    from salience.types import Kind, Text
    from salience.views.progress import Report
    from salience.work import Checkpoint

QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Keeps the libraries beneath from writing between our lines. What the user has set stays."""

PATIENCE = 2.0
"""Seconds of work before a progress bar appears."""

WINDOW = 32
"""Texts explained at a time; their results are shown while the next are worked on."""


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
        warnings.simplefilter("always", TruncatedText)
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


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_examples('salience explain "A fine film."', "salience methods", "salience explain --help"),
)
@click.version_option(salience.__version__, prog_name="salience")
def cli() -> None:
    """Why did the model say that, and can the explanation be believed?"""


def _shown(command: Callable[..., None]) -> Callable[..., None]:
    """The options for where and how explanations appear."""
    for option in reversed(
        (
            click.option(
                "--level",
                type=click.Choice(["word", "token"]),
                default="word",
                show_default=True,
                help="What is shown.",
            ),
            click.option("--json", "as_json", is_flag=True, help="One JSON object per text and method, a line each."),
            click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a web page."),
            click.option("--png", metavar="FILE", type=click.Path(path_type=Path), help="Write a picture."),
            click.option("--svg", metavar="FILE", type=click.Path(path_type=Path), help="Write a scalable picture."),
            click.option("--no-color", "plain", is_flag=True, help="Mark words by + and - instead of colours."),
        )
    ):
        command = option(command)
    return command


# ------------------------------------------------------------------------------------------------------ explain


@cli.command(
    epilog=_examples(
        'salience explain "A fine film."',
        'salience explain "A fine film." --method gradient --method integrated_gradients',
        'salience explain "A fine film." --target negative --kind probability',
        'salience explain "A man sleeps." --pair "Nobody sleeps." --model my-nli-folder',
        'salience explain "A fine film." --set nodes=200 --html why.html',
        "salience explain - --json < reviews.txt > scores.jsonl",
        "salience explain --data reviews.jsonl --out run        (a whole data set; again to go on after a stop)",
        'salience explain --model gpt2 --target " Paris" "The capital of France is"',
    )
)
@click.argument("texts", metavar="[TEXT...]", nargs=-1)
@click.option("--pair", "pairs", metavar="TEXT", multiple=True, help="Second text of a sentence pair, one per TEXT.")
@click.option("--model", default="sentiment", show_default=True, help="Bundled name, folder or Hugging Face name.")
@click.option(
    "--method", "methods", metavar="NAME", multiple=True, help="May be repeated. [default: integrated_gradients]"
)
@click.option("--target", metavar="LABEL", help="The label to explain.  [default: the predicted one]")
@click.option("--against", metavar="LABEL", help="Explain the target's lead over this label.")
@click.option(
    "--kind",
    type=click.Choice(["logit", "probability", "log_probability"]),
    default="logit",
    show_default=True,
    help="The scale of the explained number.",
)
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="A method's setting; METHOD.KEY=VALUE for one."
)
@click.option("--layer", metavar="N|all", help="The layer to explain, or all of them.")
@click.option("--seed", type=int, help="For methods that draw at random.  [default: 0]")
@_shown
@click.option("--task", metavar="TASK", help="classify or generate, where the checkpoint does not tell.")
@click.option("--device", help="Such as cpu or cuda.  [default: cpu]")
@click.option("--dtype", default="float32", show_default=True, help="Of the weights, such as bfloat16.")
@click.option("--revision", metavar="NAME", help="The version of a Hugging Face model.")
@click.option("--budget", type=click.IntRange(min=1), metavar="N", help="Tokens per pass.  [default: found by itself]")
@click.option("--allow-pickle", is_flag=True, help="Open pickled weights, which can run code. Only if you trust them.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model. Only if you trust it.")
@click.option("--data", metavar="DATA", help="A whole data set: a file, folder, glob, or the name of a data set.")
@click.option("--out", metavar="RUN", type=click.Path(path_type=Path), help="The folder for the run over --data.")
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Where --data has its texts.")
@click.option("--pair-column", metavar="NAME", help="Where it has the second texts of pairs.")
@click.option("--id-column", metavar="NAME", help="Where it has ids.  [default: the row's number]")
@click.option("--split", metavar="NAME", help="The split of a data set by name, such as train.")
@click.option("--subset", metavar="NAME", help="The configuration of a data set by name.")
@click.option("--limit", type=int, metavar="N", help="Only the first N rows.")
@click.option("--rows-per-part", type=int, default=1000, show_default=True, metavar="N", help="Rows of a part file.")
@click.option("--max-rejected", type=float, default=0.1, show_default=True, help="Share of bad rows that is let pass.")
@click.option("--engine", default="local", show_default=True, metavar="ENGINE", help="local, or ray for a cluster.")
@click.option("--workers", type=int, metavar="N", help="Processes, or actors on a cluster.  [default: one per device]")
@click.option("--address", metavar="ADDRESS", help="The Ray cluster.  [default: one on this machine]")
@click.option("--dry-run", is_flag=True, help="Tell what the run would cost, from a few texts, and stop.")
@click.option("--quiet", is_flag=True, help="No progress.")
def explain(
    texts: tuple[str, ...],
    pairs: tuple[str, ...],
    model: str,
    methods: tuple[str, ...],
    target: str | None,
    against: str | None,
    kind: "Kind",
    settings: tuple[str, ...],
    layer: str | None,
    seed: int | None,
    level: str,
    as_json: bool,
    html: Path | None,
    png: Path | None,
    svg: Path | None,
    plain: bool,
    task: str | None,
    device: str | None,
    dtype: str,
    revision: str | None,
    budget: int | None,
    allow_pickle: bool,
    trust_remote_code: bool,
    data: str | None,
    out: Path | None,
    text_column: str,
    pair_column: str | None,
    id_column: str | None,
    split: str | None,
    subset: str | None,
    limit: int | None,
    rows_per_part: int,
    max_rejected: float,
    engine: str,
    workers: int | None,
    address: str | None,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Show how much each word of TEXT mattered to the model's answer.

    Put quotes around a text: each TEXT is explained on its own. A TEXT of - reads standard input, one text
    per line. Put -- before a text that begins with a dash.

    With --data and --out a whole data set is explained into a folder of Parquet files. If it is stopped, the
    same command goes on where it was. `salience show` and `salience export` read the folder.
    """
    options: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision, "task": task}
    options |= {"allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
    if data is None and not texts:
        raise BadInput("give a TEXT, or a whole data set with --data and --out")
    if data is None and out is not None:
        raise BadInput("--out is the folder for a whole data set, which --data names")
    if data is not None:
        if texts or pairs or html or png or svg:
            raise BadInput("--data is explained into a folder: leave out texts, --pair and pictures, and give --out")
        if out is None and not dry_run:
            raise BadInput("--data needs --out, the folder to explain it into, or --dry-run")
        columns: dict[str, Any] = {
            "text": text_column,
            "pair": pair_column,
            "id": id_column,
            "split": split,
            "subset": subset,
        }
        chosen = methods or ("integrated_gradients",)
        asked = {"target": target, "against": against, "kind": kind, "limit": limit}
        asked |= _settings(chosen, settings, layer, seed)
        from salience.data import source
        from salience.work import Checkpoint

        checkpoint, texts_of = Checkpoint(model, options), source(data, **columns)
        if dry_run or out is None:
            _estimate(checkpoint, texts_of, chosen, asked, as_json)
            return
        asked |= {"engine": engine, "workers": workers, "address": address, "budget": budget}
        asked |= {"rows_per_part": rows_per_part, "max_rejected": max_rejected}
        _explain_data(checkpoint, texts_of, out, chosen, asked, as_json, quiet)
        return
    given = _texts(texts, pairs)
    sink = _sink(as_json, html, png, svg, level, plain)
    with sink as show:
        from salience.explainer import explain_each, prepare
        from salience.models import load
        from salience.types import Target

        chosen = methods or ("integrated_gradients",)
        asked = prepare(chosen, _settings(chosen, settings, layer, seed))
        loaded = load(model, **options)
        loaded.budget = budget or loaded.budget
        wanted = Target(target, against, kind)
        with _progress(len(given)) as step:
            for row in explain_each(loaded, given, asked, wanted, window=WINDOW):
                step()
                show(row)


def _texts(texts: Sequence[str], pairs: Sequence[str]) -> "list[Text]":
    found = [line for text in texts for line in (_lines() if text == "-" else [text])]
    for text in (*found, *pairs):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadInput(f"the text {text!r} is not valid UTF-8")
    if not found:
        raise BadInput("standard input held no text; give one text per line")
    if pairs and len(pairs) != len(found):
        raise BadInput(f"--pair was given {len(pairs)} times for {len(found)} texts; give it once for each")
    return list(zip(found, pairs, strict=True)) if pairs else list(found)


def _lines() -> list[str]:
    """The lines of standard input that hold something."""
    try:
        lines = sys.stdin.buffer.read().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not valid UTF-8: {error}") from error
    return [line.rstrip("\r") for line in lines if line.strip()]


# ------------------------------------------------------------------------------------------------------ runs


def _estimate(
    model: "Checkpoint", data: "Source", methods: Sequence[str], asked: Mapping[str, Any], as_json: bool
) -> None:
    """What a run would cost."""
    from salience.runner import estimate
    from salience.views.progress import duration

    found = estimate(model, data, methods, **asked)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return
    click.echo(f"{found.texts:,} texts, about {found.tokens:,} tokens")
    click.echo(f"about {found.passes:,} passes of up to {found.budget:,} tokens")
    click.echo(f"about {duration(found.seconds)} with one worker, and {found.bytes / 1e6:,.1f} MB on disk")
    click.echo(f"measured on {found.sample} texts from all over the data")


def _explain_data(
    model: "Checkpoint",
    data: "Source",
    out: Path,
    methods: Sequence[str],
    asked: Mapping[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    from salience.runner import explain_data
    from salience.runs import open_run

    before = (out / "manifest.json").is_file() and open_run(out).finished
    try:
        with _reporter(as_json, quiet) as report:
            run = explain_data(model, data, out, methods, report=report, **asked)
    except KeyboardInterrupt:
        if not quiet:
            click.echo("stopped; what is finished is kept, and the same command goes on from there", err=True)
        raise
    done = run.manifest["finished"]
    if as_json:
        click.echo(json.dumps({"event": "finished", "run": str(out), **done}))
    elif not quiet:
        rejected = f"; {done['rejected']:,} rows rejected, see {out / 'rejected.jsonl'}" if done["rejected"] else ""
        cut = f"; {done['truncated']:,} texts were longer than the model can read" if done["truncated"] else ""
        said = f"{out} is complete already:" if before else f"explained into {out}:"
        click.echo(f"{said} {done['texts']:,} texts{cut}{rejected}", err=True)


def _reporter(as_json: bool, quiet: bool) -> "AbstractContextManager[Report]":
    from salience.views import progress

    if as_json:
        return progress.events()
    if quiet:
        return progress.silence()
    return progress.bar() if sys.stderr.isatty() else progress.lines()


@cli.command(
    epilog=_examples(
        "salience show run", "salience show run --first 3 --json", "salience show run --id r17 --html r17.html"
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--first", type=int, default=10, show_default=True, metavar="N", help="How many texts.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only the text of this id; may be repeated.")
@click.option("--method", "columns", metavar="NAME", multiple=True, help="Only this method's scores; may be repeated.")
@_shown
def show(
    run: Path,
    first: int,
    ids: tuple[str, ...],
    columns: tuple[str, ...],
    level: str,
    as_json: bool,
    html: Path | None,
    png: Path | None,
    svg: Path | None,
    plain: bool,
) -> None:
    """Show explanations of a run, as `salience explain` shows those of a text."""
    from itertools import islice

    from salience.runs import open_run

    found = (row for name, row in open_run(run).rows(*columns) if not ids or name in ids)
    with _sink(as_json, html, png, svg, level, plain) as display:
        shown = 0
        for row in islice(found, len(ids) or first):
            display(row)
            shown += 1
    if not shown:
        raise BadInput(f"{run} holds no text of id {ids[0]!r}" if ids else f"{run} holds no explained text yet")


@cli.command(
    epilog=_examples(
        "salience export run scores.jsonl", "salience export run rationales.jsonl --format eraser --share 0.2"
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", default="jsonl", show_default=True, metavar="FORMAT", help="jsonl or eraser.")
@click.option("--method", "column", metavar="NAME", help="The method of ERASER rationales, where a run has several.")
@click.option("--share", type=float, default=0.2, show_default=True, help="Share of words in an ERASER rationale.")
def export(run: Path, file: Path, format: str, column: str | None, share: float) -> None:
    """Write a run to one FILE: JSON Lines, or rationales in the format of the ERASER benchmark."""
    from salience.runs import open_run

    open_run(run).export(file, format, column=column, share=share)
    click.echo(f"wrote {file}", err=True)


# ------------------------------------------------------------------------------------------------------ settings


def _settings(methods: Iterable[str], pairs: Iterable[str], layer: str | None, seed: int | None) -> dict[str, Any]:
    """What is to be set; a seed only where a method draws at random, since the others need none."""
    from salience.methods import find
    from salience.settings import settings_of

    found = {} if layer is None else {"layer": _value(layer)}
    found |= map(_pair, pairs)
    if seed is not None and any("seed" in settings_of(find(name)) for name in methods):
        found = {"seed": seed} | found
    return found


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


# ------------------------------------------------------------------------------------------------------ output

Show = Callable[[Sequence["Explanation"]], None]


@contextmanager
def _sink(
    as_json: bool, html: Path | None, png: Path | None, svg: Path | None, level: str, plain: bool
) -> Generator[Show]:
    """Where explanations go, text by text. A file is opened before the work starts and complete when it ends."""
    files = [(kind, path) for kind, path in (("html", html), ("png", png), ("svg", svg)) if path is not None]
    if as_json + len(files) > 1:
        raise BadInput("choose one of --json, --html, --png and --svg")
    if files:
        kind, path = files[0]
        with _written(path) as file:
            kept: list[Explanation] = []
            yield kept.extend
            file.write(_document(kind, kept, level))
        click.echo(f"wrote {path}", err=True)
    elif as_json:
        yield _print_json
    else:
        yield _terminal(level, plain)


def _print_json(explanations: "Sequence[Explanation]") -> None:
    for e in explanations:
        click.echo(e.to_json())


def _document(kind: str, explanations: "Sequence[Explanation]", level: str) -> bytes:
    if kind == "html":
        from salience.views.html import page

        return page(explanations, level=level).encode()
    from salience.views.charts import picture

    return picture(explanations, kind, level=level)


def _terminal(level: str, plain: bool) -> Show:
    from rich.console import Console

    from salience.views import terminal

    console = Console(no_color=True if plain else None, highlight=False, emoji=False, markup=False, soft_wrap=False)
    colour, ground = terminal.coloured(console), terminal.ground(os.environ)

    def show(row: "Sequence[Explanation]") -> None:
        console.print(terminal.render(row, level=level, colour=colour, ground=ground, width=console.width))

    return show


@contextmanager
def _written(path: Path) -> Generator[IO[bytes]]:
    """A file that appears under its name only when it is complete."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise BadInput(f"the folder {path.parent} does not exist; create it first")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = part.open("xb")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress(total: int) -> Generator[Callable[[], None]]:
    """A bar on standard error, for people only, and only once the work has taken a while."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    counted = (MofNCompleteColumn(), TimeRemainingColumn()) if total > 1 else (TimeElapsedColumn(),)
    progress = Progress(TextColumn("explaining"), BarColumn(), *counted, console=Console(stderr=True), transient=True)
    task = progress.add_task("", total=total if total > 1 else None)
    timer = Timer(PATIENCE, progress.start)
    timer.daemon = True
    timer.start()

    def step() -> None:
        progress.advance(task)
        if sys.stdout.isatty():  # the results are about to appear on the same screen
            timer.cancel()
            progress.stop()

    try:
        yield step
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


# ------------------------------------------------------------------------------------------------------ methods


@cli.command(epilog=_examples("salience methods", "salience methods integrated_gradients", "salience methods --json"))
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="A list of JSON objects.")
def methods(names: tuple[str, ...], as_json: bool) -> None:
    """List all methods, or describe one.

    The list tells what each method needs, costs and rests on; a NAME shows one in full, with its settings.
    """
    from salience.methods import METHODS, find

    found = [_described(m) for m in (map(find, names) if names else METHODS)]
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        for method in found:
            _tell(method, full=bool(names))


def _described(method: Callable[..., Any]) -> dict[str, Any]:
    """A method's docstring and signature as data."""
    from inspect import cleandoc
    from typing import get_type_hints

    from salience.settings import set_to, settings_of

    text, facts = _facts(_unmarked(cleandoc(method.__doc__ or "")).splitlines())
    hints = get_type_hints(getattr(method, "read", method))
    settings = [
        {"name": n, "default": _jsonable(p.default), "type": set_to(hints.get(n, Any))}
        for n, p in settings_of(method).items()
    ]
    return {
        "name": method.__name__,
        "summary": text[0] if text else "",
        "needs": facts.get("Needs"),
        "cost": facts.get("Cost"),
        "paper": facts.get("Paper"),
        "settings": settings,
        "about": "\n".join(text[1:]).strip(),
    }


def _facts(lines: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A docstring's text, and its fields. A field runs on until the next one or an empty line."""
    text: list[str] = []
    facts: dict[str, str] = {}
    field = ""
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name in ("Paper", "Cost", "Needs"):
            field, facts[name] = name, value.strip()
        elif field and line:
            facts[field] += f" {line.strip()}"
        else:
            field = ""
            text.append(line)
    return text, facts


def _unmarked(text: str) -> str:
    """A docstring without the marks of its markup.

    >>> _unmarked("``nodes`` as in :func:`coherence`")
    'nodes as in coherence'
    """
    return re.sub(r":\w+:`([^`]*)`", r"\1", text).replace("``", "")


def _jsonable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | tuple | None) else str(value)


def _tell(method: Mapping[str, Any], *, full: bool) -> None:
    click.echo(click.style(method["name"], bold=True))
    click.echo(f"  {method['summary']}")
    if full and method["about"]:
        click.echo("\n" + "\n".join(f"  {line}".rstrip() for line in method["about"].splitlines()) + "\n")
    for fact in ("cost", "needs", "paper"):
        if method[fact]:
            click.echo(click.style(f"  {fact:<6}", dim=True) + method[fact])
    if full:
        click.echo("\n  settings" if method["settings"] else "\n  no settings")
        for line in _settings_told(method["settings"]):
            click.echo(f"    {line}")
    click.echo()


def _settings_told(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names, defaults and what may be set, in columns."""
    defaults = ["chosen by the method" if one["default"] is None else str(one["default"]) for one in settings]
    names = [str(one["name"]) for one in settings]
    first, second = (max(map(len, column), default=0) for column in (names, defaults))
    return [
        f"{name:<{first}}   default: {default:<{second}}   {click.style(one['type'], dim=True)}"
        for name, default, one in zip(names, defaults, settings, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------ models


@cli.command(epilog=_examples("salience models", "salience explain --model sentiment_bilstm 'A fine film.'"))
def models() -> None:
    """List the models that come with the package. Any folder or Hugging Face name can be explained as well."""
    from importlib.resources import files

    from salience.models import BUNDLED

    for name in BUNDLED:
        card = files("salience.models.bundled").joinpath(name, "README.md")
        click.echo(click.style(name, bold=True))
        if card.is_file():
            for line in _card(card.read_text("utf-8")):
                click.echo(click.wrap_text(line, 100, "  ", "  "))


def _card(text: str) -> list[str]:
    """A model card's first sentence, and how often the model is right."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    prose = next((" ".join(part.split()) for part in body.split("\n\n") if part.strip()[:1].isalnum()), "")
    sentence = re.split(r"(?<=\.)\s", prose, maxsplit=1)[0]
    measured = re.search(r"^\|\s*(SST-2 test accuracy)[^|]*\|\s*([^|]*?)\s*\|", body, re.MULTILINE)
    return [line for line in (sentence, " ".join(measured.groups()) if measured else "") if line]
