"""Passes that fit: the budget, and what happens when memory does run out."""

import subprocess
import sys

import pytest
import torch

from salience.batching import FAST, fits_memory, ran_out
from salience.errors import BadModel
from salience.explainer import explain
from shapes import build

SCARCE = """
import resource, sys
import torch
import salience

torch.set_num_threads(1)
model = salience.load("sentiment")
texts = ["a fine film " * 20] * 160
some = texts[::16]
expected = salience.explain(model, some, "input_x_gradient")
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 150_000_000, -1))
model.budget = 10**6
found = salience.explain(model, texts, "input_x_gradient")
assert model.budget < 50_000, model.budget
for a, b in zip(found[::16], expected, strict=True):
    assert max(abs(x - y) for x, y in zip(a.scores, b.scores)) <= 1e-4 * max(map(abs, b.scores))
print(model.budget)
model.budget = 10**6
resource.setrlimit(resource.RLIMIT_AS, (pages + 2_000_000, -1))
try:
    salience.explain(model, ["a fine film " * 150], "input_x_gradient")
except salience.errors.BadModel as error:
    print(error)
"""


def test_memory_that_runs_out_halves_the_budget_and_changes_no_score():
    """For real: the process may not have what its first passes ask for."""
    done = subprocess.run([sys.executable, "-c", SCARCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    budget, said = done.stdout.splitlines()
    assert 100 < int(budget) < 50_000
    assert "memory does not hold one pass" in said


def test_what_counts_as_running_out():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert ran_out(caught.value)
    assert ran_out(MemoryError())
    assert not ran_out(RuntimeError("shape mismatch"))
    assert not ran_out(ValueError("out of memory"))


def test_other_faults_are_not_taken_for_it():
    model = build("bert")

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("a fault of the method")

    with pytest.raises(RuntimeError, match="a fault of the method"):
        explain(model, "a film", broken)


def test_one_text_that_does_not_fit_is_named():
    model = build("bert")

    def greedy(*_: object) -> torch.Tensor:
        return torch.empty(2**60, dtype=torch.uint8)

    with pytest.raises(BadModel, match=r"one pass of .* over a text of \d+ tokens"):
        explain(model, "a film", greedy)


def test_the_budget_is_what_is_fast_or_what_fits():
    cpu = torch.device("cpu")
    assert fits_memory(1000, cpu) == FAST["cpu"]
    assert fits_memory(10**9, cpu) < 100
    assert fits_memory(10**15, cpu) == 1
    assert build("bert").budget == FAST["cpu"]


def test_a_long_text_with_many_nodes_stays_within_the_budget():
    """4,000 tokens × 300 nodes: never more than the budget, or one row, in a pass."""
    model = build("pooled_mlp")
    text = " ".join(["a fine film"] * 1350)
    model.budget = 8192
    held: list[int] = []
    handle = model.module.register_forward_pre_hook(lambda _, args: held.append(args[0].ids.numel()))
    try:
        (found,) = explain(model, text, "integrated_gradients", nodes=300)
    finally:
        handle.remove()
    width = len(found.tokens)
    assert width >= 4000
    assert max(held) <= max(model.budget, width)
    assert sum(held) >= 300 * width
