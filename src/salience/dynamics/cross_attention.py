"""Does a head of cross-attention find the word that is translated? Alignment error rates of single heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from salience.core.executor import Report
from salience.core.passes import forward
from salience.core.prompts import Prompt
from salience.core.stats import Estimate
from salience.core.text import Encoded
from salience.data.pairs import Pair
from salience.dynamics.alignment import (
    Alignment,
    by_words,
    check_aligned,
    diagonal,
    error_rate,
    links,
    source_words,
    unknown_words,
)
from salience.errors import BadInput, UnsupportedModel
from salience.models.huggingface.answering import Answer
from salience.models.huggingface.encoder_decoder import DECODER, EncoderDecoder
from salience.models.huggingface.prompts import encode_target
from salience.models.loading import as_model

STEPS = ("predicts", "reads")
"""When the attention of a word of the answer is taken: as the decoder predicts it, or one step later, as it reads it.

Paper: Chen et al. 2020, Accurate word alignment induction from neural machine translation, arXiv:2004.14837
"""

RowKey = tuple[str, str, int | None, int | None]
"""What a row is: its scores, step, layer and head."""


@dataclass(frozen=True, slots=True)
class AlignedRow:
    """The alignment error rate of one head, of the mean over the heads of a layer, or of a control."""

    scores: str
    step: str
    error_rate: Estimate
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True, slots=True)
class AlignedHeads:
    """Error rates on one set of alignments, with bootstrap intervals over pairs."""

    data: str
    pairs: int
    left_out: int
    """Pairs that are too long for the model."""
    unknown: float | None
    """The share of source words that the training texts do not contain, if these are known."""
    rows: tuple[AlignedRow, ...]
    chosen: AlignedRow
    """The head with the lowest rate on every second pair, measured on the others: no head is chosen on its test."""
    controls: tuple[AlignedRow, ...]
    """The controls on these other pairs."""


def head_alignment(
    model: object,
    alignments: Mapping[str, Sequence[Pair]],
    *,
    train: Sequence[Pair] = (),
    seed: int = 0,
    report: Report | None = None,
) -> list[AlignedHeads]:
    """Measure every head of the cross-attention of an encoder-decoder against word alignments, with answers given.

    ``alignments`` are pairs with word alignments, by name. ``train`` are the pairs that the model was trained on, from
    which the share of unknown words is counted. Layers of the decoder and heads are numbered from 1.
    """
    known = as_model(model)
    if not isinstance(known, EncoderDecoder):
        raise UnsupportedModel(
            f"{known.name} has no heads of cross-attention; use an encoder-decoder of transformers, such as Marian or "
            "T5. The attention of models that `salience translation` trains is measured by that command."
        )
    words = frozenset(source_words(train))
    return [_aligned(known, name, pairs, words, seed, report) for name, pairs in alignments.items()]


def _aligned(
    model: EncoderDecoder, name: str, pairs: Sequence[Pair], words: frozenset[str], seed: int, report: Report | None
) -> AlignedHeads:
    check_aligned(name, pairs)
    short = [pair for pair in pairs if _fits(model, pair)]
    if not short:
        raise BadInput(f"all pairs of {name} are longer than the {model.window} tokens that {model.name} can read")
    counts: dict[RowKey, list[Alignment]] = {}
    for done, pair in enumerate(short, 1):
        for key, made in _links(model, pair, np.random.default_rng([seed, done])).items():
            counts.setdefault(key, []).append(Alignment.of(made, pair))
        if report is not None:
            report(done, len(short))
    rows = tuple(_row(key, each, seed) for key, each in counts.items())
    single = {key: each for key, each in counts.items() if key[3] is not None}
    best = min(single, key=lambda key: sum(single[key][::2], Alignment()).error_rate)
    others = {key: each[1::2] if len(short) > 1 else each for key, each in counts.items()}
    controls = tuple(_row(key, each, seed) for key, each in others.items() if key[2] is None)
    unknown = unknown_words(short, words) if words else None
    chosen = _row(best, others[best], seed)
    return AlignedHeads(name, len(short), len(pairs) - len(short), unknown, rows, chosen, controls)


def _fits(model: EncoderDecoder, pair: Pair) -> bool:
    """Whether the encoder can read the source, and the decoder the answer and the token after it."""
    source, answer = len(model.tokenizer(pair.source)["input_ids"]), len(encode_target(model.tokenizer, pair.answer))
    return source <= model.window and len(model.start) + answer <= model.window


def _links(model: EncoderDecoder, pair: Pair, rng: np.random.Generator) -> dict[RowKey, list[tuple[int, int]]]:
    """The links of every head, of the mean over the heads of each layer, and of controls, by what they are."""
    source, answer, weights = cross_attention(model, pair)
    layers, heads, _, t, s = weights.shape
    matrices: dict[RowKey, np.ndarray] = {}
    for at, step in enumerate(STEPS):
        for layer in range(layers):
            for head in range(heads):
                matrices[f"head {layer + 1}.{head + 1}", step, layer + 1, head + 1] = weights[layer, head, at]
            matrices[f"mean of layer {layer + 1}", step, layer + 1, None] = weights[layer, :, at].mean(0)
    matrices["diagonal", "", None, None] = diagonal(t, s)
    matrices["random", "", None, None] = rng.random((t, s))
    return {key: links(by_words(own, pair, answer.offsets, source.offsets)) for key, own in matrices.items()}


def cross_attention(
    model: EncoderDecoder, pair: Pair
) -> tuple[Encoded, Encoded, Float[np.ndarray, "layers heads 2 t s"]]:
    """The tokens of the source and of the answer, and the weights between them in each layer of the decoder.

    The weights of an answer's token are those as it is predicted, and those as it is read.
    """
    row, answer = model.encode_prompt(Prompt.of(pair.source)), encode_target(model.tokenizer, pair.answer)
    places = _of_text(row)
    whole = replace(
        row,
        ids=row.ids + answer.ids,
        tokens=row.tokens + answer.tokens,
        offsets=row.offsets + ((0, 0),) * len(answer),
        special=row.special + answer.special,
        segments=(*(row.segments or ()), *(DECODER,) * len(answer)),
    )
    end: int = model.tokenizer.eos_token_id or 0  # pyright: ignore
    given = Answer(torch.tensor([*answer.ids, end], device=model.device), (*answer.tokens, ""))
    known = model.answering(given)
    weights = forward(known, known.batch([whole]), attention="read").attention[-model.decoder_layers :]
    # Half of a token's attention in a layer of the decoder is its cross-attention.
    across = 2 * torch.stack(weights)[:, 0, :, len(row) - 1 :, places].double().cpu().numpy()
    return _taken(row, places), answer, np.stack([across[:, :, :-1], across[:, :, 1:]], 2)


def _of_text(encoded: Encoded) -> list[int]:
    """The places of the tokens of the text, without those that the tokenizer and the decoder add."""
    spans = zip(encoded.special, encoded.offsets, strict=True)
    return [t for t, (special, (a, b)) in enumerate(spans) if a < b or not special]


def _taken(encoded: Encoded, places: Sequence[int]) -> Encoded:
    names = ("ids", "tokens", "offsets", "special", "segments")
    return replace(encoded, **{name: tuple(getattr(encoded, name)[t] for t in places) for name in names})


def _row(key: RowKey, each: Sequence[Alignment], seed: int) -> AlignedRow:
    scores, step, layer, head = key
    return AlignedRow(scores, step, error_rate(each, seed), layer, head)
