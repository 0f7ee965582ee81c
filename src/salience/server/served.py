"""The models of a server, loaded at its start; no others can be asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from salience.core.types import Model
from salience.errors import BadInput, choose
from salience.explanations.explainer import default_method
from salience.explanations.explanation import LABELS
from salience.generation.explaining import ANSWER_METHODS
from salience.generation.matrices import MATRIX_METHODS
from salience.generation.translating import TRANSLATION
from salience.methods import METHODS
from salience.methods.learned import BESIDE
from salience.models.files import folder_of
from salience.models.huggingface.encoder_decoder import EncoderDecoder
from salience.models.rationale import Rationale
from salience.models.seq2seq import Seq2Seq
from salience.server.schemas import ServedModel

ModelKind = Literal["classifier", "regression", "language model", "encoder-decoder"]


@dataclass(frozen=True, slots=True)
class Served:
    """Models by the names they were given at the start."""

    models: Mapping[str, Model]

    def __post_init__(self) -> None:
        if not self.models:
            raise BadInput("no model to serve; name at least one")

    def name(self, asked: str | None) -> str:
        """The name of a served model; the first one by default."""
        return next(iter(self.models)) if asked is None else choose(asked, self.models, "model")

    def classifier(self, asked: str | None) -> str:
        """The name of a served model that predicts a label or a token; the first such one by default."""
        return self._of(asked, [name for name, model in self.models.items() if predicts(model)], "a prediction")

    def answering(self, asked: str | None) -> str:
        """The name of a served model that answers with a text; the first such one by default."""
        return self._of(asked, [name for name, model in self.models.items() if answering(model)], "an answer")

    def _of(self, asked: str | None, names: list[str], what: str) -> str:
        if not names:
            raise BadInput(f"no served model has {what}; start the server with one: salience serve --model NAME")
        if asked is not None and self.name(asked) not in names:
            raise BadInput(f"{asked} has not {what}; choose {' or '.join(names)}")
        return names[0] if asked is None else asked

    def described(self) -> list[ServedModel]:
        return [_described(name, model) for name, model in self.models.items()]


def kind(model: Model) -> ModelKind:
    if isinstance(model, EncoderDecoder | Seq2Seq):
        return "encoder-decoder"
    if getattr(model, "generates", False):
        return "language model"
    return "regression" if model.link == "identity" else "classifier"


def answering(model: Model) -> bool:
    """Whether it answers with a text."""
    return kind(model) in ("language model", "encoder-decoder")


def predicts(model: Model) -> bool:
    """Whether it predicts one label or token of a text."""
    return kind(model) != "encoder-decoder"


FAMILIES = {
    "gradients": ("gradient", "path"),
    "propagation": ("propagation",),
    "leaving words out": ("perturbation", "shapley"),
    "attention": ("attention",),
    "states": ("relevance", "layers"),
    "learned": ("learned",),
    "controls": ("control",),
}
"""The methods of a model in groups, by the modules that define them."""

TOKEN_TO_TOKEN = ("attention_rollout", "attention_flow", "attention_relevance", "value_zeroing")
"""The methods that follow attention from token to token, which a single query does not have."""


def families() -> dict[str, list[str]]:
    """The names of all methods in groups."""
    modules = {m.__name__: m.__module__.rpartition(".")[2] for m in METHODS}
    return {name: [m for m in modules if modules[m] in own] for name, own in FAMILIES.items()}


def method_names(model: Model) -> list[str]:
    """The methods that explain its predictions or, of an encoder-decoder, its answers."""
    if not predicts(model):
        return answer_methods(model)
    missing = {*_missing_attention(model), *_missing_learned(model)}
    return [m.__name__ for m in METHODS if m.__name__ not in missing]


def _missing_attention(model: Model) -> Sequence[str]:
    return TOKEN_TO_TOKEN if model.single_query else ["attention_x_relevance"]


def _missing_learned(model: Model) -> list[str]:
    """The methods that read what was learned beforehand, where nothing was."""
    gates = (folder_of(model.name) / BESIDE).is_dir()
    return [*([] if gates else ["diff_mask"]), *([] if isinstance(model, Rationale) else ["selection"])]


def answer_methods(model: Model) -> list[str]:
    """The methods that explain its answers, the default first."""
    own, default = (
        (MATRIX_METHODS, TRANSLATION) if isinstance(model, Seq2Seq) else (ANSWER_METHODS, default_method(model))
    )
    return sorted((m.__name__ for m in own), key=lambda name: name != default)


def _described(name: str, model: Model) -> ServedModel:
    labels = list(model.labels) if predicts(model) and not answering(model) else []
    layers = model.layers if predicts(model) else 0
    return ServedModel(name=name, kind=kind(model), labels=labels[:LABELS], layers=layers, methods=method_names(model))
