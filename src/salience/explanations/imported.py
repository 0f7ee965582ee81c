"""Importing explanations from other tools, mapped to the tokens of a model so that they can be evaluated.

Scores are mapped by characters: the score of an imported token is divided equally among its characters, and a token of
the model gets the sum over its own characters. Sums are preserved, and any two tokenizers can be combined.
"""

import json
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load

from salience.core.rows import predict
from salience.core.target import Target
from salience.core.text import Encoded, Span, Text
from salience.core.types import Model
from salience.errors import BadInput
from salience.explanations.explainer import explain_all, prepare
from salience.explanations.explanation import Explanation
from salience.explanations.spelling import located


def carried(offsets: Sequence[Span], scores: Sequence[float], onto: Encoded) -> tuple[float, ...]:
    """Map scores of spans of the text to scores of a model's tokens.

    >>> read = Encoded("unfair", (1, 2), ("un", "fair"), ((0, 2), (2, 6)), (False, False))
    >>> carried([(0, 6)], [3.0], read)
    (1.0, 2.0)
    """
    result = [0.0] * len(onto)
    for (a, b), score in zip(offsets, scores, strict=True):
        shares = [
            0 if special else max(0, min(b, end) - max(a, start))
            for (start, end), special in zip(onto.offsets, onto.special, strict=True)
        ]
        for token, share in enumerate(shares):
            result[token] += score * share / max(1, sum(shares))
    return tuple(result)


def imported(model: Model, rows: Sequence[Mapping[str, Any]], *, name: str = "imported") -> list[Explanation]:
    """Import rows of ``text``, ``scores`` and either ``offsets`` or ``tokens``, optionally with a ``target`` label.

    ``method`` is the name of the method, ``name`` by default. ``pair_at`` is where the second text of a pair begins.
    """
    checked = [_checked(model, row, number, name) for number, row in enumerate(rows, 1)]
    encoded = model.encode([row.text for row in checked])
    scores = [carried(row.offsets, row.scores, onto) for row, onto in zip(checked, encoded, strict=True)]
    return _explanations(model, encoded, scores, [row.label for row in checked], [row.method for row in checked])


def _explanations(
    model: Model,
    encoded: Sequence[Encoded],
    scores: Sequence[Sequence[float]],
    labels: Sequence[str | int | None],
    methods: Sequence[str],
) -> list[Explanation]:
    """The model's predictions for the texts, with imported scores."""
    predictions = explain_all(model, encoded, prepare("uniform", {}), [Target(label) for label in labels])
    return [
        replace(one, scores=tuple(own), method=method, settings={})
        for (one,), own, method in zip(predictions, scores, methods, strict=True)
    ]


def by_method(model: Model, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Text], dict[str, list[Explanation]]]:
    """Return the distinct texts of such rows and their explanations by method, for :func:`salience.evaluate`."""
    explained: dict[str, dict[str, Explanation]] = {}
    for e in imported(model, rows):
        if e.text in explained.setdefault(e.method, {}):
            raise BadInput(f"two rows of {e.method} explain the same text: {e.text[:60]!r}")
        explained[e.method][e.text] = e
    texts = {e.text: text_of(e) for own in explained.values() for e in own.values()}
    for method, own in explained.items():
        if missing := [text for text in texts if text not in own]:
            raise BadInput(
                f"{method} does not explain {len(missing)} texts that others do, such as {missing[0][:60]!r}"
            )
    return list(texts.values()), {method: [own[text] for text in texts] for method, own in explained.items()}


def text_of(e: Explanation) -> Text:
    """Return the text that was explained, or the two texts of a pair."""
    return _split_pair(e.text, e.pair_at)


def _split_pair(text: str, pair_at: int | None) -> Text:
    """Split a pair into its two texts, which are joined by a line break."""
    return text if pair_at is None else (text[: pair_at - 1], text[pair_at:])


class _Row(NamedTuple):
    text: Text
    offsets: Sequence[Span]
    scores: Sequence[float]
    label: str | int | None
    method: str


