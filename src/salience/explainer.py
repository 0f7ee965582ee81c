"""Orchestration: encode, batch, run the methods, make Explanations."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple, cast, get_args

import torch
from torch import Tensor

from salience import batching, methods
from salience.errors import BadInput, BadModel, choose, unknown
from salience.explanation import ExplainedTarget, Explanation
from salience.passes import Needs, OnePass, observe
from salience.settings import check, plain, settings_of
from salience.types import Attribution, Encoded, Kind, Model, Output, Target, Targets, Text, on_scale

AnyMethod = str | Callable[..., Any]
Wanted = Target | Sequence[Target]
"""One for all texts, or one for each; they differ in their labels alone."""

SHOWN = 5
"""How many next tokens of a language model are listed with their probabilities."""


def explain(
    model: Model,
    texts: Text | Sequence[Text],
    method: AnyMethod | Sequence[AnyMethod] = "integrated_gradients",
    *,
    target: Target | str | int | Sequence[str | int | None] | None = None,
    against: str | int | None = None,
    kind: str = "logit",
    **settings: Any,
) -> list[Explanation]:
    """Explain one or many texts by one or many methods; texts in order, and for each the methods in order.

    ``method`` is a name, a function with the shape of a method, or a list of them. Settings go to every method that
    takes them, or to one of them as ``{"lime.samples": 200}``; one that no method takes is an error. Methods that read
    one pass share it. ``target`` is a label, or a list with the label of each text; without one, what is predicted.

    >>> explain(model, "A fine film.", "integrated_gradients", target="positive")       # doctest: +SKIP
    """
    many: list[Text] = [cast(Text, texts)] if isinstance(texts, str | tuple) else list(texts)
    if isinstance(target, str | int | Target | None):
        wanted: Wanted = as_target(target, against, kind)
    else:
        wanted = _for_each(target, len(many), against, kind)
    rows = explain_each(model, many, prepare(method, settings), wanted, window=max(1, len(many)))
    return [explanation for row in rows for explanation in row]


def explain_each(
    model: Model, texts: Sequence[Text], asked: Sequence["Asked"], target: Wanted, *, window: int
) -> Iterator[list[Explanation]]:
    """The same, text by text as they are done: ``window`` texts at a time are packed into batches."""
    each = each_layer(model, asked)
    encoded = model.encode(texts)
    for start in range(0, len(encoded), window):
        part = encoded[start : start + window]
        own = _of(target, range(start, start + len(part)))
        yield from explain_all(model, part, each, own)


def explain_all(
    model: Model,
    encoded: Sequence[Encoded],
    asked: Sequence["Asked"],
    target: Wanted,
    *,
    report: Callable[[int, int], None] | None = None,
) -> list[list[Explanation]]:
    """The explanations of every text, in order. ``report`` is told how many are done, and of how many."""
    found: dict[int, list[Explanation]] = {}
    for batch in explain_encoded(model, encoded, asked, target):
        found |= batch
        if report is not None:
            report(len(found), len(encoded))
    return [found[i] for i in range(len(encoded))]


def explain_encoded(
    model: Model, encoded: Sequence[Encoded], asked: Sequence["Asked"], target: Wanted
) -> Iterator[dict[int, list[Explanation]]]:
    """Explanations by the number of their text, batch by batch; in smaller batches once memory has run out."""
    batches = _packed(model, encoded, range(len(encoded)))
    while batches:
        rows = batches.popleft()
        found = _in_memory(model, [encoded[i] for i in rows], asked, _of(target, rows))
        if found is None:
            batches = _packed(model, encoded, [i for batch in (rows, *batches) for i in batch])
        else:
            yield dict(zip(rows, found, strict=True))


def _packed(model: Model, encoded: Sequence[Encoded], rows: Sequence[int]) -> deque[list[int]]:
    packs = batching.pack([len(encoded[i]) for i in rows], model.budget)
    return deque([rows[i] for i in pack] for pack in packs)


def _in_memory(
    model: Model, encoded: Sequence[Encoded], asked: Sequence["Asked"], target: Wanted
) -> list[list[Explanation]] | None:
    """Explanations of one batch; None, and half the budget from now on, if memory runs out."""
    try:
        return explain_batch(model, encoded, asked, target)
    except (RuntimeError, MemoryError) as error:
        if not batching.ran_out(error):
            raise
        longest = max(map(len, encoded))
        if model.budget <= longest:
            raise BadModel(
                f"memory does not hold one pass of {model.name} over a text of {longest} tokens. Free some memory, "
                "shorten the text, or load the model in half precision (dtype='bfloat16')."
            ) from error
        model.budget = max(longest, model.budget // 2)
        return None


@dataclass(frozen=True, slots=True)
class Asked:
    """A method with the settings it is to run with, defaults included."""

    method: Callable[..., Any]
    settings: Mapping[str, Any]


def prepare(method: AnyMethod | Sequence[AnyMethod], settings: Mapping[str, Any]) -> list[Asked]:
    """Names to functions, with their settings; all that can be checked before a model is there is checked."""
    functions = [methods.find(m) if isinstance(m, str) else m for m in listed(method)]
    if not functions:
        raise BadInput("no method was given; `salience methods` lists them")
    shared = {name for f in functions for name in settings_of(f)}
    own = {f"{_name(f)}.{name}" for f in functions for name in settings_of(f)}
    for key in settings:
        known = own if "." in key else shared
        if key not in known:
            names = ", ".join(map(_name, functions))
            raise BadInput(
                unknown(key, sorted(known), f"setting of {names}") if known else f"{names} takes no settings"
            )
    return [_with_settings(f, settings) for f in functions]


def _with_settings(method: Callable[..., Any], settings: Mapping[str, Any]) -> Asked:
    """Defaults, then what is set for all methods, then what is set for this one as ``method.setting``."""
    taken = settings_of(method)
    function = method.func if isinstance(method, partial) else method
    chosen = {name: p.default for name, p in taken.items()}
    for prefix in ("", f"{_name(method)}."):
        chosen |= {name: settings[prefix + name] for name in taken if prefix + name in settings}
    for name, value in chosen.items():
        check(function, name, value)
    return Asked(function, {name: plain(value) for name, value in chosen.items()})


def each_layer(model: Model, asked: Sequence[Asked]) -> list[Asked]:
    """``layer="all"`` becomes one entry per layer."""
    return [one for a in asked for one in _layers(model, a)]


def _layers(model: Model, asked: Asked) -> list[Asked]:
    if asked.settings.get("layer") != "all":
        return [asked]
    # Hidden states are numbered from 0, the embeddings; attention is numbered from 1.
    first = 0 if Needs.HIDDEN in getattr(asked.method, "needs", Needs.NOTHING) else 1
    return [Asked(asked.method, {**asked.settings, "layer": n}) for n in range(first, model.layers + 1)]


def _name(function: Callable[..., Any]) -> str:
    return _name(function.func) if isinstance(function, partial) else function.__name__


def explain_batch(
    model: Model, encoded: Sequence[Encoded], asked: Sequence[Asked], target: Wanted
) -> list[list[Explanation]]:
    """Explanations of the texts of one batch, a list per text. One-pass methods share their pass."""
    batch = model.batch(encoded)
    needs = reduce(or_, (a.method.needs for a in asked if isinstance(a.method, OnePass)), Needs.NOTHING)
    shared = observe(model, batch, partial(targets, model, target), needs)
    results = [
        a.method.read(shared, **a.settings)
        if isinstance(a.method, OnePass)
        else a.method(model, batch, shared.target, **a.settings)
        for a in asked
    ]
    said = _said(model, shared.output, shared.target)
    made = [list(_explanations(model, encoded, said, a, r)) for a, r in zip(asked, results, strict=True)]
    return [list(row) for row in zip(*made, strict=True)]


def listed(method: AnyMethod | Sequence[AnyMethod]) -> tuple[AnyMethod, ...]:
    """One method or many, as many."""
    return (method,) if isinstance(method, str) or callable(method) else tuple(method)


def as_target(target: Target | str | int | None, against: str | int | None, kind: str) -> Target:
    """A Target, or what it is made of."""
    return target if isinstance(target, Target) else Target(target, against, scale(kind))


def scale(kind: str) -> Kind:
    """A scale by its name, checked."""
    return cast(Kind, choose(kind, get_args(Kind), "kind"))


def _for_each(labels: Sequence[str | int | None], texts: int, against: str | int | None, kind: str) -> list[Target]:
    if len(labels) != texts:
        raise BadInput(f"target lists {len(labels)} labels for {texts} texts; give one label, or one for each text")
    return [as_target(label, against, kind) for label in labels]


def _of(target: Wanted, rows: Sequence[int]) -> Wanted:
    return target if isinstance(target, Target) else [target[i] for i in rows]


def targets(model: Model, target: Wanted, logits: Tensor) -> Targets:
    """A Target for every row: the predicted label where none is named."""
    some = target if isinstance(target, Target) else target[0]
    if model.link == "identity" and some.kind != "logit":
        raise BadInput(
            f"{model.name} is a regression model: its output is a number, not a probability; use kind='logit'"
        )
    named = [target.label] if isinstance(target, Target) else [one.label for one in target]
    labels = _columns(model, named, logits)
    against = None if some.against is None else _columns(model, [some.against], logits)
    if against is not None and bool((labels == against).any()):
        raise BadInput(_held_against_itself(model.label(int(against[0])), named=some.label is not None))
    found = Targets(labels, against, scale(some.kind), model.link)
    return replace(found, value=found(logits))


def _columns(model: Model, labels: Sequence[str | int | None], logits: Tensor) -> Tensor:
    """The column of each row's label, of which there is one for all rows or one for each."""
    found = [-1 if label is None else model.resolve(label) for label in labels]
    columns = torch.tensor(found, device=logits.device).expand(len(logits))
    return torch.where(columns < 0, logits.argmax(1), columns) if None in labels else columns


