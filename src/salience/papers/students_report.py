"""The tables and reports of the experiments with few students: planted words, unlabelled texts, heads and layers."""

from collections.abc import Sequence
from html import escape
from typing import Any

from salience.papers import sallm_heads, sallm_shortcut, sallm_unlabelled
from salience.papers.sallm import Table
from salience.papers.sallm_when_table import NOT_RUN, tested
from salience.papers.students import Setup
from salience.views.pages import document, settings_table, table
from salience.views.pages import listed as sentences

COMMON = (
    "Mean ± standard deviation over seeds, in per cent. Differences are in percentage points between students of the "
    "same seed, with 95 % intervals that cover new seeds and new texts; * is significant after Holm's correction for "
    "all comparisons of the table. With one seed, intervals cover new texts alone, and there is no verdict."
)

NOTES = {
    "shortcut": "A word that agrees with the label is inserted into the training texts. Test texts hold the word of "
    "the other label; the first number is the share of decisions that follow it, and the share of those that are right "
    "without the word and follow it stands beside the accuracy. The clean teacher learnt the texts "
    "without the word, and the spoilt teacher is the student before teaching. Reliance is lower only where it is "
    "significantly lower than before and than with shuffled explanations, which mark as many tokens of each text.",
    "unlabelled": "The teacher learns the labelled texts and explains the unlabelled ones. All students are trained "
    "for the same number of steps, with as many labels or pseudo-labels at each. Explanations help only where they are "
    "significantly better than the same student without them and than shuffled ones.",
    "heads": "Which heads the penalty reads. Of the last and of all layers it compares the mean over heads, and of "
    "agreeing and important heads each head by itself. The attention that is measured is that of the last layer, "
    "averaged over heads, whichever heads were trained: its mass on the tokens that the teacher's explanations mark, "
    "its comprehensiveness, its sufficiency (lower is better), and its agreement with a method that taught nobody: "
    "occlusion, or gradient if occlusion teaches. Decisions changed are those that differ from the student without "
    "teaching. Heads are selected in the teacher. A measure has a * where it differs significantly from that of the "
    "same heads taught by shuffled explanations.",
}
TITLES = {
    "shortcut": "Does teaching with explanations remove the reliance on a planted word?",
    "unlabelled": "Do explanations of unlabelled texts help?",
    "heads": "Which heads and layers should be taught?",
}


def shortcut_table(listed: Sequence[sallm_shortcut.Row]) -> Table:
    head = ["explanations", "penalty", "follows the word", "− before", "− shuffled"]
    head += ["changed by the word", "accuracy without it", "verdict"]
    rows = [
        [
            row.source,
            row.penalty,
            row.note if row.follows is None else f"{row.follows:.1f}",
            *("" if d is None else tested(d) for d in (row.against_before, row.against_shuffled)),
            *("" if spread is None else f"{spread:.1f}" for spread in (row.changed, row.clean)),
            row.verdict,
        ]
        for row in listed
    ]
    return head, rows


def unlabelled_table(listed: Sequence[sallm_unlabelled.Row]) -> Table:
    head = ["student", "accuracy", "compared with", "difference", "− shuffled", "verdict"]
    return head, [line for row in listed for line in _compared(row)]


def _compared(row: sallm_unlabelled.Row) -> list[list[str]]:
    """A line for each comparison of a student; the verdict stands in the first."""
    if row.accuracy is None:
        return [[row.name, NOT_RUN, "", "", "", ""]]
    shuffled = "" if row.against_shuffled is None else tested(row.against_shuffled)
    (other, difference), *more = [(name, tested(d)) for name, d in row.against.items()] or [("", "")]
    first = [row.name, f"{row.accuracy:.1f}", other, difference, shuffled, row.verdict]
    return [first, *(["", "", other, difference, "", ""] for other, difference in more)]


def heads_table(listed: Sequence[sallm_heads.Row]) -> Table:
    measures = sallm_heads.MEASURES
    head = [
        "heads",
        "accuracy",
        "− none",
        "− shuffled",
        "decisions changed",
        *(name.replace("_", " ") for name in measures),
    ]
    rows = [
        [
            row.name,
            NOT_RUN if row.accuracy is None else f"{row.accuracy:.1f}",
            *("" if d is None else tested(d) for d in (row.against_none, row.against_shuffled.get("accuracy"))),
            "" if row.changed is None else f"{row.changed:.1f}",
            *(_measure(row, name) for name in measures),
        ]
        for row in listed
    ]
    return head, rows


def _measure(row: sallm_heads.Row, name: str) -> str:
    if row.measures is None:
        return ""
    difference = row.against_shuffled.get(name)
    return f"{row.measures[name]:.3f}{'*' if difference is not None and difference.clear else ''}"


def page(experiment: str, setup: Setup, content: Table, remarks: Sequence[str], settings: dict[str, Any]) -> str:
    """The report of an experiment as a self-contained page."""
    shared = {
        "model": setup.model,
        "training texts": setup.texts,
        "test texts": "all" if setup.tested is None else setup.tested,
        "seeds": setup.seeds,
        "method": setup.method,
        "λ": f"{setup.weight:g}",
        "share of marked tokens": f"{setup.share:g}",
        "epochs": setup.recipe.epochs,
        "batch": setup.recipe.batch,
        "learning rate": f"{setup.recipe.rate:g}",
        **settings,
    }
    return document(
        escape(TITLES[experiment]),
        f"<p>{escape(NOTES[experiment])} {escape(COMMON)}</p>",
        sentences(remarks),
        table(*content),
        f"<h2>Settings</h2>{settings_table(shared)}",
    )
