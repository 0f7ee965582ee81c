"""What the logits of a transformer stand for: the labels of a classifier, or every token that may come next."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from salience.core.executor import lock_of
from salience.core.types import Link
from salience.errors import BadInput, UnsupportedModel, unknown


@dataclass(frozen=True, eq=False)
class Classes:
    """The labels of a classifier, by its configuration."""

    config: Any
    name: str
    """Of the model, for messages."""

    @cached_property
    def labels(self) -> Sequence[str]:
        names: Any = self.config.id2label
        if set(names) != set(range(len(names))):
            raise UnsupportedModel(
                f"the labels of {self.name} are numbered {list(names)}; expected 0 to {len(names) - 1}"
            )
        labels = [str(names[i]) for i in range(len(names))]
        # Results are kept by name, so labels of the same name are numbered.
        return tuple(f"{name} {i}" if labels.count(name) > 1 else name for i, name in enumerate(labels))

    @property
    def link(self) -> Link:
        problem = self.config.problem_type
        if problem == "multi_label_classification":
            return "sigmoid"
        return "identity" if problem == "regression" or len(self.labels) == 1 else "softmax"

    def resolve(self, label: str | int) -> int:
        if isinstance(label, int):
            return _checked(label, len(self.labels), self.name)
        folded = [name.casefold() for name in self.labels]
        if folded.count(label.casefold()) == 1:
            return folded.index(label.casefold())
        if label.isdecimal():
            return self.resolve(int(label))
        raise BadInput(unknown(label, self.labels, "label", self.name))

    def label(self, index: int) -> str:
        return self.labels[index]


@dataclass(frozen=True, eq=False)
class NextToken:
    """The vocabulary of a language model."""

    tokenizer: PreTrainedTokenizerBase
    size: int
    name: str
    """Of the model, for messages."""

    @cached_property
    def labels(self) -> Sequence[str]:
        return self.tokenizer.convert_ids_to_tokens(list(range(self.size)))

    @property
    def link(self) -> Link:
        return "softmax"

    def resolve(self, label: str | int) -> int:
        """Find a token by number or text; the form with a leading space is preferred, as it continues a text."""
        if isinstance(label, int):
            return _checked(label, self.size, self.name)
        for form in (f" {label.lstrip()}", label):
            with lock_of(self.tokenizer):
                ids = self.tokenizer.encode(form, add_special_tokens=False)
            if len(ids) == 1:
                return int(ids[0])
        pieces = self.tokenizer.tokenize(label)
        raise BadInput(
            f"{label!r} is {len(pieces)} tokens for this tokenizer ({' '.join(pieces)}); the target of a language "
            f"model is one next token, for example {self.tokenizer.decode([ids[0]])!r}"
        )

    def label(self, index: int) -> str:
        # Decoded twice, a token shows its leading space, which some tokenizers drop at the start of a text.
        once, twice = (str(self.tokenizer.decode([index] * times)) for times in (1, 2))
        text = twice[len(once) :]
        # A part of a character has no text of its own, so its token is the name.
        return self.labels[index] if not text or "\ufffd" in text else text


def _checked(number: int, count: int, name: str) -> int:
    """Return the number of a label, if there is one of this number."""
    if 0 <= number < count:
        return number
    raise BadInput(f"there is no label number {number}: {name} has {count}, numbered from 0")
