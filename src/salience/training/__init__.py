"""The training loop, and objectives that teach a model where to look."""

from salience.training.diffmask import GatesResult, diffmask_objective, train_gates
from salience.training.distillation import Callbacks, Distillation, DistillationResult, distil, sweep
from salience.training.guides import by_explanations, by_rationales, shuffled_guides, uniform_guides
from salience.training.loop import Epoch, Probe, Recipe, Recorder, TrainingProgress, fit
from salience.training.monitors import AttentionMonitor, accuracy, agreeing_heads
from salience.training.multipliers import DampedAscent, GradientAscent
from salience.training.objectives import (
    PENALTIES,
    TASK,
    Objective,
    Step,
    Term,
    attention_to_explanation,
    contrast,
    every,
    gradient_to_explanation,
    guided,
    label_smoothing,
    labelled,
    regularised,
    smoothed,
    task_loss,
)
from salience.training.rationale_models import (
    RationaleResult,
    RationaleTraining,
    accuracy_against_rate,
    rationale_objective,
    train_rationale_model,
)

__all__ = [
    "PENALTIES",
    "TASK",
    "AttentionMonitor",
    "Callbacks",
    "DampedAscent",
    "Distillation",
    "DistillationResult",
    "Epoch",
    "GatesResult",
    "GradientAscent",
    "Objective",
    "Probe",
    "RationaleResult",
    "RationaleTraining",
    "Recipe",
    "Recorder",
    "Step",
    "Term",
    "TrainingProgress",
    "accuracy",
    "accuracy_against_rate",
    "agreeing_heads",
    "attention_to_explanation",
    "by_explanations",
    "by_rationales",
    "contrast",
    "diffmask_objective",
    "distil",
    "every",
    "fit",
    "gradient_to_explanation",
    "guided",
    "label_smoothing",
    "labelled",
    "rationale_objective",
    "regularised",
    "shuffled_guides",
    "smoothed",
    "sweep",
    "task_loss",
    "train_gates",
    "train_rationale_model",
    "uniform_guides",
]
