"""Layer saliency against its formula with whole n × V matrices, and language model heads against their own models."""

import dataclasses
import itertools
import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, BertForMaskedLM

import salience
from salience.cli import run as command
from salience.core.passes import differentiate, forward, resolve
from salience.core.target import Target
from salience.core.types import Attribution, Batch, Model, Site, Targets
from salience.errors import BadInput, BadModel, ImpreciseScores, UnsupportedModel
from salience.explanations.explainer import explain_each, prepare
from salience.methods import decoding
from salience.methods.decoding import (
    TOLERANCE,
    _sample,
    automatic_layer,
    certain,
    coherence,
    decode_layers,
    find_head,
    fit_head,
)
from salience.methods.layers import layer_saliency
from salience.models.heads import FittedHead
from salience.models.huggingface.answering import Answer
from salience.models.huggingface.head import extract_head
from salience.models.huggingface.hooks import hidden_states
from salience.runs.driver import explain_data
from shapes import CORPUS, LANGUAGE_MODELS, TEXTS, _config, build, tokenizer

MASKED = ("bert", "roberta", "xlm_roberta", "distilbert", "albert", "electra", "deberta_v2", "modernbert")
CAUSAL = ("gpt2", "llama", "qwen3")


def language_model(shape: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(1)
    config = _config(shape, 160)
    config.initializer_range = 0.3
    for name, value in options.items():
        setattr(config, name, value)
    return (AutoModelForCausalLM if shape in CAUSAL else AutoModelForMaskedLM).from_config(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with its masked-LM head beside it in one file, as the bundled model is stored."""
    path = tmp_path_factory.mktemp("checkpoint")
    classifier = build("bert")
    torch.manual_seed(2)
    head = BertForMaskedLM(classifier.module.config).state_dict()
    classifier.module.save_pretrained(path)
    classifier.tokenizer.save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    kept = ("cls.predictions.bias", "cls.predictions.transform")
    extra = {k: v + 0.3 * torch.randn_like(v) for k, v in head.items() if k.startswith(kept)}
    save_file({**weights, **extra}, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return salience.load(folder)


def of(model: Model, texts: tuple[str, ...] = TEXTS) -> tuple[Batch, Targets]:
    batch = model.batch(model.encode(texts))
    return batch, resolve(model, [Target()], forward(model, batch).logits)


def run(model: Model, texts: tuple[str, ...] = TEXTS, **settings: object) -> Attribution:
    result = layer_saliency(model, *of(model, texts), **settings)
    assert isinstance(result, Attribution)
    return result


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((a.double() - b.double()).abs().max() <= tolerance * b.abs().max())


# --- heads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*MASKED, *CAUSAL])
def test_the_head_alone_gives_the_language_models_own_logits(shape: str):
    lm = language_model(shape)
    ids = torch.randint(5, 150, (2, 7))
    with torch.no_grad(), hidden_states(lm, None) as states:
        expected = lm(input_ids=ids).logits
    head = extract_head(lm, "own")
    assert (head(states[-1].flatten(0, 1)) - expected.flatten(0, 1)).abs().max() <= 1e-5
    assert head.decoder is not None
    few = torch.stack([row[:, own] for row, own in zip(expected, ids, strict=True)])
    assert (head(states[-1], ids) - few).abs().max() <= 1e-5
    assert sum(p.numel() for p in head.module.parameters()) < sum(p.numel() for p in lm.parameters()) / 2


def test_debertas_newer_head_multiplies_with_the_word_embeddings():
    lm = language_model("deberta_v2", legacy=False)
    ids = torch.randint(5, 150, (1, 7))
    with torch.no_grad(), hidden_states(lm, None) as states:
        expected = lm(input_ids=ids).logits
    head = extract_head(lm, "own")
    assert head.decoder is None
    assert torch.equal(head(states[-1][0]), expected[0])
    assert torch.equal(head(states[-1], torch.tensor([[8, 9]])), expected[..., 8:10])


SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2}
DECODERS: dict[str, dict[str, object]] = {
    **dict.fromkeys((
        "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "phi", "phi3",
        "stablelm", "starcoder2", "cohere", "cohere2", "granite", "persimmon", "glm", "glm4", "nemotron", "helium",
        "diffllama",
    ), GROUPED),
    **{f: {**EXPERTS, "num_local_experts": 4} for f in ("mixtral", "phimoe", "granitemoe")},
    **{f: {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 16} for f in ("qwen2_moe", "qwen3_moe", "olmoe")},
    **dict.fromkeys(("gpt2", "gpt_bigcode", "openai-gpt"), GPT),
    "gptj": {**GPT, "rotary_dim": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gpt_neox": {},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 32},
    "biogpt": {},
}  # fmt: skip
ENCODERS: dict[str, dict[str, object]] = {
    "esm": {"mask_token_id": 4, "token_dropout": False},
    "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 32},
    "eurobert": {"num_key_value_heads": 2},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
}


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_no_final_norm_is_lost_where_the_padding_token_is_0(family: str):
    """The embedding of padding is 0, and 0 is what every norm returns for it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SMALL | (DECODERS | ENCODERS)[family])
    lm = (AutoModelForCausalLM if family in DECODERS else AutoModelForMaskedLM).from_config(config).eval()
    ids = torch.randint(5, 50, (2, 8))
    with torch.no_grad(), hidden_states(lm, None) as states:
        expected = lm(input_ids=ids).logits
    head = extract_head(lm, "own")
    assert close(head(states[-1].flatten(0, 1)), expected.flatten(0, 1))
    few = torch.stack([row[:, own] for row, own in zip(expected, ids, strict=True)])
    assert close(head(states[-1], ids), few)


@pytest.mark.parametrize("family", ["opt", "openai-gpt", "mixtral"])
def test_layers_of_more_decoders_follow_the_formula(family: str):
    torch.manual_seed(0)
    tok = tokenizer("bare")
    sizes = {**SMALL, "vocab_size": len(tok), "initializer_range": 0.3}
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | DECODERS[family])).eval()
    model = salience.wrap(lm, tok, name=family)
    got = run(model, TEXTS[:1], layer=1, sign="signed").scores[0]
    expected, scale = literal(model, TEXTS[0], 1, "softmax", None, 0.0)
    assert (got - expected).abs().max() <= 1e-4 * scale


