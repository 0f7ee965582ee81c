"""The type of all metrics, whatever they are computed from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, Signature, signature
from typing import Any, Literal

from salience.core.erasure import Erasure
from salience.core.settings import settings_of
from salience.core.stats import UNLIMITED, Limits

Better = Literal["higher", "lower"]
Aspect = Literal["faithfulness", "leave_one_out", "plausibility", "robustness", "custom"]
"""What a metric measures. ``custom`` is that of your own functions."""

Requirement = Literal["erasure", "leave_one_out", "rationale", "changed_model", "model"]
"""What a metric is computed from, besides the scores:

``erasure``: the outputs without the tokens that ``prepare`` chooses; ``read(answers)``
``leave_one_out``: the effect of erasing each token alone; ``read(scores, differences)`` for one text
``rationale``: human rationales; ``read(scores, marks)`` for one text
``changed_model``: explanations of the models that ``prepare`` yields; ``read(before, after)`` for one text
``model``: the model itself; ``read(model, batch, scores, target)``
"""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A measure of explanations, one number per text.

    A metric can be called like the function it wraps, with settings as keywords.
    """

    read: Callable[..., Any]
    aspect: Aspect = "custom"
    better: Better = "higher"
    needs: Requirement = "model"
    prepare: Callable[..., Any] | None = None
    """Chooses the tokens to erase, or yields the models to explain."""
    curve: bool = False
    """Whether it computes a curve over shares of tokens; its value is the area under the curve."""
    decides: bool = False
    """Whether it needs decisions or probabilities, which regression models do not have."""
    until_flip: bool = False
    """Whether erasures are passed one after the other, and only until the decision changes."""
    limits: Limits = UNLIMITED
    """The smallest and the largest value that it can have where the model predicts probabilities."""
    call: Callable[..., Any] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name of the metric."""
        function: Any = self.prepare if self.needs == "changed_model" else self.read
        return function.__name__

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def doc(self) -> str:
        """The docstring: the formula in words, and the paper."""
        function: Any = self.prepare if self.needs == "changed_model" else self.read
        return function.__doc__ or ""

    @property
    def settings(self) -> dict[str, Parameter]:
        """The settings with their defaults. How tokens are erased is set for all metrics at once."""
        prepared = {} if self.prepare is None else settings_of(self.prepare)
        return {**prepared, **settings_of(self.read)}

    @property
    def __signature__(self) -> Signature:
        first = [Parameter(n, Parameter.POSITIONAL_ONLY) for n in ("model", "batch", "scores", "target")]
        erase = Parameter("erase", Parameter.KEYWORD_ONLY, default=None, annotation=Erasure | None)
        if self.needs == "erasure":
            return Signature([*first, *self.settings.values(), erase])
        return signature(self.read)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return (self.call or self.read)(*args, **settings)

    def __repr__(self) -> str:
        return f"<metric {self.name}>"


def as_metric(function: Callable[..., Any]) -> Metric:
    """Wrap a function ``(model, batch, scores, target) -> one number per text`` as a metric; higher is better."""
    return function if isinstance(function, Metric) else Metric(function)
