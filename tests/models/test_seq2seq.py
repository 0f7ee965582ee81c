"""The encoder-decoder against a literal decoder that takes one step at a time."""

from pathlib import Path

import pytest
import torch

import salience
from salience.errors import BadInput, BadModel, TruncatedText
from salience.models.identity import digest
from salience.models.seq2seq import BOS, EOS, UNK, Decoded, Seq2Seq, Seq2SeqConfig, Seq2SeqNetwork, subword_tokenizer

TEXTS = ["Ein Mann schläft.", "Zwei Hunde laufen im Schnee, und ein Kind lacht.", "Hallo"]
ANSWERS = ["A man is sleeping.", "Two dogs run in the snow, and a child laughs.", "Hello"]
SHAPES = {
    "translation": {},
    "copying": {"layers": 1, "bidirectional": False, "activation": "tanh", "dropout": 0.0},
    "heads": {"cell": "gru", "layers": 1, "bidirectional": False, "heads": 3, "shared": False, "dropout": 0.0},
    "uniform": {"scoring": "uniform"},
}


def tiny(shape: str = "translation", **changes) -> Seq2Seq:
    tokenizer = subword_tokenizer([*TEXTS, *ANSWERS] * 3, 90)
    config = Seq2SeqConfig(tokenizer.get_vocab_size(), hidden=8, **{**SHAPES[shape], **changes})
    model = Seq2Seq.new(config, tokenizer, name="tiny", seed=1)
    model.module.double()
    return model


