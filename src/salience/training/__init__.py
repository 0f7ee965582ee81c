"""The training loop, and objectives that teach a model where to look."""

from salience.training.distillation import Callbacks, Distillation, DistillationResult, distil, sweep
from salience.training.guides import by_explanations, by_rationales, shuffled_guides, uniform_guides
from salience.training.loop import Epoch, Probe, Recipe, Recorder, TrainingProgress, fit
from salience.training.monitors import AttentionMonitor, accuracy, agreeing_heads
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

__all__ = [
    "PENALTIES",
    "TASK",
    "AttentionMonitor",
    "Callbacks",
    "Distillation",
    "DistillationResult",
    "Epoch",
    "Objective",
    "Probe",
    "Recipe",
    "Recorder",
    "Step",
    "Term",
    "TrainingProgress",
    "accuracy",
    "agreeing_heads",
    "attention_to_explanation",
    "by_explanations",
    "by_rationales",
    "contrast",
    "distil",
    "every",
    "fit",
    "gradient_to_explanation",
    "guided",
    "label_smoothing",
    "labelled",
    "regularised",
    "shuffled_guides",
    "smoothed",
    "sweep",
    "task_loss",
    "uniform_guides",
]
