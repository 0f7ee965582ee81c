"""A small task for twins: one decisive word among random ones, which few texts are too few to tell from chance."""

import random

from salience.data.examples import Example
from salience.models.pooled import Pooled, PooledConfig, word_tokenizer

NOISE = tuple(f"{a}{b}" for a in "bcdfghjklm" for b in ("ap", "el", "in", "ol", "ud", "ar"))
SIGNS = {"no": "bad", "yes": "good"}


def texts(count: int, seed: int, words: int = 12) -> list[Example]:
    """Random words with one that tells the label; its place is marked as the rationale."""
    rng = random.Random(seed)
    examples: list[Example] = []
    for number in range(count):
        label = ("no", "yes")[number % 2]
        chosen = rng.choices(NOISE, k=words)
        chosen.insert(rng.randrange(words + 1), SIGNS[label])
        text = " ".join(chosen)
        start = f" {text} ".index(f" {SIGNS[label]} ")
        examples.append(Example(str(number), text, label, ((start, start + len(SIGNS[label])),)))
    return examples


def model(encoder: str = "bilstm", seed: int = 0, **changes: object) -> Pooled:
    tokenizer = word_tokenizer([*NOISE, *SIGNS.values()] * 2, 100)
    config = PooledConfig(("no", "yes"), tokenizer.get_vocab_size(), encoder, embedding=6, hidden=4, attention=4)
    built = Pooled.new(config, tokenizer, name="small", seed=seed)
    return built.fresh(built.labels, seed, **changes) if changes else built
