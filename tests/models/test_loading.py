"""Models that cannot or should not be loaded are refused with a reason, before anything is built or run."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import salience
from salience.cli import checks, run
from salience.errors import BadInput, BadModel, SalienceError
from salience.methods import METHODS
from salience.metrics import METRICS, TRIALS
from salience.models import load_to_train
from salience.models.files import folder_of
from shapes import build


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    build("bert").save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def configured(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def narrow_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: w[..., : w.shape[-1] // 2].contiguous() for name, w in weights.items()}, folder / "model.safetensors"
    )


def without_model_of_tokenizer(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] = {"a": 0}
    content["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]"}}]}
    (folder / "tokenizer.json").write_text(json.dumps(content))


DAMAGE = {
    "config.json is no JSON": (written("config.json", "{"), r"config\.json is not valid JSON"),
    "config.json is a list": (written("config.json", "[1]"), r"config\.json does not hold a JSON object"),
    "config.json nested": (written("config.json", "[" * 100_000), r"config\.json is not valid JSON"),
    "config.json of no model": (written("config.json", '{"model_type": "nothing"}'), "cannot be loaded"),
    "id2label is a list": (configured(id2label=["a", "b"]), "id2label in config.json is not a mapping"),
    "sizes that do not fit": (configured(hidden_size=33), "cannot be loaded"),
    "a size that is text": (configured(hidden_size="wide"), "cannot be loaded"),
    "no heads": (configured(num_attention_heads=0), "cannot be loaded"),
    "100,000 layers": (
        configured(num_hidden_layers=100_000),
        r"num_hidden_layers = 100,000, but the weights hold only \d+ te",
    ),
    "fewer layers than weights": (
        configured(num_hidden_layers=1),
        r"config\.json sets the number of layers to 1, but the weights hold more \(bert\.encoder\.layer\.1\.",
    ),
    "tokenizer.json is no JSON": (written("tokenizer.json", '{"model":'), r"tokenizer\.json is not valid JSON"),
    "tokenizer.json of nothing": (written("tokenizer.json", '{"version": "1.0"}'), "no tokenizer that can be loaded"),
    "tokenizer.json damaged": (without_model_of_tokenizer, "no tokenizer that can be loaded"),
    "weights cut": (cut_weights, r"model\.safetensors is damaged: it has [\d,]+ bytes instead of"),
    "weights are text": (written("model.safetensors", "nothing"), "not a safetensors file"),
    "weights are long text": (written("model.safetensors", "nothing" * 9), "not a safetensors file"),
    "weights of another model": (narrow_weights, "cannot be loaded"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_is_refused_by_the_command_too(damage: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    change, reason = DAMAGE[damage]
    change(folder)
    with pytest.raises(BadModel, match=reason):
        salience.load(folder)
    assert run(["explain", "A fine film.", "--model", str(folder)]) == 2
    *_, last = capfd.readouterr().err.splitlines()
    assert last.startswith("salience: ")
    assert "Traceback" not in last


def retokenized(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def few_word_vectors(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    save_file(weights | {name: weights[name][:9].contiguous()}, folder / "model.safetensors", {"format": "pt"})
    configured(vocab_size=9)(folder)


UNUSABLE = {
    "few word vectors": (
        few_word_vectors,
        r"the tokenizer of .* gives '.*' the id \d+, but the model has 9 word vectors",
    ),
    "chunks": (configured(chunk_size_feed_forward=7), "set chunk_size_feed_forward to 0"),
    "no number": (retokenized(model_max_length="many"), "model_max_length of the tokenizer of .* is 'many'"),
}


@pytest.mark.parametrize("fault", UNUSABLE)
def test_a_model_that_would_fail_in_a_pass_is_refused(fault: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    change, reason = UNUSABLE[fault]
    change(folder)
    with pytest.raises(SalienceError, match=reason):
        salience.explain(folder, "A fine film.", "gradient")
    assert run(["explain", "A fine film.", "--model", str(folder), "--method", "gradient"]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def head_of(model: Any) -> torch.Tensor:
    return model.module.classifier.weight.detach()


def test_a_head_for_other_labels_is_initialised_again(folder: Path):
    labels = salience.load(folder).labels
    trained = head_of(salience.load(folder))
    for same in (labels, labels[::-1], len(labels)):
        kept = load_to_train(folder, same)
        assert kept.labels == labels
        assert torch.equal(head_of(kept), trained)
    others = [f"topic {i}" for i in range(len(labels))]
    new, again, seeded = (load_to_train(folder, others, seed=seed) for seed in (3, 3, 4))
    assert list(new.labels) == others
    assert not torch.isclose(head_of(new), trained).any()
    assert torch.equal(head_of(new), head_of(again))
    assert not torch.equal(head_of(new), head_of(seeded))
    encoder = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(new.module.state_dict()[encoder], load_file(folder / "model.safetensors")[encoder])


def test_a_head_is_not_loaded_to_train_on_fewer_layers(folder: Path):
    configured(num_hidden_layers=1)(folder)
    with pytest.raises(BadModel, match="sets the number of layers to 1"):
        load_to_train(folder, ["a", "b", "c"])


def test_a_panic_of_the_tokenizers_library_is_a_reason_not_a_crash(folder: Path):
    from tokenizers import Tokenizer

    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(BaseException) as seen:
        Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert seen.type is not SystemExit
    with pytest.raises(BadModel, match="no tokenizer that can be loaded"):
        salience.load(folder)


@pytest.mark.parametrize("name", ["sentiment", "sentiment_bilstm"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float33"}, r"unknown dtype 'float33'\. Did you mean 'float32'"),
        ({"dtype": "nn"}, "unknown dtype 'nn'"),
        ({"device": "meta"}, "the device 'meta' holds no weights"),
        ({"device": "meta:0"}, "the device 'meta' holds no weights"),
    ],
)
def test_options_that_no_model_can_have(name: str, options: dict[str, str], reason: str):
    with pytest.raises(BadInput, match=reason):
        salience.load(name, **options)  # pyright: ignore
    arguments = [f"--{key}={value}" for key, value in options.items()]
    assert run(["explain", "A fine film.", "--model", name, *arguments]) == 2


@pytest.mark.parametrize("name", ["a\0b", "/tmp/\0", "sentiment\0"])
def test_a_name_with_a_nul_character(name: str):
    with pytest.raises(BadModel, match="NUL character"):
        salience.load(name)
    assert run(["explain", "A fine film.", "--model", name]) == 2


@pytest.mark.parametrize("change", ["config", "tokenizer", "weights"])
def test_a_damaged_pooled_model(change: str, tmp_path: Path):
    folder = Path(shutil.copytree(folder_of("sentiment_bilstm"), tmp_path / "model"))
    file = {"config": "config.json", "tokenizer": "tokenizer.json", "weights": "model.safetensors"}[change]
    text = '{"model_type": "salience_pooled", "labels": 3}' if change == "config" else "{}"
    (folder / file).write_text(text)
    with pytest.raises(BadModel):
        salience.load(folder)


# ------------------------------------------------------------------------------------------------------ security


class Harmful:
    """Unpickled, it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize(
    "shard", ["weights.bin", "../outside.safetensors", "/tmp/outside.safetensors", "a/b.safetensors"]
)
def test_the_index_of_a_sharded_model_may_name_only_safetensors_beside_it(shard: str, folder: Path, tmp_path: Path):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "weights.bin").write_bytes(pickle.dumps(Harmful(tmp_path / "harm")))
    save_file(weights, tmp_path / "outside.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadModel, match="weights must be safetensors files in the same folder"):
        salience.load(folder)
    with pytest.raises(BadModel, match="weights must be safetensors files in the same folder"):
        salience.models.huggingface.load(folder)
    assert not (tmp_path / "harm").exists()


def test_a_sharded_model_is_loaded(folder: Path):
    expected = salience.explain(salience.load(folder), "A fine film.", "gradient")[0].scores
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    for number, some in enumerate((names[::2], names[1::2])):
        save_file({n: weights[n] for n in some}, folder / f"model-{number}.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {n: f"model-{i % 2}.safetensors" for i, n in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert salience.explain(salience.load(folder), "A fine film.", "gradient")[0].scores == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"_attn_implementation": "someone/kernel"},
        {"attn_implementation": "someone/kernel@main:attend"},
        {"attn_implementation": {"": "someone/kernel"}},
        {"text_config": {"_attn_implementation": "kernels-community/flash-attn"}},
    ],
)
def test_a_kernel_from_elsewhere_needs_trust(changes: dict[str, Any], folder: Path):
    configured(**changes)(folder)
    with pytest.raises(BadModel, match=r"attention kernel .* code from another repository"):
        salience.load(folder)


