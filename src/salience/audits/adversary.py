"""Are there very different attention weights with the same prediction? (Jain & Wallace 2019, section 4.2.2)"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.audits.finding import Finding, Measure, by_share
from salience.audits.study import Study
from salience.audits.weights import SAME_OUTPUT, Attended, Copies, kept_mass
from salience.core.distances import TINY, jensen_shannon, total_variation
from salience.core.passes import exclusive
from salience.core.randomness import by_token
from salience.core.rows import in_order
from salience.core.types import Batch, on_scale


@dataclass(frozen=True, slots=True)
class Search:
    """How adversarial attention is searched for; the defaults are those of the paper's code."""

    restarts: int = 5
    steps: int = 500
    rate: float = 0.01
    spread: float = 3.0
    """Standard deviation of the initial logits."""
    allowed: float = 0.01
    """The change of the output that costs nothing."""
    penalty: float = 500.0
    """The cost of every further change."""


@dataclass(frozen=True, slots=True, eq=False)
class Adversary:
    """For each text, the largest distance reached with an output that changed by at most ε, and that change.

    Where no candidate kept the output, the distance is 0 and the change NaN. ``weights`` is the attention that was
    found, averaged over heads.
    """

    distance: Float[Tensor, " b"]
    change: Float[Tensor, " b"]
    weights: Float[Tensor, "b t"]


def adversarial(
    attended: Attended,
    *,
    epsilon: float = SAME_OUTPUT,
    search: Search = Search(),  # noqa: B008
    seed: int = 0,
) -> Adversary:
    """Search for attention that is far from the model's own with (nearly) the same output.

    max JSD(ã, a) subject to TVD(ŷ(ã), ŷ) ≤ ε. Several candidates per text are optimised together and kept apart by
    their own distances: min −JSD(ã_k, a) + penalty · max(0, TVD − allowed) − mean_{j≠k} JSD(ã_k, ã_j).
    """
    attended = attended.read_alone()
    batch, executor = attended.batch, attended.model.executor

    def work(texts: list[int]) -> Tensor:
        return _Candidates.of(attended, texts, search, seed).optimised(epsilon, batch.width)

    held = (batch.mask.sum(1) * search.restarts).tolist()
    costs = held if attended.last is None else [search.restarts] * len(batch)
    result = in_order(len(batch), executor.run(costs, work, held=held))
    return Adversary(result[:, 0], result[:, 1], result[:, 2:])


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """The candidates of a few texts, all of them rows of one pass: k candidates of text 0, then of text 1."""

    attended: Attended
    search: Search
    copies: Copies
    probabilities: Float[Tensor, "r c"]
    own: Float[Tensor, "r h q t"]
    """The model's own attention, over the tokens of the text."""
    where: Bool[Tensor, "r 1 q t"]
    read: Float[Tensor, "r q"]
    initial: Float[Tensor, "r h q t"]

    @classmethod
    def of(cls, attended: Attended, texts: list[int], search: Search, seed: int) -> "_Candidates":
        k = search.restarts
        chosen = torch.tensor(texts, device=attended.batch.ids.device)
        text = chosen.repeat_interleave(k)
        width = int(attended.batch.mask[chosen].sum(1).max())
        read, where, a = _used_queries(attended, chosen, width)
        own = (a * where).repeat_interleave(k, 0)
        own = own / own.sum(-1, keepdim=True).clamp_min(TINY)
        noise = _noise(attended.batch.take(chosen), k, a.shape[1], a.shape[2], seed)
        initial = search.spread * noise[:, :width].permute(0, 2, 3, 4, 1).flatten(0, 1)
        return cls(
            attended,
            search,
            attended.copies(text, width),
            attended.probabilities[text],
            own,
            where.repeat_interleave(k, 0),
            read.repeat_interleave(k, 0),
            initial.to(own),
        )

    def optimised(self, epsilon: float, width: int) -> Float[Tensor, "n w"]:
        """Run the search; returns distance, change and attention of the best candidate of each text."""
        model = self.attended.model
        with exclusive(model), torch.enable_grad():
            z = self.initial.clone().requires_grad_()
            adam = _Adam(z, self.search.rate)
            for step in range(self.search.steps):
                adam.update(torch.autograd.grad(self._loss(z), [z])[0], step)
        with exclusive(model), torch.no_grad():
            return self._best(z, epsilon, width)

    def _distribution(self, z: Tensor) -> Float[Tensor, "r h q t"]:
        return z.masked_fill(~self.where, -torch.inf).softmax(-1).nan_to_num()

    def _loss(self, z: Tensor) -> Tensor:
        a = self._distribution(z)
        excess = (self._change(a) - self.search.allowed).relu()
        return (self.search.penalty * excess - self._distance(a, self.own) - self._diversity(a)).sum()

    def _change(self, a: Tensor) -> Float[Tensor, " r"]:
        """TVD between the output with these weights and the model's own."""
        logits = self.copies.logits(lambda own: kept_mass(own, a.to(own.dtype), self.where))
        return total_variation(on_scale(logits, "probability", self.attended.model.link), self.probabilities)

    def _distance(self, a: Tensor, b: Tensor) -> Float[Tensor, "*r"]:
        """JSD, averaged over heads and over the queries that are read."""
        return (jensen_shannon(a, b).mean(-2) * self.read).sum(-1)

    def _diversity(self, a: Tensor) -> Float[Tensor, " r"]:
        k = self.search.restarts
        if k == 1:
            return a.new_zeros(len(a))
        each = a.unflatten(0, (-1, k))
        read = self.read.unflatten(0, (-1, k))[:, :, None]
        pairs = (jensen_shannon(each[:, :, None], each[:, None]).mean(-2) * read).sum(-1)
        return (pairs.sum(2) / (k - 1)).flatten()

    def _best(self, z: Tensor, epsilon: float, width: int) -> Float[Tensor, "n w"]:
        a, k = self._distribution(z), self.search.restarts
        distance, change = self._distance(a, self.own), self._change(a)
        reached = torch.where(change <= epsilon, distance, 0.0).unflatten(0, (-1, k))
        best = reached.argmax(1) + torch.arange(len(reached), device=a.device) * k
        kept = (change <= epsilon)[best]
        weights = torch.einsum("rq,rqt->rt", self.read[best], a[best].mean(1))
        columns = [distance[best] * kept, change[best].where(kept, torch.nan)]
        return torch.cat([torch.stack(columns, 1), torch.nn.functional.pad(weights, (0, width - weights.shape[1]))], 1)


