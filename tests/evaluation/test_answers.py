"""Evaluations of explained answers, against literal versions."""

import json
from functools import cache
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from salience.cli import checks, run
from salience.core.prompts import Prompt
from salience.data import source
from salience.data.prompts import read_prompts
from salience.errors import BadInput
from salience.evaluation.advice import advice, details
from salience.evaluation.answer_runs import evaluate_answer_data
from salience.evaluation.answers import ANSWER_METRICS, evaluate_answers, held_out
from salience.evaluation.cases import CONTROLS, Case, variants
from salience.generation import ANSWER_METHODS, explain_answer
from salience.models import load
from salience.models.huggingface.adapter import HuggingFace
from salience.views.evaluation import to_json
from shapes import build

SENTENCES = ("The film was good.", "It was not bad.", "We saw it twice.", "The end was sad.")
PROMPT = " ".join(SENTENCES)
ANSWER = " good and sad"
METHODS = ["input_x_gradient", "occlusion"]


@cache
def model() -> HuggingFace:
    result = build("llama_lm", dtype=torch.float64)
    assert isinstance(result, HuggingFace)
    return result


@cache
def case() -> Case:
    lm = model()
    prompt = lm.encode_prompt(Prompt(text=PROMPT))
    return Case(lm, prompt, lm.encode_answer(prompt, ANSWER), "sentence")


def literal(kept: np.ndarray) -> float:
    """log p(answer | the tokens kept of the prompt), one pass per token."""
    lm, one = model(), case()
    ids = [i for i, own in zip(one.prompt.ids, kept, strict=True) if own]
    total = 0.0
    lm.module.eval()
    for t, token in enumerate(one.answer.ids):
        with torch.no_grad():
            logits = lm.module(input_ids=torch.tensor([[*ids, *one.answer.ids[:t]]])).logits[0, -1]
        total += float(logits.log_softmax(-1)[token])
    lm.module.train()
    return total


def segments_kept(kept: np.ndarray) -> np.ndarray:
    owners = case().owners
    return np.array([owner < 0 or bool(kept[owner]) for owner in owners])


@cache
def evaluation():
    return evaluate_answers(model(), [PROMPT], METHODS, answers=[ANSWER])


def value(method: str, metric: str) -> float:
    return evaluation().cells[method, metric].values[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 3])
def test_drops_are_those_of_the_highest_scoring_segments(method: str, k: int):
    settings = {"erase": "delete"} if method == "occlusion" else {}
    e = explain_answer(model(), PROMPT, method, answer=ANSWER, by="sentence", per="answer", **settings)
    scores = np.array([s.score for s in e.by("sentence")])
    kept = np.ones(4, dtype=bool)
    kept[np.argsort(-scores)[:k]] = False
    expected = literal(np.ones(len(case().owners), dtype=bool)) - literal(segments_kept(kept))
    assert value(method, f"top_{k}_drop") == pytest.approx(expected, abs=1e-5)


def test_a_drop_of_as_many_segments_as_there_are_is_undefined():
    assert isnan(value("occlusion", "top_5_drop"))


@pytest.mark.parametrize("method", METHODS)
def test_lds_is_the_rank_correlation_of_scipy_over_held_out_prompts(method: str):
    settings = {"erase": "delete"} if method == "occlusion" else {}
    e = explain_answer(model(), PROMPT, method, answer=ANSWER, by="sentence", per="answer", **settings)
    scores = np.array([s.score for s in e.by("sentence")])
    masks = held_out(case(), 32, 0)
    assert masks.any(1).all()
    values = [literal(segments_kept(v)) for v in masks]
    assert value(method, "lds") == pytest.approx(spearmanr(masks @ scores, values).statistic, abs=1e-6)