def _checked(model: Model, row: Any, number: int, name: str) -> _Row:
    if not isinstance(row, Mapping):
        raise BadInput(f"row {number} is {_kind(row)}; it must be an object with text, scores and offsets or tokens")
    fields: Mapping[str, Any] = row
    text, scores = fields.get("text"), cast(Any, fields.get("scores"))
    if missing := [column for column in ("text", "scores") if column not in fields]:
        raise BadInput(f"row {number} has no {missing[0]}; its columns are {', '.join(fields)}")
    if not isinstance(text, str) or not text.strip():
        raise BadInput(f"row {number}: text must be a string that is not empty, not {text!r}")
    if not _listed(scores, _is_number):
        raise BadInput(
            f"row {number}: scores must be a list of finite numbers, one per token, without NaN, infinity or text"
        )
    spans = _spans(text, fields, number)
    if len(spans) != len(scores):
        raise BadInput(f"row {number} has {len(scores)} scores for {len(spans)} tokens; there must be one for each")
    label = _label(model, fields.get("target"), number)
    return _Row(
        _split_pair(text, fields.get("pair_at")),
        spans,
        [float(s) for s in scores],
        label,
        str(fields.get("method") or name),
    )


def _spans(text: str, row: Mapping[str, Any], number: int) -> list[Span]:
    tokens, offsets = cast(Any, row.get("tokens")), cast(Any, row.get("offsets"))
    if offsets is None and tokens is None:
        raise BadInput(f"row {number} has neither offsets nor tokens; one of them is needed to locate the scores")
    if offsets is None:
        if not _listed(tokens, lambda token: isinstance(token, str)):
            raise BadInput(f"row {number}: tokens must be a list of texts, in their order")
        try:
            return located(text, tokens)
        except BadInput as error:
            raise BadInput(f"row {number}: {error}") from error
    if not _listed(offsets, lambda span: _listed(span, _is_place) and len(span) == 2):
        raise BadInput(f"row {number}: offsets must be a list of [start, end] in characters")
    for a, b in offsets:
        if not 0 <= a <= b <= len(text):
            what = "ends before it begins" if b < a else f"lies outside its text of {len(text)} characters"
            raise BadInput(f"row {number}: the span {a} to {b} {what}")
    return [(a, b) for a, b in offsets]


def _label(model: Model, target: Any, number: int) -> str | int | None:
    label: Any = target.get("label") if isinstance(target, Mapping) else target
    if label is None:
        return None
    if isinstance(label, bool) or not isinstance(label, str | int):
        raise BadInput(f"row {number}: the target must be a label's name or number, not {label!r}")
    try:
        model.resolve(label)
    except BadInput as error:
        raise BadInput(f"row {number}: {error}") from error
    return label


def _listed(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(fits, value))  # pyright: ignore[reportUnknownArgumentType]


def _is_number(value: object) -> bool:
    """Whether it is a number that fits into a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_place(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return f"of the type {type(value).__name__}"


def from_captum(model: Model, text: str, attributions: Any, *, target: str | int | None = None) -> Explanation:
    """Import a captum attribution of the model's own tokens: a tensor of (tokens) or (tokens × dimensions)."""
    values = torch.as_tensor(attributions).detach().cpu().double()
    (encoded,) = model.encode([text])
    if values.dim() > 1 and values.shape[0] == 1:
        values = values[0]
    scores = values.sum(-1) if values.dim() == 2 else values
    if scores.shape != (len(encoded),):
        raise BadInput(f"the attributions have the shape {tuple(values.shape)}, but the text has {len(encoded)} tokens")
    return _explanations(model, [encoded], [scores.tolist()], [target], ["captum"])[0]