def _held_against_itself(label: str, *, named: bool) -> str:
    if named:
        return f"target and against are both {label!r}: their difference is always 0"
    return (
        f"a text is predicted {label!r}, which it is also held against: the difference is always 0. Name the target, "
        "or leave out against"
    )


class _Said(NamedTuple):
    """What the model said of one text, whatever method explains it."""

    target: ExplainedTarget
    value: float
    probabilities: dict[str, float]


def _said(model: Model, output: Output, target: Targets) -> list[_Said]:
    values = target(output.logits).tolist()
    probabilities = on_scale(output.logits, "probability", model.link)
    return [
        _Said(_named(model, target, row), value, _probabilities(model, probabilities[row], target, row))
        for row, value in enumerate(values)
    ]


def _explanations(
    model: Model, encoded: Sequence[Encoded], said: Sequence[_Said], asked: Asked, result: Tensor | Attribution
) -> Iterator[Explanation]:
    found = result if isinstance(result, Attribution) else Attribution(result)
    scores = _finite(found.scores, asked, model).cpu().double().tolist()
    for row, (text, of) in enumerate(zip(encoded, said, strict=True)):
        yield Explanation(
            text=text.text,
            tokens=text.tokens,
            offsets=text.offsets,
            special=text.special,
            scores=tuple(scores[row][: len(text)]),
            target=of.target,
            value=of.value,
            probabilities=dict(of.probabilities),
            method=asked.method.__name__,
            settings={k: _plain(v, row) for k, v in {**asked.settings, **found.settings}.items()},
            model=model.name,
            gaps={k: float(v[row]) for k, v in found.gaps.items()},
            pair_at=text.pair_at,
            unseen=text.unseen,
        )


