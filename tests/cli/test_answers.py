"""Answers of language models on the command line: prompts, chats, contexts, data sets, and what is refused."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import salience
from salience.cli import run
from salience.cli.checks import ANSWER_METHODS
from salience.generation import ANSWER_METHODS as METHODS
from salience.generation import (
    AnswerExplanation,
    context_dependence,
    explain_answer,
    explain_answer_data,
    open_answers,
)
from salience.views import answers
from salience.views.answer_sheet import chosen, relative
from shapes import build

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "
)
KEYS = {
    *("prompt", "answer", "method", "settings", "model", "target", "matrix", "total", "gaps"),
    *("source_tokens", "source_offsets", "answer_tokens"),
}
Explain = Callable[..., tuple[int, str, str]]


def saved(path: Path, template: str | None = None) -> str:
    model = build("llama_lm")
    tokenizer = deepcopy(model.tokenizer)  # that of the shapes is shared by all tests
    tokenizer.chat_template = template
    model.module.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture
def explain(plain: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Explain:
    """Run ``salience explain`` on the tiny model in a terminal of 80 columns: exit code, output, errors."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str, model: str = plain) -> tuple[int, str, str]:
        code = run(["explain", "--model", model, *arguments])
        return (code, *capsys.readouterr())

    return call


def written(path: Path, *rows: object) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return str(path)