@pytest.mark.parametrize("shape", CAUSAL)
def test_a_decoders_last_layer_decodes_to_its_next_token(shape: str):
    model = build(f"{shape}_lm")
    batch, _ = of(model, TEXTS[:1])
    output = forward(model, batch, hidden=True)
    assert close(model.lm_head()(output.hidden[-1][0])[-1:], output.logits)


def test_extracting_a_head_does_not_change_the_language_model():
    model = build("gpt2_lm")
    before = [(n, m.training, len(m._forward_hooks), sorted(vars(m))) for n, m in model.module.named_modules()]
    weights = {n: (p.data_ptr(), p._version, p.requires_grad) for n, p in model.module.named_parameters()}
    run(model, layer=2)
    run(model, layer=2, decode="restricted")
    assert [(n, m.training, len(m._forward_hooks), sorted(vars(m))) for n, m in model.module.named_modules()] == before
    assert {n: (p.data_ptr(), p._version, p.requires_grad) for n, p in model.module.named_parameters()} == weights


def test_the_head_in_the_checkpoint_of_a_classifier_is_used(folder: Path, model: Model):
    lm = BertForMaskedLM.from_pretrained(folder).eval()
    batch, _ = of(model, TEXTS[:1])
    with torch.no_grad():
        expected = lm(input_ids=batch.ids, attention_mask=batch.mask.long()).logits[0]
    h = forward(model, batch, hidden=True).hidden[-1][0]
    assert (model.lm_head()(h) - expected).abs().max() <= 1e-5
    assert model.lm_head() is model.lm_head()
    assert run(model, layer=2).settings["head"] == "own"


def test_a_head_can_be_named(folder: Path, model: Model):
    bare = build("bert")
    result = run(bare, layer=2, head=str(folder))
    assert result.settings["head"] == str(folder)
    assert torch.equal(result.scores, run(model, layer=2).scores)


