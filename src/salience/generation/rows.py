"""The prompts of a data set's rows, and their answers: given, or generated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from salience.core.prompts import Prompt
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data import Row, Source
from salience.data.prompts import prompt_reader
from salience.errors import BadInput
from salience.generation.explaining import LanguageModel, as_language_model


def check_columns(model: LanguageModel, source: Source, generation: Mapping[str, Any]) -> None:
    """Raise for columns that are not those of prompts and answers, and for unknown settings of generation."""
    if source.pair is not None:
        raise BadInput("a prompt is one text; leave out the column of second texts (pair)")
    if source.against is not None and source.target is None:
        raise BadInput("an answer is compared with another only if it is given; name the column of answers (target)")
    if source.target is None:
        model.generation_settings(**generation)


def generated_by(
    model: LanguageModel, source: Source | None, generation: Mapping[str, Any]
) -> dict[str, object] | None:
    """The settings that the answers are generated with; None if the data give the answers."""
    return None if source is not None and source.target else model.generation_settings(**generation)


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks a model the prompts of rows. ``generation`` are settings of generate; a row with an answer needs none."""

    model: LanguageModel
    generation: Mapping[str, Any]
    read: Callable[[Row], Prompt]

    def prompt(self, row: Row) -> Encoded:
        """The prompt. All that could be wrong with it and its answers is found here, where the row can be rejected."""
        prompt = self.model.encode_prompt(self.read(row))
        if row.target is None:
            self._check_room(prompt)
        else:
            self.model.encode_answer(prompt, _answer(row))
        if row.against is not None:
            self.model.encode_answer(prompt, row.against)
        return prompt

    def _check_room(self, prompt: Encoded) -> None:
        if prompt.segments is not None:  # the answer of an encoder-decoder does not continue the prompt
            return
        new = int(self.generation["max_new_tokens"])
        if len(prompt) + new > self.model.window:
            raise BadInput(
                f"the prompt has {len(prompt):,} tokens, which leaves no room for an answer of {new:,} in the "
                f"{self.model.window:,} that {self.model.name} can read; shorten it, or generate fewer tokens"
            )

    def answers(self, rows: Sequence[Row], prompts: Sequence[Encoded]) -> list[Encoded]:
        """The answers to the prompts of rows."""
        if rows[0].target is None:
            return self.model.generate(prompts, **self.generation)
        return [self.model.encode_answer(prompt, _answer(row)) for row, prompt in zip(rows, prompts, strict=True)]

    def against(self, row: Row, prompt: Encoded) -> Encoded | None:
        """The answer that a row's own is compared with, if there is one."""
        return None if row.against is None else self.model.encode_answer(prompt, row.against)


def asking(model: Model, source: Source | None, generation: Mapping[str, Any]) -> Asking:
    """Return what asks a model the prompts of a source."""
    return Asking(as_language_model(model), generation, prompt_reader(source))


def _answer(row: Row) -> str:
    if isinstance(row.target, str):
        return row.target
    raise BadInput(f"its answer is {row.target!r}; expected a text")
