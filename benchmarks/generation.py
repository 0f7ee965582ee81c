"""How long does it take to explain an answer, relative to the passes it needs and to other libraries?

Usage: python benchmarks/generation.py [MODEL] [REPEATS]

MODEL is a folder with a causal language model and its tokenizer, such as SmolLM2-135M-Instruct; without it, a random
model of the same shape is used. A prompt of 60 tokens and an answer of 20, one thread, processor time. Everything runs
interleaved in this process, and figures are medians of ratios. Other libraries are skipped if they are not installed.
"""

import sys
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import salience
from salience.generation import explain_answer

TEXT = (
    "The library in the old town closes at six in the evening. On Mondays it does not open at all, and on Fridays it "
    "stays open until nine. Anna wants to return three books on Friday after work, and she leaves her office at seven. "
    "When does the library close on the day that Anna wants to go there?"
)
ANSWER = (
    " The library closes at nine on Fridays, so Anna has about two hours left after she leaves her office at seven."
)
PROMPT_TOKENS, ANSWER_TOKENS = 60, 20


def main(folder: str | None, repeats: int) -> None:
    torch.set_num_threads(1)
    module, tokenizer = loaded(folder)
    model = salience.wrap(module, tokenizer)
    prompt, answer = ids_of(tokenizer, TEXT, PROMPT_TOKENS), ids_of(tokenizer, ANSWER, ANSWER_TOKENS)
    raw = Raw(module, prompt, answer)

    def ours(method: str, **settings: Any) -> Callable[[], object]:
        return lambda: explain_answer(model, prompt, method, answer=answer, **settings)

    words = explain_answer(model, prompt, "random", answer=answer).source_words()
    copies = len([word for word in words if word[1][0] < len(prompt)])
    compare("input_x_gradient, matrix / 1 forward + 20 backwards", ours("input_x_gradient"), raw.matrix, repeats)
    compare(
        "input_x_gradient, total / 1 forward + 1 backward", ours("input_x_gradient", per="answer"), raw.total, repeats
    )
    compare("lrp, total / 1 forward + 1 backward", ours("lrp", per="answer"), raw.total, repeats)
    compare("lrp, matrix / 1 forward + 20 backwards", ours("lrp"), raw.matrix, max(1, repeats // 2))
    by_word = ours("occlusion", by="word")
    compare(
        f"occlusion by word, all answer tokens / {copies} forwards", by_word, raw.forwards(copies), max(1, repeats // 2)
    )
    logits = ours("input_x_gradient", kind="logit")
    for name, peer in inseq_ways(module, tokenizer, prompt, answer):
        compare(f"input_x_gradient, matrix of logits / {name}", logits, peer, 1)
    for name, peer in captum_ways(module, tokenizer, prompt, answer):
        other = ours("input_x_gradient") if "gradient" in name else by_word
        compare(f"{'input_x_gradient, matrix' if 'gradient' in name else 'occlusion by word'} / {name}", other, peer, 1)


def loaded(folder: str | None) -> tuple[Any, Any]:
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    from tests.shapes import tokenizer  # the tokens of a random model do not matter

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, pad_token_id=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval(), tokenizer("bpe")


def ids_of(tokenizer: Any, text: str, count: int) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids[:count] if len(ids) >= count else (ids * count)[:count]


class Raw:
    """The same passes without any library."""

    def __init__(self, module: Any, prompt: list[int], answer: list[int]) -> None:
        self.module, self.answer = module, torch.tensor(answer)
        self.ids = torch.tensor([prompt + answer[:-1]])
        for parameter in module.parameters():
            parameter.requires_grad_(False)

    def log_probabilities(self, embeddings: Tensor) -> Tensor:
        logits = self.module(inputs_embeds=embeddings, use_cache=False, logits_to_keep=len(self.answer)).logits
        return logits.log_softmax(-1).gather(2, self.answer.expand(len(logits), -1)[..., None])[..., 0]

    def matrix(self) -> None:
        e = self.module.get_input_embeddings()(self.ids).requires_grad_()
        for value in self.log_probabilities(e)[0]:
            (torch.autograd.grad(value, e, retain_graph=True)[0] * e).sum(-1)

    def total(self) -> None:
        e = self.module.get_input_embeddings()(self.ids).requires_grad_()
        (torch.autograd.grad(self.log_probabilities(e).sum(), e)[0] * e).sum(-1)

    def forwards(self, copies: int) -> Callable[[], None]:
        def run() -> None:
            e = self.module.get_input_embeddings()(self.ids)
            with torch.no_grad():
                for start in range(0, copies, 12):
                    self.log_probabilities(e.repeat(min(12, copies - start), 1, 1))

        return run


def captum_ways(
    module: Any, tokenizer: Any, prompt: list[int], answer: list[int]
) -> list[tuple[str, Callable[[], object]]]:
    """Captum's ways to the same numbers. The cache of its defaults gives wrong scores from the second token on."""
    try:
        from captum.attr import (
            FeatureAblation,
            LayerGradientXActivation,
            LLMAttribution,
            LLMGradientAttribution,
            TextTokenInput,
        )  # fmt: skip
    except ImportError:
        print("captum is not installed")
        return []
    text, said = tokenizer.decode(prompt), torch.tensor(answer)
    gradients = LLMGradientAttribution(LayerGradientXActivation(module, module.get_input_embeddings()), tokenizer)
    ablation = LLMAttribution(FeatureAblation(module), tokenizer, attr_target="log_prob")
    return [
        ("captum's gradient x activation", lambda: gradients.attribute(TextTokenInput(text, tokenizer), target=said)),
        (
            "captum's ablation by token, forward_in_tokens=False",
            lambda: ablation.attribute(TextTokenInput(text, tokenizer), target=said, forward_in_tokens=False),
        ),
    ]


def inseq_ways(
    module: Any, tokenizer: Any, prompt: list[int], answer: list[int]
) -> list[tuple[str, Callable[[], object]]]:
    """Inseq's way to the same numbers, for the logit of each token; its cross-entropy raised an error."""
    try:
        import inseq  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("inseq is not installed")
        return []
    peer: Any = inseq.load_model(module, "input_x_gradient", tokenizer=tokenizer)
    text, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + answer)
    settings = {"attributed_fn": "logit", "show_progress": False}
    return [("inseq's gradients of each step", lambda: peer.attribute(text, whole, **settings))]


def compare(name: str, ours: Callable[[], object], other: Callable[[], object], repeats: int) -> None:
    pairs = [(seconds(ours), seconds(other)) for _ in range(repeats)]
    ratio = median(a / b for a, b in pairs)
    print(
        f"{name}: {ratio:.2f} ({median(a for a, _ in pairs):.2f} s by {median(b for _, b in pairs):.2f} s)", flush=True
    )


def seconds(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
