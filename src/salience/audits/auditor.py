"""Audits the attention of a model: runs the tests of the attention debate, and says what they found."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from salience.audits.adversarial_twin import adversarial_twin, adversarial_twin_twins
from salience.audits.adversary import adversary
from salience.audits.comparison import comparison
from salience.audits.correlation import correlation
from salience.audits.deceptive_twin import deceptive_twin, deceptive_twin_twins
from salience.audits.erasure import erasure
from salience.audits.finding import Finding
from salience.audits.folder import save, saved
from salience.audits.frozen_weights import frozen_weights, frozen_weights_twins
from salience.audits.improvement import diverse_states, diverse_states_twins, word_tying, word_tying_twins
from salience.audits.intervention import intervention
from salience.audits.manipulation import manipulation, manipulation_twins, unmarked
from salience.audits.permutation import permutation
from salience.audits.seed_variation import seed_variation, seed_variation_twins
from salience.audits.study import Study
from salience.audits.summary import sentences
from salience.audits.uniform_attention import uniform_attention, uniform_attention_twins
from salience.audits.weights import check_labels
from salience.core.executor import Report
from salience.core.files import claim, fingerprint, locked
from salience.core.settings import check, settings_of
from salience.data.examples import Example, encode_examples
from salience.data.texts import examples_of
from salience.errors import BadInput, UnsupportedModel, choose
from salience.models.identity import digest
from salience.models.loading import as_model
from salience.training.loop import Recipe, TrainingProgress, labels_of
from salience.training.twins import Reshapes, Twins, seconds_per_training

Test = Callable[..., Finding]
TESTS: tuple[Test, ...] = (correlation, permutation, adversary, erasure, intervention, comparison)
"""The tests that need no retraining, in the order of the report."""

RETRAINED: Mapping[Test, Callable[..., Sequence[str]]] = {
    uniform_attention: uniform_attention_twins,
    seed_variation: seed_variation_twins,
    frozen_weights: frozen_weights_twins,
    adversarial_twin: adversarial_twin_twins,
    deceptive_twin: deceptive_twin_twins,
    manipulation: manipulation_twins,
    diverse_states: diverse_states_twins,
    word_tying: word_tying_twins,
}
"""The tests that train twins of the model, each with the names of its twins for some settings."""

SHAPED = (uniform_attention, seed_variation, frozen_weights, adversarial_twin, diverse_states, word_tying)
"""The tests whose twins are trained from scratch, or have another shape: those of pooled classifiers."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings about one model's attention on some texts."""

    model: str
    texts: int
    layer: int | None
    head: int | None
    findings: tuple[Finding, ...]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tests that this model or these texts do not allow, with the reason."""
    truncated: int = 0
    """Texts of which only the beginning was read, since they are longer than the model can read."""

    @property
    def summary(self) -> list[str]:
        """What this model's attention can and cannot be used for; every sentence rests on a finding."""
        return list(sentences(self.findings))

    def _repr_html_(self) -> str:
        from salience.views.audit import fragment

        return fragment(self)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Called while an audit runs."""

    test: Callable[[str], Report | None] = lambda _: None
    """Called with the name of each test; returns what to call with its progress."""
    estimated: Callable[[Sequence[str], float], None] = lambda *_: None
    """Called once before twins are trained, with their names and an estimate of the seconds in all."""
    step: Callable[[str, TrainingProgress], None] | None = None
    """Called with the name of a twin after every step of its training."""


def audit(
    model: object,
    data: object,
    *,
    tests: str | Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    retrain: Sequence[Example] | Literal["divided"] | None = None,
    training: Mapping[str, Any] | None = None,
    text_column: str = "text",
    pair_column: str | None = None,
    callbacks: Callbacks = Callbacks(),  # noqa: B008
    **settings: Any,
) -> Audit:
    """Run the tests of the attention debate on a model and texts, which are given as for :func:`salience.explain`.

    ``tests`` are names of tests; by default all that the model and the texts allow. The attention of ``layer`` (the
    last by default) is tested, of one ``head`` or of all. Settings are those of the tests, as in
    ``{"permutation.shuffles": 20}``. With a folder ``out``, findings and twins are saved as they come, and the same
    call resumes.

    The tests that train twins of the model need labelled texts to train on, ``retrain``, and labels in ``data``, on
    which the twins are tested. With ``"divided"``, twins are trained on four fifths of ``data`` and tested on the rest.
    ``training`` are fields of a :class:`salience.training.Recipe` that differ from the default.

    >>> audit(model, ["A fine film.", "A bore."], tests="permutation")          # doctest: +SKIP
    """
    examples = examples_of(data, text_column=text_column, pair_column=pair_column)
    if not examples:
        raise BadInput("there is nothing to audit: pass at least one text")
    known = as_model(model)
    check_labels(known)
    study = Study(known, examples, encode_examples(known, examples), layer, head, seed)
    train, test = _divided(examples) if retrain == "divided" else (retrain, examples)
    trained = replace(study, examples=test, encoded=encode_examples(known, test)) if train else study
    chosen, left_out = _chosen(trained, tests, train)
    own = _settings(settings, chosen)
    with _folder(out, study) as folder:
        if train is not None and any(one in RETRAINED for one in chosen):
            trained = replace(trained, twins=_twins(trained, folder, train, training or {}, callbacks))
            _announce(trained, chosen, own, callbacks)
        findings = [
            run_test(trained if one in RETRAINED else study, one, own[one.__name__], folder, callbacks)
            for one in chosen
        ]
    truncated = sum(bool(e.unseen) for e in study.encoded)
    return Audit(known.name, len(examples), layer, head, tuple(findings), left_out, truncated)


def run_test(study: Study, test: Test, settings: Mapping[str, Any], folder: Path, callbacks: Callbacks) -> Finding:
    """Run a test, unless the folder holds its finding already; a new finding is written at once."""
    file = folder / f"{test.__name__}.json"
    finding = saved(file, settings)
    if finding is None:
        finding = test(replace(study, report=callbacks.test(test.__name__)), **settings)
        save(file, settings, finding)
    return finding


@contextmanager
def _folder(out: str | Path | None, study: Study) -> Generator[Path]:
    """The folder of the audit, locked; without one, a temporary folder."""
    with ExitStack() as stack:
        if out is None:
            yield Path(stack.enter_context(TemporaryDirectory()))
            return
        folder = Path(out)
        stack.enter_context(locked(folder, mark="audit.json"))
        facts = {
            "model": digest(study.model),
            "texts": [str(e.text) for e in study.examples],
            "layer": study.layer,
            "head": study.head,
            "seed": study.seed,
        }
        claim(folder / "audit.json", facts)
        yield folder


# ------------------------------------------------------------------------------------------------------ choices


def _chosen(
    study: Study, names: str | Sequence[str] | None, retrain: Sequence[Example] | None
) -> tuple[list[Test], dict[str, str]]:
    """The tests to run, and those of the usual ones that cannot be run, with the reason."""
    by_name = {test.__name__: test for test in (*TESTS, *RETRAINED)}
    if names is not None:
        listed = [names] if isinstance(names, str) else list(names)
        chosen = [by_name[choose(name, by_name, "test of attention")] for name in dict.fromkeys(listed)]
        if retrain is None and (trained := [test.__name__ for test in chosen if test in RETRAINED]):
            raise BadInput(
                f"{', '.join(trained)} trains twins of the model; pass labelled texts to train them on (--retrain)"
            )
        if retrain is not None and not any(test in RETRAINED for test in chosen):
            raise BadInput(f"none of the tests {', '.join(listed)} trains twins; leave out the texts to train on")
        if shaped := [test.__name__ for test in chosen if test in SHAPED and not isinstance(study.model, Reshapes)]:
            raise UnsupportedModel(
                f"{', '.join(shaped)} cannot be run on {study.model.name}: its twins are trained from scratch, as only "
                "those of a pooled classifier such as sentiment_bilstm can be"
            )
        if manipulation in chosen and (why := unmarked(retrain or (), study.examples)) is not None:
            raise BadInput(why)
        return chosen, {}
    usual = [*TESTS, *(RETRAINED if retrain is not None else ())]
    left_out = {test.__name__: why for test in usual if (why := _unsuitable(study, test, retrain or ())) is not None}
    return [test for test in usual if test.__name__ not in left_out], left_out


def _unsuitable(study: Study, test: Test, retrain: Sequence[Example]) -> str | None:
    if test in SHAPED and not isinstance(study.model, Reshapes):
        return "its twins are trained from scratch, as only those of pooled classifiers can be"
    if test is manipulation and (study.layer is not None or study.head is not None):
        return "it trains all heads of the last layer"
    return unmarked(retrain, study.examples) if test is manipulation else None


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


# ------------------------------------------------------------------------------------------------------ twins

TESTED = 5
"""Of divided texts, every fifth is tested on."""

POOLED = Recipe(epochs=8, rate=1e-3, warmup=0.0, decay=1e-5)
"""How twins are trained from scratch."""

TUNED = Recipe(epochs=3, rate=2e-5)
"""How copies of a transformer are trained."""


def _divided(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """The texts to train on, and those to test on."""
    return [e for i, e in enumerate(examples) if i % TESTED], list(examples[::TESTED])


def _twins(
    study: Study, folder: Path, train: Sequence[Example], training: Mapping[str, Any], callbacks: Callbacks
) -> Twins:
    for what, examples in (("train on", train), ("test on", study.examples)):
        if not examples:
            raise BadInput(f"there are no texts to {what}; twins need labelled texts")
        if unlabelled := [e.id for e in examples if e.label is None]:
            raise BadInput(f"twins need labelled texts to {what}, and {unlabelled[0]!r} has no label (--label-column)")
    if len({e.label for e in train}) < 2:
        raise BadInput(f"all texts to train on have the label {train[0].label!r}; twins need at least two labels")
    labels_of(study.model, [*train, *study.examples])  # refuses labels that the model does not know
    recipe = replace(POOLED if isinstance(study.model, Reshapes) else TUNED, **training)
    facts = fingerprint(recipe, list(train))
    tested = fingerprint(list(study.examples))
    claim(folder / "training.json", {"training data or recipe": facts, "labels of the texts": tested})
    return Twins(folder / "twins", train, recipe, callbacks.step)


def _announce(
    study: Study, tests: Sequence[Test], settings: Mapping[str, Mapping[str, Any]], callbacks: Callbacks
) -> None:
    """Report which twins are to be trained, and about how long that takes."""
    assert study.twins is not None
    names = dict.fromkeys(
        name for test in tests if test in RETRAINED for name in RETRAINED[test](**settings[test.__name__])
    )
    missing = [name for name in names if not study.twins.has(name)]
    if missing:
        each = seconds_per_training(study.model, study.twins.examples, study.twins.recipe)
        callbacks.estimated(missing, each * len(missing))
