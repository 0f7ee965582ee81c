"""The tests that replace attention, against one-text-at-a-time versions of their papers' algorithms."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import kendalltau
from torch import Tensor

import shapes
from audits import known
from salience.audits.adversary import Search, adversarial
from salience.audits.correlation import PAIRS, RANKINGS, correlated
from salience.audits.erasure import fractions_to_flip, single_weights
from salience.audits.permutation import permuted, shuffled
from salience.audits.weights import Attended
from salience.core.distances import jensen_shannon, total_variation
from salience.core.randomness import generators
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput, UnsupportedModel

EDITABLE = ("bert", "roberta", "gpt2", "llama", "pooled_bilstm", "pooled_embedding")


def batch_of(model: Model, texts: tuple[str, ...] = shapes.TEXTS) -> Batch:
    return model.batch(model.encode(texts))


def attended(shape: str, **options: int) -> Attended:
    model = shapes.build(shape, dtype=torch.float64)
    return Attended.of(model, batch_of(model), **options)


def in_batch_and_alone(shape: str, layer: int | None) -> tuple[Attended, Attended]:
    """The attention of all texts, and that of the last alone, which shares its passes with a longer one."""
    model = shapes.build(shape, dtype=torch.float64)
    every, one = (batch_of(model, texts) for texts in (shapes.TEXTS, shapes.TEXTS[-1:]))
    assert one.width < every.width
    return Attended.of(model, every, layer), Attended.of(model, one, layer)


def answer(model: Model, text: str, layer: int, change) -> np.ndarray:
    """The probabilities of one text whose attention at one layer is changed in a whole, plain pass."""
    model.module.eval()
    with torch.no_grad():
        edit = lambda site, a: change(a) if site.layer == layer else a  # noqa: E731
        return model(batch_of(model, (text,)), edit_attention=edit).logits.softmax(-1)[0].numpy()


def content(model: Model, text: str) -> list[int]:
    return batch_of(model, (text,)).content[0].nonzero()[:, 0].tolist()


# ------------------------------------------------------------------------------------------------------ distances


def test_distances_equal_scipy():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6), size=(2, 5))
    p[0, :3] = 0
    p[0] /= p[0].sum()
    own = jensen_shannon(torch.tensor(p), torch.tensor(q)).numpy()
    assert own == pytest.approx([jensenshannon(a, b) ** 2 for a, b in zip(p, q, strict=True)], abs=1e-9)
    assert total_variation(torch.tensor(p), torch.tensor(q)).numpy() == pytest.approx(np.abs(p - q).sum(1) / 2)
    assert float(jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))) == pytest.approx(np.log(2))


# ------------------------------------------------------------------------------------------------------ passes


@pytest.mark.parametrize("shape", EDITABLE)
@pytest.mark.parametrize("layer", [1, None])
def test_unchanged_weights_give_the_models_own_output(shape: str, layer: int | None):
    own = attended(shape, **({} if layer is None else {"layer": layer}))
    text = torch.tensor([2, 0, 1, 3, 1])
    assert torch.allclose(own.answers(text, lambda a, _: a), own.probabilities[text], atol=1e-12)


@pytest.mark.parametrize("shape", ["bert", "llama", "pooled_bilstm"])
def test_a_pass_from_the_middle_equals_a_whole_one(shape: str):
    own = attended(shape)
    assert own.start is not None
    scale = torch.linspace(0, 1, own.batch.width, dtype=torch.float64)
    from_middle = own.answers(torch.arange(4), lambda a, _: a * scale[: a.shape[-1]])
    for text, result in zip(shapes.TEXTS, from_middle, strict=True):
        whole = answer(own.model, text, own.layer, lambda a: a * scale[: a.shape[-1]])
        assert result.numpy() == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("shape", ["bert", "roberta", "gpt2", "llama", "pooled_bilstm"])
def test_a_pass_from_the_last_attention_equals_a_whole_one(shape: str):
    own = attended(shape)
    alone = own.read_alone()
    assert alone.last is not None
    assert alone.weights.shape[2] == 1
    assert torch.allclose(alone.distribution, own.distribution)
    scale = torch.linspace(0, 1, own.batch.width, dtype=torch.float64)
    text = torch.tensor([2, 0, 1, 3, 1])
    result, whole = (each.answers(text, lambda a, _: a * scale[: a.shape[-1]]) for each in (alone, own))
    assert torch.allclose(result, whole, atol=1e-12)


@pytest.mark.parametrize(("shape", "layer"), [("bert", 1), ("deberta_v2", None)])
def test_attention_that_is_not_the_last_or_cannot_be_given_is_run_as_before(shape: str, layer: int | None):
    own = attended(shape, **({} if layer is None else {"layer": layer}))
    assert own.read_alone() is own


@pytest.mark.parametrize("shape", ["bert", "llama"])
def test_one_head_is_changed_alone(shape: str):
    own = attended(shape, head=2)
    seen: list[Tensor] = []

    def change(a: Tensor, _: Tensor) -> Tensor:
        seen.append(a)
        return a * 0

    answers = own.answers(torch.arange(4), change)
    assert {a.shape[1] for a in seen} == {1}

    def by_hand(a: Tensor) -> Tensor:
        return torch.cat([a[:, :1], a[:, 1:2] * 0, a[:, 2:]], 1)

    assert answers[0].numpy() == pytest.approx(answer(own.model, shapes.TEXTS[0], own.layer, by_hand), abs=1e-12)


def test_a_head_that_does_not_exist_is_refused():
    with pytest.raises(BadInput, match="no head 9: tiny-bert has heads 1 to 4"):
        attended("bert", head=9)


def test_a_model_that_does_not_choose_a_label_is_refused():
    with pytest.raises(BadInput, match="distributions over labels"):
        attended("bert_regression")


def test_attention_that_cannot_be_edited_is_refused():
    with pytest.raises(UnsupportedModel, match="cannot be edited"):
        permuted(attended("deberta_v2"), shuffles=2)


# ------------------------------------------------------------------------------------------------------ permutation


@pytest.mark.parametrize("shape", EDITABLE)
def test_permutation_equals_a_loop_over_shuffles(shape: str):
    own = attended(shape)
    result = permuted(own, shuffles=6, seed=3)
    for number, text in enumerate(shapes.TEXTS):
        places = content(own.model, text)
        single = batch_of(own.model, (text,))
        (generator,) = generators(single, 3)
        draws = torch.rand(single.width, 6, generator=generator)
        before = answer(own.model, text, own.layer, lambda a: a)
        changes = []
        for s in range(6):
            order = sorted(places, key=lambda i: float(draws[i, s]))

            def change(a: Tensor, order: list[int] = order, places: list[int] = places) -> Tensor:
                a = a.clone()
                a[..., places] = a[..., order].clone()
                return a

            after = answer(own.model, text, own.layer, change)
            changes.append(np.abs(after - before).sum() / 2)
        assert float(result.change[number]) == pytest.approx(float(np.median(changes)), abs=1e-9)


@pytest.mark.parametrize("layer", [1, None])
@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm"])
def test_shuffles_do_not_depend_on_the_other_texts(shape: str, layer: int | None):
    own, alone = in_batch_and_alone(shape, layer)
    assert float(permuted(own, shuffles=5).change[-1]) == pytest.approx(float(permuted(alone, shuffles=5).change[0]))


def test_causal_queries_never_see_later_tokens():
    own = attended("gpt2", layer=1)
    a = own.weights
    keys = torch.rand(len(own.batch), own.batch.width)
    changed = shuffled(a, keys, own.visible)
    above = torch.ones(a.shape[-2:]).triu(1).bool()
    assert bool((changed[..., above] == 0).all())
    assert torch.allclose(changed.sum(-1), a.sum(-1))
    assert not torch.equal(changed, a)


# ------------------------------------------------------------------------------------------------------ adversary


@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm"])
def test_adversary_equals_a_search_text_by_text(shape: str):
    """Algorithm 2 of Jain & Wallace, for one text at a time, with whole passes."""
    search = Search(restarts=3, steps=25, rate=0.1, spread=1.0)
    own = attended(shape)
    result = adversarial(own, epsilon=0.05, search=search, seed=1)
    for number, text in enumerate(shapes.TEXTS):
        distance, change = literal_adversary(own.model, text, own.layer, search, 0.05, seed=1)
        assert float(result.distance[number]) == pytest.approx(distance, abs=1e-6)
        assert float(result.change[number]) == pytest.approx(change, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("layer", [1, None])
@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm"])
def test_an_adversary_does_not_depend_on_the_other_texts(shape: str, layer: int | None):
    search = Search(restarts=3, steps=4, rate=0.1, spread=1.0)
    own, alone = (adversarial(each, epsilon=1.0, search=search) for each in in_batch_and_alone(shape, layer))
    for name in ("distance", "change"):
        assert float(getattr(own, name)[-1]) == pytest.approx(float(getattr(alone, name)[0]), abs=1e-6)


def test_without_an_adversary_there_is_no_change_of_the_output():
    result = adversarial(attended("bert"), epsilon=-1.0, search=Search(steps=1))
    assert bool((result.distance == 0).all())
    assert bool(result.change.isnan().all())


def literal_adversary(model: Model, text: str, layer: int, search: Search, epsilon: float, seed: int):
    model.module.eval()
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)
    batch, places = batch_of(model, (text,)), content(model, text)
    read = 0 if model.single_query else int(model.read_from(batch)[0].argmax())
    plain = model(batch, attention="differentiable")
    y, own = plain.logits.softmax(-1)[0], plain.attention[layer - 1][0, :, read][:, places]
    (generator,) = generators(batch, seed)
    noise = torch.randn(batch.width, search.restarts, len(own), 1, generator=generator)
    z = (search.spread * noise[places].permute(1, 2, 3, 0)[:, :, 0]).double().requires_grad_()
    optimiser = torch.optim.Adam([z], lr=search.rate, amsgrad=True)

    def change(weights: Tensor) -> Tensor:
        def edit(site, a):
            if site.layer != layer:
                return a
            a = a.clone()
            mass = a[..., places].sum(-1, keepdim=True)
            a[..., places] = weights[None, :, None] * mass
            return a

        return (model(batch, edit_attention=edit).logits.softmax(-1)[0] - y).abs().sum() / 2

    def jsd(p: Tensor, q: Tensor) -> Tensor:
        m = (p + q) / 2
        return ((p * (p / m).log()).sum(-1) / 2 + (q * (q / m).log()).sum(-1) / 2).mean()

    own = own / own.sum(-1, keepdim=True)
    for _ in range(search.steps):
        candidates = z.softmax(-1)
        loss = torch.zeros((), dtype=torch.float64)
        for k, c in enumerate(candidates):
            others = [jsd(c, o) for j, o in enumerate(candidates) if j != k]
            loss = loss - jsd(c, own) + search.penalty * (change(c) - search.allowed).relu() - sum(others) / len(others)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        results = [(float(jsd(c, own)), float(change(c))) for c in z.softmax(-1)]
    return max((r for r in results if r[1] <= epsilon), default=(0.0, np.nan))


# ------------------------------------------------------------------------------------------------------ erasure


@pytest.mark.parametrize("shape", EDITABLE)
def test_fractions_to_flip_equal_a_loop_over_sets(shape: str):
    own = attended(shape)
    fractions = fractions_to_flip(own, shuffles=2, seed=5)
    for number, text in enumerate(shapes.TEXTS):
        places = content(own.model, text)
        weights = own.distribution[number]
        order = sorted(places, key=lambda i: -float(weights[i]))
        before = answer(own.model, text, own.layer, lambda a: a).argmax()
        first = np.nan
        for size in range(1, len(places)):

            def change(a: Tensor, gone: list[int] = order[:size]) -> Tensor:
                a = a.clone()
                a[..., gone] = 0
                return a / a.sum(-1, keepdim=True).clamp_min(1e-12)

            if answer(own.model, text, own.layer, change).argmax() != before:
                first = size / len(places)
                break
        assert float(fractions["attention"][number]) == pytest.approx(first, nan_ok=True)


def test_a_random_order_that_never_flips_counts_as_a_whole_text_if_asked():
    """Leaving such orders out of the mean would make random orders look better than they are."""
    own = attended("pooled_embedding")
    averaged, without = (fractions_to_flip(own, shuffles=8, seed=5, never=n)["random"] for n in (1.0, np.nan))
    mixed = 0
    for number, text in enumerate(shapes.TEXTS):
        single, places = batch_of(own.model, (text,)), content(own.model, text)
        (generator,) = generators(single, 5)
        draws = torch.rand(single.width, 8, generator=generator)
        before = answer(own.model, text, own.layer, lambda a: a).argmax()
        firsts = []
        for s in range(8):
            order = sorted(places, key=lambda i: -float(draws[i, s]))

            def flips(size: int, order: list[int] = order, text: str = text, before: int = before) -> bool:
                def change(a: Tensor) -> Tensor:
                    a = a.clone()
                    a[..., order[:size]] = 0
                    return a / a.sum(-1, keepdim=True)

                return answer(own.model, text, own.layer, change).argmax() != before

            sizes = [size for size in range(1, len(places)) if flips(size)]
            firsts.append(sizes[0] / len(places) if sizes else 1.0)
        mixed += 0 < sum(first == 1 for first in firsts) < 8
        assert float(averaged[number]) == pytest.approx(np.mean(firsts))
        flipped = [first for first in firsts if first < 1]
        assert float(without[number]) == pytest.approx(np.mean(flipped) if flipped else np.nan, nan_ok=True)
    assert mixed


def test_weights_however_small_are_scaled_to_sum_to_1_when_the_rest_is_erased():
    model = known.decisive()
    with torch.no_grad():
        model.module.query.weight.mul_(6)  # nearly no attention is left for the other words
        model.module.words.weight[model.tokenizer.token_to_id("it"), 0] = -1.0
    own = Attended.of(model, batch_of(model, ("good it",)))
    assert 0 < float(own.distribution[0, 1]) < 1e-12
    on_the_other = own.answers(torch.zeros(1).long(), lambda a, _: torch.tensor([0.0, 1.0]).expand_as(a))
    # Without the other word, nothing changes.
    assert float(single_weights(own).effect) == pytest.approx(float(jensen_shannon(on_the_other, own.probabilities)))


@pytest.mark.parametrize(("shape", "layer"), [("bert", None), ("pooled_bilstm", None), ("gpt2", 1)])
def test_single_weights_equal_a_loop(shape: str, layer: int | None):
    """At a lower layer of a causal model, the first query sees the first token only, and keeps its weight."""
    own = attended(shape, **({} if layer is None else {"layer": layer}))
    result = single_weights(own, seed=2)
    for number, text in enumerate(shapes.TEXTS):
        places = content(own.model, text)
        if len(places) < 2:
            assert np.isnan(float(result.effect[number]))
            continue
        weights = own.distribution[number]
        highest = max(places, key=lambda i: float(weights[i]))
        single = batch_of(own.model, (text,))
        (generator,) = generators(single, 2)
        keys = torch.rand(single.width, generator=generator)
        other = max((i for i in places if i != highest), key=lambda i: float(keys[i]))
        before = answer(own.model, text, own.layer, lambda a: a)

        def without(i: int) -> np.ndarray:
            def change(a: Tensor) -> Tensor:
                kept = a.clone()
                kept[..., i] = 0
                total = kept.sum(-1, keepdim=True)
                return torch.where(total > 0, kept / total, a)

            return answer(own.model, text, own.layer, change)  # noqa: B023

        effects = [jensenshannon(before, without(i)) ** 2 for i in (highest, other)]
        assert float(result.effect[number]) == pytest.approx(effects[0] - effects[1], abs=1e-7)
        assert float(result.lead[number]) == pytest.approx(float(weights[highest] - weights[other]))
        assert bool(result.flips_highest[number]) == (without(highest).argmax() != before.argmax())


# ------------------------------------------------------------------------------------------------------ correlation


@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm"])
def test_correlations_equal_scipy_text_by_text(shape: str):
    own = attended(shape)
    result = correlated(own)
    model = own.model
    model.module.eval()
    for number, text in enumerate(shapes.TEXTS):
        places = content(model, text)
        if len(places) < 2:
            assert np.isnan(result.tau[:, number].numpy()).all()
            continue
        batch = batch_of(model, (text,))
        e = model.embed(batch).requires_grad_()
        y = model(batch, embeddings=e, edit_attention=lambda _, a: a.detach()).logits.softmax(-1)[0]
        label = int(y.argmax())
        (slope,) = torch.autograd.grad(y[label], e)
        gradient = (slope * e).sum(-1).abs()[0, places].detach().numpy()
        left_out = []
        for i in places:
            kept = torch.tensor([j for j in range(batch.width) if j != i])
            shorter = batch.map(lambda tensor, kept=kept: tensor[:, kept])
            with torch.no_grad():
                left_out.append(abs(float(y[label]) - float(model(shorter).logits.softmax(-1)[0, label])))
        a = own.distribution[number, places].numpy()
        pairs = ((a, gradient), (a, left_out), (gradient, left_out))
        for column, (x, z) in enumerate(pairs):
            expected = kendalltau(x, z)
            assert float(result.tau[column, number]) == pytest.approx(expected.statistic, abs=1e-9)
            assert float(result.p[column, number]) == pytest.approx(expected.pvalue, abs=1e-9)
    for column, pair in enumerate(PAIRS):
        assert torch.equal(correlated(own, [pair]).tau[0].nan_to_num(), result.tau[column].nan_to_num())


def test_words_of_an_almost_certain_text_are_not_tied():
    """In single precision its probability rounds to 1, without each of its words as well."""
    model = shapes.build("pooled_bilstm")
    for parameter in model.module.classifier.parameters():
        parameter.data *= 60
    own = Attended.of(model, batch_of(model, ("a fine film with no heart",)))
    assert float(own.probabilities.max()) > 1 - 1e-6
    target = Targets(own.probabilities.argmax(1), None, "probability", model.link)
    left_out = RANKINGS["leave-one-out"](own, target)[0]
    assert len(left_out.unique()) == len(left_out) == 6


def test_without_leave_one_out_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch):
    own = attended("pooled_bilstm")
    monkeypatch.setattr("salience.audits.correlation.without_each", lambda *_: pytest.fail("passed in vain"))
    assert correlated(own, ["attention, gradient"]).tau.shape == (1, len(shapes.TEXTS))


# ------------------------------------------------------------------------------------------------------ known truth


def test_attention_that_is_an_explanation_by_construction():
    model = known.decisive()
    own = Attended.of(model, batch_of(model, known.TEXTS))
    assert bool((permuted(own).change > 0.2).all())
    found = adversarial(own, search=Search(steps=200, rate=0.05))
    assert bool((found.distance < 0.3).all())
    assert bool((found.change <= 0.05).all())
    fractions = fractions_to_flip(own)
    single = single_weights(own)
    assert bool((single.effect > 0).all())
    assert bool((fractions["random"].nan_to_num(1) >= fractions["attention"].nan_to_num(1)).all())


def test_attention_that_has_no_say_by_construction():
    model = known.indifferent()
    own = Attended.of(model, batch_of(model, known.TEXTS))
    assert float(permuted(own).change.max()) < 1e-6
    found = adversarial(own, search=Search(steps=200, rate=0.1))
    assert bool((found.distance > 0.4).all())
    assert all(bool(f.isnan().all()) for f in fractions_to_flip(own).values())


def test_the_search_never_loses_by_more_steps():
    model = known.indifferent()
    own = Attended.of(model, batch_of(model, known.TEXTS))
    distances = [adversarial(own, search=Search(steps=s, rate=0.1)).distance.mean() for s in (0, 20, 80)]
    assert all(a < b for a, b in pairwise(distances))


@pytest.mark.parametrize("shape", ["bert", "pooled_bilstm"])
def test_the_model_is_left_as_it_was(shape: str):
    model = shapes.build(shape)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    modes = [part.training for part in model.module.modules()]
    own = Attended.of(model, batch_of(model))
    permuted(own, shuffles=2), adversarial(own, search=Search(steps=2)), fractions_to_flip(own), correlated(own)
    assert all(torch.equal(before[name], value) for name, value in model.module.state_dict().items())
    assert modes == [part.training for part in model.module.modules()]
    assert all(p.requires_grad and p.grad is None for p in model.module.parameters())
