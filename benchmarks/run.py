"""Measure salience against the passes it cannot do without, and against its peers.

python -m benchmarks.run                         everything
python -m benchmarks.run --only gradient         one benchmark, or several
python -m benchmarks.run --peers-python PYTHON   with the interpreter of an environment that holds the peers
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import run as call
from time import perf_counter
from typing import Any

import captum.attr
import numpy as np
import torch
from benchmarks import setting
from benchmarks.figures import CLOCKS, Figure, arguments, measure
from benchmarks.setting import Raw, ratio
from scipy.stats import spearmanr

from salience.core.erasure import replaced
from salience.core.types import Batch
from salience.explanations.explainer import explain
from salience.methods.propagation import RULE_SETS
from salience.models.huggingface import HuggingFace


@dataclass(frozen=True, slots=True)
class Setup:
    model: HuggingFace
    folder: Path
    short: list[str]
    long: list[str]
    repeats: int
    clock: Callable[[], float]
    peers: str | None

    def race(self, runners: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
        return setting.race(runners, self.repeats, self.clock)


def gradient(s: Setup) -> Iterator[Figure]:
    """One forward and one backward pass."""
    for name, texts in (("short", s.short), ("long", s.long)):
        raw = Raw.of(s.model, texts)
        runners = {m: partial(explain, s.model, texts, m) for m in ("gradient", "input_x_gradient")}
        times = s.race({**runners, "raw": raw.gradients})
        for method in runners:
            yield Figure("gradient", f"{method} by raw passes, {name}", ratio(times, method, "raw"), limit="≤ 1.10")


def lrp(s: Setup) -> Iterator[Figure]:
    """One forward and one backward pass by rules, against one by the model's own derivatives."""
    for name, texts in (("short", s.short), ("long", s.long)):
        runners = {rules: partial(explain, s.model, texts, "lrp", rules=rules) for rules in RULE_SETS}
        times = s.race({**runners, "input_x_gradient": partial(explain, s.model, texts, "input_x_gradient")})
        for rules in runners:
            what = f"rules={rules} by input_x_gradient, {name}"
            yield Figure("lrp", what, ratio(times, rules, "input_x_gradient"), limit="≤ 1.40")


def integrated_gradients_50(s: Setup) -> Iterator[Figure]:
    """A fixed number of nodes, against exactly those passes."""
    for name, texts in (("short", s.short[::4]), ("long", s.long[::4])):
        raw = Raw.of(s.model, texts)
        runners = {
            "ours": partial(explain, s.model, texts, "integrated_gradients", nodes=50),
            "raw": partial(raw.path, 50),
        }
        times = s.race(runners)
        what = f"integrated_gradients with 50 nodes by raw passes, {name}"
        yield Figure("integrated_gradients_50", what, ratio(times, "ours", "raw"), limit="≤ 1.05")


def integrated_gradients(s: Setup) -> Iterator[Figure]:
    """Nodes chosen per text, against captum's default of 50 for the same baseline; and how true the scores are."""
    texts = s.short[::2]
    ours, captums = partial(explain, s.model, texts, "integrated_gradients"), partial(by_captum, s.model, texts)
    times = s.race({"ours": ours, "captum": captums})
    yield Figure("integrated_gradients", "time by captum's default", ratio(times, "ours", "captum"), limit="≤ 0.65")
    chosen, exact = ours(), explain(s.model, texts, "integrated_gradients", nodes=300)
    pairs = [(np.array(a.scores), np.array(b.scores)) for a, b in zip(chosen, exact, strict=True)]
    errors = [np.abs(a - b).max() / np.abs(b).max() for a, b in pairs]
    nodes = [e.settings["nodes"] for e in chosen]
    for what, value, unit, limit in (
        ("error by the largest score, median", np.median(errors), "", "≤ 0.01"),
        ("error by the largest score, 95th percentile", np.percentile(errors, 95), "", "≤ 0.03"),
        ("rank correlation with 300 nodes, lowest", min(spearmanr(a, b).statistic for a, b in pairs), "", "≥ 0.98"),
        ("nodes, mean", np.mean(nodes), "", None),
        ("nodes, 95th percentile", np.percentile(nodes, 95), "", None),
    ):
        yield Figure("integrated_gradients", what, float(value), unit, limit)


