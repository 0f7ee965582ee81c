"""Audits the attention of a model: runs the tests of the attention debate, and says what they found."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from salience.audits.adversary import adversary
from salience.audits.comparison import comparison
from salience.audits.correlation import correlation
from salience.audits.erasure import erasure
from salience.audits.finding import Finding, Measure
from salience.audits.intervention import intervention
from salience.audits.permutation import permutation
from salience.audits.study import Study
from salience.core.executor import Report
from salience.core.files import complete, locked
from salience.core.settings import check, settings_of
from salience.core.stats import Estimate
from salience.data.examples import encode_examples
from salience.data.texts import examples_of
from salience.errors import BadInput, choose
from salience.models.identity import digest
from salience.models.loading import as_model

Test = Callable[..., Finding]
TESTS: tuple[Test, ...] = (correlation, permutation, adversary, erasure, intervention, comparison)
"""The tests that need no retraining, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings about one model's attention on some texts."""

    model: str
    texts: int
    layer: int | None
    head: int | None
    findings: tuple[Finding, ...]

    @property
    def summary(self) -> list[str]:
        """What this model's attention can and cannot be used for; every sentence rests on a finding."""
        return list(_summary(self))


def audit(
    model: object,
    data: object,
    *,
    tests: str | Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    report: Callable[[str], Report | None] | None = None,
    text_column: str = "text",
    pair_column: str | None = None,
    **settings: Any,
) -> Audit:
    """Run the tests of the attention debate on a model and texts, which are given as for :func:`salience.explain`.

    ``tests`` are names of tests, all by default. The attention of ``layer`` (the last by default) is tested, of one
    ``head`` or of all. Settings are those of the tests, as in ``{"permutation.shuffles": 20}``. With a folder ``out``,
    findings are saved as they come, and the same call resumes. ``report`` is called with the name of each test, and
    returns what to call with its progress.

    >>> audit(model, ["A fine film.", "A bore."], tests="permutation")          # doctest: +SKIP
    """
    examples = examples_of(data, text_column=text_column, pair_column=pair_column)
    if not examples:
        raise BadInput("there is nothing to audit: pass at least one text")
    chosen = _chosen(tests)
    own = _settings(settings, chosen)
    known = as_model(model)
    study = Study(known, examples, encode_examples(known, examples), layer, head, seed)
    if out is None:
        findings = [_run(study, test, own, report) for test in chosen]
    else:
        findings = _saved(Path(out), study, chosen, own, report)
    return Audit(known.name, len(examples), layer, head, tuple(findings))


def _chosen(tests: str | Sequence[str] | None) -> list[Test]:
    by_name = {test.__name__: test for test in TESTS}
    names = list(by_name) if tests is None else [tests] if isinstance(tests, str) else list(tests)
    return [by_name[choose(name, by_name, "test of attention")] for name in dict.fromkeys(names)]


def _settings(settings: Mapping[str, Any], tests: Sequence[Test]) -> dict[str, dict[str, Any]]:
    """Settings by test, checked."""
    own: dict[str, dict[str, Any]] = {test.__name__: {} for test in tests}
    known = {f"{test.__name__}.{name}": (test, name) for test in tests for name in settings_of(test)}
    for key, value in settings.items():
        choose(key, known, "setting", "the audit")
        test, name = known[key]
        check(test, name, value)
        own[test.__name__][name] = value
    return own


def _run(
    study: Study, test: Test, settings: Mapping[str, Mapping[str, Any]], report: Callable[[str], Report | None] | None
) -> Finding:
    name = test.__name__
    return test(replace(study, report=None if report is None else report(name)), **settings[name])


# ------------------------------------------------------------------------------------------------------ the folder


def _saved(
    folder: Path,
    study: Study,
    tests: Sequence[Test],
    settings: Mapping[str, Mapping[str, Any]],
    report: Callable[[str], Report | None] | None,
) -> list[Finding]:
    """Run the tests that are not in the folder yet; each finding is written as soon as it is known."""
    with locked(folder, mark="audit.json"):
        _claim(folder, study)
        findings: list[Finding] = []
        for test in tests:
            file = folder / f"{test.__name__}.json"
            known = {"settings": _plain(settings[test.__name__])}
            finding = _read(file, known)
            if finding is None:
                finding = _run(study, test, settings, report)
                _write(file, {**known, "finding": asdict(finding)})
            findings.append(finding)
        return findings


def _claim(folder: Path, study: Study) -> None:
    """Write down what is audited; refuse a folder that holds the audit of something else."""
    facts = {
        "model": digest(study.model),
        "texts": [str(e.text) for e in study.examples],
        "layer": study.layer,
        "head": study.head,
        "seed": study.seed,
    }
    file = folder / "audit.json"
    if not file.exists():
        _write(file, facts)
        return
    try:
        before: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise BadInput(f"{file} is damaged: {error}. Delete the folder to start over.") from error
    if other := [name for name, value in facts.items() if before.get(name) != value]:
        raise BadInput(f"{folder} holds a different audit (changed: {', '.join(other)}); choose another folder")


def _read(file: Path, known: Mapping[str, Any]) -> Finding | None:
    """A saved finding, unless it was made with other settings or is damaged: then it is made again."""
    try:
        stored: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if {name: stored[name] for name in known} != known:
            return None
        return finding_from(stored["finding"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, facts: Mapping[str, Any]) -> None:
    with complete(file) as out:
        out.write(json.dumps(facts, ensure_ascii=False).encode())


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(settings), default=asdict))


def finding_from(stored: Mapping[str, Any]) -> Finding:
    """Restore a finding from its JSON form."""
    measures = tuple(Measure(m["name"], Estimate(**m["estimate"]), tuple(m["values"])) for m in stored["measures"])
    facts: dict[str, Any] = {**stored, "measures": measures}
    return Finding(**facts)


# ------------------------------------------------------------------------------------------------------ the summary


def _summary(audit: Audit) -> Iterator[str]:
    for finding in audit.findings:
        yield f"{_USES[finding.test][finding.verdict]} {finding.answer}"


_USES: Mapping[str, Mapping[str, str]] = {
    "correlation": {
        "explanation": "The order of attention can be read as an order of importance, as far as leave-one-out goes.",
        "no explanation": "Attention should not be read as an order of importance: gradients order the words better.",
        "unclear": "Whether attention orders words as well as gradients do cannot be said from these texts.",
    },
    "permutation": {
        "explanation": "The prediction depends on which words attention is on.",
        "no explanation": "In most texts the prediction does not depend on which words attention is on.",
        "unclear": "Whether most predictions depend on which words attention is on cannot be said from these texts.",
    },
    "adversary": {
        "explanation": "The prediction needs attention that is close to the model's own.",
        "no explanation": "Attention is not the only story: very different weights tell the same prediction.",
        "unclear": "Whether most texts have a far adversary cannot be said from these texts.",
    },
    "erasure": {
        "explanation": "Attention finds the weights that decide, at least as well as the gradient.",
        "no explanation": "Attention is a poor guide to the weights that decide: the gradient finds them sooner.",
        "unclear": "Whether attention finds the weights that decide as soon as the gradient cannot be said.",
    },
    "intervention": {
        "explanation": "Attention can be changed on its own.",
        "no explanation": "Attention does not change on its own: inputs that change it also change the states below.",
        "unclear": "Whether attention can be changed on its own cannot be said from these texts.",
    },
    "comparison": {
        "explanation": "As an explanation of which words matter, attention is as faithful as the best method here.",
        "no explanation": "To learn which words matter, use a saliency method instead of attention.",
        "unclear": "Attention and the best saliency method are statistically indistinguishable here.",
    },
}
