"""The examples in docstrings say what is so."""

import doctest
from importlib import import_module

import pytest

MODULES = ("batching", "settings", "types", "words", "methods.perturbation")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str):
    found = doctest.testmod(import_module(f"salience.{name}"))
    assert found.attempted
    assert not found.failed
