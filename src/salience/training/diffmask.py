"""DiffMask: gates that learn, once for a model and on unlabelled text, which tokens can be hidden from it."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.core.files import claim, complete, fingerprint, locked, remove_leftovers
from salience.core.passes import forward, frozen
from salience.core.rows import each_text
from salience.core.types import Batch, Model, Output
from salience.data.examples import Example, encode_examples, sampled
from salience.data.texts import texts_of
from salience.errors import BadInput, UnsupportedModel
from salience.models.gates import Gates, kept, load_gates, new_gates, select
from salience.models.identity import digest
from salience.models.loading import as_model
from salience.training.loop import Epoch, Probe, Recipe, TrainingProgress, epoch_from, fit
from salience.training.multipliers import GradientAscent
from salience.training.objectives import Objective, Step, Term, every

RECIPE = Recipe(epochs=8, batch=32, rate=1e-3, decay=0.0)
START, ASCENT = 1.0, GradientAscent(low=0.3)
"""The multipliers at first, and how they change.

In the paper they may fall to 0. All gates of a small model then close before the multipliers have grown again.
"""

MARGIN = 0.1
"""How far a prediction may move when tokens are hidden, as a divergence in nats."""

SAVE_EVERY = 100
"""Steps between checkpoints within an epoch."""

MEASURED = 200
"""Texts that are measured after every epoch."""


@dataclass(eq=False)
class Masked:
    """A frozen model that reads its texts through gates. The gates are trained; all else is the model's own."""

    module: Gates
    model: Model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, batch: Batch, **options: Any) -> Output:
        """Run the model on z e + (1 − z) ẽ, with z drawn from the gates."""
        selection = select(self.module, self.model, batch)
        e = self.model.embed(batch)
        hidden = _hidden(e, selection.z, self.module)
        with self.model.executor.lock, frozen(self.model.module):
            output = self.model(batch, embeddings=hidden, **options)
        return replace(output, selection=selection)


def _hidden(e: Float[Tensor, "b t d"], z: Float[Tensor, "b t"], gates: Gates) -> Float[Tensor, "b t d"]:
    """Replace tokens by the baseline, to the extent that z is below 1."""
    z = z[..., None].to(e)
    return z * e + (1 - z) * gates.baseline.to(e)


# ------------------------------------------------------------------------------------------------------ the objective


def divergence(step: Step, *, layer: int, margin: float) -> Float[Tensor, " b"]:
    """The constraint KL(p ‖ p̃) − m ≤ 0 for the texts that the gates up to this layer were drawn for; 0 for others."""
    selection = step.output.selection
    assert selection is not None
    assert selection.whole is not None
    assert selection.layer is not None
    far = kl(selection.whole, step.output.logits, step.model.link) - margin
    return far * (selection.layer == layer)


def sparsity(step: Step) -> Float[Tensor, " b"]:
    """The mean of log P(z ≠ 0) over the tokens of a text."""
    selection = step.output.selection
    assert selection is not None
    return selection.log_nonzero.sum(1) / step.batch.content.sum(1).clamp_min(1)


def kl(p: Float[Tensor, "b c"], q: Float[Tensor, "b c"], link: str) -> Float[Tensor, " b"]:
    """KL(p ‖ q) of two predictions, given as logits; with several labels per text, summed over the labels."""
    if link == "sigmoid":
        p, q = (torch.stack([x, torch.zeros_like(x)], -1) for x in (p, q))
    p, q = p.float().log_softmax(-1), q.float().log_softmax(-1)
    return (p.exp() * (p - q)).flatten(1).sum(1)


def same_decision(p: Float[Tensor, "b c"], q: Float[Tensor, "b c"], link: str) -> Bool[Tensor, " b"]:
    """Whether two predictions, given as logits, name the same label; with several labels per text, the same ones."""
    return ((p > 0) == (q > 0)).all(1) if link == "sigmoid" else p.argmax(1) == q.argmax(1)


def diffmask_objective(layers: int, margin: float = MARGIN) -> Objective:
    """Σ_l α_l (KL(p ‖ p̃_l) − m) + mean log P(z_l ≠ 0), for gates up to every layer l; α rises while KL is above m.

    Paper: De Cao et al. 2020, arXiv:2004.14992, section 2.3
    """
    constraints = (
        Term(
            divergence,
            START,
            settings={"layer": layer, "margin": margin},
            over=every,
            attention=False,
            name=f"divergence_{layer}",
            ascent=ASCENT,
        )
        for layer in range(layers + 1)
    )
    return Objective((*constraints, Term(sparsity, over=every, attention=False)))


# ------------------------------------------------------------------------------------------------------ measures


