"""Facts planted in long contexts, with a question that only the fact answers, so that the true explanation is known.

Each context has one needle, distractors that state the same of something else, a decoy that holds the answer's words
but does not answer the question, and filler sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from salience.core.text import Span
from salience.errors import BadInput

DISTRACTORS = 2
"""How many other facts of the same kind a context holds."""


@dataclass(frozen=True, slots=True)
class Needle:
    """A context with a planted fact, and the answer that follows from it."""

    sentences: tuple[str, ...]
    place: int
    """The index of the needle among the sentences."""
    decoy: int
    """The index of the sentence that holds the answer's words in another role."""
    question: str
    answer: str

    @property
    def text(self) -> str:
        """The sentences and the question, which ends where the answer begins."""
        return f"{' '.join(self.sentences)}\n\n{self.question}"

    def span(self, sentence: int) -> Span:
        """The characters of a sentence within the text."""
        start = sum(len(s) + 1 for s in self.sentences[:sentence])
        return start, start + len(self.sentences[sentence])

    @property
    def context_end(self) -> int:
        """The index of the character after the last sentence."""
        return self.span(len(self.sentences) - 1)[1]


class Fact(NamedTuple):
    """A kind of fact: of a subject, a value is stated, asked, or mentioned in another role."""

    states: str
    asks: str
    mentions: str
    subjects: Sequence[str]
    values: Sequence[str]


_PLACES = ("library", "museum", "bakery", "garage", "chapel", "harbour", "theatre", "school", "market", "station")
_NAMES = ("Anna", "Peter", "Maria", "Thomas", "Sarah", "Daniel", "Laura", "Martin", "Emma", "Victor")
_NUMBERS = tuple(str(1009 + 97 * n) for n in range(80))

FACTS = (
    Fact(
        "The access code for the {0} is {1}.",
        "Question: What is the access code for the {0}?\nAnswer: The access code for the {0} is",
        "Locker {1} was painted over the summer and still smells of varnish.",
        _PLACES,
        _NUMBERS,
    ),
    Fact(
        "The password for the {0} is {1}.",
        "Question: What is the password for the {0}?\nAnswer: The password for the {0} is",
        "A crate with the word {1} on its lid stood near the stairs for most of the week.",
        _PLACES,
        ("amber", "silver", "copper", "violet", "granite", "walnut", "saffron", "marble", "cedar", "crimson"),
    ),
    Fact(
        "The phone extension of {0} is {1}.",
        "Question: What is the phone extension of {0}?\nAnswer: The phone extension of {0} is",
        "The bill came to {1} in all and was paid at the counter without a word.",
        _NAMES,
        _NUMBERS,
    ),
)

_WHEN = ("In the morning", "After lunch", "Towards evening", "On most days", "Later that week", "Before the holidays")
_WHO = ("the gardener", "a neighbour", "the old caretaker", "one of the visitors", "the postman", "a young clerk")
_DID = (
    "swept the yard and stacked the wooden chairs against the wall",
    "carried two heavy boxes of paper up to the second floor",
    "watered the plants by the window and opened the shutters",
    "repaired the handle of the back door with a piece of wire",
    "read the newspaper slowly and folded it into a neat square",
    "made a pot of tea and put the biscuits on a blue plate",
    "looked for the lost umbrella under the benches in the hall",
    "counted the candles in the drawer and wrote the number down",
    "cleaned the large mirror with vinegar and a soft cloth",
    "talked about the weather and the price of apples this year",
)


def planted(rng: Random, sentences: int) -> Needle:
    """Return a context of so many sentences with a fact of a random kind, at a random place."""
    fact = rng.choice(FACTS)
    subjects, values = rng.sample(fact.subjects, 1 + DISTRACTORS), rng.sample(fact.values, 1 + DISTRACTORS)
    needle, *others = map(fact.states.format, subjects, values)
    decoy = fact.mentions.format(None, values[0])
    planned = [needle, decoy, *others]
    planned += _fillers(rng, max(0, sentences - len(planned)))
    rng.shuffle(planned)
    question = fact.asks.format(subjects[0])
    return Needle(tuple(planned), planned.index(needle), planned.index(decoy), question, f" {values[0]}")


def _fillers(rng: Random, number: int) -> list[str]:
    """Different sentences about nothing that is asked."""
    every = [(when, who, did) for when in _WHEN for who in _WHO for did in _DID]
    if number > len(every):
        raise BadInput(
            f"a context has at most {len(every)} sentences around its facts, which is too few; ask for fewer tokens"
        )
    return [f"{when}, {who} {did}." for when, who, did in rng.sample(every, number)]
