"""A small sentiment data set in which one marked word decides the label."""

from salience.data.examples import Example

GOOD, BAD = ["fine", "warm", "good"], ["dull", "slow", "bad"]


def reviews(count: int = 48) -> list[Example]:
    """Reviews with the deciding word as rationale."""
    examples: list[Example] = []
    for i in range(count):
        word = (GOOD if i % 2 else BAD)[i % 3]
        text = f"the quick {word} film jumps over the lazy dog" if i % 4 < 2 else f"a {word} fox"
        at = text.index(word)
        examples.append(Example(str(i), text, i % 2, ((at, at + len(word)),)))
    return examples
