"""SalienceTrainer: the loss is the objective; logging, checkpoints and distributed training are Trainer's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import torch
from transformers import TrainingArguments

import salience
from reviews import reviews
from salience.errors import BadInput, BadModel
from salience.training.guides import by_rationales
from salience.training.loop import step_of
from salience.training.objectives import Objective, attention_to_explanation, gradient_to_explanation, regularised
from shapes import build


def rows(model) -> datasets.Dataset:
    examples = by_rationales(model, reviews(16))
    encoded = model.encode([e.text for e in examples])
    return datasets.Dataset.from_list(
        [
            {"input_ids": list(r.ids), "attention_mask": [1] * len(r), "labels": e.label, "explanation": list(e.guide)}
            for e, r in zip(examples, encoded, strict=True)
        ]
    )


def arguments(folder: Path, **options: object) -> TrainingArguments:
    usual = {"max_steps": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1, "seed": 1}
    usual |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    return TrainingArguments(str(folder), **(usual | options))


def trainer(folder: Path, model=None, **options: object) -> salience.SalienceTrainer:
    model = model or build("bert")
    return salience.SalienceTrainer(
        model.module,
        arguments(folder, **options),
        train_dataset=rows(model),
        eval_dataset=rows(model),
        processing_class=model.tokenizer,
        objective=regularised(attention_to_explanation, 0.5),
    )


def test_the_loss_is_the_objective(tmp_path: Path):
    model = build("bert")
    model.module.eval()
    made = trainer(tmp_path, model)
    examples = by_rationales(model, reviews(16))
    features = [dict(row) for row in rows(model)]
    loss, outputs = made.compute_loss(model.module, made.data_collator(features), return_outputs=True)
    objective = made.objective
    terms = objective(step_of(model, examples, model.encode([e.text for e in examples]), objective))
    expected = terms["task"] / 16 + 0.5 * terms["attention_to_explanation"] / 16
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert outputs["logits"].shape == (16, 3)


def test_training_logging_evaluation_and_resuming(tmp_path: Path):
    steps = {"max_steps": 12, "save_steps": 6}
    made = trainer(tmp_path / "a", **steps, eval_strategy="steps", eval_steps=6, eval_on_start=True)
    made.train()
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    assert [entry["penalty_weight"] for entry in logged] == [0.5] * 12
    assert all(entry["penalty"] > 0 for entry in logged)
    held = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    assert len(held) == 3
    assert held[-1] < held[0]
    again = trainer(tmp_path / "a", **steps)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-6"))
    a, b = (t.model.state_dict() for t in (made, again))
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


def test_rows_whose_explanation_has_another_length(tmp_path: Path):
    made = trainer(tmp_path)
    feature = {"input_ids": [2, 5, 6, 3], "attention_mask": [1] * 4, "labels": 0, "explanation": [0.0, 1.0]}
    with pytest.raises(BadInput, match=r"2 weights .* and 4 tokens"):
        made.data_collator([feature])
    without = made.data_collator([{k: v for k, v in feature.items() if k != "explanation"}])
    assert not without["explanation"].any()


def test_unsupported_options_and_inputs_are_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="label_smoothing_factor"):
        trainer(tmp_path, label_smoothing_factor=0.1)
    made = trainer(tmp_path)
    batch = made.data_collator([dict(row) for row in rows(made.adapter)])
    several = batch | {"labels": torch.ones(16, 3)}
    with pytest.raises(BadInput, match="multi_label_classification"):
        made.compute_loss(made.model, several)
    left = batch | {"attention_mask": batch["attention_mask"].flip(1)}
    with pytest.raises(BadInput, match="padding_side"):
        made.compute_loss(made.model, left)


def test_gradient_penalty_in_evaluation_and_nan_loss_stops_training(tmp_path: Path):
    made = trainer(tmp_path)
    made.objective = regularised(gradient_to_explanation, 0.1)
    assert made.evaluate()["eval_loss"] > 0
    made.objective = regularised(lambda step: attention_to_explanation(step) * float("nan"))
    with pytest.raises(BadModel, match="not a number at step 1 of 4"):
        made.train()


def test_regression_and_multi_label(tmp_path: Path):
    for shape, label in (("bert_regression", 0.5), ("bert_multi_label", [1.0, 0.0, 1.0])):
        model = build(shape)
        made = trainer(tmp_path, model)
        features = [dict(row) | {"labels": label} for row in rows(model)]
        loss = made.compute_loss(model.module, made.data_collator(features))
        plain = model.module(**{k: v for k, v in made.data_collator(features).items() if k != "explanation"}).loss
        made.objective = Objective()
        model.module.eval()
        task = made.compute_loss(model.module, made.data_collator(features))
        plain = model.module(**{k: v for k, v in made.data_collator(features).items() if k != "explanation"}).loss
        assert loss.isfinite()
        assert task.item() == pytest.approx(plain.item(), rel=1e-5)


def test_tensorboard_gets_the_penalty(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = trainer(tmp_path, report_to="tensorboard")
    made.train()
    (file,) = tmp_path.rglob("events.out.tfevents*")
    events = EventAccumulator(str(file))
    events.Reload()
    assert {"train/penalty", "train/penalty_weight", "train/loss"} <= set(events.Tags()["scalars"])


SCRIPT = """
import json, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + '/training']
import torch
torch.set_num_threads(1)
import salience
from test_hf_trainer import trainer
model = salience.load(sys.argv[4])
for part in model.module.modules():
    if isinstance(part, torch.nn.Dropout):
        part.p = 0.0
made = trainer(Path(sys.argv[2]), model, per_device_train_batch_size=int(sys.argv[3]))
made.train()
if made.is_world_process_zero():
    Path(sys.argv[2], "log.json").write_text(json.dumps([e["loss"] for e in made.state.log_history if "loss" in e]))
if torch.distributed.is_initialized():  # without this, a process sometimes aborts at its end
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    build("bert").save(tmp_path / "model")
    here = str(Path(__file__).parents[1])
    base = [sys.executable, str(script), here]
    two = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    for command, name, size in ((base, "one", "8"), ([*two, *base[1:]], "two", "4")):
        (tmp_path / name).mkdir()
        done = subprocess.run(
            [*command, str(tmp_path / name), size, str(tmp_path / "model")],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
    one, two_losses = (json.loads((tmp_path / name / "log.json").read_text()) for name in ("one", "two"))
    assert len(one) == 4
    assert two_losses == pytest.approx(one, abs=1e-4)
    assert max(one) - min(one) > 1e-3, "the loss did not change, so the comparison is empty"
