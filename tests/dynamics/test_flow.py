"""The two-token flow against its differential equations, integrated step by step."""

import numpy as np
import pytest

from salience.dynamics import two_tokens

TIMES = np.linspace(0, 2, 9)


def integrated(b0: float, b1: float, p: float, time: float, steps: int = 4000) -> tuple[float, float, float]:
    """Runge-Kutta of order 4."""

    def slope(x: np.ndarray) -> np.ndarray:
        return np.array([-x[2], x[2], x[1] - x[0]])

    x, h = np.array([b0, b1, p]), time / steps
    for _ in range(steps):
        k1 = slope(x)
        k2, k3 = slope(x + h / 2 * k1), None
        k3 = slope(x + h / 2 * k2)
        k4 = slope(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return tuple(x.tolist())


@pytest.mark.parametrize(("b0", "b1", "p"), [(0, 0, 0.5), (10, -10, 0.5), (-1, 2, 0.1)])
def test_the_closed_form_solves_the_equations(b0: float, b1: float, p: float):
    flow = two_tokens(TIMES, b0=b0, b1=b1, p=p)
    for i, t in enumerate(TIMES):
        assert (flow.b0[i], flow.b1[i], flow.p[i]) == pytest.approx(integrated(b0, b1, p, float(t)), abs=1e-6)
    assert flow.b0 + flow.b1 == pytest.approx(np.full(len(TIMES), b0 + b1))


def test_relevance_moves_first_and_attention_follows():
    flow = two_tokens(np.array([0.0, 0.01, 2.0]))
    assert flow.b1[1] - flow.b0[1] == pytest.approx(0.01, rel=1e-3)  # ḋ = 2p = 1
    assert flow.p[1] - flow.p[0] == pytest.approx(0.5 * 0.01**2, rel=1e-3)  # by its second derivative alone
    assert flow.p[2] == pytest.approx(4.244, abs=5e-4)


def test_attention_leaves_a_keyword_that_is_less_relevant():
    p = two_tokens(np.linspace(0, 2, 50), b0=10, b1=-10).p
    assert p[1] < p[0]
    assert (np.diff(p) < 0).all()
