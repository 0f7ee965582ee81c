"""Passes of one model take turns; those of two models do not wait for each other."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
import torch

import salience
from reviews import reviews
from salience.core.passes import forward
from salience.training import Recipe, fit
from shapes import TEXTS, build


def test_two_models_run_at_once():
    barrier = Barrier(2, timeout=20)
    models = [build("bert"), build("bert", seed=1)]
    batches = [m.batch(m.encode(TEXTS)) for m in models]
    for model, batch in zip(models, batches, strict=True):
        forward(model, batch)  # the trial passes of the model are done now

    def meet(*_: object) -> None:
        barrier.wait()

    handles = [m.module.classifier.register_forward_pre_hook(meet) for m in models]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(forward, m, batch) for m, batch in zip(models, batches, strict=True)]
        assert all(run.result(30).logits.isfinite().all() for run in runs), "one pass waited for the other"
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("method", ["integrated_gradients", "attention", "lrp", "layer_saliency"])
def test_threads_that_share_a_model_get_the_same_results_as_alone(method: str):
    model = salience.load()
    expected = [salience.explain(model, text, method)[0].scores for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda text: salience.explain(model, text, method)[0].scores, TEXTS))
    for one, other in zip(results, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_training_and_explaining_take_turns():
    model, text, stop = build("bert"), TEXTS[0], Event()

    def explaining() -> None:
        while not stop.is_set():
            salience.explain(model, text, "input_x_gradient")
            stop.wait(0.005)  # locks are not fair

    twin = build("bert")
    for one in (model, twin):
        for part in one.module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
    list(fit(twin, reviews(), recipe=Recipe(1, 8, 1e-3)))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(explaining)
        try:
            list(fit(model, reviews(), recipe=Recipe(1, 8, 1e-3)))
        finally:
            stop.set()
        other.result(30)  # raises what a step in between broke
    for a, b in zip(model.module.parameters(), twin.module.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6), "a pass in between changed the training"


MIX = ("integrated_gradients", "lrp", "attention_rollout", "occlusion", "value_zeroing", "layer_saliency", "deep_lift")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("apart", [False, True], ids=["one adapter", "adapters of their own"])
def test_eight_threads_mix_methods_on_one_model_and_on_two(count: int, apart: bool):
    models = [build("gpt2_lm" if number else "bert", seed=number) for number in range(count)]
    settings = {"layer_saliency.layer": 2, "layer_saliency.decode": "identity"}

    def scores(job: tuple[int, str, str]) -> list[float]:
        number, method, text = job
        model = models[number]
        if apart:  # as a user does who wraps the model in every thread
            model = salience.wrap(model.module, model.tokenizer)
        own = {k: v for k, v in settings.items() if method == "layer_saliency"}
        return list(salience.explain(model, text, method, **own)[0].scores)

    jobs = [(number, method, text) for method in MIX for text in TEXTS[:3] for number in range(count)]
    expected = [scores(job) for job in jobs]
    before = [sum(len(m._forward_hooks) for m in model.module.modules()) for model in models]
    with ThreadPoolExecutor(8) as pool:
        for job, one, other in zip(jobs, pool.map(scores, jobs), expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5), job
    assert [sum(len(m._forward_hooks) for m in model.module.modules()) for model in models] == before


def test_models_can_be_loaded_in_several_threads():
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: salience.load(), range(4)))
        heads = list(pool.map(lambda model: model.lm_head().vocabulary, loaded))
    assert heads == [5800] * 4
    assert len({salience.explain(m, TEXTS[0], "gradient")[0].scores for m in loaded}) == 1
