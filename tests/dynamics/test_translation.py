"""Co-occurrence, alignments, agreement and training of translators, against hand examples and literal versions."""

import json
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from salience.cli import run
from salience.core.shares import percent
from salience.data.pairs import Pair, read_pairs
from salience.dynamics import translation as module
from salience.dynamics.agreement import agreement
from salience.dynamics.alignment import (
    Alignment,
    by_words,
    diagonal,
    error_rate,
    links,
    read_aligned,
    source_words,
    unknown_words,
)
from salience.dynamics.cross_attention import head_alignment
from salience.dynamics.dictionary import CoOccurrence, fit_proxy
from salience.dynamics.translation import agreements, bleu, dictionary, scores_of, translated, translation
from salience.errors import BadInput
from salience.models.seq2seq import Seq2Seq, Seq2SeqConfig
from salience.training import translators
from salience.training.loop import Recipe
from salience.training.sequences import encode_pairs, fit_pairs
from salience.training.translators import train_translator
from shapes import encoder_decoder

SLIDES = ["This movie is great => Dieser Film ist großartig", "This movie is bad => Dieser Film ist schlecht"]
SOURCE = ["This", "movie", "is", "great", "bad"]
ANSWER = ["Dieser", "Film", "ist", "großartig", "schlecht"]
PAIRS = [
    Pair(str(n), source, answer, frozenset((i, i) for i in range(3)), frozenset((i, i) for i in range(3)))
    for n, (source, answer) in enumerate(
        [
            ("ein Mann schläft", "a man sleeps"),
            ("eine Frau lacht", "a woman laughs"),
            ("ein Mann lacht", "a man laughs"),
        ]
        * 2
    )
]
RECIPE = Recipe(epochs=3, batch=2, rate=1e-2, decay=0.0)
CONFIG = Seq2SeqConfig(0, hidden=12, layers=2)


def slides() -> CoOccurrence:
    texts = [text.split(" => ") for text in SLIDES]
    pairs = [([SOURCE.index(w) for w in s.split()], [ANSWER.index(w) for w in a.split()]) for s, a in texts]
    return CoOccurrence.of(pairs, 5)


def test_the_counts_of_the_slides():
    expected = [[2, 2, 2, 1, 1], [2, 2, 2, 1, 1], [2, 2, 2, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    assert slides().counts(range(5), range(5)).tolist() == expected


def test_the_association_resolves_great_and_bad_only():
    association = slides().association(range(5), range(5))
    largest = [[SOURCE[i] for i in np.flatnonzero(row == row.max())] for row in association]
    assert largest[3:] == [["great"], ["bad"]]
    assert all(len(words) > 1 for words in largest[:3])


def test_repeated_and_unseen_words():
    counts = CoOccurrence.of([([0, 0, 1], [2, 2])], 4)
    assert counts.counts([2], [0, 1, 3]).tolist() == [[1, 1, 0]]
    assert counts.association([3], [3]).tolist() == [[0.0]]


def test_the_proxy_learns_the_dictionary_where_there_is_co_occurrence():
    rng = np.random.default_rng(0)
    pairs = [(words := rng.permutation(6)[:3].tolist(), [6 + w for w in words]) for _ in range(200)]
    proxy = fit_proxy(pairs, 12, size=16, epochs=15, rate=2e-2, batch=20)
    association = proxy.association(range(6, 12), range(6))
    assert (association.argmax(1) == np.arange(6)).all()
    row = proxy.output(proxy.words.weight[2]).softmax(-1).detach()
    assert association[:, 2] == pytest.approx(row[6:].numpy())


# ---------------------------------------------------------------------------------------------------- alignment


def test_the_alignment_error_rate_of_a_hand_example():
    """A = {(0,0), (1,1), (2,0)}, S = {(0,0), (1,2)}, P = S + {(1,1)}: 1 − (1 + 2) / (3 + 2)."""
    pair = Pair("0", "a b c", "x y z", frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (1, 1)}))
    one = Alignment.of([(0, 0), (1, 1), (2, 0)], pair)
    assert one == Alignment(1, 2, 3, 2)
    assert one.error_rate == pytest.approx(1 - 3 / 5)
    assert (one + one).error_rate == pytest.approx(1 - 3 / 5)
    assert Alignment.of(pair.sure, pair).error_rate == 0
    with pytest.raises(BadInput, match="no pair has a word alignment"):
        Alignment().error_rate  # noqa: B018


