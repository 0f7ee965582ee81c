"""Views of training followed, and the command that prints them."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import salience
from dynamics.planted import SMALL, planted
from salience.cli import run
from salience.dynamics import Dynamics, two_tokens
from salience.views.charts import drawn
from salience.views.dynamics import flow_chart, order_chart, page, sentences, slider, to_json, words_charts


@pytest.fixture(scope="module")
def result() -> Dynamics:
    texts = ["this <b>film</b> is splendid", "a zyzzy film of a film"]
    return salience.follow(
        planted(200, labels=3), texts, sentences=20, checkpoints=6, shape=SMALL, training={"epochs": 2, "rate": 1e-2}
    )


class Inputs(HTMLParser):
    """Checks that elements are closed, and collects the steps that can be chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.inputs: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "input":
            self.inputs.append(dict(attrs))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_slider_has_one_choice_and_one_frame_per_step(result: Dynamics):
    text = result.followed.texts[0]
    html = slider(result.followed.steps, text, "positive", 3)
    parser = Inputs()
    parser.feed(html)
    assert not parser.open
    assert [i["aria-label"] for i in parser.inputs] == [f"step {step}" for step in result.followed.steps]
    assert {i["type"] for i in parser.inputs} == {"radio"}  # arrow keys move between the radio buttons of one name
    assert {i["name"] for i in parser.inputs} == {"step3"}
    assert ["checked" in i for i in parser.inputs] == [False] * (len(parser.inputs) - 1) + [True]
    assert html.count('class="frame f') == len(result.followed.steps)
    last = html.rpartition('class="frame f')[2]
    for t, token in enumerate(text.tokens):
        written = token.replace("<", "&lt;").replace(">", "&gt;")
        values = f"relevance {text.relevance[-1, t]:+.3f}, attention {text.attention[-1, t]:.3f}"
        assert re.search(f"{re.escape(values)}.*?{re.escape(written)}</span>", last)


def test_the_page_is_one_file_without_scripts(result: Dynamics):
    html = page(result)
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert html.count("<fieldset") == result.asked == 2
    assert "this &lt;b&gt;film&lt;/b&gt; is splendid" in html
    for i in range(len(result.followed.steps)):
        assert f".slider .i{i}:checked ~ .frames .f{i} {{ display: block; }}" in html


def test_charts(result: Dynamics):
    text = result.followed.texts[1]
    shown = words_charts(result.followed.steps, text, "positive")
    assert shown.count("The numbers of this chart") == shown.count("<svg") == 2
    for words in ("zyzzy", "film (3)", "film (6)", "relevance for positive", "attention", "step"):
        assert words in shown
    assert "relevance of random words" in order_chart(result.order).partition("<details>")[0]
    assert "relevance of the keyword" in drawn(flow_chart(two_tokens(np.linspace(0, 1, 5))), "svg").decode()


def test_sentences_say_what_is_unknown_and_which_comes_first(result: Dynamics):
    told = sentences(result)
    assert "over 20 texts" in told[0]
    assert told[1].startswith("Above chance by ranks, relevance is from step ")
    assert told[2].startswith("By ranks, relevance is half-way at step ")
    assert told[3].startswith("By size, relevance is half-way at step ")
    assert told[-1] == "Not in the vocabulary, so all read as the same unknown word: <, b, >, /, zyzzy."


def test_json_is_complete(result: Dynamics):
    stored = json.loads(json.dumps(to_json(result)))
    assert stored["steps"] == list(result.followed.steps)
    assert stored["order"]["relevance"]["by_step"][0]["low"] is None
    assert len(stored["texts"]) == 2
    assert np.allclose(stored["texts"][0]["attention"], result.followed.texts[0].attention)
    assert stored["settings"]["recipe"]["epochs"] == 2


# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"text": e.text, "label": e.label}) + "\n" for e in planted(80)))
    return file


SHORT = ["--epochs=1", "--embedding=8", "--hidden=6", "--sentences=8", "--checkpoints=4"]


def test_the_command_trains_follows_and_writes(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    html, out = tmp_path / "report.html", tmp_path / "out"
    arguments = ["dynamics", f"--data={data}", "--text=this film is fine", f"--out={out}", *SHORT]
    assert run([*arguments, f"--html={html}"]) == 0
    printed = capsys.readouterr()
    assert "How attention came to be" in printed.out
    assert re.search(r"relevance r for \w+, and attention a, after these steps", printed.out)
    assert re.search(r"( +r)+( +a)+ *\n +0 +\d", printed.out)
    assert "the training takes about" in printed.err
    assert f"It is kept in {out}." in printed.err
    assert "<fieldset" in html.read_text("utf-8")
    assert (out / "standard.parquet").is_file()
    assert run([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["texts"][0]["tokens"] == ["this", "film", "is", "fine"]
    assert "takes about" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data=none.jsonl"], "none.jsonl"),
        (["--data={data}", "--label-column=stars"], "stars"),
        (["--data={data}", "--text= "], "empty or only white space"),
        (["--data={data}", "--checkpoints=1"], "of at least 2"),
        (["--data={data}", "--limit=2"], "training needs at least two labels"),
        (["--data={data}", "--device=moon"], "moon"),
    ],
)
def test_bad_input(arguments: list[str], message: str, data: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["dynamics", *(a.format(data=data) for a in arguments), "--quiet"]) == 2
    assert message in capsys.readouterr().err
