"""Evaluates explanations of answers: which method finds the parts of a prompt that the answer depends on."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from jaxtyping import Bool, Float

from salience.core.erasure import Erasure
from salience.core.executor import Report
from salience.core.prompts import Prompt
from salience.core.stats import UNLIMITED
from salience.core.text import Encoded
from salience.errors import BadInput, choose
from salience.evaluation.cases import CONTROLS, Case, Scores, Variant, described, variants
from salience.evaluation.table import Evaluation, compared
from salience.explanations.explainer import AnyMethod, as_list
from salience.generation.explaining import GENERATED, LanguageModel, as_language_model
from salience.generation.segments import By, owners, segments
from salience.metrics.agreement import spearman
from salience.metrics.erasing import measured
from salience.metrics.faithfulness import comprehensiveness, sufficiency
from salience.metrics.metric import Metric
from salience.models.loading import as_model

ANSWER_DEFAULTS = ("lrp", "input_x_gradient", "occlusion", "context_cite", "attention")
"""The methods that are evaluated unless others are named."""

DROPS = (1, 3, 5)
"""How many of the highest-scoring segments are left out."""

MASKS = 32
"""The number of random prompts that linear predictions are compared with."""

HELD_OUT = 7919
"""Added to the seed, so that these prompts are none that a method was fitted to."""


def evaluate_answers(
    model: object,
    prompts: Sequence[object],
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    answers: Sequence[str | Sequence[int]] | None = None,
    metrics: Sequence[str] | None = None,
    by: By = "sentence",
    erase: Erasure = "delete",
    generate: int = GENERATED,
    masks: int = MASKS,
    ids: Sequence[str] | None = None,
    report: Report | None = None,
    seed: int = 0,
) -> Evaluation:
    """Explain answers by several methods, and measure how far they depend on what the explanations point at.

    ``prompts`` and ``answers`` are as for :func:`salience.generation.explain_answers`; without answers, the model's own
    of at most ``generate`` tokens are explained. Methods may be written with settings, as in
    ``"lrp:rules=cp,kind=logit"`` or ``"occlusion:by=word"``. Every metric reads the log-probability of the whole answer
    with segments or tokens of the prompt erased. Three controls that ignore the model are always included: ``random``,
    ``recency`` (the last segments first) and ``similarity`` (the most words in common with the answer).

    >>> evaluate_answers(model, prompts, ["lrp", "context_cite"], answers=answers)       # doctest: +SKIP
    """
    lm = as_language_model(as_model(model))
    if not prompts:
        raise BadInput("there are no prompts to evaluate on; pass at least one")
    if answers is not None and len(answers) != len(prompts):
        raise BadInput(f"there are {len(answers)} answers for {len(prompts)} prompts; pass one for each")
    asked = measuring(lm, method, metrics, by, erase, masks, seed)
    names = ids or [str(n) for n in range(1, len(prompts) + 1)]
    encoded = [lm.encode_prompt(Prompt.of(prompt)) for prompt in prompts]
    for number, (name, prompt) in enumerate(zip(names, encoded, strict=True), 1):
        # Rows without ids of their own are numbered from 0, but readers count from 1.
        with named(f"prompt {number if name == str(number - 1) else name}"):
            asked.check(prompt, by)
    rows: list[dict[str, list[float]]] = []
    for case in _cases(lm, encoded, answers, by, generate):
        rows.append(asked(case))
        if report is not None:
            report(len(rows), len(prompts))
    values = {m.name: np.array([row[m.name] for row in rows]) for m in asked.metrics}
    return tabulated(lm.name, asked, values, names, by)


@contextmanager
def named(what: str) -> Generator[None]:
    """Say which of many inputs is wrong."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{what}: {error}") from error


def measuring(
    lm: LanguageModel,
    method: AnyMethod | Sequence[AnyMethod] | None,
    metrics: Sequence[str] | None,
    by: By,
    erase: Erasure,
    masks: int,
    seed: int,
) -> "Measuring":
    """Look up methods and metrics; see :func:`evaluate_answers`."""
    chosen = [m for m in as_list(method or ANSWER_DEFAULTS) if m not in CONTROLS]
    if not chosen:
        raise BadInput(f"{', '.join(CONTROLS)} are always measured; name a method to compare them with")
    return Measuring(variants(lm, chosen, by, erase), _find(metrics), erase, masks, seed)


def _cases(
    lm: LanguageModel, encoded: Sequence[Encoded], answers: Sequence[str | Sequence[int]] | None, by: By, generate: int
) -> Iterator[Case]:
    given = (
        lm.generate(encoded, max_new_tokens=generate) if answers is None else map(lm.encode_answer, encoded, answers)
    )
    for prompt, answer in zip(encoded, given, strict=True):
        yield Case(lm, prompt, answer, by)


# ------------------------------------------------------------------------------------------------------ metrics


def lds(scores: Float[np.ndarray, " s"], kept: Bool[np.ndarray, "m s"], values: Float[np.ndarray, " m"]) -> float:
    """The linear datamodeling score: Spearman's ρ of log p(y | the segments kept) with the sum of their scores.

    Paper: Park et al. 2023 (TRAK), arXiv:2303.14186; for contexts Cohen-Wang et al. 2024, arXiv:2409.00729
    """
    return spearman(kept.astype(float) @ scores, values)


def _drop(k: int) -> Metric:
    def drop(whole: float, without: float) -> float:
        """How much the answer's log-probability drops without the k highest-scoring segments."""
        return whole - without

    drop.__name__ = f"top_{k}_drop"
    return Metric(drop, "faithfulness", "higher")