def test_the_json_of_an_answer_is_that_of_the_library_and_can_be_read_back(explain: Explain, plain: str):
    code, out, err = explain("a fine film is", "--generate", "4", "--method", "input_x_gradient", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert set(facts) >= KEYS
    assert facts["target"] == {"kind": "log_probability", "against": None}
    assert facts["segments"] is None
    own = explain_answer(salience.load(plain), "a fine film is", "input_x_gradient", generate=4)
    assert facts == json.loads(own.to_json())
    assert AnswerExplanation.from_dict(facts) == own
    assert hash(AnswerExplanation.from_dict(facts)) == hash(own)
    assert facts["matrix"][0][facts["prompt_tokens"] :] == [None] * (len(facts["answer_tokens"]) - 1)


def test_segments_are_listed_where_they_are_asked_for(explain: Explain):
    call = ("Good film. Bad film.", "--answer", "fine", "--method", "occlusion", "--json")
    sentences = json.loads(explain(*call, "--by", "sentence")[1])["segments"]
    assert [(s["text"], s["start"], s["end"]) for s in sentences] == [("Good film.", 0, 10), ("Bad film.", 11, 20)]
    matches = json.loads(explain(*call, "--segments", "film")[1])
    assert [s["start"] for s in matches["segments"]] == [5, 15]
    assert matches["expression"] == "film"


def test_an_answer_against_another_and_the_forms_of_an_answer(explain: Explain):
    code, out, _ = explain("a fine", "--answer", "film", "--against-answer", "bad", "--method", "occlusion", "--json")
    assert code == 0
    assert json.loads(out)["target"]["against"].strip() == "bad"
    assert json.loads(out)["matrix"] == []
    whole = json.loads(explain("a fine", "--answer", "film", "--per", "answer", "--json")[1])
    assert whole["matrix"] == []
    through = json.loads(explain("a fine", "--answer", "good film", "--through-answer", "--json")[1])
    assert through["settings"]["through_answer"] is True
    kind = json.loads(explain("a fine", "--answer", "film", "--kind", "logit", "--json")[1])
    assert kind["target"]["kind"] == "logit"
    sampled = (
        "a fine",
        "--generate",
        "3",
        "--generation",
        "do_sample=true",
        "--generation",
        "temperature=0.7",
        "--json",
    )
    assert json.loads(explain(*sampled)[1])["generation"]["temperature"] == 0.7


def test_without_these_options_the_next_token_is_explained(explain: Explain):
    facts = json.loads(explain("a fine", "--json", "--method", "gradient")[1])
    assert "text" in facts
    assert "answer" not in facts


@pytest.mark.parametrize("level", ["word", "token"])
def test_no_line_is_wider_than_the_terminal(explain: Explain, level: str):
    prompt = "A fine film. A bad film."
    call = (prompt, "--answer", "fine film and a film", "--method", "gradient", "--by", "sentence", "--level", level)
    code, out, _ = explain(*call, "--no-color")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "segments by sentence" in out
    assert "sentence 1" in out


def test_remarks_of_several_lines_are_indented(explain: Explain):
    _, out, _ = explain("A fine film", "--answer", "a film", "--method", "lrp", "--per", "answer", "--no-color")
    lines = out.rstrip().splitlines()
    remarks = lines[next(n for n, line in enumerate(lines) if "for the answer" in line) :]
    assert len(remarks) > len([line for line in remarks if "gap" in line or "sink" in line]) + 1  # some are wrapped
    assert all(line.startswith("  ") for line in remarks)


def test_a_picture_says_what_its_colours_mean(explain: Explain, tmp_path: Path):
    call = ("A fine film", "--answer", "a film", "--method", "lrp", "--svg", str(tmp_path / "a.svg"))
    assert explain(*call)[0] == 0
    shown = (tmp_path / "a.svg").read_text("utf-8")
    assert "lrp: log probability of each word of the answer" in shown
    assert "orange: for this answer; blue: against it" in shown


def test_a_short_answer_is_shown_as_a_table_and_one_of_its_words_can_be_chosen(explain: Explain):
    assert "good" in explain("a film", "--answer", "good film", "--method", "gradient")[1].split("answer")[-2]
    for token in ("1", "film"):
        code, out, _ = explain("a film", "--answer", "good film", "--method", "gradient", "--token", token)
        assert code == 0
        assert "explained: log probability of the answer" in " ".join(out.split())
    code, _, err = explain("a film", "--answer", "good film", "--token", "never")
    assert code == 2
    assert "'never' is not part of the answer" in err


def test_a_chosen_token_has_its_own_row(plain: str):
    e = explain_answer(salience.load(plain), "a film", "gradient", answer="good film")
    assert chosen(e, "1").total == tuple(v or 0.0 for v in e.matrix[0])
    assert chosen(e, None) is e


def test_a_chat_by_turn_and_a_question_by_document(explain: Explain, chatting: str, tmp_path: Path):
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "a fine film"}, {"role": "user", "content": "good"}]', "utf-8")
    code, out, _ = explain("--chat", str(chat), "--generate", "3", "--by", "turn", "--json", model=chatting)
    assert code == 0
    assert [s["text"] for s in json.loads(out)["segments"]] == ["a fine film", "good"]
    context = written(tmp_path / "p.jsonl", {"title": "one", "text": "a fine film"}, {"title": "two", "text": "bad"})
    page = tmp_path / "why.html"
    call = ("good?", "--context", context, "--generate", "3", "--by", "document")
    code, out, _ = explain(*call, "--json", model=chatting)
    assert [s["name"] for s in json.loads(out)["segments"]] == ["one", "two", "question"]
    assert explain(*call, "--html", str(page), model=chatting)[0] == 0
    html = page.read_text("utf-8")
    assert "<script" not in html
    assert "segments by document" in html


def test_all_views_report_the_scores_of_tokens_that_are_not_ranked(explain: Explain, chatting: str, tmp_path: Path):
    chat, page = tmp_path / "chat.json", tmp_path / "why.html"
    chat.write_text('[{"role": "user", "content": "a fine film"}]', "utf-8")
    call = ("--chat", str(chat), "--generate", "2", "--segments", "fine", "--method", "gradient")
    facts = json.loads(explain(*call, "--json", model=chatting)[1])
    assert facts["template"] > 0 < facts["outside"]
    shown = explain(*call, model=chatting)[1]
    assert explain(*call, "--html", str(page), model=chatting)[0] == 0
    for view in (shown, page.read_text("utf-8")):
        assert f"template and special tokens: {facts['template']:.3g}" in view
        assert f"tokens of the prompt outside of these segments: {facts['outside']:.3g}" in view