def test_the_files_of_a_head_are_checked_like_those_of_a_model(folder: Path, tmp_path: Path):
    place = Path(shutil.copytree(folder, tmp_path / "model"))
    model, config = salience.load(place), json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"_attn_implementation": "someone/kernel"}))
    for head in (None, str(place)):
        with pytest.raises(BadModel, match="attention kernel 'someone/kernel'"):
            model.lm_head(head)
    (place / "config.json").write_text(json.dumps(config))
    index = {"metadata": {}, "weight_map": {"a": "../outside.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    for head in (None, str(place)):
        with pytest.raises(BadModel, match="must be safetensors files in the same folder"):
            model.lm_head(head)


def test_loading_a_head_draws_no_random_numbers(folder: Path):
    model = salience.load(folder)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model.lm_head()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("shape", ["bert", "pooled_bilstm"])
def test_without_a_head_all_remedies_are_named(shape: str):
    model = build(shape)
    with pytest.raises(UnsupportedModel, match=r"(?s)fit_head.*decode='identity'"):
        run(model, layer=1)
    assert run(model, layer=1, decode="identity").settings["head"] is None
    assert run(model, layer=0).settings["head"] is None


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path):
    bare = build("bert")
    bare.module.save_pretrained(tmp_path)
    bare.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"holds no LM head.*head='bert-base-uncased'"):
        run(salience.load(tmp_path), layer=1)


def test_a_head_for_another_vocabulary_is_refused(tmp_path: Path, folder: Path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tokenizer("bpe").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="another vocabulary"):
        run(build("bert"), layer=1, head=str(tmp_path))
    with pytest.raises(BadModel, match="there is no folder '/nowhere'"):
        run(build("bert"), layer=1, head="/nowhere")


# --- the formula ---------------------------------------------------------------------------------------------------


def literal(
    model: Model, text: str, layer: int, decode: str, normalise: str | None, position: float
) -> tuple[Tensor, float]:
    """D v with the whole matrix P of n × V, entry by entry, for one text; and the size of a word's largest term."""
    batch, target = of(model, (text,))
    with torch.enable_grad():
        states = dict[int, Tensor]()

        def keep(site: Site, h: Tensor) -> Tensor:
            states[site.layer] = h.detach().requires_grad_() if site.layer == layer else h
            return states[site.layer]

        f = target(model(batch, edit_hidden=keep).logits)[0]
        (g,) = torch.autograd.grad(f, states[layer])
    h = states[layer].detach()[0]
    ids = batch.ids[0].tolist()
    n = range(len(ids))
    v = [float((g[0, i].double() * h[i].double()).sum()) for i in n]
    logits = model.lm_head()(h).double()
    if decode == "softmax":
        P = logits.softmax(1)
    elif decode == "restricted":
        P = torch.zeros_like(logits)
        for i in n:
            total = sum(float(logits[i, w].exp()) for w in set(ids))
            for w in set(ids):
                P[i, w] = logits[i, w].exp() / total
    else:
        P = logits
    D = [[float(P[i, ids[t]]) * ((1 - position) + position * (i == t)) for i in n] for t in n]
    if normalise == "rows":
        D = [[x / sum(row) for x in row] for row in D]
    if normalise == "columns":
        D = [[D[t][i] / sum(D[u][i] for u in n) for i in n] for t in n]
    s = [sum(D[t][i] * v[i] for i in n) for t in n]
    content = [t for t in n if not batch.special[0, t]]
    scale = max(abs(D[t][i] * v[i]) for t in content for i in n)
    return torch.tensor([s[t] if t in content else 0.0 for t in n]), scale


GRID = [
    (decode, normalise, position)
    for decode, normalise, position in itertools.product(
        ("softmax", "restricted", "logits"), (None, "rows", "columns"), (0.0, 0.4)
    )
    if decode != "logits" or normalise is None
]