def test_the_interval_of_an_error_rate_is_that_of_pairs_drawn_anew():
    rng = np.random.default_rng(3)
    each = [Alignment(int(k), int(k), 5, 5) for k in rng.integers(0, 6, 40)]
    result = error_rate(each)
    drawn = [sum((each[i] for i in rng.integers(0, 40, 40)), Alignment()).error_rate for _ in range(4000)]
    assert result.mean == pytest.approx(sum(each, Alignment()).error_rate)
    assert (result.low, result.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.01)
    assert result.n == 40
    few = error_rate(each[:3])
    assert few.mean == pytest.approx(sum(each[:3], Alignment()).error_rate)
    assert np.isnan(few.low)


def test_the_diagonal_prefers_the_same_place_and_ties_between_neighbours():
    assert diagonal(4, 4).argmax(1).tolist() == [0, 1, 2, 3]
    assert diagonal(7, 4)[1].tolist()[:2] == [-1 / 6, -1 / 6]  # half-way between two words
    for t, s in ((1, 1), (1, 4), (5, 1), (6, 9)):
        expected = [[-abs(i / max(1, t - 1) - j / max(1, s - 1)) for j in range(s)] for i in range(t)]
        np.testing.assert_allclose(diagonal(t, s), expected, atol=1e-12)


def test_gold_and_silver_files_are_read_in_one_direction(tmp_path: Path):
    gold, silver = (str(tmp_path / name) for name in ("gold.jsonl", "silver.jsonl"))
    Path(gold).write_text(json.dumps({"src": "Ein Mann", "trg": "man", "sure": [[1, 0]], "possible": [[0, 0]]}))
    Path(silver).write_text(json.dumps({"src": "man", "trg": "Ein Mann", "align": [[0, 1]]}))
    one, other = (read_aligned(gold, silver)[name][0] for name in ("gold", "silver"))
    assert (one.source, one.sure, one.possible) == ("Ein Mann", {(1, 0)}, {(0, 0), (1, 0)})
    assert (other.source, other.answer, other.sure) == (one.source, one.answer, one.sure)
    assert read_aligned(None, None) == {}


def test_tokens_are_joined_to_words_by_offsets():
    pair = Pair("0", "Ein Mann", "a man")
    matrix = np.array([[1.0, 5.0, 2.0], [0.0, 1.0, 4.0], [0.0, 3.0, 2.0]])
    answer, source = [(0, 1), (1, 3), (3, 5)], [(0, 2), (2, 3), (3, 8)]
    words = by_words(matrix, pair, answer, source)
    assert words.tolist() == [[5.0, 2.0], [(1 + 3) / 2, (4 + 2) / 2]]
    assert links(words) == [(0, 0), (1, 1)]
    truncated = by_words(matrix[:1, :2], pair, answer[:1], source[:2])
    assert links(truncated) == [(0, 0)]


def test_the_share_of_unknown_words():
    assert unknown_words([Pair("0", "Ein Mann lacht .", "x")], {"ein", "mann"}) == 0.5


def test_words_are_known_whether_or_not_punctuation_is_set_apart():
    train, aligned = [Pair("0", "Ein Hut, rot (wie Blut).", "x")], [Pair("1", "ein Hut , rot ( wie Blut ) .", "x")]
    for known, asked in ((train, aligned), (aligned, train)):
        assert unknown_words(asked, source_words(known)) == 0
    linked = [replace(aligned[0], sure=frozenset({(0, 0)}), possible=frozenset({(0, 0)}))]
    (heads,) = head_alignment(encoder_decoder("t5"), {"gold": linked}, train=train)
    assert heads.unknown == 0