# ------------------------------------------------------------------------------------------------------ before torch

QUICKLY = """
import sys
from salience.cli import run
code = run(sys.argv[1:])
assert "torch" not in sys.modules and "transformers" not in sys.modules, "imported before the check"
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["explain", "A film.", "--model", "no-such-model"], "there is no folder 'no-such-model'"),
        (["explain", "A film.", "--model", "./nothing"], "there is no folder './nothing'"),
        (["explain", "A film.", "--method", "gradiant"], "unknown method 'gradiant'. Did you mean 'gradient'"),
        (["explain", "A film.", "--dtype", "float"], "unknown dtype 'float'"),
        (["explain", "--data", "none.jsonl", "--out", "run"], "there is no file or folder 'none.jsonl'"),
        (["explain", "--data", "DATA", "--out", "run", "--text-column", "body"], "has no column 'body'"),
        (["explain", "--data", "DATA", "--out", "run", "--model", "./nothing"], "there is no folder './nothing'"),
        (["explain", "--data", "DATA", "--dry-run", "--method", "limee"], "Did you mean 'lime'"),
        (["evaluate", "--data", "none.jsonl"], "there is no file or folder 'none.jsonl'"),
        (["evaluate", "--data", "DATA", "--text-column", "body"], "has no column 'body'"),
        (["evaluate", "--run", "none"], "none"),
        (["trial", "roar", "--data", "DATA", "--test", "none.csv"], "no file or folder 'none.csv'"),
        (["paper", "elephant", "--data", "a=none.csv", "--out", "x"], "no file or folder 'none.csv'"),
        (["evaluate", "--model", "./nothing"], "there is no folder './nothing'"),
        (["evaluate", "--method", "gradiant"], "Did you mean 'gradient'"),
        (["evaluate", "--metric", "comprehensivenes"], "Did you mean 'comprehensiveness'"),
        (["train", "--data", "none.jsonl", "--label-column", "label", "--out", "x"], "no file or folder 'none.jsonl'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_names_files_and_columns_are_checked_before_torch_is_imported(
    arguments: list[str], reason: str, tmp_path: Path
):
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "A fine film.", "label": 1}\n{"text": "A bore.", "label": 0}\n')
    command = [sys.executable, "-c", QUICKLY, *(str(data) if a == "DATA" else a for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert reason in done.stderr
    assert done.returncode == 2, done.stderr


def test_the_names_that_are_known_without_torch_are_all_names():
    assert tuple(m.__name__ for m in METHODS) == checks.METHODS
    assert tuple(m.name for m in METRICS) == checks.METRICS
    assert checks.TRIALS == TRIALS


def test_half_precision_can_be_named():
    assert salience.load(dtype="bfloat16").words.weight.dtype is torch.bfloat16
    assert salience.load("sentiment_bilstm", dtype="auto").words.weight.dtype is torch.float32