def _finite(scores: Tensor, asked: Asked, model: Model) -> Tensor:
    if not bool(scores.isfinite().all()):
        raise BadModel(
            f"{asked.method.__name__} of {model.name} came out NaN or infinite. Half precision is the usual cause: its "
            "gradients overflow where the logits do not (load the model with dtype='float32')."
        )
    return scores


def _named(model: Model, target: Targets, row: int) -> ExplainedTarget:
    against = None if target.against is None else model.label(int(target.against[row]))
    column = int(target.labels[row])
    return ExplainedTarget(model.label(column), against, target.kind, column)


def _probabilities(model: Model, row: Tensor, target: Targets, index: int) -> dict[str, float]:
    """All labels, or for a vocabulary the likeliest few and those that were asked for."""
    if len(row) <= 1000:
        return {model.label(c): p for c, p in enumerate(row.tolist())}
    asked = [t[index : index + 1] for t in (target.labels, target.against) if t is not None]
    columns = dict.fromkeys(torch.cat([row.topk(SHOWN).indices, *asked]).tolist())
    return {model.label(c): float(row[c]) for c in columns}


def _plain(value: Any, row: int) -> Any:
    if isinstance(value, Tensor):
        return value[row].item()
    return value if isinstance(value, str | int | float | bool | list | tuple | None) else str(value)