def by_captum(model: HuggingFace, texts: list[str], nodes: int = 50, internal: int | None = None) -> None:
    """captum's IntegratedGradients text by text, as it is called on embeddings; all nodes of a text in one pass."""
    for encoded in model.encode(texts):
        batch = model.batch([encoded])
        e, b = model.embed(batch), replaced(model, batch, batch.content, "mask")

        def logits(at: torch.Tensor, batch: Batch = batch) -> torch.Tensor:
            mask = batch.mask.long().expand(len(at), -1)
            return model.module(inputs_embeds=at, attention_mask=mask).logits

        with torch.no_grad():
            label = int(logits(e).argmax())
        ig = captum.attr.IntegratedGradients(logits)
        ig.attribute(e, b, target=label, n_steps=nodes, internal_batch_size=internal)


def occlusion(s: Setup) -> Iterator[Figure]:
    """One forward pass per token."""
    for name, texts in (("short", s.short[::2]), ("long", s.long[::4])):
        raw = Raw.of(s.model, texts)
        times = s.race({"ours": partial(explain, s.model, texts, "occlusion"), "raw": raw.occlusions})
        yield Figure("occlusion", f"by raw passes, {name}", ratio(times, "ours", "raw"), limit="≤ 1.05")


class Whole(HuggingFace):
    """A decoder that reads every text from its beginning."""

    def shares_prefix(self, batch: Batch) -> bool:  # noqa: ARG002
        return False


def prefix_sharing(s: Setup) -> Iterator[Figure]:
    """Occlusion on a causal model, with what stands before the erased token computed once."""
    sharing = setting.decoder(s.model.tokenizer)
    whole = Whole(sharing.module, sharing.tokenizer, sharing.name)
    for name, texts, limit in (("short", s.short[::2], "≥ 1.35"), ("long", s.long[::4], "≥ 1.7")):
        models = {"sharing": sharing, "whole": whole}
        times = s.race({n: partial(explain, m, texts, "occlusion") for n, m in models.items()})
        yield Figure("prefix_sharing", f"speed-up of occlusion, {name}", ratio(times, "whole", "sharing"), limit=limit)


def layer_saliency(s: Setup) -> Iterator[Figure]:
    """Every layer's decoded scores, against one forward and one backward pass; and the four cheap methods at once."""
    with setting.language_head(s.folder) as head:
        for name, texts in (("short", s.short), ("long", s.long)):
            raw = Raw.of(s.model, texts)
            runners: dict[str, Callable[[], Any]] = {
                decode: partial(explain, s.model, texts, "layer_saliency", layer="all", decode=decode, head=head)
                for decode in ("restricted", "softmax")
            }
            runners["raw"] = raw.gradients
            runners["input_x_gradient"] = partial(explain, s.model, texts, "input_x_gradient")
            methods = ["gradient", "input_x_gradient", "attention", "layer_saliency"]
            options = {"layer": "all", "decode": "restricted", "head": head}
            runners["together"] = partial(explain, s.model, texts, methods, **options)
            times = s.race(runners)
            for decode, limit in (("restricted", "≤ 1.25"), ("softmax", None)):
                what = f"all layers, decode={decode}, by raw passes, {name}"
                yield Figure("layer_saliency", what, ratio(times, decode, "raw"), limit=limit)
            what = f"gradient, input_x_gradient, attention and all layers by input_x_gradient alone, {name}"
            yield Figure("layer_saliency", what, ratio(times, "together", "input_x_gradient"), limit="≤ 1.30")


def memory(s: Setup) -> Iterator[Figure]:
    """The peak above the model's own, in a process of its own."""
    text = " ".join(s.long)
    text = text[: s.model.tokenizer(text, return_offsets_mapping=True, truncation=True).offset_mapping[398][1]]
    for who, nodes, limit in (("ours", 300, "≤ 300"), ("captum", 25, None)):
        command = [sys.executable, "-m", "benchmarks.memory", str(s.folder), who, str(nodes)]
        done = call(command, input=text, capture_output=True, text=True, check=True, cwd=setting.ROOT)
        tokens, peak = json.loads(done.stdout.splitlines()[-1])
        what = f"{who}: integrated gradients with {nodes} nodes on {tokens} tokens"
        yield Figure("memory", what, peak, "MB", limit)


