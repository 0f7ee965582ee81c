"""Labelled texts in which one word decides, for classifiers that learn them in seconds."""

import random

from salience.data.examples import Example

KEYWORDS = {"negative": ("dull", "awful"), "neutral": ("plain", "average"), "positive": ("fine", "splendid")}
FILLERS = ("this", "film", "is", "a", "rather", "story", "with", "the", "of", "it")
SMALL = {"embedding": 16, "hidden": 12, "attention": 8}
"""The shape of a small classifier."""


def planted(count: int, *, labels: int = 2, seed: int = 0) -> list[Example]:
    """Texts of five to nine fillers and one keyword of their label."""
    rng = random.Random(seed)
    names = list(KEYWORDS)[:: 3 - labels] if labels < 3 else list(KEYWORDS)
    texts: list[Example] = []
    for number in range(count):
        label = names[number % len(names)]
        words = rng.choices(FILLERS, k=rng.randint(5, 9))
        words.insert(rng.randrange(len(words)), rng.choice(KEYWORDS[label]))
        texts.append(Example(str(number), " ".join(words), label))
    return texts
