"""Methods that give one score per word of the answer and word of the source, from one pass with the answer given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.erasure import Replacement, replaced
from salience.core.target import Kind
from salience.core.types import Batch, on_scale
from salience.errors import choose
from salience.methods.gradient import Reduction, dot, reduced
from salience.models.seq2seq import Answers, Decoded, Seq2Seq

Readout = Literal["nonlinear", "linear"]


@dataclass(frozen=True, slots=True, eq=False)
class Forced:
    """One source text with a given answer, and the scale of the explained number f_t, such as log p(y_t | x, y_<t)."""

    model: Seq2Seq
    batch: Batch
    answers: Answers
    output: Decoded
    kind: Kind = "log_probability"

    @classmethod
    def of(cls, model: Seq2Seq, batch: Batch, answers: Answers, kind: Kind = "log_probability") -> "Forced":
        with model.executor.lock, torch.no_grad():
            return cls(model, batch, answers, model.force(batch, answers), kind)

    def values(self, logits: Float[Tensor, "*n t v"], steps: Int[Tensor, " t"] | None = None) -> Float[Tensor, "*n t"]:
        """f_t of every token of the answer, or of those at ``steps``."""
        flat = on_scale(logits.flatten(0, -2), self.kind, "softmax").view(logits.shape)
        outputs = self.answers.outputs[0]
        words = (outputs if steps is None else outputs[steps]).expand(logits.shape[:-1])
        return flat.gather(-1, words[..., None])[..., 0]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Scores of every token of the source for every token of the answer. ``gaps`` hold one number per answer token.

    ``additive`` scores of tokens add up to those of words; of others, a word has the largest.
    """

    scores: Float[Tensor, "t s"]
    gaps: Mapping[str, Float[Tensor, " t"]] = field(default_factory=dict[str, Tensor])
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    signed: bool = True
    additive: bool = True


def attention(step: Forced) -> Matrix:
    """a_ts: how much the decoder attends to each source token, a mean over heads."""
    return Matrix(step.output.attention[0].mean(0), signed=False)


def output_relevance(step: Forced, *, readout: Readout = "nonlinear") -> Matrix:
    """What a source token alone adds to what the decoder says without the source: r_ts = f_t(h_s) − f_t(0).

    ``nonlinear``: f_t(h) is f_t when the context is W_e h, and the decoder's state is kept. ``linear``:
    r_{o,s} = W_o W_e h_s, as if the output were read from the context directly.

    Paper: Snell et al. 2021, arXiv:2103.07601
    """
    return Matrix(_relevance(step, readout)[0], settings={"readout": readout}, additive=False)


def attention_x_relevance(step: Forced, *, readout: Readout = "nonlinear") -> Matrix:
    """a_ts r_ts: f_t = Σ_s a_ts r_ts + f_t(0), but for the gap, which the non-linearity explains."""
    relevance, without = _relevance(step, readout)
    scores = step.output.attention[0].mean(0) * relevance
    gap = scores.sum(1) + without - step.values(step.output.logits)[0]
    return Matrix(scores, {"decomposition": gap}, {"readout": readout})


def _relevance(step: Forced, readout: Readout) -> tuple[Float[Tensor, "t s"], Float[Tensor, " t"]]:
    """r_ts of all source tokens, and f_t(0)."""
    read = probed if choose(readout, get_args(Readout), "readout") == "nonlinear" else linear
    h = step.output.states
    values = read(step, torch.cat([h, torch.zeros_like(h[:, :1])], 1))
    return values[:, :-1] - values[:, -1:], values[:, -1]


@torch.no_grad()
def probed(step: Forced, h: Float[Tensor, "1 s h"] | None = None) -> Float[Tensor, "t s"]:
    """β_ts: f_t with c_t replaced by W_e h_s."""
    net, d = step.model.module, step.output.queries[0]
    c = net.projected(step.output.states if h is None else h)[0]
    both = [part.expand(len(c), len(d), -1) for part in (d[None], c[:, None])]
    return step.values(net.read_out(*both)).mT


@torch.no_grad()
def linear(step: Forced, h: Float[Tensor, "1 s h"] | None = None) -> Float[Tensor, "t s"]:
    """W_o c for the word o of each step, with c = W_e h_s."""
    net = step.model.module
    c = net.projected(step.output.states if h is None else h)[0]
    return net.output.weight[step.answers.outputs[0]] @ c.mT


def gradient(step: Forced, *, reduction: Reduction = "l2") -> Matrix:
    """‖∂f_t / ∂e_s‖."""
    _, g = _gradients(step)
    return Matrix(reduced(g, reduction), signed=reduction == "sum", settings={"reduction": reduction})


def input_x_gradient(step: Forced) -> Matrix:
    """∂f_t / ∂e_s · e_s."""
    e, g = _gradients(step)
    return Matrix(dot(e.expand_as(g), g))


def _gradients(step: Forced) -> tuple[Float[Tensor, "1 s d"], Float[Tensor, "t s d"]]:
    """The embeddings, and the derivatives of every f_t: copies of the source, each with the derivative of one f_t.

    A backward pass over a batch of copies takes little longer than one over a single text, in recurrent networks.
    """
    model, (n, t) = step.model, (step.batch.width, step.answers.inputs.shape[1])
    with model.executor.lock, torch.no_grad():
        e = model.embed(step.batch)
    rows = [e[0]] * t

    def work(items: list[int]) -> Tensor:
        steps = torch.tensor(items, device=e.device)
        with model.executor.lock, torch.enable_grad():
            own = e.expand(len(items), -1, -1).clone().requires_grad_()
            logits = model.force(*_copies(step, len(items)), embeddings=own, step=steps).logits[:, 0]
            (gradients,) = torch.autograd.grad(step.values(logits, steps).sum(), own)
        return gradients

    for items, gradients in model.executor.run([n + t] * t, work):
        for item, gradient in zip(items, gradients, strict=True):
            rows[item] = gradient
    return e, torch.stack(rows)


def occlusion(step: Forced, *, erase: Replacement = "mean") -> Matrix:
    """f_t(x) − f_t(x without s), the answer staying the same: one pass per source token gives all words of the answer.

    A token is erased by replacing its embedding, by default with the mean embedding.
    """
    model, n = step.model, step.batch.width
    whole = step.values(step.output.logits)[0]
    rows: list[Tensor] = [whole] * n

    def work(items: list[int]) -> Tensor:
        copies, answers = _copies(step, len(items))
        where = torch.zeros_like(copies.mask)
        where[torch.arange(len(items)), torch.tensor(items)] = True
        with model.executor.lock, torch.no_grad():
            return step.values(model.force(copies, answers, embeddings=replaced(model, copies, where, erase)).logits)

    for items, values in model.executor.run([n + step.answers.inputs.shape[1]] * n, work):
        for item, value in zip(items, values, strict=True):
            rows[item] = whole - value
    return Matrix(torch.stack(rows, 1), settings={"erase": erase})


def _copies(step: Forced, count: int) -> tuple[Batch, Answers]:
    """The source and the answer, ``count`` times."""
    answers = step.answers
    parts = (part.expand(count, -1) for part in (answers.inputs, answers.outputs, answers.mask))
    return step.batch.take(torch.zeros(count, dtype=torch.long)), Answers(*parts)


MatrixMethod = Callable[..., Matrix]
"""(step, settings by keyword) -> one score per word of the answer and of the source."""

MATRIX_METHODS: tuple[MatrixMethod, ...] = (
    attention, output_relevance, attention_x_relevance, gradient, input_x_gradient, occlusion,
)  # fmt: skip
