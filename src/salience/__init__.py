"""Why did the model say that, and can the explanation be believed?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience.evaluator import evaluate
    from salience.explainer import explain
    from salience.explanation import Explanation
    from salience.models import load
    from salience.models.huggingface import wrap
    from salience.runner import explain_data
    from salience.runs import open_run
    from salience.train import fit
    from salience.trainer import SalienceTrainer
    from salience.types import Target

__all__ = [
    "Explanation",
    "SalienceTrainer",
    "Target",
    "__version__",
    "evaluate",
    "explain",
    "explain_data",
    "fit",
    "load",
    "open_run",
    "wrap",
]
__version__ = "0.1.0"

_HOMES = {
    "Explanation": "salience.explanation",
    "SalienceTrainer": "salience.trainer",
    "Target": "salience.types",
    "evaluate": "salience.evaluator",
    "explain": "salience.explainer",
    "explain_data": "salience.runner",
    "fit": "salience.train",
    "load": "salience.models",
    "open_run": "salience.runs",
    "wrap": "salience.models.huggingface",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import salience`` does not import torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'salience' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