# ---------------------------------------------------------------------------------------------------- agreement


def test_agreement_is_literally_the_formula():
    rng = np.random.default_rng(0)
    for n in (2, 20, 21, 50):
        for _ in range(20):
            u, v = rng.random(n), rng.integers(0, 10, n).astype(float)
            best = max(range(n), key=lambda i: u[i])
            assert agreement(u, v) == (len([j for j in range(n) if v[j] > v[best]]) < ceil(0.05 * n))


def test_agreement_over_pairs_has_a_chance_level():
    rng = np.random.default_rng(1)
    matrices = [rng.random((5, 10)) for _ in range(30)]
    rows = [{"attention": m, "relevance": m, "proxy": rng.random((5, 10))} for m in matrices]
    found = {row.of: row for row in agreements(rows)}
    same, other = found["attention, relevance"], found["attention, proxy"]
    assert same.agreement.mean == 1
    assert same.chance.mean == pytest.approx(0.1, abs=0.08)
    assert other.agreement.mean == pytest.approx(0.1, abs=0.08)
    assert same.tau.mean == pytest.approx(1)
    expected = np.mean([[kendalltau(*z).statistic for z in zip(r["attention"], r["proxy"], strict=True)] for r in rows])
    assert other.tau.mean == pytest.approx(expected)


# ---------------------------------------------------------------------------------------------------- training


def weights(model: Seq2Seq) -> dict[str, torch.Tensor]:
    return {name: values.clone() for name, values in model.module.state_dict().items()}


def test_an_interrupted_training_resumes_and_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = train_translator(PAIRS, tmp_path / "whole", vocabulary=60, config=CONFIG, recipe=RECIPE)
    monkeypatch.setattr(translators, "SAVE_EVERY", 2)
    asked = {"tokenizer": whole.tokenizer, "config": CONFIG, "recipe": RECIPE}

    class Stopped(Exception):
        pass

    def stop(progress) -> None:
        if progress.step == 5:
            raise Stopped

    with pytest.raises(Stopped):
        train_translator(PAIRS, tmp_path / "cut", **asked, report=stop)
    assert [p.name for p in (tmp_path / "cut" / "checkpoints").glob("checkpoint-*")] == ["checkpoint-0000004-001"]
    steps: list[int] = []
    resumed = train_translator(PAIRS, tmp_path / "cut", **asked, report=lambda p: steps.append(p.step))
    assert steps == [5, 6, 7, 8, 9]
    for name, values in weights(whole).items():
        assert torch.equal(values, resumed.module.state_dict()[name]), name


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ("pairs", {"pairs": PAIRS[:4]}),
        ("config", {"config": replace(CONFIG, hidden=10)}),
        ("config", {"config": replace(CONFIG, scoring="uniform")}),
        ("recipe", {"recipe": replace(RECIPE, seed=1)}),
        ("tokenizer", {"vocabulary": 50}),
    ],
)
def test_a_folder_with_another_translator_is_refused(changed: str, other: dict[str, Any], tmp_path: Path):
    """Also before the first checkpoint, where only the start is there."""
    asked: dict[str, Any] = {"pairs": PAIRS, "vocabulary": 60, "config": CONFIG, "recipe": RECIPE}

    def stop(_) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        train_translator(**asked, folder=tmp_path / "m", report=stop)
    with pytest.raises(BadInput, match=rf"holds another translator \(changed: {changed}\); choose another folder"):
        train_translator(**asked | other, folder=tmp_path / "m")


