"""``salience explain --interactions`` and ``salience counterfactual``: what is refused, and one call of each."""

import json
from pathlib import Path

import pytest

from salience.cli import run
from salience.cli.checks import INTERACTIONS
from salience.cli.counterfactual import EDITS, read_candidates
from salience.counterfactuals import edits
from salience.errors import BadInput
from salience.methods import interactions

CALLS = [
    (["explain", "a b", "--interactions", "shapley"], "Did you mean 'shapley_taylor'"),
    (["explain", "a b", "--interactions", "--method", "lime"], "leave out --method"),
    (["explain", "a b", "--interactions", "--view", "bar"], "leave out --view"),
    (["explain", "--interactions"], "no TEXT"),
    (["explain", "a b", "--interactions", "--generate", "3"], "leave out --generate"),
    (["counterfactual"], "pass one or more TEXTs"),
    (["counterfactual", "a", "--data", "x.jsonl"], "pass one or more TEXTs"),
    (["counterfactual", "a", "--out", "x"], "--out is only used with --data"),
    (["counterfactual", "--data", "x.jsonl", "--to", "positive"], "--to is for a TEXT"),
    (["counterfactual", "--data", "x.jsonl", "--max-edits", "2"], "--max-edits is for a TEXT"),
    (["counterfactual", "a", "--edits", "swap"], "unknown kind of edit 'swap'"),
    (["counterfactual", "a", "--candidates", "nothing"], "neither a file nor of the form"),
    (["counterfactual", "a", "--method", "limes"], "Did you mean 'lime'"),
    (["counterfactual", "a", "--model", "nowhere/at/all"], "nowhere/at/all"),
]


@pytest.mark.parametrize(("arguments", "message"), CALLS, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_names_that_are_checked_without_torch_are_the_methods():
    assert list(INTERACTIONS) == [m.__name__ for m in interactions.INTERACTIONS]
    assert edits.EDITS == EDITS


def test_candidates_are_read_from_options_and_files(tmp_path: Path):
    file = tmp_path / "antonyms.txt"
    file.write_text("good=bad, awful\n\nfine = dull\n")
    assert read_candidates(["a=b", str(file)]) == {"a": ["b"], "good": ["bad", "awful"], "fine": ["dull"]}
    assert read_candidates(["good=bad", "Good=poor"]) == {"good": ["bad", "poor"]}
    file.write_bytes("good=bad".encode("utf-8-sig"))
    assert read_candidates([str(file)]) == {"good": ["bad"]}
    file.write_bytes("café=thé".encode("latin-1"))
    with pytest.raises(BadInput, match="cannot be read: 'utf-8' codec can't decode"):
        read_candidates([str(file)])
    with pytest.raises(BadInput, match="not of the form"):
        read_candidates(["a="])


def test_one_call_of_each(capsys: pytest.CaptureFixture[str]):
    assert run(["explain", "not bad", "--interactions", "--json"]) == 0
    x = json.loads(capsys.readouterr().out)
    assert x["units"] == ["not", "bad"]
    assert run(["counterfactual", "good", "--edits", "replace", "--candidates", "good=awful", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["text"] == "awful"
