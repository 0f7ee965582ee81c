"""Running a model on changed copies of texts: described as rows, created only for their pass, packed by the executor.

Callers describe rows and read results; only this module loops over packs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.erasure import Eraser, eraser
from salience.core.executor import OVERHEAD, Report
from salience.core.passes import Needs, Pass, forward, from_attention, observe, remember, resume
from salience.core.text import Encoded
from salience.core.types import Batch, Edit, LastAttention, Model, Prefix, SharesPrefix, Site, Start, Targets

Result = TypeVar("Result")

RowEdit = Callable[[Site, Int[Tensor, " k"], Tensor], Tensor]
"""An edit that also gets the indices of the rows in its tensor."""

Read = Callable[[Float[Tensor, "k c"], Int[Tensor, " k"]], Tensor]
"""(logits of some rows, the indices of their texts) -> the result for each row."""

WORTHWHILE = 0.1
"""A shared prefix is used if it saves at least this fraction of the tokens."""


# ------------------------------------------------------------------------------------------------------ whole texts


def each_text(
    model: Model,
    encoded: Sequence[Encoded],
    work: Callable[[Batch, list[int]], Sequence[Result]],
    *,
    overhead: int = OVERHEAD,
    report: Report | None = None,
) -> list[Result]:
    """Return one result per text, in order. ``work`` gets a batch and the indices of its texts."""
    return model.executor.collect(lengths(encoded), _batched(model, encoded, work), overhead=overhead, report=report)


def batches(
    model: Model, encoded: Sequence[Encoded], work: Callable[[Batch, list[int]], Result]
) -> Iterator[tuple[list[int], Result]]:
    """Yield the indices of the texts and the result of ``work``, batch by batch."""
    return model.executor.run(lengths(encoded), _batched(model, encoded, work))


def _batched(
    model: Model, encoded: Sequence[Encoded], work: Callable[[Batch, list[int]], Result]
) -> Callable[[list[int]], Result]:
    return lambda items: work(model.batch([encoded[i] for i in items]), items)


def lengths(encoded: Iterable[Encoded]) -> list[int]:
    """Return the length of each text in tokens."""
    return [len(e) for e in encoded]


def predict(model: Model, encoded: Sequence[Encoded]) -> Float[Tensor, "n c"]:
    """Return the logits of every text, on the CPU."""
    return torch.stack(each_text(model, encoded, lambda batch, _: list(forward(model, batch).logits.cpu())))


# ------------------------------------------------------------------------------------------------------ changed texts


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Rows that share a pass: their indices, the indices of their texts, and those texts as a batch."""

    rows: Int[Tensor, " k"]
    text: Int[Tensor, " k"]
    batch: Batch


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Copies of the texts of a batch: row r is text ``text[r]`` with the given changes.

    ``embeddings`` is called for one pack at a time, so thousands of rows take no memory in advance.
    """

    batch: Batch
    text: Int[Tensor, " r"]
    embeddings: Callable[[Pack], Float[Tensor, "k w d"]] | None = None
    edit_attention: RowEdit | None = None
    edit_hidden: RowEdit | None = None
    start: Start | None = None
    """States of the texts to start from."""

    @property
    def costs(self) -> list[int]:
        return self.batch.mask.sum(1)[self.text].tolist()

    def part(self, items: Sequence[int]) -> Pack:
        rows = torch.tensor(items, device=self.text.device)
        text = self.text[rows]
        width = int(self.batch.mask[text].sum(1).max())
        return Pack(rows, text, self.batch.take(text).cut(slice(width)))


def observed(model: Model, rows: Rows, target: Targets, needs: Needs) -> Iterator[tuple[Pack, Pass]]:
    """Run all rows, pack by pack: forward, and backward if gradients are needed."""

    def work(items: list[int]) -> tuple[Pack, Pass]:
        part = rows.part(items)
        result = observe(
            model,
            part.batch,
            target.take(part.text),
            needs,
            embeddings=None if rows.embeddings is None else rows.embeddings(part),
            edit_attention=_bound(rows.edit_attention, part),
            edit_hidden=_bound(rows.edit_hidden, part),
        )
        return part, result

    return (result for _, result in model.executor.run(rows.costs, work))


def answers(model: Model, rows: Rows) -> Float[Tensor, "r c"]:
    """Return the logits of all rows, in order."""

    def work(items: list[int]) -> Tensor:
        part = rows.part(items)
        return forward(
            model,
            part.batch,
            embeddings=None if rows.embeddings is None else rows.embeddings(part),
            edit_attention=_bound(rows.edit_attention, part),
            edit_hidden=_bound(rows.edit_hidden, part),
            start=None if rows.start is None else rows.start.take(part.text, part.batch.width),
        ).logits

    return in_order(len(rows.text), model.executor.run(rows.costs, work))


def attended_answers(
    model: Model, rows: Rows, last: LastAttention, weights: Callable[[Pack], Float[Tensor, "k h 1 w"]]
) -> Float[Tensor, "r c"]:
    """Return the logits of all rows, in order, given the weights of their last attention.

    Only one query of a row is run, so that a pass has room for as many rows as it has for tokens.
    """

    def work(items: list[int]) -> Tensor:
        part = rows.part(items)
        return from_attention(model, last.take(part.text, part.batch.width), weights(part))

    costs = rows.costs
    return in_order(len(costs), model.executor.run([1] * len(costs), work, held=costs))


def value(model: Model, batch: Batch, target: Targets, embeddings: Tensor | None = None) -> Float[Tensor, " b"]:
    """Return the explained number of every text, or of other embeddings; without a pass if it is already known."""
    if embeddings is None and target.value is not None:
        return target.value.float()
    texts = torch.arange(len(batch), device=batch.ids.device)
    own = None if embeddings is None else lambda part: embeddings[part.text, : part.batch.width]
    parts = observed(model, Rows(batch, texts, own), target, Needs.NOTHING)
    packs = ((part.rows.tolist(), target.take(part.text)(result.output.logits).float()) for part, result in parts)
    return in_order(len(batch), packs)


def _bound(edit: RowEdit | None, part: Pack) -> Edit | None:
    return None if edit is None else lambda site, x: edit(site, part.rows, x)


# ------------------------------------------------------------------------------------------------------ erased tokens


@dataclass(frozen=True, slots=True, eq=False)
class Erased:
    """Copies of texts with tokens erased: copy r is text ``text[r]`` without the tokens ``where[r]``."""

    text: Int[Tensor, " r"]
    where: Bool[Tensor, "r t"]

    def take(self, rows: Int[Tensor, " k"]) -> "Erased":
        return Erased(self.text[rows], self.where[rows])


def erased_values(model: Model, batch: Batch, target: Targets, rows: Erased, erase: str) -> Float[Tensor, " r"]:
    """Return the explained number of every copy."""
    return read_erased(model, batch, rows, erase, lambda logits, text: target.take(text)(logits).float())


def without_each(model: Model, batch: Batch, tokens: Bool[Tensor, "b t"], read: Read) -> Float[Tensor, "b t"]:
    """Return the result of ``read`` without each of the tokens, deleted one at a time; NaN for other tokens.

    ``read`` is given logits in double precision: the probability of an almost certain label would round to 1 otherwise,
    whichever token is deleted.
    """
    text, token = tokens.nonzero(as_tuple=True)
    values = torch.full(tokens.shape, torch.nan, dtype=torch.float64, device=tokens.device)
    if len(text):
        copies = Erased(text, torch.nn.functional.one_hot(token, batch.width).bool())
        values[text, token] = read_erased(model, batch, copies, "delete", lambda z, texts: read(z.double(), texts))
    return values


def read_erased(model: Model, batch: Batch, rows: Erased, erase: str, read: Read) -> Tensor:
    """Return the result of ``read`` for every copy, in order.

    Equal copies are run once, also across calls and across equal texts if the batch remembers them. A causal model also
    runs the shared prefix of the copies of a text only once.
    """
    rows = _same_deletions(batch, rows) if erase == "delete" else rows
    if batch.memory is None or batch.memory.model is not model:
        distinct, inverse, _ = _distinct(rows)
        return _run(model, batch, distinct, erase, read)[inverse]
    distinct, inverse, keys = _distinct(Erased(_first_equal(batch)[rows.text], rows.where))

    def run(new: list[int]) -> Float[Tensor, "n c"]:
        unknown = distinct.take(torch.tensor(new, device=distinct.text.device))
        return _run(model, batch, unknown, erase, lambda logits, _: logits)

    logits = batch.memory.recall([erase.encode() + key for key in keys], run)
    return read(logits[inverse], rows.text)


def distinct_texts(batch: Batch) -> tuple[Batch, Int[Tensor, " b"]]:
    """Return the distinct rows of a batch, and the index of each row among them."""
    kept, inverse = _first_equal(batch).unique(return_inverse=True)
    return batch.take(kept), inverse


def _first_equal(batch: Batch) -> Int[Tensor, " b"]:
    """The index of the first row that is equal to each."""
    parts = [batch.ids.masked_fill(~batch.mask, -1), *([] if batch.segments is None else [batch.segments])]
    first: dict[tuple[int, ...], int] = {}
    same = [first.setdefault(tuple(row), i) for i, row in enumerate(torch.cat(parts, 1).tolist())]
    return torch.tensor(same, device=batch.ids.device)


def _run(model: Model, batch: Batch, rows: Erased, erase: str, read: Read) -> Tensor:
    work = partial(_after_prefix if _prefix_pays_off(model, batch, rows, erase) else _whole, model, batch)
    return work(rows, erase, read)


def _distinct(rows: Erased) -> tuple[Erased, Int[Tensor, " r"], list[bytes]]:
    """The distinct rows, the index of each row among them, and a key for each. Masks are compared as bits."""
    text = rows.text.cpu().numpy().astype(np.int32)
    bits = np.packbits(rows.where.cpu().numpy(), axis=1)
    keys = np.ascontiguousarray(np.concatenate([text.view(np.uint8).reshape(len(text), 4), bits], axis=1))
    _, first, inverse = np.unique(keys.view(f"V{keys.shape[1]}")[:, 0], return_index=True, return_inverse=True)
    kept = np.sort(first)  # in the order of their first appearance
    number = np.searchsorted(kept, first)[inverse]
    device = rows.text.device
    distinct = rows.take(torch.from_numpy(kept).to(device))
    return distinct, torch.from_numpy(number).to(device), [key.tobytes() for key in keys[kept]]


def _same_deletions(batch: Batch, rows: Erased) -> Erased:
    """Rows that delete the last of equal neighbours, whichever was asked for: what remains of the text is the same.

    Run apart, both would differ by rounding, which breaks the tie between these tokens.
    """
    parts = [batch.ids, batch.mask, batch.special, *([] if batch.segments is None else [batch.segments])]
    starts = torch.ones_like(batch.mask)
    starts[:, 1:] = torch.stack([part[:, 1:] != part[:, :-1] for part in parts]).any(0)
    run = starts.cumsum(1) - 1
    length = torch.zeros_like(run).scatter_add(1, run, torch.ones_like(run)).gather(1, run)
    changed = (rows.where & (length > 1)[rows.text]).any(1).nonzero()[:, 0]
    if not len(changed):
        return rows
    text, where = rows.text[changed], rows.where.clone()
    first = torch.where(starts, torch.arange(batch.width, device=run.device), 0).cummax(1).values
    left = length - (torch.arange(batch.width, device=run.device) - first)
    deleted = torch.zeros_like(run[text]).scatter_add(1, run[text], where[changed].long()).gather(1, run[text])
    where[changed] = left[text] <= deleted
    return Erased(rows.text, where)


def _whole(model: Model, batch: Batch, rows: Erased, erase: str, read: Read) -> Tensor:
    """Run every copy as a whole."""
    remove, tokens = eraser(model, erase), batch.mask.sum(1)[rows.text]
    copies = Rows(batch, rows.text)

    def work(items: list[int]) -> Tensor:
        part = copies.part(items)
        changed, embeddings = remove(part.batch, rows.where[part.rows, : part.batch.width])
        return read(forward(model, changed, embeddings=embeddings).logits, part.text)

    costs = tokens - (rows.where.sum(1) if erase == "delete" else 0)
    return in_order(len(rows.text), model.executor.run(costs.tolist(), work))


def _prefix_pays_off(model: Model, batch: Batch, rows: Erased, erase: str) -> bool:
    """Whether the model can share a prefix, and doing so saves more than it costs."""
    if erase == "fill" or not isinstance(model, SharesPrefix) or not model.causal:
        return False
    tokens = batch.mask.sum(1)
    prefixes = tokens[rows.text.unique()].sum()
    starts = _starts(batch, rows, erase, model.tail)
    needed, total = (tokens[rows.text] - starts).sum() + prefixes, tokens[rows.text].sum()
    return bool(needed < (1 - WORTHWHILE) * total) and model.shares_prefix(batch)


def _starts(batch: Batch, rows: Erased, erase: str, tail: int) -> Int[Tensor, " r"]:
    """The number of unchanged tokens before the first erased one, for each copy; the ``tail`` is always run."""
    last = batch.mask.sum(1)[rows.text] - tail
    first = torch.where(rows.where.any(1), rows.where.int().argmax(1), last)
    # After a deletion at the end there would be nothing left to run, so one more token is run again.
    return (torch.minimum(first, last) - int(erase == "delete")).clamp(min=0)


def _after_prefix(model: Model, batch: Batch, rows: Erased, erase: str, read: Read) -> Tensor:
    """Run each copy of a causal model from its first erased token on."""
    assert isinstance(model, SharesPrefix)
    tokens, starts = batch.mask.sum(1), _starts(batch, rows, erase, model.tail)

    present = rows.text.unique()

    def work(items: list[int]) -> tuple[Tensor, Tensor]:
        own = present[items]
        copies = torch.isin(rows.text, own).nonzero()[:, 0]
        prefix = remember(model, batch.take(own).cut(slice(int(tokens[own].max()))))
        place = torch.full_like(tokens, -1).index_copy(0, own, torch.arange(len(own), device=own.device))
        resumed = _Resumed(model, batch, rows.take(copies), starts[copies], prefix, place, eraser(model, erase), read)
        return copies, resumed.run()

    done = [result for _, result in model.executor.run(tokens[present].tolist(), work)]
    return in_order(len(rows.text), ((copies.tolist(), result) for copies, result in done))


@dataclass(frozen=True, slots=True, eq=False)
class _Resumed:
    """Copies of a few texts whose keys and values are cached."""

    model: Model
    batch: Batch
    rows: Erased
    starts: Int[Tensor, " r"]
    prefix: Prefix
    place: Int[Tensor, " b"]
    """The row of the prefix for each text."""
    remove: Eraser
    read: Read

    def run(self) -> Tensor:
        tokens = self.batch.mask.sum(1)[self.rows.text]
        needed = (tokens - self.starts).tolist()
        packs = self.model.executor.run(needed, partial(self._pass, needed), held=tokens.tolist())
        return in_order(len(needed), packs)

    def _pass(self, needed: Sequence[int], items: list[int]) -> Tensor:
        """All rows of a pass start at the earliest position that any of them needs."""
        assert isinstance(self.model, SharesPrefix)
        width, part = max(needed[i] for i in items), self.rows.take(torch.tensor(items, device=self.place.device))
        begin = (self.batch.mask.sum(1)[part.text] - width).clamp(min=0)
        columns = (begin[:, None] + torch.arange(width, device=begin.device)).clamp(max=self.batch.width - 1)
        ending = self.batch.take(part.text).map(lambda tensor: tensor.gather(1, columns))
        rest, embeddings = self.remove(ending, part.where.gather(1, columns))
        place = self.place[part.text]
        return self.read(resume(self.model, self.prefix, place, begin, rest, embeddings=embeddings).logits, part.text)


def in_order(count: int, packs: Iterable[tuple[Sequence[int], Tensor]]) -> Tensor:
    """Combine the results of packs, each with the indices of its rows, into one tensor."""
    whole: Tensor | None = None
    for items, result in packs:
        whole = result.new_empty(count, *result.shape[1:]) if whole is None else whole
        whole[list(items)] = result
    assert whole is not None
    return whole
