"""Word vectors: what the files may hold, and models that start from them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from audits.twins import model
from salience.errors import BadInput
from salience.models import load_to_train
from salience.models.vectors import WordVectors, initialise, word_vectors

ROWS = {"good": (1.0, 2.0, 3.0), "bad": (-1.0, 0.5, 4.0)}


def written(folder: Path, text: str) -> Path:
    (folder / "v.txt").write_text(text, "utf-8")
    return folder / "v.txt"


def check(vectors: WordVectors) -> None:
    assert vectors.words == tuple(ROWS)
    assert vectors.width == 3
    np.testing.assert_array_equal(vectors.matrix, np.array(list(ROWS.values())))


def test_vectors_are_read_from_text_and_from_a_matrix(tmp_path: Path):
    text = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in ROWS.items())
    check(word_vectors(written(tmp_path, text)))
    check(word_vectors(written(tmp_path, f"2 3\n{text}\n")))
    np.save(tmp_path / "m.npy", np.array(list(ROWS.values())))
    (tmp_path / "m.txt").write_text("good\nbad\n")
    check(word_vectors(tmp_path / "m.npy"))
    assert word_vectors(tmp_path / "m.npy", only={"bad"}).words == ("bad",)
    assert word_vectors(tmp_path / "v.txt", only={"none"}).matrix.shape == (0, 3)


def test_a_word_may_hold_spaces(tmp_path: Path):
    vectors = word_vectors(written(tmp_path, "good 1 2\n. . . 3 4\n"))
    assert vectors.words == ("good", ". . .")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no word vectors"),
        ("word\n", "holds no word vectors"),
        ("good 1 2 3\nbad 1 2\n", r"line 2 of .* has 2 numbers instead of 3"),
        ("good 1 2\nbad 1 two\n", "line 2 of .* does not hold numbers after its word"),
        ("good 1 nan\n", "the vector of 'good' is not finite"),
    ],
)
def test_text_that_is_not_word_vectors_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(BadInput, match=message):
        word_vectors(written(tmp_path, text))


def test_matrices_that_do_not_fit_their_words_are_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="there is no file"):
        word_vectors(tmp_path / "m.npy")
    np.save(tmp_path / "m.npy", np.zeros((2, 3)))
    with pytest.raises(BadInput, match=r"needs a list of its words, one per line, in .*m\.txt"):
        word_vectors(tmp_path / "m.npy")
    (tmp_path / "m.txt").write_text("good\n")
    with pytest.raises(BadInput, match=r"shape \(2, 3\) \(float64\), and .* lists 1 words"):
        word_vectors(tmp_path / "m.npy")
    (tmp_path / "m.npy").write_bytes(b"no matrix")
    with pytest.raises(BadInput, match=r"not a \.npy matrix"):
        word_vectors(tmp_path / "m.npy")
    (tmp_path / "v.vec").write_bytes(b"caf\xe9 1 2\n")
    with pytest.raises(BadInput, match="not UTF-8"):
        word_vectors(tmp_path / "v.vec")


def test_a_model_and_its_fresh_copies_start_from_the_vectors():
    start = model(embedding=3)
    untouched = start.words.weight.detach().clone()
    vectors = WordVectors(tuple(ROWS), np.array(list(ROWS.values()), dtype=np.float32))
    vocabulary = start.tokenizer.get_vocab()
    assert initialise(start, vectors) == pytest.approx(2 / len(vocabulary))
    for one in (start, start.fresh(start.labels, 1), start.fresh(start.labels, 2, encoder="mlp")):
        for word, row in ROWS.items():
            assert one.words.weight[vocabulary[word]].tolist() == list(row)
        assert bool(torch.isfinite(one.words.weight).all())
    others = [i for word, i in vocabulary.items() if word not in ROWS]
    assert torch.equal(start.words.weight[others], untouched[others])
    again = model(embedding=3)
    again.start_embeddings_from(0.5 * untouched)
    initialise(again, vectors)
    assert torch.equal(again.fresh(again.labels, 5).words.weight[others], 0.5 * untouched[others])
    with pytest.raises(BadInput, match="3 wide and the embeddings 8"):
        start.fresh(start.labels, 0, embedding=8)


def test_vectors_of_another_width_are_refused():
    vectors = WordVectors(("good",), np.zeros((1, 4), np.float32))
    with pytest.raises(BadInput, match="the vectors are 4 wide and the embeddings of small 6; create the model with"):
        initialise(model(), vectors)


def test_a_saved_model_keeps_the_vectors_that_new_ones_start_from(tmp_path: Path):
    before = model()
    rows = np.random.default_rng(0).standard_normal((2, before.config.embedding))
    words = [w for w in before.tokenizer.get_vocab() if w.isalpha()][:2]
    initialise(before, WordVectors(tuple(words), rows))
    before.save(tmp_path)
    fresh = load_to_train(tmp_path, list(before.labels), seed=3)
    assert torch.equal(fresh.words.weight, before.fresh(before.labels, 3).words.weight)
    numbers = [before.tokenizer.token_to_id(word) for word in words]
    np.testing.assert_allclose(fresh.words.weight[numbers].detach().numpy(), rows, rtol=1e-6)