@dataclass(frozen=True, slots=True)
class GatesMonitor:
    """Measures gates with every token hidden that they would rather hide than show, P(z ≠ 0) < ½.

    ``kept`` is the share of tokens that are not hidden, ``divergence`` is KL(p ‖ p̃), and ``same`` the share of texts
    whose prediction stays the same.
    """

    texts: Sequence[Example]

    def __call__(self, masked: Any) -> Mapping[str, float]:
        model: Model = masked.model
        encoded = encode_examples(model, self.texts)

        def work(batch: Batch, _: list[int]) -> list[Tensor]:
            whole = forward(model, batch, hidden=True)
            z = (kept(masked.module, batch, whole.hidden)[..., -1] >= 0.5) | ~batch.content
            embeddings = _hidden(model.embed(batch), z.to(whole.logits), masked.module).detach()
            rest = forward(model, batch, embeddings=embeddings).logits
            share = (z & batch.content).sum(1) / batch.content.sum(1).clamp_min(1)
            same = same_decision(whole.logits, rest, model.link)
            return list(torch.stack([share, kl(whole.logits, rest, model.link), same.float()], 1).cpu())

        means = torch.stack(each_text(model, encoded, work)).mean(0).tolist()
        return dict(zip(("kept", "divergence", "same"), means, strict=True))


# ------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class GatesResult:
    """Trained gates: their folder, and the measures of every epoch."""

    folder: Path
    epochs: tuple[Epoch, ...]
    margin: float = MARGIN

    @property
    def last(self) -> Mapping[str, float]:
        """The measures of the last epoch."""
        return self.epochs[-1].measures

    @property
    def unmet(self) -> str | None:
        """Why these gates explain little: they hide more than the margin allows. None if they keep to it."""
        if self.last["divergence"] <= self.margin:
            return None
        return (
            f"the constraint is not met: with {self.last['kept']:.0%} of the tokens kept, predictions move by "
            f"{self.last['divergence']:.3f} nats, and {self.margin:g} are allowed. Train for more steps: more epochs, "
            "or more texts"
        )


def train_gates(
    model: object,
    texts: object,
    folder: str | Path,
    *,
    margin: float = MARGIN,
    recipe: Recipe = RECIPE,
    report: Callable[[TrainingProgress], None] | None = None,
    epoch: Callable[[Epoch], None] | None = None,
) -> GatesResult:
    """Train gates for a model on unlabelled texts and save them in a folder; the method ``diff_mask`` applies them.

    ``texts`` are those that :func:`salience.explain` takes, or a Source. Finished epochs are saved, and the same call
    resumes. ``margin`` is how far a prediction may move, in nats.

    >>> train_gates(salience.load("sentiment"), texts, "gates")       # doctest: +SKIP
    """
    if not margin > 0:
        raise BadInput(f"margin={margin} must be above 0; it is how far predictions may move, in nats")
    known, place, many = as_model(model), Path(folder), texts_of(texts)
    if known.link == "identity":
        raise UnsupportedModel(f"{known.name} predicts a number; diff_mask compares distributions over labels")
    examples = [Example(str(number), text) for number, text in enumerate(many)]
    facts = {"model": digest(known), "texts": fingerprint(many), "margin": margin, "recipe": asdict(recipe)}
    with locked(place, "training.json"):
        remove_leftovers(place)
        claim(place / "training.json", facts, "gates of another training")
        if (place / "epochs.json").exists():
            load_gates(place, known)
            return GatesResult(place, _stored_epochs(place / "epochs.json"), margin)
        masked = Masked(new_gates(known, seed=recipe.seed), known)
        epochs = _trained(masked, examples, place / ".training", margin, recipe, report, epoch)
        masked.module.save(place)
        with complete(place / "epochs.json") as file:
            file.write(json.dumps([asdict(one) for one in epochs]).encode())
        shutil.rmtree(place / ".training", ignore_errors=True)
    return GatesResult(place, epochs, margin)


def _stored_epochs(file: Path) -> tuple[Epoch, ...]:
    try:
        return tuple(map(epoch_from, json.loads(file.read_text("utf-8"))))
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{file} is damaged: {error}. Delete it, and run the same command again") from error


def _trained(
    masked: Masked,
    examples: Sequence[Example],
    checkpoints: Path,
    margin: float,
    recipe: Recipe,
    report: Callable[[TrainingProgress], None] | None,
    epoch: Callable[[Epoch], None] | None,
) -> tuple[Epoch, ...]:
    results: list[Epoch] = []
    for one in fit(
        masked,
        examples,
        objective=diffmask_objective(masked.model.layers, margin),
        recipe=recipe,
        probes=[Probe(GatesMonitor(sampled(examples, MEASURED)))],
        report=report,
        folder=checkpoints,
        save_every=SAVE_EVERY,
    ):
        results.append(one)
        if epoch is not None:
            epoch(one)
    return tuple(results)
