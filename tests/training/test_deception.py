"""Losses of twins: each equals a literal version, one text at a time."""

from dataclasses import replace

import pytest
import torch

from audits.twins import model, texts
from salience.core.passes import forward
from salience.data.examples import encode_examples
from salience.errors import BadInput
from salience.training.deception import (
    attention_distance,
    borrowed,
    forbidden_attention,
    forbidden_mass,
    imitation,
    manipulation,
    output_distance,
    separated,
)
from salience.training.guides import by_rationales
from salience.training.loop import Recipe, fit, step_of
from salience.training.objectives import Objective, Term, every
from salience.training.states import conicity, masked_words, tying
from shapes import build

EXAMPLES = by_rationales(model(), [*texts(3, 0), *texts(1, 1, words=5)])


def step(objective, adapter=None, examples=EXAMPLES):
    adapter = adapter or model()
    return step_of(adapter, examples, encode_examples(adapter, examples), objective)


def test_the_distance_of_outputs_is_half_the_sum_of_absolute_differences():
    reference = model(seed=1)
    one = step(Objective((Term(output_distance, over=every, attention=False),), reference))
    for row, (mine, other) in enumerate(zip(one.output.logits, one.reference.logits, strict=True)):
        p, q = mine.softmax(0).tolist(), other.softmax(0).tolist()
        assert output_distance(one)[row].item() == pytest.approx(
            sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2, abs=1e-6
        )


@pytest.mark.parametrize("side", ["model", "reference"])
def test_the_distance_of_attention_is_the_divergence_in_the_named_direction(side):
    one = step(imitation(model(seed=1), 0.1, of=side))
    distances = attention_distance(one, of=side)
    for row in range(len(EXAMPLES)):
        a, b = (o.attention[0][row, 0, 0].tolist() for o in (one.output, one.reference))
        a, b = (a, b) if side == "model" else (b, a)
        expected = sum(
            x * (torch.tensor(x).log() - torch.tensor(y).log()).item() for x, y in zip(a, b, strict=True) if x > 0
        )
        assert distances[row].item() == pytest.approx(expected, abs=1e-5)


def test_attention_on_marked_tokens_costs_minus_the_log_of_the_rest():
    one = step(manipulation(1.0))
    for row, example in enumerate(EXAMPLES):
        a = one.output.attention[0][row, 0, 0].tolist()
        mass = sum(x for x, mark in zip(a, example.guide, strict=False) if mark)
        assert forbidden_mass(one)[row].item() == pytest.approx(mass, abs=1e-6)
        assert forbidden_attention(one)[row].item() == pytest.approx(-torch.tensor(1 - mass).log().item(), abs=1e-5)


def test_training_moves_attention_away_from_marked_tokens_and_keeps_the_task():
    train = by_rationales(model(), texts(64, 1))
    masses = {}
    for weight in (0.0, 1.0):
        twin, objective = model("bilstm"), manipulation(weight)
        list(fit(twin, train, objective=objective, recipe=Recipe(epochs=15, rate=0.05, batch=16)))
        one = step(objective, twin, train)
        masses[weight] = forbidden_mass(one).mean().item()
        assert (one.output.logits.argmax(1) == one.labels).double().mean() > 0.95
    assert masses[1.0] < 0.05 < masses[0.0]


def test_a_loss_that_compares_needs_a_reference_model():
    with pytest.raises(BadInput, match="pass Objective"):
        output_distance(step(Objective()))
    with pytest.raises(BadInput, match="weight=-1"):
        imitation(model(), -1.0)


def test_borrowed_attention_is_that_of_the_reference_model():
    reference = model(seed=1)
    objective = Objective(reference=reference, impose=borrowed, terms=manipulation(0.0).terms)
    one = step(objective, model("mlp", scoring="fixed"))
    assert torch.equal(one.output.attention[0], one.reference.attention[0])
    context = (one.output.attention[0][:, 0] @ forward_states(one))[:, 0]
    expected = one.model.module.classifier(context)
    assert torch.allclose(one.output.logits, expected, atol=1e-6)


