import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from salience.cli import run
from salience.explanations import explainer
from shapes import build

KEYS = {
    *("text", "method", "settings", "model", "target", "value", "probabilities"),
    *("tokens", "offsets", "special", "scores", "words", "word_scores", "gaps", "signed"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random classifier, saved as a user would save one."""
    path = tmp_path_factory.mktemp("tiny")
    model = build("bert")
    model.module.save_pretrained(path)
    model.tokenizer.save_pretrained(path)
    return str(path)


Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(folder: str, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Run ``salience explain`` on the tiny model: exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["explain", "--model", folder, *arguments])
        return (code, *capsys.readouterr())

    return call


# ---------------------------------------------------------------- explain


def test_json_has_the_documented_keys_and_the_scores_of_the_library(explain: Explain, folder: str):
    import salience

    code, out, err = explain("A fine film.", "--json", "--method", "input_x_gradient")
    assert (code, err) == (0, "")
    explanation = json.loads(out)
    assert set(explanation) == KEYS
    assert set(explanation["target"]) == {"label", "against", "kind"}
    (library,) = salience.explain(salience.load(folder), "A fine film.", "input_x_gradient")
    assert explanation == json.loads(library.to_json())


def test_one_line_of_json_for_each_text_and_method(explain: Explain):
    _, out, _ = explain("A fine film.", "Good", "--json", "--method", "gradient", "--method", "random")
    explanations = [json.loads(line) for line in out.splitlines()]
    assert [(e["text"], e["method"]) for e in explanations] == [
        ("A fine film.", "gradient"),
        ("A fine film.", "random"),
        ("Good", "gradient"),
        ("Good", "random"),
    ]


def test_the_terminal_view_without_a_terminal_has_no_escapes(explain: Explain):
    code, out, _ = explain("A fine [bold]film\x1b[31m.", "--method", "random", "--no-color")
    assert code == 0
    assert "explained: logit of LABEL_" in out
    assert "\x1b" not in out
    assert "␛" in out


def test_target_against_and_kind(explain: Explain):
    options = ("--target", "label_2", "--against", "LABEL_0", "--kind", "log_probability")
    _, out, _ = explain("Good", "--json", "--method", "gradient", *options)
    assert json.loads(out)["target"] == {"label": "LABEL_2", "against": "LABEL_0", "kind": "log_probability"}


def test_settings_for_all_and_for_one(explain: Explain):
    options = ("--set", "nodes=4", "--set", "integrated_gradients.rule=left", "--set", "smooth_grad.samples=2")
    _, out, _ = explain("Good", "--json", "--method", "integrated_gradients", "--method", "smooth_grad", *options)
    path, smooth = (json.loads(line)["settings"] for line in out.splitlines())
    assert (path["nodes"], path["rule"], smooth["samples"]) == (4, "left", 2)


def test_a_setting_of_one_method_takes_precedence(explain: Explain):
    options = ("--set", "random.seed=5", "--set", "seed=3", "--set", "smooth_grad.samples=1")
    _, out, _ = explain("Good", "--json", "--method", "random", "--method", "smooth_grad", *options)
    assert [json.loads(line)["settings"]["seed"] for line in out.splitlines()] == [5, 3]


def test_a_seed_reaches_only_randomised_methods(explain: Explain):
    code, out, _ = explain("Good", "--json", "--method", "random", "--method", "gradient", "--seed", "7")
    assert code == 0
    assert [json.loads(line)["settings"].get("seed") for line in out.splitlines()] == [7, None]
    assert explain("Good", "--json", "--method", "gradient", "--seed", "7")[0] == 0


def test_a_pair(explain: Explain):
    _, out, _ = explain("A film.", "--pair", "Good", "--json", "--method", "gradient")
    explanation = json.loads(out)
    assert (explanation["text"], explanation["pair_at"]) == ("A film.\nGood", 8)


def test_standard_input_is_one_text_per_line(explain: Explain, monkeypatch: pytest.MonkeyPatch):
    data = "\ufeffA fine film.\r\n\n  \nGood 👍\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    _, out, _ = explain("-", "--json", "--method", "random")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["A fine film.", "Good 👍"]


def test_results_come_in_the_order_of_the_texts_across_windows(explain: Explain, monkeypatch: pytest.MonkeyPatch):
    texts = [f"film {'fine ' * (n % 7)}{n}" for n in range(70)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    _, out, _ = explain("-", "--json", "--method", "random")
    assert [json.loads(line)["text"] for line in out.splitlines()] == texts


def test_a_truncated_text_causes_a_one_line_warning(explain: Explain):
    code, out, err = explain("fine film " * 60, "--json", "--method", "gradient")
    assert code == 0
    assert "unseen" in json.loads(out)
    assert err.count("\n") == 1
    assert err.startswith("salience: warning: text 0 is longer than the 64 tokens")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(("option", "start"), [("--html", b"<!doctype"), ("--png", b"\x89PNG"), ("--svg", b"<svg")])
def test_a_file_is_written_whole(explain: Explain, tmp_path: Path, option: str, start: bytes):
    path = tmp_path / "why"
    path.write_text("old")
    code, out, err = explain("A fine film.", "--method", "gradient", option, str(path))
    assert (code, out, err) == (0, "", f"wrote {path}\n")
    assert path.read_bytes().startswith(start)
    assert os.listdir(tmp_path) == ["why"]


def test_a_failed_run_leaves_the_old_file(explain: Explain, tmp_path: Path):
    path = tmp_path / "why.html"
    path.write_text("old")
    assert explain("A fine film.", "--method", "gradiant", "--html", str(path))[0] == 2
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["why.html"]


@pytest.mark.parametrize(
    ("place", "message"), [("missing/why.png", "missing does not exist"), (".", "is a folder; give the name of a file")]
)
def test_a_file_that_cannot_be_written_is_reported_up_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, message: str
):
    code = run(["explain", "A film.", "--model", "no-such-model", "--png", str(tmp_path / place)])
    assert code == 2
    assert message in capsys.readouterr().err


def test_several_outputs_in_one_call(explain: Explain, tmp_path: Path):
    html, png, svg = (tmp_path / f"why.{kind}" for kind in ("html", "png", "svg"))
    files = ("--html", str(html), "--png", str(png), "--svg", str(svg))
    code, out, err = explain("A fine film.", "Good", "--method", "gradient", "--json", *files)
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["A fine film.", "Good"]
    assert err == "".join(f"wrote {path}\n" for path in (html, png, svg))
    starts = (b"<!doctype", b"\x89PNG", b"<svg")
    assert [path.read_bytes()[:4] for path in (html, png, svg)] == [start[:4] for start in starts]


def test_two_outputs_do_not_share_a_file(explain: Explain, tmp_path: Path):
    code, _, err = explain("A film.", "--png", str(tmp_path / "x"), "--html", f"{tmp_path}/./x")
    assert code == 2
    assert "is named for two outputs" in err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(("view", "word"), [("bar", "fine"), ("waterfall", "rest")])
def test_bars_in_the_terminal_and_in_files(explain: Explain, tmp_path: Path, view: str, word: str):
    code, out, _ = explain("A fine film.", "--method", "input_x_gradient", "--view", view, "--no-color")
    assert code == 0
    assert re.search(rf"^  {word} +[+-]?[0-9.e-]+ +█", out, re.MULTILINE)
    path = tmp_path / "why.svg"
    assert explain("A fine film.", "--method", "input_x_gradient", "--view", view, "--svg", str(path))[0] == 0
    assert f">{word}</text>" in path.read_text("utf-8")


def test_a_text_that_is_a_file_causes_a_warning(explain: Explain, tmp_path: Path):
    path = tmp_path / "reviews.jsonl"
    path.write_text('{"text": "A fine film."}\n')
    code, out, err = explain(str(path), "--json", "--method", "random")
    assert (code, json.loads(out)["text"]) == (0, str(path))
    assert err.startswith(  # the name of the folder may also be too long for the model
        f"salience: warning: {path} is a file; its name is explained, not its content. To explain the texts in it, use "
        f"--data {path} --out RUN, or salience.explain_data in Python\n"
    )


def test_a_limit_applies_to_texts(explain: Explain):
    _, out, _ = explain("A fine film.", "Good", "Bad", "--limit", "2", "--json", "--method", "random")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["A fine film.", "Good"]


CONTROLS = "ESC \x1b[31m C1 \x9b1m bidi \u202eevil\u2066 non \ufffe\uffff zero \u200b"
RAW = "\x1b\x9b\u202e\u2066\ufffe\uffff\u200b"


def test_control_characters_reach_neither_the_terminal_nor_json(explain: Explain):
    for options in ((), ("--json",), ("--level", "token"), ("--view", "bar")):
        code, out, _ = explain(CONTROLS, "--method", "random", *options)
        assert code == 0
        assert not [c for c in RAW if c in out], options
    _, out, _ = explain(CONTROLS, "--method", "random", "--json")
    assert json.loads(out)["text"] == CONTROLS


@pytest.mark.parametrize("option", ["--png", "--svg", "--html"])
def test_control_characters_do_not_abort_an_image_or_a_page(explain: Explain, tmp_path: Path, option: str):
    path = tmp_path / "why"
    assert explain(CONTROLS, "--method", "random", option, str(path))[0] == 0
    if option != "--png":
        assert not [c for c in "\x1b\x9b\ufffe\uffff" if c in path.read_text("utf-8")]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Good", "--method", "gradiant"], "unknown method 'gradiant'. Did you mean 'gradient'?"),
        (["Good", "--target", "LABEL_9"], "Did you mean 'LABEL_"),
        (["Good", "--set", "node=3"], "Did you mean 'nodes'?"),
        (["Good", "--set", "nodes=many"], "nodes of integrated_gradients takes a whole number"),
        (["Good", "--set", "nodes=true"], "nodes of integrated_gradients takes a whole number"),
        (["Good", "--set", "rule=lefd"], "Did you mean 'left'?"),
        (["Good", "--set", "nodes"], "--set 'nodes' is not of the form key=value"),
        (["Good", "--set", "lime.samples=3"], "lime.samples"),
        (["Good", "--layer", "2"], "unknown setting 'layer' of integrated_gradients"),
        (["Good", "--pair", "a", "--pair", "b"], "--pair was given 2 times for 1 texts"),
        (["  "], "text 0 is empty"),
        (["caf\udce9"], "is not valid UTF-8"),
        (["Good", "--device", "warp"], "the device 'warp' cannot be used"),
        (["Good", "--task", "clasify"], "Did you mean 'classify'?"),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(explain: Explain, arguments: list[str], message: str):
    code, out, err = explain(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("salience: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "option", ["--delimiter=;", "--engine=local", "--out=run", "--target-column=label", "--dry-run"]
)
def test_data_options_are_rejected_without_data(explain: Explain, option: str):
    code, out, err = explain("A fine film.", option)
    assert (code, out) == (2, "")
    assert err == f"salience: {option.partition('=')[0]} is only used with --data, which names a whole data set\n"


def test_texts_of_a_run_are_shown_with_their_id(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data, out = tmp_path / "reviews.jsonl", str(tmp_path / "run")
    data.write_text('{"id": "a", "text": "A fine film."}\n{"id": "b", "text": "A dull one."}\n')
    arguments = ("--model", folder, "--data", str(data), "--out", out, "--id-column", "id", "--method", "gradient")
    assert run(["explain", *arguments, "--quiet"]) == 0
    assert run(["explain", *arguments]) == 0
    assert capsys.readouterr().err == f"{out} is already complete: 2 texts\n"
    assert run(["show", out, "--json", "--id", "b"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["id"], shown["text"]) == ("b", "A dull one.")
    assert run(["show", out, "--id", "a", "--id", "z"]) == 2
    assert "holds no text with the id 'z'" in capsys.readouterr().err


def test_a_missing_model_is_named(capsys: pytest.CaptureFixture[str]):
    assert run(["explain", "Good", "--model", "/no/such/folder"]) == 2
    assert "/no/such/folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["show"], ["explain", "a", "--nope"], ["explian"], ["explain", "a", "--kind", "x"]]
)
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("salience: ")
    assert err.endswith(" --help`\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "run", "--first", "-1"], "'--first': '-1' is not a whole number of at least 1"),
        (["show", "run", "--first", "9" * 40], "is not a whole number of at least 1"),
        (["export", "run", "x", "--share", "nan"], "'--share': 'nan' is not a number above 0 and at most 1"),
        (["train", "--data", "sample", "--out", "x", "--rate", "inf"], "'--rate': 'inf' is not a number above 0"),
        (["explain", "a", "--seed", "-1"], "'--seed': '-1' is not a whole number of at least 0"),
        (["evaluate", "--seed", "1e3"], "'--seed': '1e3' is not a whole number"),
        (["explain", "a", "--target", "b", "--target", "c"], "--target is given twice; it takes one value"),
        (["explain", "a", "--method", "lime", "--method", "lime"], "--method lime is given twice"),
        (["trial", "roar", "--data", "a", "--test", "b", "--model", "a", "--model", "b"], "--model is given twice"),
        (["explain", "a", "--html", "a\0b"], "an argument contains a NUL character"),
        (["explain", "a", "--set", "nodes=3", "--set", "nodes=4"], "--set nodes is given twice; it takes one value"),
        (["explain", "a", "--method", "ig"], "Did you mean 'integrated_gradients'?"),
        (["explain", "a", "--method", "SHAP"], "Did you mean 'kernel_shap'?"),
        (["explain", "a", "--set", "n_steps=50"], "Did you mean 'nodes'?"),
        (["explain", "a", "--set", "integrated_gradients.steps=50"], "Did you mean 'integrated_gradients.nodes'?"),
        (["explain", "a", "--set", "budget=50"], "unknown setting 'budget' of integrated_gradients"),
        (["metrics", "f1"], "Did you mean 'token_f1'?"),
        (["show", "x" * 300], "File name too long: xxx"),
    ],
)
def test_a_wrong_call_is_one_line_without_loading_anything(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_bad_bytes_on_standard_input(explain: Explain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    code, _, err = explain("-")
    assert code == 2
    assert "standard input is not valid UTF-8" in err


def test_empty_standard_input(explain: Explain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n \n")))
    assert explain("-")[2] == "salience: standard input has no text; pass one text per line\n"


def failing(error: BaseException) -> Callable[..., object]:
    def explain_each(*_: object, **__: object) -> object:
        raise error

    return explain_each


def test_an_internal_error_is_one_line_and_exit_code_1(explain: Explain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SALIENCE_DEBUG", raising=False)
    monkeypatch.setattr(explainer, "explain_each", failing(RuntimeError("two\nlines \x1b[31m")))
    code, _, err = explain("Good")
    assert code == 1
    assert err == "salience: unexpected RuntimeError: two lines ␛[31m (set SALIENCE_DEBUG=1 for the traceback)\n"
    monkeypatch.setenv("SALIENCE_DEBUG", "1")
    assert "Traceback" in explain("Good")[2]


def test_an_interrupt_is_quiet(explain: Explain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(explainer, "explain_each", failing(KeyboardInterrupt()))
    code, out, err = explain("Good")
    assert (code, out, err.strip()) == (130, "", "")


def test_an_interrupt_of_work_that_is_kept_says_how_to_resume(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("salience.dynamics.copying.copying", failing(KeyboardInterrupt()))
    assert run(["copying", "--out", str(tmp_path / "c")]) == 130
    told = "salience: interrupted; run the same command again to resume from what is saved"
    assert capsys.readouterr().err.strip() == told


def test_too_little_memory_is_not_our_fault(explain: Explain, monkeypatch: pytest.MonkeyPatch):
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    monkeypatch.setattr(explainer, "explain_each", failing(error))
    code, _, err = explain("Good")
    assert code == 2
    assert err.startswith("salience: out of memory; use a smaller model")


# ---------------------------------------------------------------- the process


def test_only_json_is_written_and_a_closed_pipe_is_not_an_error(folder: str):
    arguments = ["explain", "-", "--model", folder, "--method", "gradient", "--json"]
    line = [sys.executable, "-c", "from salience.cli import main; main()", *arguments]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"A fine film.\n" * 400)  # more than a pipe holds, so that writing must fail
    process.stdin.close()
    assert json.loads(process.stdout.readline())["text"] == "A fine film."
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait() == 1


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys; from salience.cli import run\n"
        "for line in (['--help'], ['explain', '--help'], ['methods', '-h'], ['--version']):\n"
        "    assert run(line) == 0\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'rich', 'altair'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout.count("Examples:") == 3


def test_a_module_is_a_command_and_a_wrong_engine_is_refused_without_torch(tmp_path: Path):
    (tmp_path / "x.jsonl").write_text('{"text": "A fine film."}\n')
    code = (
        "import runpy, sys\n"
        "sys.argv = ['salience', sys.argv[1], '--data', 'x.jsonl', '--out', 'run', '--engine', 'rey']\n"
        "try:\n"
        "    runpy.run_module('salience', run_name='__main__', alter_sys=True)\n"
        "finally:\n"
        "    print('torch' in sys.modules)"
    )
    for command in ("explain", "evaluate"):
        line = [sys.executable, "-c", code, command]
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "False\n")
        assert "unknown engine 'rey'. Did you mean 'ray'?" in done.stderr


# ---------------------------------------------------------------- methods and models


def test_methods_are_listed_with_cost_needs_and_paper(capsys: pytest.CaptureFixture[str]):
    from salience.methods import METHODS

    assert run(["methods"]) == 0
    out = capsys.readouterr().out
    names = [*(m.__name__ for m in METHODS), "context_cite"]  # which explains answers only
    assert [line for line in out.splitlines() if line and line[0] != " "] == names
    for fact in ("cost", "needs", "paper"):
        assert out.count(f"\n  {fact:<6}") == len(names)


def test_one_method_in_full(capsys: pytest.CaptureFixture[str]):
    assert run(["methods", "smooth_grad"]) == 0
    out = capsys.readouterr().out
    assert "Smilkov et al. 2017" in out
    assert re.search(r"^    noise +default: 0\.15 +a number of at least 0$", out, re.MULTILINE)
    assert "fraction of the range" in out


def test_settings_are_described_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from salience.methods import METHODS

    monkeypatch.setenv("COLUMNS", "100")
    assert run(["methods", *(m.__name__ for m in METHODS)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^    baseline +default: auto +one of zero, mask, pad, unk, mean$", out, re.MULTILINE)
    assert not re.search(r"Optional|Literal|Union|null|``|:func:|<class", out)


def test_a_field_of_several_lines_is_whole(capsys: pytest.CaptureFixture[str]):
    assert run(["methods", "lrp", "--json"]) == 0
    (lrp,) = json.loads(capsys.readouterr().out)
    assert "transformers: Ali et al. 2022" in lrp["paper"]
    assert lrp["paper"].endswith("arXiv:2402.05602")
    assert "Ali et al." not in lrp["about"]
    assert lrp["cost"] == "1 forward, 1 backward"


def test_metrics_are_listed_with_what_they_measure(capsys: pytest.CaptureFixture[str]):
    from salience.metrics import METRICS

    assert run(["metrics"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line and line[0] != " "] == [m.name for m in METRICS]
    for fact in ("aspect", "better", "needs"):
        assert out.count(f"\n  {fact:<6} ") == len(METRICS)
    assert run(["metrics", "infidelity", "--json"]) == 0
    (infidelity,) = json.loads(capsys.readouterr().out)
    assert (infidelity["aspect"], infidelity["better"]) == ("faithfulness", "lower")
    assert infidelity["settings"][0] == {
        "name": "samples",
        "default": 50,
        "type": "a whole number of at least 1 and at most 1,000,000",
    }


def test_lists_fit_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("methods", "metrics", "models"):
        assert run([command]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80, command
        if command != "models":
            assert run([command, *(line for line in out.splitlines() if line and line[0] != " ")]) == 0
            assert max(map(len, capsys.readouterr().out.splitlines())) <= 80, command


@pytest.mark.parametrize("command", ["evaluate", "trial roar", "trial shortcuts", "trial simulatability"])
def test_commands_that_explain_have_the_same_options(command: str, capsys: pytest.CaptureFixture[str]):
    assert run([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--limit", "--seed", "--set", "--dtype", "--revision", "--trust-remote-code", "--delimiter"):
        assert f"  {option} " in out, option


def test_methods_as_json(capsys: pytest.CaptureFixture[str]):
    assert run(["methods", "gradient", "uniform", "--json"]) == 0
    gradient, uniform = json.loads(capsys.readouterr().out)
    assert gradient["name"] == "gradient"
    assert gradient["cost"] == "1 forward, 1 backward"
    assert [(s["name"], s["default"]) for s in gradient["settings"]] == [("reduction", "l2")]
    assert uniform["settings"] == []


def test_an_unknown_method_is_not_listed(capsys: pytest.CaptureFixture[str]):
    assert run(["methods", "smoothgrad"]) == 2
    assert "Did you mean 'smooth_grad'?" in capsys.readouterr().err


def test_models_are_listed(capsys: pytest.CaptureFixture[str]):
    from salience.models import BUNDLED

    assert run(["models"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line[0] != " "] == list(BUNDLED)
    assert len(re.findall(r"\.\n  SST-2 test accuracy \d+\.\d %\n", out)) == len(BUNDLED)
    assert "|" not in out
