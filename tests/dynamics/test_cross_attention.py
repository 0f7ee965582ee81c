"""Alignment of single heads of cross-attention, and the translator of Marian's shape that it is measured on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from salience.cli import run
from salience.data.pairs import Pair
from salience.dynamics.cross_attention import cross_attention, head_alignment
from salience.errors import BadInput, UnsupportedModel
from salience.models.huggingface import EncoderDecoder
from salience.models.huggingface.translators import MarianShape
from salience.training import Recipe
from salience.training.marian import train_marian
from shapes import build, encoder_decoder

WORDS = {"ein": "a", "mann": "man", "hund": "dog", "schläft": "sleeps", "rennt": "runs", "rot": "red"}
SHAPE = MarianShape(width=16, layers=2, heads=2, inner=16)
RECIPE = Recipe(epochs=2, batch=4, rate=1e-3)


def pairs(count: int = 10) -> list[Pair]:
    """Sentences of random words, translated word by word."""
    rng = np.random.default_rng(0)
    chosen = [[str(word) for word in rng.choice(list(WORDS), 4)] for _ in range(count)]
    links = frozenset((i, i) for i in range(4))
    return [Pair(str(n), " ".join(c), " ".join(WORDS[w] for w in c), links, links) for n, c in enumerate(chosen)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marian") / "translator"


@pytest.fixture(scope="module")
def model(folder: Path) -> EncoderDecoder:
    return train_marian(pairs(), folder, vocabulary=80, shape=SHAPE, recipe=RECIPE)


def test_the_weights_are_those_that_transformers_returns(model: EncoderDecoder):
    pair = pairs(1)[0]
    source, answer, weights = cross_attention(model, pair)
    assert "".join(source.tokens).replace("▁", " ").strip() == pair.source
    ids = model.tokenizer(pair.source, return_tensors="pt").input_ids
    decoder = torch.tensor([[*model.start, *answer.ids]])
    before = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        crossed = model.module.eval()(input_ids=ids, decoder_input_ids=decoder, output_attentions=True).cross_attentions
    model.module.set_attn_implementation(before)
    for layer, a in enumerate(crossed):
        own = a[0, :, :, : len(source)].numpy()
        assert weights[layer, :, 0] == pytest.approx(own[:, :-1], abs=1e-5)
        assert weights[layer, :, 1] == pytest.approx(own[:, 1:], abs=1e-5)


@pytest.mark.parametrize("shape", ["bart", "t5"])
def test_no_word_is_lost_where_the_tokenizer_adds_a_first_token(shape: str):
    known = encoder_decoder(shape)
    source, answer, weights = cross_attention(known, Pair("0", "the quick fox", "a fine film"))
    for encoded in (source, answer):
        assert encoded.offsets[0][0] == 0
        assert encoded.offsets[-1][1] == len(encoded.text)
        assert not any(encoded.special)
    ids = known.tokenizer("the quick fox", return_tensors="pt").input_ids
    decoder = torch.tensor([[*known.start, *answer.ids]])
    known.module.set_attn_implementation("eager")
    with torch.no_grad():
        (crossed,) = known.module(input_ids=ids, decoder_input_ids=decoder, output_attentions=True).cross_attentions
    own = crossed[0, :, len(known.start) - 1 :, 1:-1].numpy()
    assert weights[0, :, 0] == pytest.approx(own[:, :-1], abs=1e-5)
    assert weights[0, :, 1] == pytest.approx(own[:, 1:], abs=1e-5)


def test_error_rates_are_counted_word_by_word(model: EncoderDecoder):
    given = pairs(9)
    (result,) = head_alignment(model, {"gold": given}, train=given[:1])
    right = 0
    for pair in given:
        source, answer, weights = cross_attention(model, pair)
        rows, columns = ([len(e.text[:b].split()) - 1 for _, b in e.offsets] for e in (answer, source))
        for word in range(4):
            own = [weights[1, 1, 1, t] for t, w in enumerate(rows) if w == word]
            best = [np.mean([max(x for x, c in zip(a, columns, strict=True) if c == k) for a in own]) for k in range(4)]
            right += int(np.argmax(best)) == word
    found = next(r for r in result.rows if (r.layer, r.head, r.step) == (2, 2, "reads"))
    assert found.error_rate.mean == pytest.approx(1 - 2 * right / (2 * 4 * len(given)))
    assert found.error_rate.low <= found.error_rate.mean <= found.error_rate.high
    rates = {row.scores: row.error_rate.mean for row in result.rows}
    assert rates["diagonal"] == 0.0
    assert len(result.rows) == 2 * (2 * 2 + 2) + 2
    assert result.unknown is not None
    assert 0 < result.unknown < 1


def test_training_resumes_and_ends_the_same(model: EncoderDecoder, folder: Path, tmp_path: Path):
    stopped = tmp_path / "stopped"

    class Stopped(Exception): ...

    def stop(progress: Any) -> None:
        if progress.epoch == 2:
            raise Stopped

    with pytest.raises(Stopped):
        train_marian(pairs(), stopped, vocabulary=80, shape=SHAPE, recipe=RECIPE, report=stop)
    (tmp_path / "same").mkdir()
    again = train_marian(pairs(), stopped, vocabulary=80, shape=SHAPE, recipe=RECIPE)
    assert (stopped / "model").is_dir()
    assert len(again.tokenizer) == len(model.tokenizer)
    finished = train_marian(pairs(), folder, vocabulary=80, shape=SHAPE, recipe=RECIPE)
    for one, other in zip(finished.module.parameters(), model.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_folder_with_another_translator_is_refused(model: EncoderDecoder, folder: Path):
    other = MarianShape(width=16, layers=1, heads=2, inner=16)
    with pytest.raises(BadInput, match=r"holds another translator \(changed: shape\)"):
        train_marian(pairs(), folder, vocabulary=80, shape=other, recipe=RECIPE)


def test_the_command_measures_a_saved_model(
    model: EncoderDecoder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    gold = tmp_path / "gold.jsonl"
    rows = [{"src": p.source, "trg": p.answer, "sure": sorted(p.sure), "possible": []} for p in pairs(3)]
    gold.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    html = tmp_path / "page.html"
    arguments = ["alignment", "--model", str(folder / "model"), "--gold", str(gold), "--quiet"]
    assert run([*arguments, "--html", str(html)]) == 0
    assert "head 2.2" in capsys.readouterr().out
    assert "as the decoder" in html.read_text("utf-8")
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["aligned"][0]["pairs"] == 3


def test_training_by_the_command_prints_its_stages_and_not_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [{"src": p.source, "trg": p.answer, "sure": sorted(p.sure), "possible": []} for p in pairs()]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    file, fields = str(tmp_path / "pairs.jsonl"), ["--source", "src", "--answer", "trg"]
    command = ["alignment", "--data", file, *fields, "--gold", file, "--limit", "8", "--epochs", "1"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert {"training the translator", "aligning"} <= set(said)
    assert not [line for line in said if "step" in line]


def test_bad_input_is_named(model: EncoderDecoder, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UnsupportedModel, match="no heads of cross-attention"):
        head_alignment(build("bert"), {"gold": pairs(1)})
    with pytest.raises(BadInput, match="no pair of gold has a word alignment"):
        head_alignment(model, {"gold": [Pair("0", "ein", "a")]})
    with pytest.raises(BadInput, match="cannot be divided among 3 heads"):
        MarianShape(width=16, heads=3)
    with pytest.raises(BadInput, match="nothing to train on"):
        train_marian([], "nowhere")
    for arguments, message in (
        (["--gold", "x"], "--data is missing"),
        ([], "name word alignments"),
        (["--gold", "x", "--size", "ful"], "Did you mean 'full'"),
    ):
        assert run(["alignment", *arguments]) == 2
        assert message in capsys.readouterr().err
