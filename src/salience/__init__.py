"""Why did the model say that, and can the explanation be believed?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience.audits import audit
    from salience.audits.heads import heads
    from salience.core.prompts import Prompt
    from salience.core.target import Target
    from salience.counterfactuals import Counterfactuals, counterfactual, counterfactual_data
    from salience.dynamics import follow
    from salience.evaluation.evaluator import evaluate
    from salience.evaluation.runs import evaluate_data
    from salience.explanations.explainer import explain
    from salience.explanations.explanation import Explanation
    from salience.explanations.interactions import Interactions, explain_interactions
    from salience.generation.explaining import explain_answer, explain_answers
    from salience.generation.explanation import AnswerExplanation
    from salience.models import load
    from salience.models.huggingface import wrap
    from salience.runs.driver import explain_data
    from salience.runs.run import open_run
    from salience.training.hf_trainer import SalienceTrainer
    from salience.training.loop import fit

__all__ = [
    "AnswerExplanation",
    "Counterfactuals",
    "Explanation",
    "Interactions",
    "Prompt",
    "SalienceTrainer",
    "Target",
    "__version__",
    "audit",
    "counterfactual",
    "counterfactual_data",
    "evaluate",
    "evaluate_data",
    "explain",
    "explain_answer",
    "explain_answers",
    "explain_data",
    "explain_interactions",
    "fit",
    "follow",
    "heads",
    "load",
    "open_run",
    "wrap",
]
__version__ = "0.1.0"

_HOMES = {
    "AnswerExplanation": "salience.generation.explanation",
    "Prompt": "salience.core.prompts",
    "explain_answer": "salience.generation.explaining",
    "explain_answers": "salience.generation.explaining",
    "Explanation": "salience.explanations.explanation",
    "Interactions": "salience.explanations.interactions",
    "explain_interactions": "salience.explanations.interactions",
    "SalienceTrainer": "salience.training.hf_trainer",
    "Target": "salience.core.target",
    "audit": "salience.audits",
    "Counterfactuals": "salience.counterfactuals",
    "counterfactual": "salience.counterfactuals",
    "counterfactual_data": "salience.counterfactuals",
    "evaluate": "salience.evaluation.evaluator",
    "evaluate_data": "salience.evaluation.runs",
    "explain": "salience.explanations.explainer",
    "explain_data": "salience.runs.driver",
    "fit": "salience.training.loop",
    "follow": "salience.dynamics",
    "heads": "salience.audits.heads",
    "load": "salience.models",
    "open_run": "salience.runs.run",
    "wrap": "salience.models.huggingface",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import salience`` does not import torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'salience' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
