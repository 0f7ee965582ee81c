"""The work of background jobs: library calls that report how far they are and end as a page."""

from collections.abc import Sequence

from salience.audits import Callbacks, audit
from salience.core.executor import Report
from salience.core.target import Target
from salience.core.types import Model
from salience.errors import BadInput
from salience.evaluation.evaluator import evaluate
from salience.explanations.explainer import explain_each, prepare
from salience.explanations.explanation import Explanation
from salience.runs.browsing import Browser
from salience.runs.comparison import compare_runs
from salience.runs.summary import summarise
from salience.server.jobs import Task
from salience.server.limits import Limits
from salience.server.questions import check_length, check_settings
from salience.server.schemas import StartJob
from salience.views import audit as audit_view
from salience.views import comparison, html, summary
from salience.views import evaluation as evaluation_view

DEFAULT = ["integrated_gradients"]


def check(question: StartJob, limits: Limits) -> None:
    """Raise for texts that are missing or too long, and for settings that name files."""
    if not question.texts:
        raise BadInput("a job of this kind needs texts; send at least one")
    for text in question.texts:
        check_length(len(text), limits)
    if len(question.methods) > limits.methods:
        raise BadInput(f"{len(question.methods)} methods at once; choose at most {limits.methods}")
    check_settings(question.settings)
    if question.settings and question.work != "explain":
        raise BadInput(f"settings are for the work 'explain'; leave them out of {question.work!r}")


def explaining(model: Model, question: StartJob) -> Task:
    """Explain texts, one method after the other."""
    methods = list(dict.fromkeys(question.methods or DEFAULT))
    configured = prepare(methods, dict(question.settings))

    def task(report: Report) -> str:
        total = len(configured) * len(question.texts)
        rows: list[list[Explanation]] = [[] for _ in question.texts]
        targets = [Target()] * len(question.texts)
        report(0, total)
        for number, one in enumerate(configured):
            each = explain_each(model, question.texts, [one], targets, window=1)
            for at, explanations in enumerate(each):
                rows[at] += explanations
                report(number * len(question.texts) + at + 1, total)
        return html.page([e for row in rows for e in row])

    return task


def evaluating(model: Model, question: StartJob) -> Task:
    """Evaluate methods on texts."""
    methods: Sequence[str] | None = list(dict.fromkeys(question.methods)) or None
    return lambda report: evaluation_view.page(evaluate(model, question.texts, methods, report=report))


def auditing(model: Model, question: StartJob) -> Task:
    """Run the tests of the audit that need no training on texts."""
    return lambda report: audit_view.page(audit(model, question.texts, callbacks=Callbacks(test=lambda _: report)))


def counting(browser: Browser) -> Task:
    """The words that matter most to each label of a run."""
    return lambda report: summary.page(summarise(browser.run, report=report))


def comparing(one: Browser, other: Browser) -> Task:
    """Where two runs of the same data differ most."""
    return lambda report: comparison.page(compare_runs(one.run, other.run, report=report))
