"""Rules that choose the layer of layer_saliency without labels, compared on held-out texts.

python -m benchmarks.layer_choice                          the bundled transformer
python -m benchmarks.layer_choice --minilm FOLDER          all-MiniLM-L6-v2 too, fine-tuned here on SST-2
python -m benchmarks.layer_choice --out result.json        the numbers too, those of single sentences among them

Every rule sees only the texts of the bundled sample, without their labels. Layers are then measured on held-out
sentences of SST-2 (comprehensiveness of the positive scores). For each layer and each rule: the paired difference from
the layer that coherence chooses, the present default, with its 95 % interval over sentences.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from benchmarks.setting import DATA, SAMPLE
from scipy.stats import spearmanr
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import salience
from salience.core.passes import forward
from salience.core.rows import batches
from salience.core.stats import Difference, paired_difference
from salience.core.types import Batch, LanguageHead, Model
from salience.explanations.explanation import Explanation
from salience.methods import fit_head
from salience.methods.decoding import automatic_layer, coherence, find_head
from salience.metrics import comprehensiveness

FEW = 16
"""Texts of the cheap deletion test."""


def lines(path: Path, count: int) -> list[dict[str, object]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [json.loads(line) for line in text.split("\n")[:count] if line]


def explained(model: Model, texts: Sequence[str], head: LanguageHead) -> list[list[Explanation]]:
    """Every layer's explanations of the texts, from layer 0 on."""
    rows = salience.explain(model, list(texts), "layer_saliency", layer="all", head=head)
    layers = model.layers + 1
    return [rows[layer::layers] for layer in range(layers)]


def erased(model: Model, texts: Sequence[str], of_layers: Sequence[Sequence[Explanation]]) -> np.ndarray:
    """The comprehensiveness of each layer (rows) on each text."""
    values = np.zeros((len(of_layers), len(texts)))

    def measure(batch: Batch, rows: list[int]) -> list[int]:
        target = salience.core.passes.resolve(
            model, [salience.Target(kind="probability")], forward(model, batch).logits
        )
        for layer, explanations in enumerate(of_layers):
            scores = torch.zeros(batch.ids.shape, dtype=torch.float64)
            for row, text in enumerate(rows):
                scores[row, : len(explanations[text].scores)] = torch.tensor(explanations[text].scores)
            values[layer, rows] = comprehensiveness(model, batch, scores, target)
        return rows

    for _ in batches(model, model.encode(list(texts)), measure):
        pass
    return values


def task_information(model: Model, texts: Sequence[str]) -> np.ndarray:
    """R² of the model's own output, predicted from each layer's mean state on the other half of the texts."""
    states, outputs = list[np.ndarray](), list[float]()
    for encoded in model.encode(list(texts)):
        output = forward(model, model.batch([encoded]), hidden=True)
        states.append(np.stack([h[0].mean(0).numpy() for h in output.hidden]))
        outputs.append(float(output.logits[0, -1] - output.logits[0, 0]))
    X, y, half = np.stack(states, 1), np.array(outputs), len(outputs) // 2
    return np.array([_ridge(x[:half], y[:half], x[half:], y[half:]) for x in X])


def _ridge(x: np.ndarray, y: np.ndarray, x_new: np.ndarray, y_new: np.ndarray) -> float:
    centre, scale = x.mean(0), x.std(0) + 1e-6
    a, b = (x - centre) / scale, (x_new - centre) / scale
    weights = np.linalg.solve(a.T @ a + a.shape[1] * np.eye(a.shape[1]), a.T @ (y - y.mean()))
    return float(1 - ((b @ weights + y.mean() - y_new) ** 2).mean() / y_new.var())


def agreement(of_layers: Sequence[Sequence[Explanation]]) -> np.ndarray:
    """The mean rank correlation of each layer's scores with those of the other layers."""
    texts = [np.stack([e.content for e in one]) for one in zip(*of_layers, strict=True)]
    correlations = [np.nan_to_num(np.atleast_2d(spearmanr(s, axis=1)[0])) for s in texts if s.shape[1] > 2]
    mean = np.mean(correlations, 0)
    return (mean.sum(1) - np.diag(mean)) / (len(mean) - 1)


