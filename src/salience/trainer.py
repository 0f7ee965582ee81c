"""transformers' Trainer with explanations: it stands where Trainer stands, and the data set has one more column."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, Trainer

from salience.errors import BadInput, BadModel
from salience.models.huggingface import HuggingFace
from salience.objectives import Lesson, Objective, known
from salience.types import Batch

COLUMN = "explanation"
"""Of the data set: one weight per token, as :func:`salience.lessons.shaped` makes them."""


class SalienceTrainer(Trainer):
    """``Trainer`` whose loss is L_task + λ · penalty.

    The data set has, beside ``input_ids`` and ``labels``, the column ``explanation`` with one weight for each token. A
    row without one learns the task alone. ``processing_class`` is the tokenizer.

    >>> SalienceTrainer(model, args, train_dataset=data, processing_class=tokenizer,
    ...                 objective=Objective(attention_to_explanation, weight=1.0)).train()      # doctest: +SKIP
    """

    def __init__(self, *args: Any, objective: Objective, **options: Any) -> None:
        super().__init__(*args, **options)
        if not isinstance(self.processing_class, PreTrainedTokenizerBase):
            raise BadInput("SalienceTrainer needs the tokenizer: give it as processing_class")
        if self.args.label_smoothing_factor or self.compute_loss_func is not None:
            raise BadInput(
                "SalienceTrainer's loss is its objective's: leave out label_smoothing_factor and loss functions"
            )
        self.objective = objective
        self.data_collator = _Collator(self.data_collator)
        self.adapter = HuggingFace(self._plain(self.model), self.processing_class, type(self.model).__name__)
        # Its means are those of each batch, so the trainer divides by the number of accumulated ones itself.
        self.model_accepts_loss_kwargs = False
        self._told: list[tuple[float, float]] = []

    def _plain(self, model: Any) -> Any:
        return self.accelerator.unwrap_model(model)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: Any = self._signature_columns
        if COLUMN not in columns:
            columns.append(COLUMN)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> Any:
        """The objective on one forward pass, through whatever the model is wrapped in."""
        self.adapter.module, self.adapter.call = self._plain(model), model
        with torch.set_grad_enabled(torch.is_grad_enabled() or self.objective.penalty is not None):
            lesson = self._lesson(inputs)
            terms = self.objective(lesson)
        step = self.state.global_step
        weight = self.objective.weight_at(min(1.0, step / max(1, self.state.max_steps - 1)))
        task = terms.task / known(lesson).sum().clamp_min(1)
        penalty = terms.penalty / lesson.guided.sum().clamp_min(1)
        loss = task + weight * penalty
        if model.training:
            self._told.append((float(penalty.detach()), weight))
            if not bool(torch.isfinite(loss)):
                raise BadModel(
                    f"the loss is not a number at step {step + 1} of {self.state.max_steps}. Checkpoints in "
                    f"{self.args.output_dir} are kept. A lower rate or a smaller weight usually helps."
                )
        return (loss, {"loss": loss, "logits": lesson.output.logits}) if return_outputs else loss

    def _lesson(self, inputs: Mapping[str, Any]) -> Lesson:
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        if not bool(mask[:, 0].all()):
            raise BadInput("texts are padded on the left; set tokenizer.padding_side = 'right'")
        special = torch.isin(ids, self._special.to(ids.device)) | ~mask
        batch = Batch(ids, mask, special, inputs.get("token_type_ids"))
        attention = None if self.objective.penalty is None else "differentiable"
        output = self.adapter(batch, attention=attention)
        labels = _labels(inputs["labels"], self.adapter)
        return Lesson(self.adapter, batch, output, labels, inputs[COLUMN].to(output.logits) * ~special)

    @property
    def _special(self) -> Tensor:
        tokenizer = self.adapter.tokenizer
        return torch.tensor([i for i in tokenizer.all_special_ids if i != tokenizer.unk_token_id])

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """What Trainer logs, with the penalty and λ since the last time."""
        if "loss" in logs and self._told:
            means = [sum(values) / len(self._told) for values in zip(*self._told, strict=True)]
            logs |= dict(zip(("penalty", "penalty_weight"), means, strict=True))
            self._told = []
        super().log(logs, *args, **options)


def _labels(labels: Tensor, model: HuggingFace) -> Tensor:
    """As a lesson has them: columns for one label, and otherwise the shape of the logits."""
    if model.link == "softmax":
        if labels.dim() > 1:
            raise BadInput(
                "each text has several labels, but the model learns one: set problem_type to "
                "'multi_label_classification' in its configuration"
            )
        return labels
    return labels.reshape(len(labels), -1)


class _Collator:
    """Pads explanations like the tokens that they belong to; the rest is left to the collator it stands for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        given = [feature.get(COLUMN) for feature in features]
        batch = dict(self.inner([{k: v for k, v in feature.items() if k != COLUMN} for feature in features]))
        mask: Tensor = batch["attention_mask"]
        padded = torch.zeros(mask.shape, dtype=torch.float32)
        for row, (weights, real) in enumerate(zip(given, mask.bool(), strict=True)):
            if weights is None:
                continue
            if len(weights) != int(real.sum()):
                raise BadInput(
                    f"a row has {len(weights)} weights in its column {COLUMN!r} and {int(real.sum())} tokens; explain "
                    "with the tokenizer, and the truncation, that the data set was made with"
                )
            padded[row, real] = torch.as_tensor(weights, dtype=torch.float32)
        return {**batch, COLUMN: padded}