# ------------------------------------------------------------------------------------------------------ data sets


def test_a_data_set_is_explained_resumed_and_read_back(explain: Explain, plain: str, tmp_path: Path, capsys):
    data = written(tmp_path / "d.jsonl", *({"text": f"a film {n}", "answer": "good film"} for n in range(5)))
    out = tmp_path / "run"
    call = ("--data", data, "--answer-column", "answer", "--out", str(out), "--rows-per-part", "2")
    call = (*call, "--method", "gradient", "--method", "occlusion", "--by", "word")
    assert explain(*call, "--limit", "3")[0] == 0
    first = (out / "parts" / "part-00000.parquet").stat().st_mtime_ns
    code, _, err = explain(*call)
    assert (code, "5 texts" in err) == (0, True)
    assert (out / "parts" / "part-00000.parquet").stat().st_mtime_ns == first
    read = open_answers(out)
    assert (len(read), read.finished, list(read.methods)) == (5, True, ["gradient", "occlusion"])
    own = salience.explain_answers(
        salience.load(plain), ["a film 4"], ["gradient", "occlusion"], answers=["good film"], by="word"
    )
    for stored, e in zip([row for _, row in read.rows()][4], own, strict=True):
        assert stored.answer_ids == e.answer_ids
        assert stored.total == pytest.approx(e.total, abs=1e-5)
        assert stored.matrix[0] == pytest.approx(e.matrix[0], abs=1e-5)
        assert (stored.rule, stored.chosen_segments()[0].name) == ("word", "word 1")
    capsys.readouterr()
    assert run(["show", str(out), "--first", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["answer"] == " good film"
    assert run(["export", str(out), str(tmp_path / "all.jsonl")]) == 0
    assert len((tmp_path / "all.jsonl").read_text("utf-8").splitlines()) == 10
    assert run(["summary", str(out)]) == 2
    assert "salience show" in capsys.readouterr().err


def test_generated_answers_to_chats_are_stored_with_their_ids(explain: Explain, chatting: str, tmp_path: Path):
    rows = [{"messages": [{"role": "user", "content": f"film {n}"}]} for n in range(2)]
    data = written(tmp_path / "d.jsonl", *rows, {"messages": [{"role": "tool", "content": "x"}]})
    call = ("--data", data, "--chat-column", "messages", "--generate", "3", "--max-rejected", "0.5")
    code, _, err = explain(*call, "--out", str(tmp_path / "run"), "--method", "gradient", model=chatting)
    assert code == 0, err
    assert "1 row was rejected" in err
    stored = list(open_answers(tmp_path / "run"))
    own = explain_answer(salience.load(chatting), rows[0]["messages"], "gradient", generate=3)
    assert (stored[0].answer, stored[0].answer_ids) == (own.answer, own.answer_ids)
    assert stored[0].generation["max_new_tokens"] == 3
    assert stored[0].parts == own.parts


def test_questions_with_their_own_passages_and_answers_to_compare(explain: Explain, plain: str, tmp_path: Path):
    passages = [{"title": "one", "text": "a fine film"}, "bad"]
    row = {"text": "good?", "passages": passages, "answer": "fine", "other": "bad film"}
    data = written(tmp_path / "d.jsonl", row, {**row, "passages": "a fine film"}, {**row, "passages": [" "]})
    named = ("--answer-column", "answer", "--against-answer-column", "other", "--context-column", "passages")
    call = ("--data", data, *named, "--method", "input_x_gradient", "--by", "document", "--max-rejected", "0.5")
    code, _, err = explain(*call, "--out", str(tmp_path / "run"))
    assert (code, "1 row was rejected" in err) == (0, True), err
    first, second = open_answers(tmp_path / "run")
    context = [salience.generation.Passage("a fine film", "one"), "bad"]
    given = {"answer": "fine", "against_answer": "bad film", "by": "document"}
    own = explain_answer(salience.load(plain), "good?", "input_x_gradient", context=context, **given)
    assert first.total == pytest.approx(own.total, abs=1e-5)
    assert (first.parts, first.target, first.matrix) == (own.parts, own.target, ())
    assert [s.name for s in second.chosen_segments()] == ["document 1", "question"]
    refused = json.loads((tmp_path / "run" / "rejected.jsonl").read_text("utf-8"))
    assert "passage 1 is empty" in refused["reason"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--context", "x.jsonl"), "with --data, name the column of passages with --context-column"),
        (("--against-answer", "x"), "the answers to compare with by --against-answer-column"),
        (("--against-answer-column", "text"), "name their column with --answer-column"),
        (("--chat-column", "text", "--context-column", "text"), "a chat holds its own context"),
        (("--generate", "3", "--context-column", "none"), "none"),
        (("--dependence",), "--dependence is for a single prompt"),
    ],
)  # fmt: skip
def test_options_of_one_prompt_name_what_a_data_set_takes_instead(explain: Explain, more, message, tmp_path: Path):
    data = written(tmp_path / "d.jsonl", {"text": "a film"})
    code, _, err = explain("--data", data, "--out", str(tmp_path / "run"), *more)
    assert (code, message in err, len(err.splitlines())) == (2, True, 1), err
    assert not (tmp_path / "run").exists()


KILLED = """
import sys, torch
from salience.generation import explain_answer_data
torch.set_num_threads(1)
explain_answer_data(sys.argv[1], sys.argv[2], sys.argv[3], ["gradient", "occlusion"], generate=4, rows_per_part=5)
"""


@pytest.mark.slow
def test_a_killed_run_of_answers_can_be_resumed(plain: str, tmp_path: Path):
    data = written(tmp_path / "d.jsonl", *({"text": f"a film {n} and a {'fine ' * (n % 5)}story"} for n in range(150)))
    arguments = {"generate": 4, "rows_per_part": 5}
    methods = ["gradient", "occlusion"]
    whole = list(explain_answer_data(plain, data, tmp_path / "whole", methods, **arguments))
    run_folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", KILLED, plain, data, str(run_folder)])
    end = time.monotonic() + 300
    while len(list(run_folder.glob("parts/part-*.parquet"))) < 3 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {file.name: file.read_bytes() for file in run_folder.glob("parts/part-*.parquet")}
    assert 3 <= len(done) < 30, "it was killed on its way"
    resumed = list(explain_answer_data(plain, data, run_folder, methods, **arguments))
    assert [e.to_dict() for e in resumed] == [e.to_dict() for e in whole]
    for name, content in done.items():
        assert (run_folder / "parts" / name).read_bytes() == content, "a finished part was computed again"


def test_of_large_matrices_only_strong_scores_are_stored(plain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from salience.generation import parts, runs

    monkeypatch.setattr(parts, "EXACT", 1)
    monkeypatch.setattr(parts, "FLOOR", 0.5)
    data = written(tmp_path / "d.jsonl", {"text": "a fine film and a story"})
    (stored,) = runs.explain_answer_data(plain, data, tmp_path / "run", "gradient", generate=3)
    own = explain_answer(salience.load(plain), "a fine film and a story", "gradient", generate=3)
    for row, full in zip(stored.matrix, own.matrix, strict=True):
        most = max(abs(v) for v in full if v is not None)
        assert row == pytest.approx([v if v is None or abs(v) > most / 2 else 0.0 for v in full], abs=1e-5)
    assert stored.total == pytest.approx(own.total, abs=1e-5)


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "--generate", "3"], "the prompt is empty or only white space"),
        (["a film", "--answer", " "], "the answer is empty or only white space"),
        (["a film", "--generate", "3", "--against", "bad"], "--against names a label"),
        (["a film", "--answer", "good", "--target", "bad"], "--target names a label"),
        (["a film", "--answer", "good", "--generate", "3"], "choose one of them"),
        (["a film", "--answer", "good", "--answer", "bad"], "given 2 times for 1 prompts"),
        (["a film", "--generate", "500"], "more than the 64 that"),
        (["film " * 60, "--answer", "good film and story and war"], "can read; shorten it"),
        (["a film", "--answer", "good", "--segments", "zebra"], "no segment of the prompt is matched by 'zebra'"),
        (["a film", "--answer", "good", "--segments", "("], "is not a regular expression"),
        (["a film", "--answer", "good", "--by", "turn"], "the prompt has no turns; pass a chat"),
        (["a film", "--answer", "good", "--by", "document"], "the prompt has no documents"),
        (["a film", "--answer", "good", "--by", "word", "--segments", "a"], "exclude each other"),
        (["a film", "--generate", "3", "--generation", "heat=2"], "unknown setting 'heat'"),
        (["a film", "--generate", "3", "--generation", "heat"], "--generation 'heat' is not of the form"),
        (["a film", "--generate", "3", "--method", "output_relevance"], "unknown method 'output_relevance' of an"),
        (["a film", "--generate", "3", "--pair", "x"], "leave out --pair"),
        (["a film", "--generate", "3", "--per", "answer", "--token", "1"], "--token chooses"),
        (["a film", "--answer-column", "x"], "--answer-column is only used with --data"),
        (["--generate", "3"], "no TEXT"),
        (["a film", "--generate", "3", "--dependence"], "name it with --context"),
        (["a film", "--context", "x.txt", "--dependence"], "leave out --html"),
        (["a film", "--context", "x.txt", "--dependence", "--by", "word"], "leave out --by"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(explain: Explain, arguments: list[str], message: str, tmp_path: Path):
    page = tmp_path / "why.html"
    files = [] if "--token" in arguments else ["--html", str(page)]
    code, out, err = explain(*arguments, *files)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_classifier_has_no_answers(explain: Explain):
    for option in (["--generate", "3"], ["--answer", "good"], ["--by", "word"]):
        code, _, err = explain("a film", *option, model="sentiment")
        assert code == 2
        assert f"{option[0]} needs a language model, and sentiment is a classifier" in err


def test_bad_chats_and_contexts_are_refused(explain: Explain, chatting: str, tmp_path: Path):
    chat = tmp_path / "chat.json"
    cases = {
        "[": "is not JSON",
        "[]": "must be a list of at least one message",
        '[{"role": "user", "content": " "}]': "message 1 (user) is empty",
        '[{"role": "tool", "content": "x"}]': "no tools",
    }
    for text, message in cases.items():
        chat.write_text(text, "utf-8")
        code, _, err = explain("--chat", str(chat), "--generate", "3", model=chatting)
        assert (code, message in err, len(err.splitlines())) == (2, True, 1), err
    chat.write_text('[{"role": "user", "content": "good"}]', "utf-8")
    code, _, err = explain("--chat", str(chat), "--generate", "3")
    assert code == 2
    assert "chat template" in err
    assert "leave out TEXT" in explain("a", "--chat", str(chat), "--generate", "3", model=chatting)[2]
    empty = written(tmp_path / "p.jsonl", {"text": "a film"}, {"text": " "})
    code, _, err = explain("good?", "--context", empty, "--generate", "3")
    assert code == 2
    assert "line 2 of" in err
    assert "no.json" in explain("--chat", str(tmp_path / "no.json"), "--generate", "3")[2]


def test_an_answer_that_the_tokenizer_changes_is_refused(tmp_path: Path, explain: Explain):
    from tokenizers import normalizers

    model = build("llama_lm")
    tokenizer = deepcopy(model.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    model.module.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code, _, err = explain("a film", "--answer", "GOOD", model=str(tmp_path))
    assert code == 2
    assert "reads the answer 'GOOD' as 'good'" in err


# ------------------------------------------------------------------------------------------------------ views, lists


def test_the_dependence_on_a_context_is_printed_and_is_that_of_the_library(
    explain: Explain, plain: str, tmp_path: Path
):
    context = tmp_path / "p.txt"
    context.write_text("a fine film\n\na bad story", "utf-8")
    call = ("good?", "--context", str(context), "--generate", "8", "--method", "input_x_gradient", "--dependence")
    code, out, err = explain(*call, "--json")
    assert (code, err) == (0, "")
    passages = ["a fine film", "a bad story"]
    own = context_dependence(salience.load(plain), "good?", passages, None, "input_x_gradient", generate=8)
    assert json.loads(out) == json.loads(json.dumps(asdict(own)))
    assert own.dependent
    code, out, _ = explain(*call, "--no-color")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert f"{len(own.dependent)} of 8 tokens depend on the context" in " ".join(out.split())
    for one in own.dependent:
        assert f"{one.divergence:.2f}" in out
    assert "no TEXT" in explain(*call[1:])[2]
    code, _, err = explain(*call, "--method", "gradient")
    assert (code, "name one method" in err) == (2, True)


@pytest.mark.parametrize("per", ["token", "answer"])
def test_a_heat_map_shows_the_segments_that_were_asked_for(explain: Explain, plain: str, per: str, tmp_path: Path):
    given = {"answer": "good film", "by": "sentence", "per": per}
    e = explain_answer(salience.load(plain), "A fine film. A bad film.", "input_x_gradient", **given)
    (source, words, matrix), note = answers.capped(e)
    assert source == ["sentence 1: A fine film.", "sentence 2: A bad film."]
    assert not note
    if per == "answer":
        assert (words, matrix) == (["whole answer"], [[s.score for s in e.by("sentence")]])
    else:
        spans = e.source_offsets[: e.prompt_tokens]  # white space between sentences belongs to neither
        inside = [[n for n, (a, b) in enumerate(spans) if a < end and b > start] for start, end in ((0, 12), (13, 24))]
        own = [[sum(row[n] for n in tokens) for tokens in inside] for row in e.matrix]
        means = [[sum(own[t][s] for t in tokens) / len(tokens) for s in (0, 1)] for _, tokens in e.answer_words()]
        assert matrix == [pytest.approx(row, abs=1e-5) for row in means]
    assert "5 strongest of 8 segments" in answers.capped(replace(e, rule="word"), most=5)[1][0]
    image = tmp_path / "map.svg"
    call = ("A fine film. A bad film.", "--answer", "good film", "--per", per, "--by", "sentence", "--svg", str(image))
    assert explain(*call, "--method", "gradient")[0] == 0
    assert "sentence 1: A fine film." in image.read_text("utf-8")


def test_the_command_knows_the_methods_of_answers(capsys: pytest.CaptureFixture[str]):
    assert tuple(m.__name__ for m in METHODS) == ANSWER_METHODS
    assert run(["methods", "context_cite", "output_relevance", "lrp", "--json"]) == 0
    cite, relevance, lrp = json.loads(capsys.readouterr().out)
    assert cite["explains"].startswith("answers of language models (recommended")
    assert relevance["explains"] == "predictions"
    assert "recommended" in lrp["explains"]


def test_pages_link_each_word_with_what_made_it(plain: str):
    e = explain_answer(salience.load(plain), "a fine film", "input_x_gradient", answer="good film <b>'", by="word")
    shown = e._repr_html_()
    assert "<script" not in shown
    assert "<b>'" not in shown
    _, words, matrix = e.words()
    for t, shares in enumerate(relative(matrix, signed=False)):
        strongest = max(range(len(shares)), key=lambda s: abs(shares[s]))
        rule = shown.split(f":has(.a{t}:is(:hover,:focus)){{")[1].split("}}")[0]
        assert f".w{strongest}{{--s:1.00" in rule
    assert shown.count('class="a a') == len(words)
    assert shown.count('tabindex="0"') == len(words) + len(e.prompt_words())


def test_images_of_long_answers_are_capped(plain: str):
    e = explain_answer(salience.load(plain), "a fine film and a good story", "gradient", answer="good film")
    (source, answer, matrix), note = answers.capped(e, most=3)
    assert (len(source), len(answer), len(matrix[0])) == (3, 3, 3)
    assert note == [f"the 3 strongest of {len(e.words()[0])} words of the source"]
    assert answers.picture([e], "svg").startswith(b"<svg")
