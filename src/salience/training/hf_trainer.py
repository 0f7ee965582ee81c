"""A drop-in replacement for transformers' Trainer that trains with explanations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, Trainer

from salience.core.types import Batch
from salience.errors import BadInput, Diverged
from salience.models.huggingface import HuggingFace
from salience.training.objectives import Objective, Step

COLUMN = "explanation"
"""The data set column with one weight per token, as returned by :func:`salience.training.guides.shaped`."""


class SalienceTrainer(Trainer):
    """``Trainer`` whose loss is L_task + λ · penalty.

    In addition to ``input_ids`` and ``labels``, the data set has a column ``explanation`` with one weight per token.
    Rows without an explanation contribute to the task loss only. ``processing_class`` must be the tokenizer.

    >>> SalienceTrainer(model, args, train_dataset=data, processing_class=tokenizer,
    ...                 objective=regularised(attention_to_explanation, weight=1.0)).train()      # doctest: +SKIP
    """

    def __init__(self, *args: Any, objective: Objective, **options: Any) -> None:
        super().__init__(*args, **options)
        if not isinstance(self.processing_class, PreTrainedTokenizerBase):
            raise BadInput("SalienceTrainer needs a tokenizer; pass it as processing_class")
        if self.args.label_smoothing_factor or self.compute_loss_func is not None:
            raise BadInput(
                "SalienceTrainer takes its loss from the objective; leave out label_smoothing_factor and "
                "compute_loss_func"
            )
        if objective.ascents:
            raise BadInput(
                f"the weight of {next(iter(objective.ascents))} changes after every step, which only salience.fit does"
            )
        self.objective = objective
        self.data_collator = _Collator(self.data_collator)
        self.adapter = HuggingFace(self._plain(self.model), self.processing_class, type(self.model).__name__)
        # The loss is a mean over each batch, so Trainer must divide by the number of accumulated batches.
        self.model_accepts_loss_kwargs = False
        self._logged: list[tuple[float, float]] = []

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
        """Compute the objective on one forward pass of the (possibly wrapped) model."""
        adapter = replace(self.adapter, call=model)
        with torch.set_grad_enabled(torch.is_grad_enabled() or bool(self.objective.penalties)):
            step = self._step(inputs, adapter)
            terms = self.objective(step)
        done, counts = self.state.global_step, self.objective.counts(step.labels, step.guide)
        weights = self.objective.weights_at(min(1.0, done / max(1, self.state.max_steps - 1)))
        means = {name: total / max(1, counts[name]) for name, total in terms.items()}
        loss = sum((weights[name] * mean for name, mean in means.items()), step.output.logits.new_zeros(()))
        if model.training:
            self._record(means, weights)
            if not bool(torch.isfinite(loss)):
                raise Diverged(
                    f"the loss is not a number at step {done + 1} of {self.state.max_steps}. Checkpoints in "
                    f"{self.args.output_dir} are kept. A lower learning rate or a smaller weight usually helps."
                )
        return (loss, {"loss": loss, "logits": step.output.logits}) if return_outputs else loss

    def _record(self, means: Mapping[str, Tensor], weights: Mapping[str, float]) -> None:
        """Remember the penalties and their weights for the next log entry."""
        names = [term.name for term in self.objective.penalties]
        self._logged.append((sum(float(means[n].detach()) for n in names), sum(weights[n] for n in names)))

    def _step(self, inputs: Mapping[str, Any], adapter: HuggingFace) -> Step:
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        if not bool(mask[:, 0].all()):
            raise BadInput(
                "texts are padded on the left, but right padding is needed; set tokenizer.padding_side = 'right'"
            )
        special = torch.isin(ids, self._special.to(ids.device)) | ~mask
        batch = Batch(ids, mask, special, inputs.get("token_type_ids"))
        guide = inputs[COLUMN].to(torch.promote_types(adapter.words.weight.dtype, torch.float32)) * ~special
        return self.objective.step(adapter, batch, _labels(inputs["labels"], adapter), guide)

    @property
    def _special(self) -> Tensor:
        tokenizer = self.adapter.tokenizer
        return torch.tensor([i for i in tokenizer.all_special_ids if i != tokenizer.unk_token_id])

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Add the mean penalty and λ since the last log entry to Trainer's log."""
        if "loss" in logs and self._logged:
            means = [sum(values) / len(self._logged) for values in zip(*self._logged, strict=True)]
            logs |= dict(zip(("penalty", "penalty_weight"), means, strict=True))
            self._logged = []
        super().log(logs, *args, **options)


def _labels(labels: Tensor, model: HuggingFace) -> Tensor:
    """The labels as :class:`Step` needs them: columns, or the shape of the logits."""
    if model.link == "softmax":
        if labels.dim() > 1:
            raise BadInput(
                "each text has several labels, but the model predicts one. Set problem_type to "
                "'multi_label_classification' in its configuration."
            )
        return labels
    return labels.reshape(len(labels), -1)


class _Collator:
    """Wraps a collator and pads explanations in the same way as their tokens."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        explanations = [feature.get(COLUMN) for feature in features]
        batch = dict(self.inner([{k: v for k, v in feature.items() if k != COLUMN} for feature in features]))
        mask: Tensor = batch["attention_mask"]
        padded = torch.zeros(mask.shape, dtype=torch.float32)
        for row, (weights, real) in enumerate(zip(explanations, mask.bool(), strict=True)):
            if weights is None:
                continue
            if len(weights) != int(real.sum()):
                raise BadInput(
                    f"a row has {len(weights)} weights in its column {COLUMN!r} and {int(real.sum())} tokens. Explain "
                    "with the tokenizer and truncation that the data set was made with."
                )
            padded[row, real] = torch.as_tensor(weights, dtype=torch.float32)
        return {**batch, COLUMN: padded}