def start(s: Setup) -> Iterator[Figure]:
    """Importing the package and asking the command for help; neither may load torch."""
    code = "import time; t = time.perf_counter(); import salience; print(time.perf_counter() - t)"
    code += "; import sys; assert 'torch' not in sys.modules"
    imports = [float(call([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)]
    imports += [float(call([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)]
    yield Figure("start", "import salience", 1000 * min(imports), "ms", "≤ 50")
    command, seconds = Path(sys.executable).with_name("salience"), []
    for _ in range(5):
        began = perf_counter()
        call([command, "--help"], capture_output=True, check=True)
        seconds.append(perf_counter() - began)
    yield Figure("start", "salience --help", median(seconds), "s", "≤ 0.3")
    missing = [command, "explain", "A fine film.", "--model", "./no-such-model"]
    yield Figure("start", "a missing model is refused", _seconds(missing, code=2), "s", "≤ 1")
    explained, imported = [command, "explain", "A fine film."], [sys.executable, "-c", IMPORTS]
    ratios = [_seconds(explained) / _seconds(imported) for _ in range(5)]  # one after the other, on a busy machine too
    yield Figure("start", "salience explain, by importing torch and a transformers model", median(ratios), "×", "≤ 1.4")


IMPORTS = "import torch; from transformers import BertForSequenceClassification"


def _seconds(command: Sequence[str | Path], code: int = 0) -> float:
    began = perf_counter()
    assert call(command, capture_output=True, check=False).returncode == code
    return perf_counter() - began


def budget(s: Setup) -> Iterator[Figure]:
    """Tokens per pass: time by that of 1024."""
    sizes = (256, 512, 1024, 2048, 4096)
    for name, texts in (("short", s.short[::4]), ("long", s.long[::4])):
        models = {str(n): HuggingFace(s.model.module, s.model.tokenizer, s.model.name) for n in sizes}
        for n, model in models.items():
            model.executor.budget = int(n)
        runners = {n: partial(explain, m, texts, "integrated_gradients", nodes=20) for n, m in models.items()}
        times = s.race(runners)
        for n in runners:
            yield Figure("budget", f"{n} tokens per pass by 1024, {name}", ratio(times, n, "1024"))


def peers(s: Setup) -> Iterator[Figure]:
    """Other packages on 4 sentences, against the method of ours that does the same."""
    if s.peers is None:
        print("  skipped: name an environment that holds the peers with --peers-python")
        return
    texts = s.short[::16]
    for peer, method, settings in (
        ("shap", "kernel_shap", {}),
        ("lime", "lime", {"samples": 1000}),
        ("transformers_interpret", "integrated_gradients", {"nodes": 50}),
        ("lxt", "lrp", {}),
    ):
        command = [s.peers, str(Path(__file__).with_name("peers.py")), peer, str(s.folder)]
        done = call(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
        reply = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-300:]}
        if "error" in reply:
            print(f"  {peer} does not run: {reply['error']}")
            yield Figure("peers", f"{peer} does not run: {reply['error'][:160]}", float("nan"))
            continue
        ours = s.race({"ours": partial(explain, s.model, texts, method, **settings)})["ours"]
        yield Figure("peers", f"{method} by {peer} {reply['version']}", min(ours) / reply["seconds"])


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {
    f.__name__: f
    for f in (
        start,
        gradient,
        lrp,
        integrated_gradients_50,
        integrated_gradients,
        occlusion,
        prefix_sharing,
        layer_saliency,
        memory,
        budget,
        peers,
    )
}


def main() -> None:
    parser = arguments(__doc__, list(BENCHMARKS))
    parser.add_argument("--peers-python", help="interpreter of an environment that holds shap, lime and the like")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    folder = Path(asked.model) if asked.model else setting.minilm()
    model = setting.classifier(folder)
    s = Setup(model, folder, *setting.texts(model), asked.repeats, CLOCKS[asked.clock], asked.peers_python)
    measure(BENCHMARKS, s, asked)


if __name__ == "__main__":
    main()
