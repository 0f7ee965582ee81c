"""Answers and their explanations, against literal versions."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from salience import methods
from salience.cli import run
from salience.core.passes import forward, resolve
from salience.core.target import Target
from salience.core.types import Batch
from salience.data.pairs import Pair
from salience.errors import BadInput
from salience.generation import AnswerExplanation, AnswerTarget, explain_answer, explain_answers
from salience.generation.answers import answers, spelled
from salience.generation.matrices import MATRIX_METHODS, Forced, linear, occlusion, probed
from salience.models.seq2seq import BOS, EOS, Seq2Seq, Seq2SeqConfig, subword_tokenizer
from salience.training.loop import Recipe
from salience.training.sequences import fit_pairs
from salience.views.answers import page, relative

PAIRS = [
    Pair("0", "Ein Mann schläft.", "A man sleeps."),
    Pair("1", "Eine Frau schläft.", "A woman sleeps."),
    Pair("2", "Ein Mann lacht.", "A man laughs."),
    Pair("3", "Eine Frau lacht laut im Park.", "A woman laughs loudly in the park."),
]


def trained(**changes) -> Seq2Seq:
    texts = [text for pair in PAIRS for text in (pair.source, pair.answer)]
    tokenizer = subword_tokenizer(texts * 3, 110)
    config = Seq2SeqConfig(tokenizer.get_vocab_size(), **{"hidden": 24, "layers": 1, "dropout": 0.0, **changes})
    model = Seq2Seq.new(config, tokenizer, name="tiny")
    for _ in fit_pairs(model, PAIRS, recipe=Recipe(epochs=60, batch=4, rate=2e-2, decay=0.0)):
        pass
    return model


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    return trained()


def literal(model: Seq2Seq, text: str, longest: int = 50) -> list[int]:
    """The most likely word after the words before it, each from a pass of its own."""
    batch, said = model.batch(model.encode([text])), list[int]()
    while len(said) < longest:
        logits = model.after(said)(batch).logits[0]
        logits[[0, model.ids[BOS]]] = -torch.inf
        said.append(int(logits.argmax()))
        if said[-1] == model.ids[EOS]:
            return said[:-1]
    return said


def log_probability(model: Seq2Seq, batch: Batch, tokens: list[int]) -> float:
    total = 0.0
    for n, token in enumerate([*tokens, model.ids[EOS]]):
        total += float(model.after(tokens[:n])(batch).logits[0].log_softmax(-1)[token].detach())
    return total


def test_greedy_answers_are_the_most_likely_words_one_by_one(model: Seq2Seq):
    encoded = model.encode([pair.source for pair in PAIRS])
    found = answers(model, encoded)
    for pair, tokens in zip(PAIRS, found, strict=True):
        assert list(tokens) == literal(model, pair.source)
        assert spelled(model, tokens) == pair.answer  # learnt by heart


def test_a_beam_over_everything_finds_the_best_of_all_short_answers():
    tokenizer = subword_tokenizer(["a b"] * 3, 8)
    model = Seq2Seq.new(Seq2SeqConfig(tokenizer.get_vocab_size(), hidden=6, layers=1), tokenizer, seed=3)
    with torch.no_grad():
        model.module.output.bias[model.ids[EOS]] += 1.5  # so that answers are short
        model.module.output.weight *= 3
    batch = model.batch(model.encode(["a b"]))
    (best,) = answers(model, model.encode(["a b"]), beam=60)
    scores = {
        (): log_probability(model, batch, []),
        **{(a,): log_probability(model, batch, [a]) / 2 for a in range(model.config.vocabulary)},
    }
    del scores[(model.ids[BOS],)], scores[(0,)], scores[(model.ids[EOS],)]
    assert log_probability(model, batch, list(best)) / (len(best) + 1) >= max(scores.values()) - 1e-6
    with pytest.raises(BadInput, match="beam=0 must be at least 1"):
        answers(model, model.encode(["a"]), beam=0)


@pytest.mark.parametrize("beam", [1, 3])
def test_the_longest_answer_depends_on_its_own_source_alone(beam: int):
    tokenizer = subword_tokenizer(["a b"] * 3, 8)
    model = Seq2Seq.new(Seq2SeqConfig(tokenizer.get_vocab_size(), hidden=6, layers=1), tokenizer, seed=3)
    with torch.no_grad():
        model.module.output.bias[model.ids[EOS]] = -100.0  # so that no answer ends
    encoded = model.encode(["a b", "a", "a b a b a b a b"])
    together = answers(model, encoded, beam=beam)
    assert [len(tokens) for tokens in together] == [2 * len(one) + 10 for one in encoded]
    assert together == [answers(model, [one], beam=beam)[0] for one in encoded]


def forced(model: Seq2Seq, pair: Pair = PAIRS[0]) -> Forced:
    batch = model.batch(model.encode([pair.source]))
    return Forced.of(model, batch, model.answers([model.encode_answer(pair.answer).ids]))


def test_relevance_is_that_of_each_state_alone(model: Seq2Seq):
    step, net = forced(model), model.module
    head = net.heads[0]
    words, expected = step.answers.outputs[0], torch.empty_like(probed(step))
    for t, word in enumerate(words):
        for s, h in enumerate(step.output.states[0]):
            c = head.project.weight @ h + head.project.bias
            merged = (net.merge.weight @ torch.cat([step.output.queries[0, t], c]) + net.merge.bias).clamp_min(0)
            logits = net.output.weight @ merged + net.output.bias
            expected[t, s] = (logits[word] - logits.logsumexp(0)).detach()
            r = float((net.output.weight[word] @ c).detach())
            assert float(linear(step)[t, s]) == pytest.approx(r, abs=1e-4)
    torch.testing.assert_close(probed(step), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["output_relevance", "attention_x_relevance"])
def test_relevance_of_an_answer_is_that_of_each_of_its_words(model: Seq2Seq, name: str):
    """By the method that explains one prediction, with what is said without the source left out of both."""
    step, named = forced(model), {f.__name__: f for f in MATRIX_METHODS}
    matrix, words = named[name](step), step.answers.outputs[0].tolist()
    for t, word in enumerate(words):
        after = model.after(words[:t])
        target = resolve(after, [Target(word, kind="log_probability")], forward(after, step.batch).logits)
        one = getattr(methods, name)(after, step.batch, target)
        torch.testing.assert_close(matrix.scores[t], one.scores[0].float(), rtol=1e-4, atol=1e-4)
        if matrix.gaps:
            torch.testing.assert_close(matrix.gaps["decomposition"][t], one.gaps["decomposition"][0].float())


def test_a_linear_relevance_has_no_bias(model: Seq2Seq):
    step, named = forced(model), {f.__name__: f for f in MATRIX_METHODS}
    net, words = model.module, step.answers.outputs[0]
    expected = net.output.weight[words] @ net.heads[0].project.weight @ step.output.states[0].mT
    scores = named["output_relevance"](step, readout="linear").scores
    torch.testing.assert_close(scores, expected.detach(), rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_each_step(model: Seq2Seq):
    step = forced(model)
    for method in (f for f in MATRIX_METHODS if f.__name__ in ("gradient", "input_x_gradient")):
        matrix = method(step).scores
        for t in (0, 2):
            e = model.embed(step.batch).requires_grad_()
            after = model.after(step.answers.inputs[0, 1 : t + 1].tolist())
            f = after(step.batch, embeddings=e).logits[0].log_softmax(-1)[step.answers.outputs[0, t]]
            (g,) = torch.autograd.grad(f, e)
            expected = g[0].norm(dim=-1) if method.__name__ == "gradient" else (g * e)[0].sum(-1)
            torch.testing.assert_close(matrix[t], expected.detach(), rtol=1e-3, atol=1e-5)


def test_a_matrix_says_whether_it_has_signs(model: Seq2Seq):
    step, named = forced(model), {f.__name__: f for f in MATRIX_METHODS}
    assert [named["gradient"](step, reduction=how).signed for how in ("l1", "l2", "sum")] == [False, False, True]
    assert [named[name](step).signed for name in ("attention", "input_x_gradient", "occlusion")] == [False, True, True]


def test_occlusion_erases_one_token_at_a_time(model: Seq2Seq):
    step = forced(model)

    def values(e: Tensor) -> Tensor:
        logits = model.force(step.batch, step.answers, embeddings=e).logits[0].log_softmax(-1)
        return logits.gather(1, step.answers.outputs[0][:, None])[:, 0].detach()

    for kind, vector in (
        ("zero", torch.zeros(24)),
        ("mean", model.words.weight.mean(0)),
        ("unk", model.words.weight[1]),
    ):
        matrix = occlusion(step, erase=kind).scores
        for s in range(step.batch.width):
            e = model.embed(step.batch).clone()
            e[0, s] = vector
            torch.testing.assert_close(matrix[:, s], values(model.embed(step.batch)) - values(e), atol=1e-4, rtol=1e-3)


def test_an_explanation_holds_everything(model: Seq2Seq):
    e = explain_answer(model, "Ein Mann lacht.", method="attention_x_relevance", readout="linear")
    assert e.answer == "A man laughs."
    assert e.target.kind == "log_probability"
    assert e.settings == {"readout": "linear"}
    assert len(e.matrix) == len(e.answer_tokens) == len(e.gaps["decomposition"])
    assert len(e.matrix[0]) == len(e.source_tokens) == len(e.total)
    assert e.total[0] == pytest.approx(sum(row[0] for row in e.matrix))
    assert [e.answer[a:b].strip() for a, b in e.answer_offsets if e.answer[a:b].strip()]
    source, answer, matrix = e.words()
    assert (source, answer) == (["Ein", "Mann", "lacht", "."], ["A", "man", "laughs", "."])
    assert len(matrix) == len(matrix[0]) == 4
    assert json.loads(json.dumps(e.to_dict()))["prompt"] == "Ein Mann lacht."


def test_words_have_the_sum_of_additive_scores_and_else_the_largest():
    shared = {"prompt": "ab c", "answer": "xy", "method": "m", "settings": {}, "model": "m", "target": AnswerTarget()}
    shared |= {"source_tokens": ("a", "b", "c"), "source_offsets": ((0, 1), (1, 2), (2, 4)), "total": (), "gaps": {}}
    shared |= {"answer_tokens": ("x", "y"), "answer_offsets": ((0, 1), (1, 2)), "signed": True}
    matrix = ((1.0, 2.0, 3.0), (5.0, 4.0, 0.0))
    words = [AnswerExplanation(**shared, matrix=matrix, additive=additive).words()[2] for additive in (True, False)]
    assert words == [[[(3 + 9) / 2, 1.5]], [[(2 + 5) / 2, 1.5]]]


def test_all_methods_explain_a_given_answer(model: Seq2Seq):
    names = [function.__name__ for function in MATRIX_METHODS]
    rows = explain_answers(model, ["Ein Mann lacht."], names, answers=["A woman laughs."])
    assert [e.method for e in rows] == names
    assert all(e.answer == "A woman laughs." and len(e.answer_tokens) == len(rows[0].answer_tokens) for e in rows)
    assert all(sum(row) == pytest.approx(1) for row in rows[0].matrix)  # attention
    assert "<svg" in page(rows[:1])


def test_bad_input_is_refused(model: Seq2Seq):
    with pytest.raises(BadInput, match="unknown method 'lime' of an encoder-decoder"):
        explain_answer(model, "Ein Mann.", method="lime")
    with pytest.raises(BadInput, match="unknown setting 'nodes'"):
        explain_answer(model, "Ein Mann.", method="occlusion", nodes=3)
    with pytest.raises(BadInput, match="unknown erase 'never' of occlusion"):
        explain_answer(model, "Ein Mann.", method="occlusion", erase="never")
    with pytest.raises(BadInput, match="does not answer with a text"):
        explain_answer("sentiment_bilstm", "A fine film.")
    with pytest.raises(BadInput, match="the answer is empty"):
        explain_answer(model, "Ein Mann.", answer="")


def test_each_row_of_a_view_has_its_own_scale():
    assert relative([[1.0, 2.0], [0.0, 0.0], [-4.0, -2.0]], signed=True) == [[0.5, 1.0], [0.0, 0.0], [0.0, 1.0]]
    assert relative([[-1.0, 2.0]], signed=True) == [[-0.5, 1.0]]


def test_the_command_shows_which_word_made_each_word(
    model: Seq2Seq, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model.save(tmp_path / "m")
    assert run(["explain", "Ein Mann lacht.", "--model", str(tmp_path / "m"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    keys = "prompt answer method settings model target source_tokens source_offsets answer_tokens matrix total gaps"
    assert set(keys.split()) <= set(facts)
    assert facts["target"] == {"kind": "log_probability", "against": None}
    named = ["explain", "Ein Mann lacht.", "--model", str(tmp_path / "m")]
    assert run([*named, "--method", "attention", "--no-color"]) == 0
    assert "laughs" in capsys.readouterr().out
    files = ["--html", str(tmp_path / "a.html"), "--svg", str(tmp_path / "a.svg")]
    assert run(["explain", "Ein Mann lacht.", "--model", str(tmp_path / "m"), *files]) == 0
    assert "<svg" in (tmp_path / "a.html").read_text("utf-8")
    capsys.readouterr()
    assert run(["explain", "Ein Mann.", "--model", str(tmp_path / "m"), "--method", "lime"]) == 2
    assert "unknown method 'lime' of an encoder-decoder" in capsys.readouterr().err
    assert run([*named, "--target", "▁A", "--method", "gradient"]) == 0
