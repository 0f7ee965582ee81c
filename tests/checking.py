"""Checks the shapes in signatures while the tests run, at a cost that the tests can bear.

Only what mentions a shape is checked: all other types are the type checker's business, and checking them too doubled
the time of the tests. For the same reason, functions inside of functions are left alone, which would be decorated anew
at every call of the outer one, and no value is asked for all members of a protocol.
"""

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import _import_hook, install_import_hook

SHAPES = {"Bool", "Float", "Int", "Num", "Shaped"}


class _Shapes(_import_hook.JaxtypingTransformer):
    """Decorates the functions and classes whose signatures mention shapes."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        inner, node.body = node.body, []
        if _mentions_a_shape([a for part in (node.args, node.returns) if part for a in ast.walk(part)]):
            super().visit_FunctionDef(node)
        node.body = inner
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        fields = [a for line in node.body if isinstance(line, ast.AnnAssign) for a in ast.walk(line.annotation)]
        if _mentions_a_shape(fields):
            return super().visit_ClassDef(node)
        self.generic_visit(node)
        return node


def _mentions_a_shape(nodes: list[ast.AST]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in SHAPES for node in nodes)


def install() -> Any:
    """Check every module of the package that is imported in the returned context."""
    _import_hook.JaxtypingTransformer = _Shapes
    return install_import_hook("salience", "checking.checked")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its arguments and result checked by beartype, protocols excepted."""
    return beartype(conf=_settings(frozenset(_protocols(function.__globals__))))(function)


def _protocols(names: dict[str, Any]) -> Iterator[type]:
    return (v for v in names.values() if isinstance(v, type) and getattr(v, "_is_protocol", False))


@lru_cache
def _settings(protocols: frozenset[type]) -> BeartypeConf:
    return BeartypeConf(hint_overrides=FrozenDict(dict.fromkeys(protocols, object)))