@pytest.mark.parametrize(("decode", "normalise", "position"), GRID)
def test_scores_follow_the_formula(model: Model, decode: str, normalise: str | None, position: float):
    model.module.eval()
    for layer in (1, 2, 3):
        options = {"layer": layer, "decode": decode, "normalise": normalise, "position": position}
        signed, positive = (run(model, sign=sign, **options).scores for sign in ("signed", "positive"))
        for row, text in enumerate(TEXTS):
            expected, scale = literal(model, text, layer, decode, normalise, position)
            assert (signed[row, : len(expected)] - expected).abs().max() <= 1e-4 * scale
        assert torch.equal(positive, signed.relu())


@pytest.mark.parametrize("shape", LANGUAGE_MODELS)
def test_decoders_follow_the_formula_too(shape: str):
    model = build(shape)
    model.module.eval()
    got = run(model, TEXTS[:1], layer=2, sign="signed").scores[0]
    expected, scale = literal(model, TEXTS[0], 2, "softmax", None, 0.0)
    assert (got - expected).abs().max() <= 1e-4 * scale


def test_layer_0_and_identity_are_not_decoded(model: Model):
    batch, target = of(model)
    seen = differentiate(model, batch, target, needs=salience.core.passes.Needs.HIDDEN)
    for layer, decode in ((0, "softmax"), (2, "identity")):
        v = (seen.output.hidden[layer] * seen.hidden_gradient[layer]).sum(-1) * batch.content
        assert close(run(model, layer=layer, decode=decode, sign="signed").scores, v)
    norms = seen.hidden_gradient[2].norm(dim=-1) * batch.content
    assert close(run(model, layer=2, decode="identity", score="gradient").scores, norms)


def test_columns_that_sum_to_one_keep_the_whole_contribution(model: Model):
    """Each position's contribution is shared out among the words; only the part of special tokens is left out."""
    batch, target = of(model)
    special = dataclasses.replace(batch, special=~batch.mask)
    scores = layer_saliency(model, special, target, layer=2, normalise="columns", sign="signed").scores
    whole = layer_saliency(model, special, target, layer=2, decode="identity", sign="signed").scores
    assert close(scores.sum(1), whole.sum(1))


def test_repeated_words_score_alike_unless_weighted_by_position(model: Model):
    text = ("truly awful, truly bad",)
    tokens = model.encode(text)[0].tokens
    first, second = (i for i, t in enumerate(tokens) if t == "truly")
    alike = run(model, text, layer=2, sign="signed").scores[0]
    apart = run(model, text, layer=2, sign="signed", position=0.5).scores[0]
    assert alike[first] == alike[second]
    assert apart[first] != apart[second]


@pytest.mark.parametrize("layer", [0, 2])
def test_integrated_gradients_at_a_layer_are_complete(model: Model, layer: int):
    result = run(model, layer=layer, decode="identity", score="integrated_gradients", nodes=60, sign="signed")
    change = run(model, layer=layer, decode="identity", score="integrated_gradients", nodes=1).gaps["completeness"]
    assert result.gaps["completeness"].abs().max() < 1e-3
    assert change.abs().max() > 1e-2, "one node would do: the test could not fail"
    assert result.settings["baseline"] == "mask"


@pytest.mark.parametrize(
    "options",
    [
        {"decode": "softmax"},
        {"decode": "restricted", "normalise": "columns"},
        {"decode": "logits"},
        {"score": "integrated_gradients", "nodes": 3},
    ],
)
def test_other_texts_and_the_budget_change_nothing(folder: Path, options: dict[str, object]):
    model = salience.load(folder, dtype="float64")  # small remainders of large terms, so that rounding would show
    many = run(model, layer=2, sign="signed", **options).scores
    before, model.executor.budget = model.executor.budget, 3
    assert close(run(model, layer=2, sign="signed", **options).scores, many)
    model.executor.budget = before
    for row, text in enumerate(TEXTS):
        alone = run(model, (text,), layer=2, sign="signed", **options).scores[0]
        assert close(many[row, : len(alone)], alone)
        assert (many[row, len(alone) :] == 0).all()