def chosen(model: Model, head: LanguageHead) -> Iterator[tuple[str, int]]:
    """Each rule's layer, chosen on the bundled sample without its labels."""
    sample = [str(row["text"]) for row in lines(SAMPLE, 10**6)]
    default = automatic_layer(model, head)
    yield "coherence", default
    last = model.layers if model.layers == 1 or model.reads == "all" else model.layers - 1
    layers = slice(1, last + 1)
    words = np.array([c.log_probability for c in coherence(model, sample, head=head)])
    yield "coherence + task information", 1 + int(np.argmax((_z(words) + _z(task_information(model, sample)))[layers]))
    few = explained(model, sample[:FEW], head)
    yield "agreement between layers", 1 + int(np.argmax(agreement(few)[layers]))
    yield f"deletion test on {FEW} texts", 1 + int(np.argmax(erased(model, sample[:FEW], few).mean(1)[layers]))


def _z(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / (x.std() + 1e-9)


def compare(model: Model, head: LanguageHead, texts: Sequence[str]) -> dict[str, object]:
    """Print the differences between layers and between rules, and return what they rest on."""
    curve = coherence(model, [str(row["text"]) for row in lines(SAMPLE, 10**6)], head=head)
    values = erased(model, texts, explained(model, texts, head))
    rules = dict(chosen(model, head))
    gains = [paired_difference(of_layer, values[rules["coherence"]]) for of_layer in values]
    print(f"{model.name}: comprehensiveness on {len(texts)} held-out sentences of SST-2")
    for c, mean, gain in zip(curve, values.mean(1), gains, strict=True):
        print(f"  layer {c.layer}: {mean:.3f}  {gain:.3f}  log-probability {c.log_probability:.2f}  {c.recovery:.0%}")
    for rule, layer in rules.items():
        print(f"  {rule:30} layer {layer}   {_shown(layer, rules['coherence'], gains[layer])}", flush=True)
    return {
        "model": model.name,
        "rules": rules,
        "coherence": [c.log_probability for c in curve],
        "recovery": [c.recovery for c in curve],
        "comprehensiveness": values.round(6).tolist(),
    }


def _shown(layer: int, default: int, gain: Difference) -> str:
    return "the default" if layer == default else f"{gain:.3f}  p = {gain.p:.2g}"


def tuned(folder: Path, sentences: int) -> tuple[Model, LanguageHead]:
    """MiniLM fine-tuned for one epoch, with a head that is fitted to its last layer without labels."""
    torch.manual_seed(0)
    module = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2).train()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 64
    data = lines(DATA / "sst2/train.jsonl.gz", 10**6)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:sentences].tolist()
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4)
    for start in range(0, len(order), 32):
        rows = [data[i] for i in order[start : start + 32]]
        encoded = tokenizer([str(r["text"]) for r in rows], padding=True, truncation=True, return_tensors="pt")
        module(**encoded, labels=torch.tensor([r["label"] for r in rows])).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model = salience.wrap(module.eval(), tokenizer, name="MiniLM-L6, fine-tuned on SST-2")
    head = fit_head(model, [str(data[i]["text"]) for i in order[:1000]], steps=500, tokens=128)
    accuracy = _accuracy(model, lines(DATA / "sst2/validation.jsonl", 10**6))
    print(
        f"{model.name}: accuracy {accuracy:.1%} on the validation set, head recovers {head.recovery:.0%} of the tokens"
    )
    return model, head


def _accuracy(model: Model, data: Sequence[dict[str, object]]) -> float:
    def right(batch: Batch, rows: list[int]) -> int:
        labels = torch.tensor([data[row]["label"] for row in rows])
        return int((forward(model, batch).logits.argmax(1) == labels).sum())

    return sum(n for _, n in batches(model, model.encode([str(row["text"]) for row in data]), right)) / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--train", type=int, default=6920)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    texts = [str(row["text"]) for row in lines(DATA / "sst2/test.jsonl", given.texts)]
    bundled = salience.load()
    results = [compare(bundled, find_head(bundled, None), texts)]
    if given.minilm is not None:
        results.append(compare(*tuned(given.minilm, given.train), texts))
    if given.out is not None:
        given.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
