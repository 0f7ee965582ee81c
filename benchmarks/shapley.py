"""lime, kernel_shap and partition_shap against the packages lime and shap: same model, same texts, same samples.

python -m benchmarks.shapley                       everything
python -m benchmarks.shapley --only lime           one of them, or several

Runs in an environment that holds lime and shap beside salience. All take turns in one process, on one thread. Beside
each ratio of times stands how many rows each side passed to the model.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from benchmarks.setting import SAMPLE, race, ratio

import salience
from salience.models.huggingface import HuggingFace

AT_ONCE = 32
"""Rows per pass where a peer leaves that to its user."""


@dataclass(frozen=True, slots=True)
class Setup:
    model: HuggingFace
    texts: Mapping[str, list[str]]
    repeats: int
    clock: Callable[[], float]

    def against(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> str:
        """The median ratio of times, and the rows of both."""
        runners = {"ours": ours, "theirs": theirs}
        times = race(runners, self.repeats, self.clock)
        rows = {name: self.rows(run) for name, run in runners.items()}
        spread = [a / b for a, b in zip(times["ours"], times["theirs"], strict=True)]
        return (
            f"{ratio(times, 'ours', 'theirs'):.2f} × ({min(spread):.2f} to {max(spread):.2f}); "
            f"rows {rows['ours']} by {rows['theirs']}"
        )

    def rows(self, run: Callable[[], Any]) -> int:
        """How many texts the model reads."""
        counted: list[int] = []
        first = self.model.module.base_model.encoder.layer[0]
        handle = first.register_forward_pre_hook(
            lambda _, args, kwargs: counted.append(len(args[0] if args else kwargs["hidden_states"])), with_kwargs=True
        )
        run()
        handle.remove()
        return sum(counted)


def probabilities(model: HuggingFace, texts: list[str]) -> np.ndarray:
    """As the documentation of lime writes it."""
    parts = [texts[i : i + AT_ONCE] for i in range(0, len(texts), AT_ONCE)]
    with torch.no_grad():
        logits = [model.module(**model.tokenizer(part, return_tensors="pt", padding=True)).logits for part in parts]
    return torch.cat(logits).softmax(-1).numpy()


def lime(s: Setup) -> Iterator[str]:
    """1,000 copies of each text, words masked or deleted; the package deletes unless it is told otherwise."""
    from lime.lime_text import LimeTextExplainer

    masked = LimeTextExplainer(bow=False, mask_string=s.model.tokenizer.mask_token, random_state=0)
    for how, erase, explainer in (
        ("masked", "mask", masked),
        ("deleted", "delete", LimeTextExplainer(bow=False, mask_string="", random_state=0)),
        ("deleted, a word's copies together", "delete", LimeTextExplainer(random_state=0)),
    ):
        for name, texts in s.texts.items():

            def theirs(texts: list[str] = texts, explainer: Any = explainer) -> None:
                for text in texts:
                    explainer.explain_instance(text, partial(probabilities, s.model), num_samples=1000)

            ours = partial(
                salience.explain, s.model, texts, "lime", samples=1000, unit="word", erase=erase, kind="probability"
            )
            yield f"lime, 1000 samples, {how}, {name}: {s.against(ours, theirs)}"


def kernel_shap(s: Setup) -> Iterator[str]:
    """The same number of coalitions as shap's KernelExplainer; and the default, with what it costs."""
    import shap

    for name, texts in s.texts.items():
        for samples in (512, 2048):

            def theirs(texts: list[str] = texts, samples: int = samples) -> None:
                for text in texts:
                    ids = torch.tensor(s.model.tokenizer(text)["input_ids"])
                    n = len(ids) - 2
                    explainer = shap.KernelExplainer(partial(_kept, s.model, ids), np.zeros((1, n)))
                    explainer.shap_values(np.ones((1, n)), nsamples=samples, l1_reg=False, silent=True)

            ours = partial(salience.explain, s.model, texts, "kernel_shap", samples=samples, kind="probability")
            yield f"kernel_shap by KernelExplainer, {samples} samples, {name}: {s.against(ours, theirs)}"
        default = partial(salience.explain, s.model, texts, "kernel_shap")
        yield f"kernel_shap by Explainer of a pipeline, defaults, {name}: {s.against(default, _explainer(s, texts))}"
        most = partial(salience.explain, s.model, texts, "kernel_shap", tolerance=None)
        yield f"kernel_shap stopping by itself by 2n + 2048, {name}: {s.against(default, most)}"


def _kept(model: HuggingFace, ids: torch.Tensor, kept: np.ndarray) -> np.ndarray:
    """The probability of "positive" for rows of tokens, 0 where masked."""
    rows = ids.repeat(len(kept), 1)
    rows[:, 1:-1] = torch.where(torch.from_numpy(kept != 0), rows[:, 1:-1], model.tokenizer.mask_token_id)
    with torch.no_grad():
        return (
            torch.cat([model.module(input_ids=part).logits for part in rows.split(AT_ONCE)]).softmax(-1)[:, 1].numpy()
        )


def _explainer(s: Setup, texts: list[str], **settings: Any) -> Callable[[], Any]:
    """shap's own choice for a pipeline, with 500 evaluations."""
    import shap
    from transformers import pipeline

    classify = pipeline(
        "text-classification", model=s.model.module, tokenizer=s.model.tokenizer, top_k=None, **settings
    )
    return partial(shap.Explainer(classify, silent=True), texts, max_evals=500)


def partition_shap(s: Setup) -> Iterator[str]:
    """500 evaluations at most; shap's pipeline as it comes, and reading what it is given in one pass."""
    for name, texts in s.texts.items():
        ours = partial(salience.explain, s.model, texts, "partition_shap", kind="probability")
        for how, settings in (("", {}), (", pipeline with batches of 8", {"batch_size": 8})):
            measured = s.against(ours, _explainer(s, texts, **settings))
            yield f"partition_shap by PartitionExplainer{how}, {name}: {measured}"
        one = [partial(salience.explain, s.model, text, "partition_shap", kind="probability") for text in texts]
        measured = s.against(lambda one=one: [run() for run in one], _explainer(s, texts))
        yield f"partition_shap, text by text, by PartitionExplainer, {name}: {measured}"


BENCHMARKS = {f.__name__: f for f in (lime, kernel_shap, partition_shap)}


def sentences(model: HuggingFace, every: int) -> dict[str, list[str]]:
    """Some of the bundled sentences: up to 14 tokens, and 24 or more."""
    texts = [json.loads(line)["text"] for line in Path(SAMPLE).read_text("utf-8").splitlines()]
    lengths = [len(e) - 2 for e in model.encode(texts)]
    short = [t for t, n in zip(texts, lengths, strict=True) if 8 <= n <= 14]
    long = [t for t, n in zip(texts, lengths, strict=True) if n >= 24]
    return {"short": short[::every], "long": long[::every]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--every", type=int, default=6, help="take every so-many-th sentence")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="cpu", help="cpu is steadier on a busy machine")
    asked = parser.parse_args()
    missing = [name for name in ("lime", "shap") if find_spec(name) is None]
    if missing:
        raise SystemExit(f"pip install {' '.join(missing)}: these are what is measured against")
    torch.set_num_threads(1)
    model = salience.load()
    clock = {"wall": perf_counter, "cpu": process_time}[asked.clock]
    s = Setup(model, sentences(model, asked.every), asked.repeats, clock)
    for name in asked.only:
        for line in BENCHMARKS[name](s):
            print(line, flush=True)


if __name__ == "__main__":
    main()