def test_all_layers_cost_one_forward_and_one_backward(model: Model):
    salience.explain(model, TEXTS[0], "layer_saliency", layer="all")  # what is tried once for a model is not counted
    passes = {"forward": 0, "backward": 0}

    def count(kind: str) -> None:
        passes[kind] += 1

    last = model.module.classifier
    handles = [
        last.register_forward_hook(lambda *_: count("forward")),
        last.register_full_backward_hook(lambda *_: count("backward")),
    ]
    results = salience.explain(model, TEXTS[0], "layer_saliency", layer="all")
    for handle in handles:
        handle.remove()
    assert [e.settings["layer"] for e in results] == [0, 1, 2, 3]
    assert passes == {"forward": 1, "backward": 1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layer": 4}, "has layers 0 to 3"),
        ({"layer": 1, "position": 1.5}, "of at least 0 and at most 1, not 1.5"),
        ({"layer": 1, "decode": "logits", "normalise": "rows"}, "cannot be normalised"),
        ({"layer": 1, "decode": "softmaxx"}, "Did you mean 'softmax'"),
    ],
)
def test_invalid_settings_list_the_valid_ones(model: Model, options: dict[str, object], says: str):
    with pytest.raises(BadInput, match=says):
        salience.explain(model, TEXTS[0], "layer_saliency", **options)


# --- coherence and the automatic layer --------------------------------------------------------------------------------


def test_coherence_by_loops(model: Model):
    curve = coherence(model, TEXTS)
    for layer, got in enumerate(curve):
        logs, ranks = [], []
        for text in TEXTS:
            batch, _ = of(model, (text,))
            logits = model.lm_head()(forward(model, batch, hidden=True).hidden[layer][0])
            for i in range(1, batch.width - 1):
                own = int(batch.ids[0, i])
                logs.append(logits[i].log_softmax(0)[own].item())
                ranks.append(1 + logits[i].argsort(descending=True).tolist().index(own))
        assert got.layer == layer
        assert got.log_probability == pytest.approx(sum(logs) / len(logs), rel=1e-4)
        assert got.recovery == pytest.approx(ranks.count(1) / len(ranks))
        assert got.reciprocal_rank == pytest.approx(sum(1 / r for r in ranks) / len(ranks))


def test_the_sums_by_which_a_layer_is_chosen_are_those_of_coherence(model: Model):
    batch, _ = of(model, TEXTS)
    sizes, sums = decoding._text_sums(model, batch, find_head(model, None), last=2)
    assert sizes == batch.content.sum(1).tolist()
    assert list(sums) == [1, 2]
    for number, text in enumerate(TEXTS):
        curve = coherence(model, [text])
        for layer, own in sums.items():
            assert own[number] / sizes[number] == pytest.approx(curve[layer].log_probability, rel=1e-4)


def test_at_least_one_word_is_decoded(model: Model):
    with pytest.raises(BadInput, match="top=0 is too few"):
        decode_layers(model, TEXTS[0], top=0)


@pytest.mark.filterwarnings("ignore::salience.errors.TruncatedText")
def test_the_automatic_layer_is_the_deepest_coherent_one_and_is_chosen_once(folder: Path):
    model = salience.load(folder)
    curve = [c.log_probability for c in coherence(model, _sample())]
    best = max(curve[1:3])
    expected = next(n for n in (2, 1) if curve[n] >= best - TOLERANCE)
    first = run(model)
    assert first.settings["layer"] == expected
    assert torch.equal(first.scores, run(model, layer=expected).scores)
    passes: list[int] = []
    handle = model.module.classifier.register_forward_hook(lambda *_: passes.append(1))
    run(model)
    assert len(passes) == 2, "of() and the method itself make one pass each; a second search would make more"
    with torch.no_grad():
        model.module.classifier.bias.add_(1)
    run(model)
    handle.remove()
    assert len(passes) > 4, "changed weights ask for a new search"


