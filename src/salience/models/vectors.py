"""Word vectors that the embeddings of pooled classifiers start from, such as GloVe."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from salience.errors import BadInput
from salience.models.pooled import Pooled


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors:
    """Words with one vector each."""

    words: tuple[str, ...]
    matrix: Float[np.ndarray, "n d"]

    @property
    def width(self) -> int:
        return self.matrix.shape[1]


def word_vectors(file: str | Path, *, only: Container[str] | None = None) -> WordVectors:
    """Read word vectors: a text file of lines ``word v1 v2 ...``, or a ``.npy`` matrix beside a list of words.

    The list has the same name with the ending ``.txt``, and one word per line. A first line with two whole numbers, as
    in files of fastText and word2vec, is skipped. Words that are not in ``only`` are left out.
    """
    path = Path(file)
    if not path.is_file():
        raise BadInput(f"there is no file {path}; pass word vectors as text (word v1 v2 ...) or as a .npy matrix")
    vectors = _from_matrix(path, only) if path.suffix == ".npy" else _from_text(path, only)
    if not np.isfinite(vectors.matrix).all():
        row = int(np.flatnonzero(~np.isfinite(vectors.matrix).all(1))[0])
        raise BadInput(f"{path}: the vector of {vectors.words[row]!r} is not finite")
    return vectors


def initialise(model: Pooled, vectors: WordVectors) -> float:
    """Set the embeddings of the words that have a vector; returns their share of the model's vocabulary.

    Models created from this one by ``fresh`` start from the same vectors. Words without a vector start as before.
    """
    if model.config.embedding != vectors.width:
        raise BadInput(
            f"the vectors are {vectors.width} wide and the embeddings of {model.name} {model.config.embedding}; create "
            f"the model with embedding={vectors.width}"
        )
    vocabulary = model.tokenizer.get_vocab()
    rows = {vocabulary[word]: row for row, word in enumerate(vectors.words) if word in vocabulary}
    before = model.initial_embeddings
    initial = torch.full(model.words.weight.shape, torch.nan) if before is None else before.clone()
    initial[list(rows)] = torch.from_numpy(vectors.matrix[list(rows.values())]).float()
    model.start_embeddings_from(initial)
    return len(rows) / len(vocabulary)


# ------------------------------------------------------------------------------------------------------ files


def _from_matrix(path: Path, only: Container[str] | None) -> WordVectors:
    names = path.with_suffix(".txt")
    if not names.is_file():
        raise BadInput(f"{path} needs a list of its words, one per line, in {names}")
    try:
        matrix: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path} is not a .npy matrix of numbers: {error}") from error
    words = _lines(names)
    if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.number) or len(matrix) != len(words):
        raise BadInput(
            f"{path} has the shape {matrix.shape} ({matrix.dtype}), and {names} lists {len(words)} words; expected one "
            "row of numbers per word"
        )
    kept = [row for row, word in enumerate(words) if only is None or word in only]
    return WordVectors(tuple(words[row] for row in kept), np.asarray(matrix[kept], dtype=np.float32))


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error}") from error


def _from_text(path: Path, only: Container[str] | None) -> WordVectors:
    words: list[str] = []
    rows: list[np.ndarray] = []
    width = 0
    for number, line in _numbered(path):
        # A word may hold spaces itself, as a few of GloVe's do: the numbers are counted from the end.
        width = width or line.count(" ")
        word, *values = line.rsplit(" ", width)
        if len(values) != width or not word:
            raise BadInput(f"line {number} of {path} has {len(values)} numbers instead of {width}: {line[:60]!r}")
        if only is None or word in only:
            words.append(word)
            rows.append(_numbers(values, number, path))
    if not width:
        raise BadInput(f"{path} holds no word vectors; expected lines of a word and its numbers")
    return WordVectors(tuple(words), np.stack(rows) if rows else np.empty((0, width), np.float32))


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines, counted from 1, without a header and without empty lines."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            lines = ((number, line.rstrip()) for number, line in enumerate(file, 1))
            first = next(lines, (1, ""))
            parts = first[1].split()
            header = len(parts) == 2 and all(part.isdecimal() for part in parts)
            yield from ((n, line) for n, line in chain([] if header else [first], lines) if line)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error}") from error


def _numbers(values: Sequence[str], number: int, path: Path) -> Float[np.ndarray, " d"]:
    try:
        return np.array(values, dtype=np.float32)
    except ValueError as error:
        raise BadInput(f"line {number} of {path} does not hold numbers after its word: {error}") from error
