"""``salience methods``, ``salience metrics`` and ``salience models``: lists what is available."""

import re
from collections.abc import Callable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any

import click

from salience.cli.checks import ANSWER_METHODS, METHODS
from salience.cli.options import example_lines
from salience.core.characters import to_json


@click.command(
    epilog=example_lines("salience methods", "salience methods integrated_gradients", "salience methods --json")
)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def methods(names: tuple[str, ...], as_json: bool) -> None:
    """List all methods, or describe some in full.

    The list shows the cost, the requirements and the paper of each method. With NAME, the full description and the
    settings of that method are shown, or of an interaction method such as shapley_taylor.
    """
    from salience.generation import context_cite
    from salience.methods import INTERACTIONS, find_method
    from salience.methods import METHODS as EVERY

    pairs = {method.__name__: method for method in INTERACTIONS}
    others: dict[str, Callable[..., Any]] = {**pairs, context_cite.__name__: context_cite}
    chosen = [others.get(name) or find_method(name) for name in names] if names else [*EVERY, context_cite]
    described = [_described(m) for m in chosen]
    _print_all(described, as_json, full=bool(names))


@click.command(
    epilog=example_lines("salience metrics", "salience metrics comprehensiveness", "salience metrics --json")
)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def metrics(names: tuple[str, ...], as_json: bool) -> None:
    """List all metrics, or describe some in full.

    The list shows what each metric measures, which direction is better, what it needs and its paper. With NAME, the
    full description and the settings of that metric are shown.
    """
    from salience.metrics import METRICS, find_metric

    described = [_described_metric(m) for m in (map(find_metric, names) if names else METRICS)]
    _print_all(described, as_json, full=bool(names))


NEEDS = {
    "erasure": "tokens that can be erased",
    "leave_one_out": "tokens that can be erased",
    "rationale": "human rationales in the data (--rationale-column)",
    "changed_model": "a model whose parameters or word vectors can be changed",
    "model": "nothing",
}
"""What a metric needs, in words."""


def _described_metric(metric: Any) -> dict[str, Any]:
    """A metric's docstring and signature as data."""
    from inspect import cleandoc

    from salience.core.settings import set_to

    text, facts = _facts(_unmarked(cleandoc(metric.doc)).splitlines())
    return {
        "name": metric.name,
        "summary": text[0] if text else "",
        "aspect": metric.aspect,
        "better": metric.better,
        "needs": NEEDS[metric.needs],
        "paper": facts.get("Paper"),
        "settings": [
            {"name": n, "default": _jsonable(p.default), "type": set_to(p.annotation)}
            for n, p in metric.settings.items()
        ],
        "about": "\n".join(text[1:]).strip(),
    }


def _print_all(described: Sequence[Mapping[str, Any]], as_json: bool, *, full: bool) -> None:
    if as_json:
        click.echo(to_json(described, indent=2))
        return
    for one in described:
        _print(one, full=full)


def _described(method: Callable[..., Any]) -> dict[str, Any]:
    """A method's docstring and signature as data."""
    from inspect import cleandoc
    from typing import get_type_hints

    from salience.core.settings import set_to, settings_of

    text, facts = _facts(_unmarked(cleandoc(method.__doc__ or "")).splitlines())
    hints = get_type_hints(getattr(method, "read", method), include_extras=True)
    settings = [
        {"name": n, "default": _jsonable(p.default), "type": set_to(hints.get(n, Any))}
        for n, p in settings_of(method).items()
    ]
    return {
        "name": method.__name__,
        "summary": text[0] if text else "",
        "needs": facts.get("Needs"),
        "cost": facts.get("Cost"),
        "explains": _explained(method.__name__),
        "paper": facts.get("Paper"),
        "settings": settings,
        "about": "\n".join(text[1:]).strip(),
    }


RECOMMENDED = {
    "lrp": "all tokens of an answer from one pass",
    "occlusion": "what the answer loses without a word or segment",
    "context_cite": "which passages or sentences an answer rests on",
}
"""The methods recommended for answers of language models, and what for."""


def _explained(name: str) -> str:
    """What a method explains, and whether it is recommended for language models."""
    if name not in ANSWER_METHODS:
        return "predictions"
    what = "predictions; answers of language models" if name in METHODS else "answers of language models"
    return f"{what} (recommended: {RECOMMENDED[name]})" if name in RECOMMENDED else what


def _facts(lines: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split a docstring into its text and its fields. A field ends at the next one or at an empty line."""
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
    """A docstring without its markup.

    >>> _unmarked("``nodes`` as in :func:`coherence`")
    'nodes as in coherence'
    """
    return re.sub(r":\w+:`([^`]*)`", r"\1", text).replace("``", "")


def _jsonable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | tuple | None) else str(value)


def _print(method: Mapping[str, Any], *, full: bool) -> None:
    width = min(100, get_terminal_size().columns)
    click.echo(click.style(method["name"], bold=True))
    click.echo(click.wrap_text(method["summary"], width, "  ", "  "))
    if full and method["about"]:
        click.echo(f"\n{click.wrap_text(method['about'], width, '  ', '  ', preserve_paragraphs=True)}\n")
    for fact in ("aspect", "better", "cost", "needs", "explains", "paper"):
        if method.get(fact):
            wrapped = click.wrap_text(method[fact], width, " " * 11, " " * 11).lstrip()
            click.echo(click.style(f"  {fact:<8} ", dim=True) + wrapped)
    if full:
        click.echo("\n  settings" if method["settings"] else "\n  no settings")
        for line in _settings_table(method["settings"], width):
            click.echo(line)
    click.echo()


def _settings_table(settings: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Names, defaults and types of settings, in columns; a default of None is chosen by the method."""
    defaults = ["auto" if one["default"] is None else str(one["default"]) for one in settings]
    names = [str(one["name"]) for one in settings]
    first, second = (max(map(len, column), default=0) for column in (names, defaults))
    rows = [
        f"    {name:<{first}}   default: {default:<{second}}   " for name, default in zip(names, defaults, strict=True)
    ]
    return [
        click.wrap_text(str(one["type"]), width, row, " " * len(row)) for row, one in zip(rows, settings, strict=True)
    ]


@click.command(epilog=example_lines("salience models", "salience explain --model sentiment_bilstm 'A fine film.'"))
def models() -> None:
    """List the bundled models.

    Any local folder or Hugging Face model can be used as well.
    """
    from importlib.resources import files

    from salience.models import BUNDLED

    for name in BUNDLED:
        card = files("salience.models.bundled").joinpath(name, "README.md")
        click.echo(click.style(name, bold=True))
        if card.is_file():
            for line in _card(card.read_text("utf-8")):
                click.echo(click.wrap_text(line, min(100, get_terminal_size().columns), "  ", "  "))


def _card(text: str) -> list[str]:
    """The first sentence of a model card, and the accuracy of the model."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    prose = next((" ".join(part.split()) for part in body.split("\n\n") if part.strip()[:1].isalnum()), "")
    sentence = re.split(r"(?<=\.)\s", prose, maxsplit=1)[0]
    measured = re.search(r"^\|\s*(SST-2 test accuracy)[^|]*\|\s*([^|]*?)\s*\|", body, re.MULTILINE)
    return [line for line in (sentence, " ".join(measured.groups()) if measured else "") if line]