DROP_METRICS = {k: _drop(k) for k in DROPS}
LDS = Metric(lds, "faithfulness", "higher", limits=(-1, 1))
TOKEN_METRICS = (comprehensiveness, sufficiency)
ANSWER_METRICS = (*DROP_METRICS.values(), LDS, *TOKEN_METRICS)
"""The metrics of explained answers. Comprehensiveness and sufficiency erase tokens, the others segments."""


def _find(names: Sequence[str] | None) -> list[Metric]:
    by_name = {m.name: m for m in ANSWER_METRICS}
    return [by_name[choose(name, by_name, "metric", "an answer")] for name in names or by_name]


@dataclass(frozen=True, slots=True)
class Measuring:
    """What is measured of each answer."""

    methods: Sequence[Variant]
    metrics: Sequence[Metric]
    erase: Erasure
    masks: int
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        """The rows of the table."""
        return (*(v.name for v in self.methods), *CONTROLS)

    def check(self, prompt: Encoded, by: By) -> None:
        """Raise if a prompt has no such segments, or if a method would delete all of it at once."""
        segments(prompt.text, by, prompt.parts)
        for one in self.methods:
            deletes = one.method.settings.get("erase") == "delete" and one.method.settings.get("unit") == "segment"
            if deletes and one.by is not None and _is_one(prompt, one.by):
                raise BadInput(
                    f"it is a single {one.by}, and {one.name} deletes each in turn, so nothing would be left; choose "
                    "smaller segments (by=word), or replace them instead of deleting them (erase=mean)"
                )

    def __call__(self, case: Case) -> dict[str, list[float]]:
        """The values of every metric for one answer, one per row of the table."""
        every = [*case.scores(self.methods), *case.controls(self.seed).values()]
        values = self._drops(case, every) | self._lds(case, every) | self._tokens(case, every)
        return {m.name: values[m.name] for m in self.metrics}

    def _drops(self, case: Case, every: Sequence[Scores]) -> dict[str, list[float]]:
        """NaN where nothing of the prompt would be left."""
        n, result = len(case.segments), dict[str, list[float]]()
        for k, metric in DROP_METRICS.items():
            if metric not in self.metrics or k >= n:
                result[metric.name] = [nan] * len(every)
                continue
            erased = np.stack([np.zeros(n, dtype=bool), *(_highest(scores.segments, k) for scores in every)])
            whole, *values = case.values(case.without(erased), self.erase).tolist()
            result[metric.name] = [metric(whole, value) for value in values]
        return result

    def _lds(self, case: Case, every: Sequence[Scores]) -> dict[str, list[float]]:
        if LDS not in self.metrics or len(case.segments) < 2:
            return {LDS.name: [nan] * len(every)}
        kept = held_out(case, self.masks, self.seed)
        values = case.values(case.without(~kept), self.erase)
        return {LDS.name: [lds(scores.segments, kept, values) for scores in every]}

    def _tokens(self, case: Case, every: Sequence[Scores]) -> dict[str, list[float]]:
        wanted = [m for m in TOKEN_METRICS if m in self.metrics]
        if not wanted:
            return {}
        scores = [torch.from_numpy(one.tokens)[None].to(case.batch.ids.device) for one in every]
        results = measured(case.view, case.batch, scores, case.target, [(m, {}) for m in wanted], erase=self.erase)
        return {m.name: [float(row[n].value[0]) for row in results] for n, m in enumerate(wanted)}


def _is_one(prompt: Encoded, by: By) -> bool:
    """Whether all tokens of a prompt, or of the source of an encoder-decoder, are in one segment."""
    own = owners(segments(prompt.text, by, prompt.parts, prompt.offsets), prompt.offsets, prompt.special)
    read = prompt.segments or [0] * len(own)
    return len({n for n, side in zip(own, read, strict=True) if side == read[0]}) == 1


def _highest(scores: Float[np.ndarray, " s"], k: int) -> Bool[np.ndarray, " s"]:
    """The k highest scores; ties go to the first."""
    marks = np.zeros(len(scores), dtype=bool)
    marks[np.argsort(-scores, kind="stable")[:k]] = True
    return marks


def held_out(case: Case, masks: int, seed: int) -> Bool[np.ndarray, "m s"]:
    """Random sets of segments to keep, each with probability ½, and at least one."""
    rng = np.random.default_rng([seed + HELD_OUT, *case.prompt.ids])
    numbers = rng.random((masks, len(case.segments)))
    return (numbers < 0.5) | (numbers == numbers.min(1, keepdims=True))


# ------------------------------------------------------------------------------------------------------ the table


def tabulated(
    model: str, asked: Measuring, values: Mapping[str, Float[np.ndarray, "n k"]], ids: Sequence[str], by: By
) -> Evaluation:
    """Summarise what was measured. Log-probabilities have no limits, so neither have their differences."""
    limits = {m.name: UNLIMITED if m in TOKEN_METRICS else m.limits for m in asked.metrics}
    cells = compared(asked.names, asked.metrics, values, limits, controls=CONTROLS, seed=asked.seed)
    return Evaluation(
        model=model,
        texts=len(ids),
        truncated=0,
        ids=tuple(ids),
        methods=asked.names,
        metrics=tuple(values),
        cells={(c.method, c.metric): c for c in cells},
        curves={},
        gaps={},
        settings={
            "erase": asked.erase,
            "kind": "log_probability",
            "by": by,
            "masks": asked.masks,
            "seed": asked.seed,
            "methods": described(asked.methods),
            "left_out": {},
        },
        controls=CONTROLS,
    )