def test_the_loss_is_the_mean_over_tokens_of_the_answers(tmp_path: Path):
    config = replace(CONFIG, dropout=0.0)
    train_translator(PAIRS, tmp_path / "m", vocabulary=60, config=config, recipe=replace(RECIPE, epochs=1))
    start = Seq2Seq.load(tmp_path / "m" / "start")
    total, count = 0.0, 0
    for pair in encode_pairs(start, PAIRS):
        batch = start.batch([pair.source])
        for t, token in enumerate([*pair.answer.ids, start.ids["[EOS]"]]):
            logits = start.after(pair.answer.ids[:t])(batch).logits[0]
            total -= float(logits.log_softmax(-1)[token].detach())
            count += 1
    (epoch,) = fit_pairs(start, PAIRS, recipe=replace(RECIPE, epochs=1, batch=len(PAIRS)))
    assert epoch.losses["answer"] == pytest.approx(total / count, rel=1e-4)


def test_links_of_words_become_links_of_tokens(tmp_path: Path):
    model = train_translator(PAIRS, tmp_path / "m", vocabulary=60, config=CONFIG, recipe=replace(RECIPE, epochs=1))
    (pair,) = encode_pairs(model, PAIRS[:1])
    for s, (a, b) in enumerate(pair.source.offsets[:-1]):
        for t, (c, d) in enumerate(pair.answer.offsets):
            same = len(PAIRS[0].source[:b].split()) == len(PAIRS[0].answer[:d].split())
            assert ((s, t) in pair.links) == same, (a, c)


def test_bad_pairs_are_refused(tmp_path: Path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"de": "Ein Mann", "en": "a man", "align": [[0, 0], [2, 1]]}) + "\n")
    assert read_pairs(file, "de", "en")[0].reversed().source == "a man"
    with pytest.raises(BadInput, match=r"links words \(2, 1\), counted from 0, of texts with \[2, 2\] words"):
        read_pairs(file, "de", "en", sure="align")
    with pytest.raises(BadInput, match=r"line 1 of .* has no field 'fr'. Its fields: de, en, align."):
        read_pairs(file, "fr", "en")
    with pytest.raises(BadInput, match="is a folder; name a file in it"):
        read_pairs(tmp_path, "de", "en")
    for wrong in ("[[0, 1, 2]]", '["a"]', "[[0.5, 1]]", "3"):
        (tmp_path / "links.jsonl").write_text(f'{{"de": "Ein Mann", "en": "a man", "align": {wrong}}}')
        with pytest.raises(BadInput, match="alignments are lists of two whole numbers"):
            read_pairs(tmp_path / "links.jsonl", "de", "en", sure="align")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    with pytest.raises(BadInput, match=r"line 1 of .* is no JSON object"):
        read_pairs(tmp_path / "list.jsonl", "de", "en")
    with pytest.raises(BadInput, match="there is no file"):
        read_pairs(tmp_path / "none", "de", "en")
    file.write_text("{\n")
    with pytest.raises(BadInput, match=r"line 1 of .* cannot be read"):
        read_pairs(file, "de", "en")
    file.write_text('{"de": "ein", "en": "a"}\n\n{"de": null, "en": "a man"}\n')
    with pytest.raises(BadInput, match=r"line 3 of .* cannot be read: de is None, not a text"):
        read_pairs(file, "de", "en")
    with pytest.raises(BadInput, match="nothing to train on"):
        next(fit_pairs(Seq2Seq.new(replace(CONFIG, vocabulary=5), None), []))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- all together


def test_a_translator_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe, config = replace(RECIPE, epochs=30, rate=2e-2), replace(CONFIG, hidden=24, layers=1, dropout=0.0)
    model = train_translator(PAIRS, tmp_path / "m", vocabulary=60, config=config, recipe=recipe)
    assert translated(model, [PAIRS[0].source]) == [PAIRS[0].answer]
    monkeypatch.setattr(module, "bleu", lambda said, references: (100.0 * (list(said) == list(references)), "test"))
    short, uniform = replace(recipe, epochs=2), replace(config, scoring="uniform")
    other = train_translator(PAIRS, tmp_path / "other", vocabulary=50, config=uniform, recipe=short)
    with pytest.raises(BadInput, match="has another tokenizer"):
        translation(model, PAIRS, PAIRS, uniform=other)
    twin = train_translator(PAIRS, tmp_path / "twin", tokenizer=model.tokenizer, config=uniform, recipe=short)
    result = translation(model, PAIRS, PAIRS, alignments={"silver": PAIRS}, uniform=twin)
    assert result.bleu == 100
    (alignments,) = result.aligned
    rates = {row.scores: row.error_rate.mean for row in alignments.rows}
    assert alignments.unknown == 0
    assert rates["diagonal"] == 0
    assert set(rates) >= {"attention", "relevance", "linear relevance", "co-occurrence", "proxy", "random"}
    assert {row.of for row in result.agreement} == {", ".join(pair) for pair in module.PAIRINGS}


