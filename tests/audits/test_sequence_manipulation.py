"""Manipulated attention of encoder-decoders: what is impermissible, the penalty, and what it does."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from salience.audits.sequence_manipulation import (
    RECIPE,
    SHAPE,
    TRANSLATED,
    SequenceStudy,
    accuracy_and_mass,
    aligned_attention,
    aligned_mass,
    rearranging,
    sequence_manipulation,
    translating,
)
from salience.cli import run
from salience.data.copying import rearranged
from salience.data.pairs import Pair
from salience.errors import BadInput
from salience.models.seq2seq import Seq2Seq, symbol_tokenizer
from salience.training.sequences import encode_pairs, forced


@pytest.mark.parametrize("kind", ["copy", "reverse", "flip"])
def test_rearranged_sequences_and_their_links(kind: str):
    for pair in rearranged(kind, 20, lengths=(3, 6)):  # type: ignore[arg-type]
        source, answer = pair.source.split(), pair.answer.split()
        expected = {
            "copy": source,
            "reverse": source[::-1],
            "flip": [x for i in range(0, len(source), 2) for x in source[i : i + 2][::-1]],
        }[kind]
        assert answer == expected
        assert sorted(t for _, t in pair.sure) == list(range(len(answer)))
        assert all(source[s] == answer[t] for s, t in pair.sure)
    assert rearranged("copy", 3, seed=1) != rearranged("copy", 3)


def small(task: str = "copy", folder: Path | None = None) -> SequenceStudy:
    pairs = [rearranged(task, n, symbols=5, lengths=(2, 4), seed=seed) for seed, n in enumerate((300, 20))]  # type: ignore
    tokenizer = symbol_tokenizer(map(str, range(5)))
    config = replace(SHAPE, vocabulary=tokenizer.get_vocab_size(), hidden=32)
    start = Seq2Seq.new(config, tokenizer)
    return SequenceStudy(task, pairs[0], pairs[1], start, replace(RECIPE, epochs=8, batch=32, rate=1e-2), folder)  # type: ignore


def test_the_mass_is_a_literal_mean_over_linked_tokens():
    study = small()
    pairs = [*study.test[:3], Pair("x", "1 2", "2 1")]  # the last one has no links
    step = forced(study.start, encode_pairs(study.start, pairs))
    masses = aligned_mass(step).tolist()
    for row, pair in enumerate(pairs[:3]):
        expected = np.mean([float(step.output.attention[row, 0, t, s].detach()) for s, t in pair.sure])
        assert masses[row] == pytest.approx(expected, rel=1e-5)
        assert float(aligned_attention(step)[row].detach()) == pytest.approx(-np.log(1 - expected), rel=1e-4)
    assert np.isnan(masses[3])
    assert float(aligned_attention(step)[3].detach()) == 0


def test_a_pair_without_links_has_no_part_in_the_gradient():
    study = small()
    linked, unlinked = study.test[:3], Pair("x", "1 2", "2 1")

    def gradients(pairs: list[Pair]) -> list[torch.Tensor]:
        total = aligned_attention(forced(study.start, encode_pairs(study.start, pairs))).sum()
        return [torch.zeros(1) if g is None else g for g in torch.autograd.grad(total, weights, allow_unused=True)]

    weights = list(study.start.module.parameters())
    for with_it, without in zip(gradients([*linked, unlinked]), gradients(list(linked)), strict=True):
        torch.testing.assert_close(with_it, without)
    assert any(g.abs().sum() > 0 for g in gradients(list(linked)))


def test_attention_is_hidden_and_accuracy_stays(tmp_path: Path):
    study = small(folder=tmp_path)
    finding = sequence_manipulation(study, weights=[1.0, 0.0])
    plain, hidden = (finding.measure(f"attention on aligned words, λ = {w}").estimate.mean for w in (0, 1))
    assert hidden < 0.1 < plain
    assert finding.measure("accuracy, λ = 1").estimate.mean > 0.7
    uniform = finding.measure("attention on aligned words, uniform attention").estimate.mean
    assert finding.measure("attention on aligned words, no attention").estimate.mean == 0
    assert finding.measure("accuracy, no attention").estimate.mean < finding.measure("accuracy, λ = 0").estimate.mean
    lengths = [len(p.source.split()) + 1 for p in study.test]
    assert uniform == pytest.approx(np.mean([1 / n for n in lengths]), rel=1e-5)
    assert {p.name for p in tmp_path.iterdir()} == {"copy-weight-0", "copy-weight-1", "copy-uniform", "copy-none"}
    again = sequence_manipulation(study, weights=[1.0, 0.0])
    assert repr(again) == repr(finding)  # the interval of no attention at all is undefined


def test_accuracy_is_over_tokens_and_the_end():
    study = small()
    accuracy, _ = accuracy_and_mass(study.start, study.test)
    (pair,) = encode_pairs(study.start, study.test[:1])
    answers = study.start.answers([pair.answer.ids])
    with torch.no_grad():
        said = study.start.force(study.start.batch([pair.source]), answers).logits[0].argmax(-1)
    assert accuracy[0] == pytest.approx(np.mean((said == answers.outputs[0]).numpy()))


def test_the_start_of_a_translation_is_kept_and_not_used_for_others(tmp_path: Path):
    pairs, recipe = rearranged("copy", 12), replace(TRANSLATED, epochs=1)
    one, again = (translating(pairs, pairs, folder=tmp_path, recipe=recipe).start for _ in range(2))
    assert one.tokenizer.to_str() == again.tokenizer.to_str()
    assert torch.equal(one.words.weight, again.words.weight)
    for changed, (others, other) in {"pairs": (pairs[:6], recipe), "recipe": (pairs, replace(recipe, seed=1))}.items():
        with pytest.raises(BadInput, match=rf"holds another translator \(changed: {changed}\)"):
            translating(others, others, folder=tmp_path, recipe=other)


def test_bad_input_is_refused():
    with pytest.raises(BadInput, match="unknown task 'sort'"):
        rearranging("sort")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no pair has a word alignment"):
        translating([Pair("0", "a", "b")], [])
    with pytest.raises(BadInput, match="is empty"):
        sequence_manipulation(small(), weights=[])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [{"src": p.source, "trg": p.answer, "align": sorted(p.sure)} for p in rearranged("copy", 12)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    options = ["--limit", "10", "--epochs", "1", "--quiet"]
    assert run(["audit-sequences", "--aligned", str(tmp_path), "--out", str(tmp_path / "out"), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"] == "sequence_manipulation (translation)"
    assert run(["audit-sequences", "--aligned", str(tmp_path), "--out", str(tmp_path / "out"), *options]) == 0
    assert "uniform attention" in capsys.readouterr().out
    assert run(["audit-sequences", "--aligned", str(tmp_path / "out"), *options]) == 2
    assert "holds no file train.jsonl" in capsys.readouterr().err
