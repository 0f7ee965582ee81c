"""``salience methods`` and ``salience models``: what there is."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from salience.cli.options import examples


@click.command(epilog=examples("salience methods", "salience methods integrated_gradients", "salience methods --json"))
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


@click.command(epilog=examples("salience models", "salience explain --model sentiment_bilstm 'A fine film.'"))
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