@pytest.mark.filterwarnings("ignore::salience.errors.TruncatedText")
@pytest.mark.parametrize("tolerance", [TOLERANCE, 0.01, 100.0])
def test_the_layer_is_that_of_all_texts_and_no_more_are_read_than_it_takes(tolerance: float, monkeypatch):
    model = build("gpt2_lm")
    curve = {c.layer: c.log_probability for c in coherence(model, _sample()) if 0 < c.layer < model.layers}
    monkeypatch.setattr(decoding, "TOLERANCE", tolerance)
    read, plain = list[int](), decoding._text_sums
    monkeypatch.setattr(
        decoding, "_text_sums", lambda model, batch, *more: read.append(len(batch)) or plain(model, batch, *more)
    )
    head = dataclasses.replace(model.lm_head(), layers={})
    chosen = automatic_layer(model, head)
    assert chosen == max(layer for layer, value in curve.items() if value >= max(curve.values()) - tolerance)
    assert 8 <= sum(read) <= len(_sample())
    if tolerance == 100:
        assert sum(read) == 8, "no layer is near the limit"


def test_a_choice_is_certain_where_every_layer_is_far_from_the_limit():
    sizes = np.array([3, 5, 4, 6])
    noise = np.array([0.1, -0.2, 0.1, 0.0])
    best = -1.0 * sizes
    far, near = best - 3 * TOLERANCE * sizes + noise, best - TOLERANCE * sizes + noise
    assert certain(np.stack([best, far]), sizes)
    assert not certain(np.stack([best, far, near]), sizes)


@pytest.mark.parametrize(("shape", "last"), [("bert", False), ("gpt2", False), ("pooled_bilstm", True)])
def test_the_last_layer_is_chosen_only_where_several_of_its_tokens_are_read(shape: str, last: bool):
    """Where one token is read, the scores of all tokens are the words' probabilities at that one, times a number."""
    model = build(shape)
    assert (model.reads == "all") == last
    v = run(model, layer=-1, decode="identity", score="gradient").scores
    assert (v[0].count_nonzero() > 1) == last


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_a_layer_before_a_norm_has_no_contributions(shape: str):
    """Only the direction of its states matters; what is left of the sums are rounding errors."""
    model = build(shape)
    with pytest.warns(ImpreciseScores, match=r"layer 3 of .* is followed by a norm, so .* choose another layer"):
        scores = run(model, layer=-1, decode="identity", sign="signed").scores
    assert (scores == 0).all()
    assert run(model, layer=2, decode="identity", sign="signed").scores.any()
    assert run(model, layer=-1, decode="identity", score="integrated_gradients", nodes=2, sign="signed").scores.any()


