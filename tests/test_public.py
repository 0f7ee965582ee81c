"""The public surface: what users may import. Everything else may move freely."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import salience

ROOT = Path(__file__).parents[1]
TOP = [
    "AnswerExplanation", "Counterfactuals", "Explanation", "Interactions", "Prompt", "SalienceTrainer", "Target",
    "__version__", "audit", "counterfactual", "counterfactual_data", "evaluate", "evaluate_data", "explain",
    "explain_answer", "explain_answers", "explain_data", "explain_interactions", "fit", "follow", "heads", "load",
    "open_run", "wrap",
]  # fmt: skip
PACKAGES = {
    "salience.audits": ["Audit", "Callbacks", "Finding", "Measure", "RETRAINED", "TESTS", "audit"],
    "salience.counterfactuals": [
        "Counterfactual", "CounterfactualStudy", "Counterfactuals", "Edit", "MethodResult", "counterfactual",
        "counterfactual_data", "words_changed",
    ],
    "salience.data": [
        "Example", "Reader", "Rejected", "Row", "Shard", "Shortcut", "Source", "examples", "fingerprint", "planted",
        "shards", "source",
    ],
    "salience.dynamics": [
        "Agreement", "Callbacks", "Course", "Dynamics", "Flow", "Followed", "FollowedText", "Order", "accuracy_match",
        "agreement", "chance", "follow", "read_follow", "two_tokens",
    ],
    "salience.generation": [
        "ANSWER_METHODS", "AnswerExplanation", "AnswerRun", "AnswerTarget", "ContextDependence", "Cue", "Dependent",
        "Message", "Passage", "Prompt", "Segment", "context_cite", "context_dependence", "explain_answer",
        "explain_answer_data", "explain_answers", "open_answers",
    ],
    "salience.methods": [
        "Attribution", "CONTROLS", "Erased", "INTERACTIONS", "METHODS", "Needs", "Pack", "Pairwise", "Pass", "Rows",
        "Targets", "archipelago", "attention", "attention_flow", "attention_relevance", "attention_rollout",
        "attention_x_gradient", "attention_x_relevance", "by_token", "coherence", "deep_lift", "diff_mask",
        "differentiate", "erased_values", "find_interaction", "find_method", "fit_head", "forward", "gradient",
        "gradient_shap", "input_x_gradient", "integrated_gradients", "integrated_hessians", "kernel_shap",
        "layer_saliency", "lime", "lrp", "observed", "occlusion", "one_pass", "output_relevance", "pairwise_occlusion",
        "partition_shap", "position", "random", "replaced", "selection", "shapley_interaction", "shapley_taylor",
        "smooth_grad", "uniform", "value", "value_zeroing",
    ],
    "salience.metrics": [
        "METRICS", "Metric", "as_metric", "auprc", "average_precision", "comprehensiveness", "decision_flip",
        "deletion_area", "find_metric", "find_metrics", "hiding_area", "infidelity", "input_invariance",
        "insertion_area", "iou_f1", "log_odds", "loo_kendall", "loo_spearman", "max_sensitivity",
        "parameter_randomisation", "revealing_area", "roc_auc", "sufficiency", "token_f1",
    ],
    "salience.models": [
        "Batch", "BUNDLED", "Checkpoint", "EmbeddingEdit", "Encoded", "Executor", "FittedHead", "Gates",
        "knows", "load", "load_gates", "load_to_train", "Model", "Output", "Pooled", "PooledConfig",
        "Rationale", "sample", "sample_file", "Selection", "Seq2Seq", "Seq2SeqConfig", "Site",
        "starts_from_nothing", "subword_tokenizer", "word_tokenizer",
    ],
    "salience.server": ["Limits", "create_app", "serve"],
    "salience.training": [
        "AttentionMonitor", "Callbacks", "DampedAscent", "Distillation", "DistillationResult", "Epoch",
        "GatesResult", "GradientAscent", "Objective", "PENALTIES", "Probe", "RationaleResult", "RationaleTraining",
        "Recipe", "Recorder", "Step", "TASK", "Term", "TrainingProgress", "accuracy", "accuracy_against_rate",
        "agreeing_heads", "attention_to_explanation", "by_explanations", "by_rationales", "contrast",
        "diffmask_objective", "distil", "every", "fit", "gradient_to_explanation", "guided", "label_smoothing",
        "labelled", "rationale_objective", "regularised", "shuffled_guides", "smoothed", "sweep", "task_loss",
        "train_gates", "train_rationale_model", "uniform_guides",
    ],
}  # fmt: skip
MODULES = {
    "salience.errors": ["BadInput", "BadModel", "NotLearnt", "SalienceError", "SalienceWarning", "UnsupportedModel"],
    "salience.audits.heads": [
        "Head",
        "HeadStudy",
        "Named",
        "PARTS",
        "Pruning",
        "PruningStep",
        "ROLES",
        "RankAgreement",
        "Role",
        "THRESHOLDS",
        "heads",
    ],
    "salience.dynamics.cross_attention": ["AlignedHeads", "AlignedRow", "head_alignment"],
    "salience.evaluation.answers": ["evaluate_answers"],
    "salience.evaluation.answer_runs": ["evaluate_answer_data"],
    "salience.explanations.imported": ["by_method", "from_captum", "from_inseq", "from_shap", "imported", "read_file"],
    "salience.runs.comparison": ["RunComparison", "compare_runs"],
    "salience.trials.agreement": ["agreement"],
    "salience.trials.needle": ["NeedleResult", "Use", "needle"],
    "salience.trials.roar": ["racu", "roar"],
    "salience.trials.shortcuts": ["shortcuts"],
    "salience.trials.simulatability": ["simulatability"],
    "salience.views": ["charts", "html", "terminal"],
}
"""Modules that are documented by themselves, and the names in them that are public."""


def test_the_public_names_of_the_package():
    assert sorted(salience.__all__) == sorted(TOP)
    assert dir(salience) == sorted(TOP)
    for name in TOP:
        assert getattr(salience, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_of_a_documented_package(package: str):
    module = import_module(package)
    assert sorted(module.__all__) == sorted(PACKAGES[package])
    for name in PACKAGES[package]:
        assert hasattr(module, name)


@pytest.mark.parametrize("name", MODULES)
def test_the_public_names_of_a_documented_module(name: str):
    module = import_module(name)
    for public in MODULES[name]:
        assert hasattr(module, public) or import_module(f"{name}.{public}")


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_documentation_imports_nothing_but_public_names(page: Path):
    public = {"salience": TOP, **PACKAGES, **MODULES}
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
        try:
            tree = ast.parse(block)
        except SyntaxError:
            continue  # an excerpt
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("salience"):
                for alias in node.names:
                    assert alias.name in public.get(str(node.module), ()), f"{node.module}.{alias.name} is not public"
            if isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name == "salience" or not alias.name.startswith("salience."), alias.name


def test_the_reference_holds_every_public_name():
    described = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), flags=re.MULTILINE)
    public = {"salience": [name for name in TOP if name != "__version__"], **PACKAGES, **MODULES}
    for package, names in public.items():
        # A view is a module, whose functions are described.
        ends = {part for path in described if path.startswith(f"{package}.") for part in path.split(".")[1:]}
        assert not set(names) - ends - {"audit", "fit", "follow", "load"}, package
