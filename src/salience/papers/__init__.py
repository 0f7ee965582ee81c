"""One file per paper: its protocol run here, with its published numbers beside ours."""

from collections.abc import Callable
from typing import Any

PAPERS = ("sallm",)


def find(name: str) -> Callable[..., Any]:
    """The function that runs a paper."""
    from importlib import import_module

    from salience.errors import choose

    return import_module(f"salience.papers.{choose(name, PAPERS, 'paper')}").run