def test_random_scores_of_pairs_of_one_size_differ(tmp_path: Path):
    """With one draw for all pairs of a size, the control would be a single chance."""
    model = train_translator(PAIRS, tmp_path / "m", vocabulary=60, config=CONFIG, recipe=replace(RECIPE, epochs=1))
    known, (pair, *_) = dictionary(model, PAIRS, epochs=1), encode_pairs(model, PAIRS)
    one, again, other = (scores_of(model, pair, known, number=number)["random"] for number in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_pairs_without_alignments_are_refused_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    row = {"de": "ein mann", "en": "a man", "src": "a man", "trg": "ein mann", "align": []}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    pairs, out = str(tmp_path / "pairs.jsonl"), tmp_path / "out"
    options = ["--data", pairs, "--source", "de", "--answer", "en", "--silver", pairs, "--out", str(out), "--quiet"]
    for command in (["translation", "--test", pairs], ["alignment"]):
        assert run([*command, *options]) == 2
        assert capsys.readouterr().err.startswith("salience: no pair of silver has a word alignment")
    assert not out.exists()


def test_bleu_is_that_of_sacrebleu():
    pytest.importorskip("sacrebleu")
    score, signature = bleu(["A man sleeps here now."], ["A man sleeps here now."])
    assert score == pytest.approx(100)
    assert "tok:13a" in signature


def test_the_command_trains_resumes_and_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "bleu", lambda *_: (12.3, "test"))
    config = {"hidden": 8, "layers": 1, "dropout": 0.0}
    monkeypatch.setitem(train_translator.__kwdefaults__, "config", Seq2SeqConfig(0, **config))
    monkeypatch.setitem(train_translator.__kwdefaults__, "vocabulary", 60)
    rows = [{"de": p.source, "en": p.answer, "src": p.source, "trg": p.answer, "sure": sorted(p.sure)} for p in PAIRS]
    rows = [row | {"possible": [], "align": row["sure"]} for row in rows] * 2  # enough for an interval
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    pairs, out, page = (str(tmp_path / name) for name in ("pairs.jsonl", "out", "page.html"))
    command = ["translation", "--data", pairs, "--test", pairs, "--source", "de", "--answer", "en", "--out", out]
    command += ["--gold", pairs, "--silver", pairs, "--uniform", "--epochs", "1", "--quiet"]
    assert run([*command, "--json", "--html", page]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bleu"] == 12.3
    assert [one["data"] for one in facts["aligned"]] == ["gold", "silver"]
    rate = next(row["error_rate"] for row in facts["aligned"][0]["rows"] if row["scores"] == "random")
    assert rate["low"] < rate["mean"] < rate["high"]
    shown = f"{percent(rate['mean'], 1)} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"
    assert shown in Path(page).read_text("utf-8")
    assert Path(page).read_text("utf-8").count("<svg") == 1
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert shown in printed
    assert "A(attention, uniform relevance)" in printed
    assert "unknown source words" in printed
    notes = " ".join(printed.split())
    assert "share of sub-word tokens of the answer" in notes
    assert "bootstrap over pairs" in notes
    assert run([*command, "--limit", "2"]) == 2
    assert "holds another translator (changed: pairs)" in capsys.readouterr().err