def test_comprehensiveness_and_sufficiency_are_drops_of_the_log_probability():
    e = explain_answer(model(), PROMPT, "input_x_gradient", answer=ANSWER, per="answer")
    n = len(case().prompt)
    content = [i for i in range(n) if not case().prompt.special[i]]
    order = sorted(content, key=lambda i: -e.total[i])
    whole = literal(np.ones(n, dtype=bool))
    without, only = list[float](), list[float]()
    for share in (0.01, 0.05, 0.1, 0.2, 0.5):
        top = order[: max(1, round(share * len(content)))]
        kept = np.array([i not in top for i in range(n)])
        without.append(whole - literal(kept))
        only.append(whole - literal(~kept | np.array(case().prompt.special)))
    assert value("input_x_gradient", "comprehensiveness") == pytest.approx(np.mean(without), abs=1e-4)
    assert value("input_x_gradient", "sufficiency") == pytest.approx(np.mean(only), abs=1e-4)


def test_controls_are_always_in_the_table_and_say_what_they_should():
    assert evaluation().methods == (*METHODS, *CONTROLS)
    assert evaluation().metrics == tuple(m.name for m in ANSWER_METRICS)
    scores = case().controls()
    assert scores["recency"].segments.tolist() == [1, 2, 3, 4]
    assert scores["similarity"].segments.tolist() == [1, 0, 0, 1]
    words = [
        PROMPT[a:b].strip() for (a, b), s in zip(case().prompt.offsets, scores["similarity"].tokens, strict=False) if s
    ]
    assert "".join(words) == "goodsad"
    again = case().controls()
    assert (scores["random"].tokens == again["random"].tokens).all()


def test_equal_copies_of_a_prompt_are_run_once_for_all_methods_and_metrics(monkeypatch: pytest.MonkeyPatch):
    rows = 0
    network = type(model().network)
    plain = network.__call__

    def counting(self, batch, *args, **kwargs):
        nonlocal rows
        rows += len(batch)
        return plain(self, batch, *args, **kwargs)

    monkeypatch.setattr(network, "__call__", counting)

    def cost(methods: list[str]) -> int:
        nonlocal rows
        rows = 0
        evaluate_answers(model(), [PROMPT], methods, answers=[ANSWER], metrics=["top_1_drop"])
        return rows

    # Occlusion has erased every sentence alone, so that no other method's first sentence is run again.
    assert cost(["occlusion", "occlusion:erase=delete"]) == cost(["occlusion"])


def test_advice_names_the_controls_of_answers():
    prompts = [" ".join(SENTENCES[n:] + SENTENCES[:n]) for n in range(4)] * 2
    result = evaluate_answers(model(), prompts, ["input_x_gradient"], answers=[ANSWER] * 8, metrics=["top_1_drop"])
    assert result.real == ["input_x_gradient"]
    assert advice(result)
    assert details(result)


def test_methods_may_be_written_with_settings():
    one, two = variants(model(), ["lrp:rules=cp,kind=logit", "occlusion:by=word"], "sentence", "delete")
    assert (one.method.settings["rules"], one.kind) == ("cp", "logit")
    assert (two.by, two.method.settings["unit"], two.method.settings["erase"]) == ("word", "segment", "delete")
    (token,) = variants(model(), ["occlusion:by=token,erase=mean"], "sentence", "delete")
    assert (token.by, token.method.settings["unit"], token.method.settings["erase"]) == (None, "token", "mean")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "no prompts"),
        ({"answers": []}, "0 answers for 1 prompts"),
        ({"method": ["random"]}, "always measured"),
        ({"method": ["lrp", "lrp"]}, "lrp was asked for twice"),
        ({"method": ["lrp:rules"]}, "not of the form"),
        ({"method": ["lpr"]}, "lrp"),
        ({"method": ["context_cite:kind=logit"]}, "context_cite explains the log-probability of the answer; leave out"),
        ({"metrics": ["ldss"]}, "lds"),
    ],
)
def test_bad_calls_say_what_is_wrong(arguments: dict, message: str):
    call = {"prompts": [PROMPT], "answers": [ANSWER], **arguments}
    with pytest.raises(BadInput, match=message):
        evaluate_answers(model(), call.pop("prompts"), call.pop("method", None), **call)


# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    model().save(folder / "lm")
    lines = [json.dumps({"text": PROMPT, "answer": ANSWER.strip(), "id": f"p{n}"}) for n in range(2)]
    (folder / "prompts.jsonl").write_text("\n".join(lines), "utf-8")
    return folder


def command(saved: Path, *more: str) -> list[str]:
    return [
        *("evaluate", "--data", str(saved / "prompts.jsonl"), "--model", str(saved / "lm"), "--quiet"),
        *("--id-column", "id", *more),
    ]


def test_the_command_prints_the_table_within_80_columns(saved: Path, capsys: pytest.CaptureFixture[str]):
    page = saved / "page.html"
    given = ("--answer-column", "answer", "--method", "gradient", "--method", "lrp:rules=cp", "--html", str(page))
    assert run(command(saved, *given)) == 0
    shown = capsys.readouterr().out
    for words in ("gradient", "lrp:rules=cp", *CONTROLS, "lds", "n = 2 texts"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "lrp:rules=cp" in page.read_text("utf-8")


def test_the_command_evaluates_the_models_own_answers(saved: Path, capsys: pytest.CaptureFixture[str]):
    given = ("--generate", "3", "--by", "word", "--method", "gradient", "--metric", "top_1_drop", "--json")
    assert run(command(saved, *given)) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ids"], facts["metrics"], facts["settings"]["by"]) == (["p0", "p1"], ["top_1_drop"], "word")


def test_a_run_gives_the_table_of_the_evaluation_in_memory(saved: Path, capsys: pytest.CaptureFixture[str]):
    rows = [(" ".join(SENTENCES[n:] + SENTENCES[:n]), f"{ANSWER.strip()}{'!' * n}") for n in range(4)]
    data, out = saved / "four.jsonl", saved / "run"
    lines = [json.dumps({"text": prompt, "answer": answer, "id": f"p{n}"}) for n, (prompt, answer) in enumerate(rows)]
    data.write_text("\n".join([*lines, '{"text": " ", "answer": "x", "id": "no"}']), "utf-8")
    given = ("--answer-column", "answer", "--method", "gradient", "--method", "lrp:rules=cp", "--json")
    run_of = (*command(saved, *given, "--out", str(out), "--rows-per-part", "2", "--max-rejected", "0.5"),)
    run_of = [str(data) if part == str(saved / "prompts.jsonl") else part for part in run_of]
    assert run([*run_of, "--limit", "2"]) == 0
    first = (out / "parts" / "part-00000.parquet").stat().st_mtime_ns
    capsys.readouterr()
    assert run(run_of) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (out / "parts" / "part-00000.parquet").stat().st_mtime_ns == first, "a finished part was computed again"
    prompts, answers = zip(*rows, strict=True)
    own = evaluate_answers(
        load(saved / "lm"), prompts, ["gradient", "lrp:rules=cp"], answers=answers, ids=[f"p{n}" for n in range(4)]
    )
    stored = json.loads(to_json(own))
    assert facts["ids"] == stored["ids"] == ["p0", "p1", "p2", "p3"]
    assert facts["settings"] == stored["settings"]
    for a, b in zip(facts["cells"], stored["cells"], strict=True):
        assert (a["method"], a["metric"]) == (b["method"], b["metric"])
        assert [v is None for v in a["values"]] == [v is None for v in b["values"]]
        assert [v for v in a["values"] if v is not None] == pytest.approx([v for v in b["values"] if v is not None])
    columns = source(data, target="answer", id="id")
    with pytest.raises(BadInput, match=r"settings\.by = 'sentence', not 'word'"):
        evaluate_answer_data(saved / "lm", columns, out, ["gradient", "lrp:rules=cp"], by="word", rows_per_part=2)


def test_chats_and_questions_with_passages_are_evaluated(saved: Path, capsys: pytest.CaptureFixture[str]):
    data = saved / "asked.jsonl"
    data.write_text(json.dumps({"text": "good?", "of": ["The film was good.", {"text": "Sad.", "name": "x"}]}), "utf-8")
    given = ("evaluate", "--data", str(data), "--model", str(saved / "lm"), "--generate", "3", "--quiet", "--json")
    more = ("--context-column", "of", "--by", "document", "--method", "gradient", "--metric", "top_1_drop")
    assert run([*given, *more]) == 0
    here = json.loads(capsys.readouterr().out)
    assert run([*given, *more, "--out", str(saved / "asked")]) == 0
    there = json.loads(capsys.readouterr().out)
    assert [c["values"] for c in here["cells"]] == [pytest.approx(c["values"]) for c in there["cells"]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--generate", "3", "--workers", "2"), "add --out, its folder"),
        (("--chat-column", "text"), "add --answer-column or --generate"),
        (("--by", "word"), "add --answer-column or --generate"),
        (("--answer-column", "answer", "--generate", "3"), "exclude each other"),
        (("--generate", "3", "--target", "good"), "--target is not for the answers"),
        (("--generate", "3", "--metric", "loo_spearman"), "loo_spearman"),
        (("--answer-column", "missing"), "missing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    saved: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
):
    assert run(command(saved, *more)) == 2
    assert message in capsys.readouterr().err


def test_names_are_known_before_anything_is_loaded():
    assert {m.name for m in ANSWER_METRICS} == set(checks.ANSWER_METRICS)
    assert {m.__name__ for m in ANSWER_METHODS} <= set(checks.ANSWER_METHODS)


def test_a_prompt_that_would_be_deleted_whole_is_named(tmp_path: Path):
    """The tokenizer of the model adds no token that would be left."""
    prompts = [PROMPT, "The film was good"]
    with pytest.raises(BadInput, match=r"prompt 2: it is a single sentence, and occlusion deletes each .*by=word"):
        evaluate_answers(model(), prompts, ["occlusion"], answers=[ANSWER] * 2, metrics=["lds"])
    for ids, shown in ((["0", "1"], "2"), (["a", "b"], "b")):  # rows are numbered from 0, but not for a reader
        with pytest.raises(BadInput, match=rf"^prompt {shown}: it is a single"):
            evaluate_answers(model(), prompts, ["occlusion"], answers=[ANSWER] * 2, metrics=["lds"], ids=ids)
    by_word = evaluate_answers(model(), prompts, ["occlusion"], answers=[ANSWER] * 2, metrics=["lds"], by="word")
    assert np.isfinite(by_word.cells["occlusion", "lds"].values).all()
    assert evaluate_answers(model(), prompts, ["gradient"], answers=[ANSWER] * 2, metrics=["top_1_drop"]).texts == 2
    rows = [{"text": text, "answer": ANSWER} for text in (*[PROMPT] * 12, "The film was good")]
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    table = evaluate_answer_data(
        model(), source(data, target="answer"), tmp_path / "out", ["occlusion"], metrics=["top_1_drop"]
    )
    assert table.texts == 12
    assert "single sentence" in (tmp_path / "out" / "rejected.jsonl").read_text("utf-8")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a film"}, "no column 'answer'"),
        ({"text": "a film", "answer": 3}, "line 1 of .*d.jsonl: its answer is 3; expected a text"),
        ({"text": "a film", "answer": " "}, "column 'answer' is empty or only white space"),
    ],
)
def test_an_answer_that_is_no_text_is_named(row: dict[str, object], message: str, tmp_path: Path):
    (tmp_path / "d.jsonl").write_text(json.dumps(row))
    with pytest.raises(BadInput, match=message):
        read_prompts(source(tmp_path / "d.jsonl"), "answer")