def literal(net: Seq2SeqNetwork, source: list[int], inputs: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and attention of one text, step by step and head by head."""
    e = torch.stack([net.words.weight[i] for i in source])[None]
    h, last = net.encoder(e)
    h = h[0]
    parts = last if isinstance(last, tuple) else (last,)
    directions = 2 if net.config.bidirectional else 1
    state = tuple(
        torch.stack([sum(part[layer * directions + i] for i in range(directions)) / directions for layer in layers])
        for part, layers in ((part, range(net.config.layers)) for part in parts)
    )
    words = net.answer_words or net.words
    rows, weights = [], []
    for word in inputs:
        d, after = net.decoder(words.weight[word][None, None], state if len(state) > 1 else state[0])
        state = after if isinstance(after, tuple) else (after,)
        d = d[0, 0]
        contexts, attention = [], []
        for head in net.heads:
            query = head.query.weight @ d + head.query.bias
            scores = torch.stack([torch.dot(one, query) for one in h])
            if net.config.scoring == "uniform":
                scores = torch.zeros_like(scores)
            a = torch.exp(scores) / torch.exp(scores).sum()
            attention.append(a)
            contexts.append(head.project.weight @ sum(w * one for w, one in zip(a, h, strict=True)) + head.project.bias)
        c = sum(contexts) / len(contexts)
        m = net.merge.weight @ torch.cat([d, c]) + net.merge.bias
        m = torch.tanh(m) if net.config.activation == "tanh" else m.clamp_min(0)
        rows.append(net.output.weight @ m + net.output.bias)
        weights.append(torch.stack(attention))
    return torch.stack(rows), torch.stack(weights, 1)


def decode(model: Seq2Seq) -> tuple[Decoded, list[list[int]]]:
    batch = model.batch(model.encode(TEXTS))
    answers = model.answers([model.encode_answer(a).ids for a in ANSWERS])
    with torch.no_grad():
        return model.force(batch, answers), [
            row[kept].tolist() for row, kept in zip(answers.inputs, answers.mask, strict=True)
        ]


@pytest.mark.parametrize("shape", SHAPES)
def test_all_steps_at_once_equal_one_step_at_a_time(shape: str):
    model = tiny(shape)
    decoded, inputs = decode(model)
    for row, (text, read) in enumerate(zip(TEXTS, inputs, strict=True)):
        source = list(model.encode([text])[0].ids)
        logits, attention = literal(model.module, source, read)
        torch.testing.assert_close(decoded.logits[row, : len(read)], logits)
        torch.testing.assert_close(decoded.attention[row, :, : len(read), : len(source)], attention)
        assert not decoded.attention[row, :, :, len(source) :].any()


def test_as_a_model_it_predicts_the_word_after_its_prefix():
    model = tiny("copying")
    decoded, inputs = decode(model)
    for t in (0, 2):
        batch = model.batch(model.encode(TEXTS[:1]))
        output = model.after(inputs[0][1 : t + 1])(batch, attention="read", hidden=True)
        torch.testing.assert_close(output.logits[0], decoded.logits[0, t])
        torch.testing.assert_close(output.attention[0][0, :, 0], decoded.attention[0, :, t, : batch.width])
        torch.testing.assert_close(output.hidden[1][0], decoded.states[0, : batch.width])


def test_answers_begin_and_end_with_special_tokens():
    model = tiny()
    answers = model.answers([[7, 8], [9]])
    start, end, pad = model.ids[BOS], model.ids[EOS], 0
    assert answers.inputs.tolist() == [[start, 7, 8], [start, 9, pad]]
    assert answers.outputs.tolist() == [[7, 8, end], [9, end, pad]]
    assert answers.mask.tolist() == [[True, True, True], [True, True, False]]


def test_a_saved_model_is_loaded_and_known_by_its_digest(tmp_path: Path):
    model = tiny()
    model.module.float()
    model.save(tmp_path / "m")
    loaded = salience.load(tmp_path / "m")
    assert isinstance(loaded, Seq2Seq)
    assert digest(loaded) == digest(model) != digest(tiny("copying"))
    torch.testing.assert_close(decode(loaded)[0].logits, decode(model)[0].logits)
    (tmp_path / "m" / "model.safetensors").unlink()
    with pytest.raises(BadModel, match=r"model\.safetensors is missing"):
        salience.load(tmp_path / "m")


def test_methods_explain_the_next_word():
    model = tiny()
    model.module.float()
    batch = model.batch(model.encode(TEXTS[:1]))
    predicted = model.label(int(model(batch).logits.argmax()))
    for method in ("attention", "gradient", "occlusion", "integrated_gradients", "kernel_shap"):
        (explanation,) = salience.explain(model, TEXTS[0], method=method)
        assert explanation.target.label == predicted
        assert len(explanation.scores) == len(model.encode(TEXTS[:1])[0])
    (path,) = salience.explain(model, TEXTS[0], method="integrated_gradients", nodes=64)
    assert abs(path.gaps["completeness"]) < 1e-3


def test_special_tokens_are_not_ranked_and_unknown_words_are_read():
    model = tiny()
    (encoded,) = model.encode(["Ein Ω"])
    assert encoded.special == (*(False for _ in encoded.ids[:-1]), True)
    assert model.ids[UNK] in encoded.ids
    assert encoded.ids[-1] == model.ids[EOS]


WRITTEN = "Ein Hut, der (so heißt es) 20% wert: „Hut“ – it's the boys' hat and/or 'cap'; wirklich?! Ja."
SET_APART = "Ein Hut , der ( so heißt es ) 20 % wert : „ Hut“ – it 's the boys ' hat and / or 'cap' ; wirklich ?! Ja ."


def test_punctuation_has_the_same_tokens_with_and_without_a_space_before_it():
    tokenizer = subword_tokenizer([WRITTEN] * 20, 150)
    written, apart = (tokenizer.encode(text) for text in (WRITTEN, SET_APART))
    assert apart.tokens == written.tokens
    assert tokenizer.encode("ein Hut , der").tokens == tokenizer.encode("ein Hut, der").tokens
    assert "▁" not in apart.tokens
    assert tokenizer.decode(apart.ids) == WRITTEN
    for text, encoding in ((WRITTEN, written), (SET_APART, apart)):
        spelled = [text[a:b].strip() for a, b in encoding.offsets]
        assert spelled == [token.lstrip("▁") for token in encoding.tokens]
    assert tokenizer.decode(tokenizer.encode("Hut .de").ids) == "Hut .de"  # a mark that begins a word stays there


def test_a_text_longer_than_the_model_reads_is_truncated_with_a_warning():
    model = tiny(longest=4)
    with pytest.warns(TruncatedText, match="longer than the 3 tokens"):
        (encoded,) = model.encode(["Ein Mann schläft und lacht."])
    assert len(encoded) == 4
    assert encoded.unseen


def test_bad_input_is_refused():
    model = tiny()
    with pytest.raises(BadInput, match="is a pair"):
        model.encode([("a", "b")])
    with pytest.raises(BadInput, match="empty"):
        model.encode([" "])
    with pytest.raises(BadInput, match="there is no word number 1000"):
        model.resolve(1000)
    with pytest.raises(BadInput, match="tokens of tiny; name its first one"):
        model.resolve("man is sleeping")
    with pytest.raises(BadInput, match="unknown word"):
        model.resolve("Ω")
    assert model.label(model.resolve(model.label(7))) == model.label(7)


def test_a_translator_cannot_learn_labels(tmp_path: Path):
    tiny().save(tmp_path / "m")
    with pytest.raises(BadInput, match="cannot learn labels"):
        salience.models.load_to_train(tmp_path / "m", 2)


def test_without_attention_the_answer_depends_on_the_last_state_alone():
    network = Seq2SeqNetwork(Seq2SeqConfig(9, hidden=8, layers=1, scoring="none", dropout=0.0)).eval()
    e, mask = torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.bool)
    inputs = torch.randint(0, 9, (2, 3))
    with torch.no_grad():
        decoded = network(e, mask, inputs)
        _, state = network.encode(e, mask)
        d, _ = network.decode(inputs, state)
        expected = network.read_out(d, network.heads[0].project.bias.expand_as(d))
    assert not decoded.attention.any()
    torch.testing.assert_close(decoded.logits, expected)