def test_the_answer_of_a_decoder_is_not_explained_by_the_layer_before_its_last_norm():
    model = build("llama_lm")
    view = model.answering(Answer(torch.tensor([5, 6]), ("a", "b")))
    head = dataclasses.replace(model.lm_head(), layers={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_deepest_coherent", lambda _model, _head, last: last)
        assert automatic_layer(view, head) == model.layers - 1


@pytest.mark.parametrize("top", [1, 3])
def test_layers_decode_to_their_most_probable_words(model: Model, top: int):
    found = decode_layers(model, TEXTS[0], top=top)
    batch, _ = of(model, TEXTS[:1])
    hidden = forward(model, batch, hidden=True).hidden
    assert list(found) == [0, 1, 2, 3]
    for layer, decoded in found.items():
        P = model.lm_head()(hidden[layer][0]).softmax(1)
        assert [d.token for d in decoded] == list(model.encode(TEXTS[:1])[0].tokens)
        for i, d in enumerate(decoded):
            best = sorted(range(P.shape[1]), key=lambda w, i=i: -P[i, w].item())[:top]
            assert d.probabilities == pytest.approx([P[i, w].item() for w in best], rel=1e-4)
            names = [model.tokenizer.decode([w], skip_special_tokens=True).strip() or f"#{w}" for w in best]
            assert list(d.words) == names


def test_decoded_words_are_shown_in_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["explain", TEXTS[0], "--model", str(folder), "--method", "layer_saliency", "--decoded", "--layer"]
    assert command([*arguments, "all"]) == 0
    shown = capsys.readouterr().out.splitlines()
    table = next(n for n in range(len(shown)) if "layer 1" in shown[n] and "layer 2" in shown[n])
    assert shown[table].split() == ["layer", "0", "layer", "1", "layer", "2", "layer", "3"]
    best = decode_layers(salience.load(folder), TEXTS[0])[0][0]
    assert " ".join(best.words) + f" ({best.probabilities[0]:.2f})" in shown[table + 1]
    assert command([*arguments[:-1]]) == 2
    assert "name a --layer" in capsys.readouterr().err
    assert command([*arguments, "2"]) == 0
    assert "layer 3" not in capsys.readouterr().out


# --- fitted heads -----------------------------------------------------------------------------------------------------


@cache
def fitted(shape: str) -> tuple[Model, FittedHead]:
    model = build(shape)
    return model, fit_head(model, list(dict.fromkeys(CORPUS)) * 4, steps=400, rate=0.03)


@pytest.mark.parametrize("shape", ["bert", "pooled_bilstm"])
def test_a_fitted_head_recovers_the_input(shape: str):
    model, head = fitted(shape)
    assert head.recovery > 0.5
    assert coherence(model, TEXTS, head=head)[-1].recovery > 0.5
    result = run(model, layer=1, head=head)
    assert result.settings["head"] == "fitted"
    assert result.settings["recovery"] == head.recovery
    assert result.scores.abs().max() > 0
    [explained] = salience.explain(model, TEXTS[0], "layer_saliency", layer=1, head=head)
    assert explained.settings["head"] == "fitted"


def test_a_fitted_head_can_be_saved_and_loaded(tmp_path: Path):
    model, head = fitted("bert")
    head.save(tmp_path / "head.safetensors")
    again = run(model, layer=2, head=str(tmp_path / "head.safetensors"))
    assert torch.equal(again.scores, run(model, layer=2, head=head).scores)
    assert again.settings["recovery"] == head.recovery
    with pytest.raises(BadModel, match="fitted to another model"):
        run(build("bert"), layer=1, head=_other(tmp_path))


def test_a_head_in_a_file_is_read_once_for_all_batches_windows_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, head = fitted("bert")
    path = tmp_path / "head.safetensors"
    head.save(path)
    read: list[str] = []
    load = FittedHead.load
    monkeypatch.setattr(FittedHead, "load", lambda path, model: read.append(path) or load(path, model))
    monkeypatch.setattr(model.executor, "budget", 16)
    results = salience.explain(model, list(TEXTS), "layer_saliency", head=str(path))
    assert read == [str(path)]
    methods = prepare("layer_saliency", {"layer": 1, "head": str(path)})
    list(explain_each(model, TEXTS, methods, [Target()] * len(TEXTS), window=1))
    assert read == [str(path)] * 2, "once for all windows"
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), "utf-8")
    explain_data(model, texts, tmp_path / "run", "layer_saliency", layer=1, head=str(path), rows_per_part=1)
    assert read == [str(path)] * 3, "once for all parts"
    assert {e.settings["layer"] for e in results} == {run(model, head=head).settings["layer"]}
    dataclasses.replace(head, recovery=0.5).save(path)
    assert find_head(model, str(path)).description["recovery"] == 0.5


def test_one_head_for_two_models_keeps_their_layers_apart():
    model, head = fitted("bert")
    other = build("bert", seed=1)
    for one in (model, other):
        alone = dataclasses.replace(head, layers={})
        assert run(one, head=head).settings["layer"] == run(one, head=alone).settings["layer"]
    assert len(head.layers) >= 2


def _other(folder: Path) -> str:
    """The file of a head with a smaller vocabulary."""
    tensors = load_file(folder / "head.safetensors")
    save_file({**tensors, "bias": tensors["bias"][:50]}, folder / "other.safetensors", metadata={"recovery": "1.0"})
    return str(folder / "other.safetensors")


def test_fitting_is_repeatable_and_changes_neither_model_nor_random_numbers():
    model = build("bert")
    before = {n: (p.clone(), p.requires_grad) for n, p in model.module.named_parameters()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one, two = (fit_head(model, CORPUS[:30], steps=3, seed=7) for _ in range(2))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(one.bias, two.bias)
    assert all(
        torch.equal(p, before[n][0]) and p.requires_grad == before[n][1] for n, p in model.module.named_parameters()
    )


def test_a_head_cannot_be_fitted_on_too_few_texts():
    with pytest.raises(BadInput, match="cannot be fitted on 1 texts"):
        fit_head(build("bert"), TEXTS[:1])