def from_shap(model: Model, explained: Any, *, target: str | int | None = None) -> list[Explanation]:
    """Import a SHAP ``Explanation`` of texts, as returned by ``shap.Explainer(pipeline)(texts)``.

    If it covers several labels, the values of ``target`` or of the predicted label are used; if only one, as in
    ``explained[:, :, "positive"]``, that label is the target.
    """
    alone = bool(len(explained.data)) and isinstance(explained.data[0], str)
    texts, scores = ([explained.data], [explained.values]) if alone else (explained.data, explained.values)
    rows: list[dict[str, Any]] = []
    for pieces, values in zip(texts, scores, strict=True):
        text = "".join(map(str, pieces))
        ends = list(accumulate(len(piece) for piece in pieces))
        label = _shap_label(model, text, values, getattr(explained, "output_names", None), target)
        column = values if values.ndim == 1 else values[:, model.resolve(label)]
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        rows.append({"text": text, "offsets": spans, "scores": column.tolist(), "target": label})
    return imported(model, rows, name="shap")


def _shap_label(model: Model, text: str, values: Any, names: Any, target: str | int | None) -> str | int:
    """Return the label of the values: the target, the only label, or the predicted one."""
    if target is not None:
        return target
    if values.ndim == 1 and isinstance(names, str) and names in model.labels:
        return str(names)
    return int(predict(model, model.encode([text])).argmax(1))


def from_inseq(model: Model, source: str | Path | Mapping[str, Any]) -> list[Explanation]:
    """Import the JSON that inseq saves for a decoder-only model: the scores of the prompt for the first new token.

    Scores with an embedding dimension are summed over it; call ``out.aggregate()`` before saving to choose otherwise.
    """
    stored = _plain(source if isinstance(source, Mapping) else json.loads(Path(source).read_text("utf-8")))
    method = f"inseq_{stored['info']['attribution_method']}"
    return [
        _from_inseq(model, sequence, text, method)
        for sequence, text in zip(stored["sequence_attributions"], stored["info"]["generated_texts"], strict=True)
    ]


def _from_inseq(model: Model, sequence: Mapping[str, Any], text: str, method: str) -> Explanation:
    if sequence["source_attributions"] is not None:
        raise BadInput("this inseq attribution is of an encoder-decoder model, which is not supported")
    if sequence["target_attributions"] is None:
        raise BadInput("this inseq attribution has no scores of the prompt; attribute a decoder-only model")
    (attributions,) = load(b64decode(sequence["target_attributions"])).values()
    new = int(sequence["attr_pos_start"])
    first = attributions[:new, 0].double()
    scores = (first.sum(-1) if first.dim() == 2 else first).tolist()
    prompt = sequence["target"][:new]
    spans = located(text, [token["token"] for token in prompt])
    (encoded,) = model.encode([text[: max((end for _, end in spans), default=0)]])
    same = list(encoded.ids) == [token["id"] for token in prompt]
    own = scores if same else carried(spans, scores, encoded)
    return _explanations(model, [encoded], [own], [sequence["target"][new]["id"]], [method])[0]


def _plain(value: Any) -> Any:
    """Remove the class names that inseq adds to its JSON."""
    if isinstance(value, Mapping):
        attributes: Any = value.get("attributes", value) if "__instance_type__" in value else value
        return {key: _plain(v) for key, v in attributes.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def read_file(path: str | Path) -> list[dict[str, Any]]:
    """Read the rows of a JSON Lines or Parquet file of explanations."""
    file = Path(path)
    if not file.is_file():
        raise BadInput(f"there is no file {file}")
    try:
        rows = pq.read_table(file).to_pylist() if file.suffix == ".parquet" else _lines(file)
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise BadInput(f"{file} cannot be read as {file.suffix or 'JSON Lines'} in UTF-8: {error}") from error
    if not rows:
        raise BadInput(f"{file} holds no explanation")
    return rows


def _lines(file: Path) -> list[dict[str, Any]]:
    lines = enumerate(file.read_text("utf-8").split("\n"), 1)
    return [_line(line, number, file) for number, line in lines if line.strip()]


def _line(line: str, number: int, file: Path) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BadInput(f"line {number} of {file} is not JSON: {error}") from error