class _Adam:
    """AMSGrad of one tensor, as in torch.optim.Adam, which takes seconds to import what a plain step does not need.

    Paper: Reddi et al. 2018, arXiv:1904.09237
    """

    def __init__(self, z: Tensor, rate: float) -> None:
        self.z, self.rate = z, rate
        self.mean, self.square, self.largest = (torch.zeros_like(z) for _ in range(3))

    @torch.no_grad()
    def update(self, g: Tensor, step: int) -> None:
        self.mean.lerp_(g, 1 - 0.9)
        self.square.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        torch.maximum(self.largest, self.square, out=self.largest)
        scale = self.largest.sqrt().div_((1 - 0.999 ** (step + 1)) ** 0.5).add_(1e-8)
        self.z.addcdiv_(self.mean, scale, value=-self.rate / (1 - 0.9 ** (step + 1)))


def _noise(batch: Batch, k: int, heads: int, queries: int, seed: int) -> Float[Tensor, "b t k h q"]:
    """Normal numbers for the weights of k candidates. A text draws for its own queries, not for those of padding."""

    def draw(n: int, g: torch.Generator) -> Tensor:
        own = min(n, queries)
        return torch.nn.functional.pad(torch.randn(n, k, heads, own, generator=g), (0, queries - own))

    return by_token(batch, seed, draw)


def _used_queries(
    attended: Attended, texts: Tensor, width: int
) -> tuple[Float[Tensor, "b q"], Bool[Tensor, "b 1 q t"], Float[Tensor, "b h q t"]]:
    """The queries that the prediction uses, with their visible tokens and weights.

    If each text uses a single query, only that one is kept: it stands for all, since the others are not read.
    """
    read, visible = attended.read[texts, :width], attended.visible[texts, :width, :width]
    a = attended.weights[texts][:, attended.heads, :width, :width]
    if bool((read.amax(1) > 1 - 1e-6).all()):
        at, rows = read.argmax(1), torch.arange(len(texts), device=read.device)
        return torch.ones_like(read[:, :1]), visible[rows, at][:, None, None], a[rows, :, at][:, :, None]
    return read, visible[:, None], a


FAR = 0.4
"""The distance (JSD, at most ln 2 = 0.69) beyond which two attention distributions count as different."""


def adversary(study: Study, *, search: Search = Search()) -> Finding:  # noqa: B008
    """Are there very different attention weights with the same prediction?"""

    def test(attended: Attended) -> dict[str, Tensor]:
        result = adversarial(attended, search=search, seed=study.seed)
        distance, change = (attended.of_several_tokens(values) for values in (result.distance, result.change))
        return {"distance": distance, "change": change, "largest": attended.distribution.amax(1)}

    values = study.each(test)
    far = Measure.share("texts with a far adversary", values["distance"] > FAR, values["distance"])
    distance = Measure.of("distance reached (JSD)", values["distance"], "size")
    rest = (Measure.of("change of the output (TVD)", values["change"], "size"),)
    return Finding(
        test="adversary",
        question="Are there very different attention weights with the same prediction?",
        measures=(far, distance, *rest, Measure.of("largest attention weight", values["largest"], "size")),
        expected=f"no attention further away than {FAR:g} keeps the output, in most texts",
        verdict=by_share(far.estimate, more_is_explanation=False),
        answer=(
            f"In {far} of the texts, attention at a distance (JSD) of more than {FAR:g} gives the same output "
            f"(within {SAME_OUTPUT:g}); the mean distance reached is {distance}, and ln 2 = 0.693 is the most."
        ),
        source="Jain & Wallace 2019, arXiv:1902.10186, section 4.2.2",
    )