def forward_states(one):
    return torch.tanh(one.model.module.project(one.output.embeddings))


def test_separated_tokens_attend_only_among_their_kind():
    bert = build("bert")
    batch = bert.batch(bert.encode(["a good film", "a bad film and long"]))
    guide = torch.zeros(batch.ids.shape)
    guide[:, 2] = 1
    seen = {}

    def edit(site, a):
        seen[site.layer] = separated(batch, guide, None)(site, a)
        return seen[site.layer]

    forward(bert, batch, edit_attention=edit)
    for a in seen.values():
        for row in range(len(batch)):
            for q in range(int(batch.mask[row].sum())):
                for t in range(batch.width):
                    special, same = bool(batch.special[row, q]), bool(guide[row, q] == guide[row, t])
                    allowed = batch.mask[row, t] if special else same and batch.content[row, t]
                    assert (a[row, :, q, t] > 0).all() == bool(allowed)
            assert torch.allclose(a[row, :, : int(batch.mask[row].sum())].sum(-1), torch.ones(()), atol=1e-5)


# ------------------------------------------------------------------------------------------------------ states


def test_conicity_is_the_mean_cosine_with_the_mean_state():
    one = step(Objective((Term(conicity, over=every, hidden=True, attention=False),)))
    for row, content in enumerate(one.batch.content):
        h = one.output.hidden[-1][row][content]
        cosines = [abs(torch.nn.functional.cosine_similarity(x, h.mean(0), dim=0).item()) for x in h]
        assert conicity(one)[row].item() == pytest.approx(sum(cosines) / len(cosines), abs=1e-5)


def test_tying_is_the_mean_distance_of_states_and_embeddings():
    adapter = model(embedding=8)
    one = step(Objective((Term(tying, over=every, hidden=True, attention=False),)), adapter)
    for row, content in enumerate(one.batch.content):
        d = (one.output.hidden[-1][row] - one.output.embeddings[row])[content]
        assert tying(one)[row].item() == pytest.approx(sum(x.norm().item() for x in d) / len(d), abs=1e-5)


def test_masked_words_read_masked_states_and_ask_for_the_word():
    adapter = model(embedding=8).fresh(("no", "yes"), 0)
    objective = Objective((Term(masked_words, over=every, hidden=True, attention=False),))
    torch.manual_seed(3)
    losses = masked_words(step(objective, adapter))
    torch.manual_seed(3)
    one = step(objective, adapter)
    keys = torch.rand(one.batch.ids.shape).masked_fill(~one.batch.content, 2.0)
    for row in range(len(one.batch)):
        chosen = [t for t in range(one.batch.width) if keys[row, t] < 0.15 or keys[row, t] == keys[row].min()]
        ids = one.batch.ids[row].clone()
        ids[chosen] = adapter.replacements["mask"]
        changed = replace(one.batch, ids=one.batch.ids.clone())
        changed.ids[row] = ids
        h = adapter(changed, hidden=True).hidden[-1][row]
        p = (h @ adapter.words.weight.T).log_softmax(-1)
        expected = -sum(p[t, one.batch.ids[row, t]].item() for t in chosen) / len(chosen)
        assert losses[row].item() == pytest.approx(expected, abs=1e-5)


def test_states_of_another_width_are_refused():
    with pytest.raises(BadInput, match="8 wide and its embeddings 6"):
        tying(step(Objective((Term(tying, over=every, hidden=True, attention=False),))))


def test_joined_states_hold_the_embedding_beside_the_encoding():
    adapter = model(joined=True)
    one = step(Objective((Term(conicity, over=every, hidden=True, attention=False),)), adapter)
    assert torch.equal(one.output.hidden[-1][..., -6:], one.output.embeddings)
