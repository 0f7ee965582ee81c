"""The audit as a whole: findings, verdicts, the folder that resumes, the command and its page."""

import json
from io import StringIO
from math import nan
from pathlib import Path

import pytest
import torch
from rich.console import Console

import salience
from audits import known
from salience.audits import TESTS, Audit, Finding, Measure
from salience.audits.adversary import Search
from salience.audits.finding import by_difference, by_share
from salience.cli import run
from salience.core.stats import Estimate
from salience.errors import BadInput
from salience.models.pooled import Pooled
from salience.views.audit import page, terminal, to_json
from shapes import TEXTS, build

QUICK = {"permutation.shuffles": 20, "adversary.search": Search(restarts=2, steps=150, rate=0.1)}
MANY = known.TEXTS * 4


def verdicts(model: Pooled, tests: list[str]) -> dict[str, str]:
    quick = {name: value for name, value in QUICK.items() if name.partition(".")[0] in tests}
    audit = salience.audit(model, MANY, tests=tests, **quick)
    return {finding.test: finding.verdict for finding in audit.findings}


def test_attention_that_decides_is_found_to_be_an_explanation():
    tests = ["permutation", "adversary"]
    assert verdicts(known.decisive(), tests) == dict.fromkeys(tests, "explanation")


def test_attention_that_has_no_say_is_found_to_be_none():
    tests = ["permutation", "adversary"]
    assert verdicts(known.indifferent(), tests) == dict.fromkeys(tests, "no explanation")


def test_the_numbers_behind_the_verdict_of_a_decisive_model():
    (finding,) = salience.audit(known.decisive(), MANY, tests="correlation").findings
    agreement = finding.measure("τ(attention, leave-one-out)").estimate.mean
    assert agreement > 0.5
    assert set(finding.by_label) == {"no", "yes"}
    (erased,) = salience.audit(known.decisive(), MANY, tests="erasure").findings
    highest, other = (erased.measure(f"flips without {which}").estimate.mean for which in ("the highest", "another"))
    assert other == 0
    assert highest >= other


@pytest.mark.parametrize("shape", ["bert", "roberta", "gpt2", "llama", "pooled_bilstm"])
def test_every_test_runs_on_every_kind_of_model(shape: str):
    quick = QUICK | {"adversary.search": Search(restarts=2, steps=5)}
    audit = salience.audit(build(shape), TEXTS, **quick)
    assert [f.test for f in audit.findings] == [test.__name__ for test in TESTS]
    for finding in audit.findings:
        assert finding.question.endswith("?")
        assert finding.source
        assert all(len(m.values) == len(TEXTS) for m in finding.measures)
        assert finding.verdict in ("explanation", "no explanation", "unclear")
    assert len(audit.summary) == len(TESTS)
    json.dumps(to_json(audit), allow_nan=False)
    assert audit.model in page(audit)


def test_states_below_attention_stay_when_it_is_set_by_hand():
    (finding,) = salience.audit(build("bert"), TEXTS, tests="intervention").findings
    assert finding.measure("states below, by hand").estimate.mean == 0
    assert finding.measure("states below, by input").estimate.mean > 0
    assert finding.measure("attention, by hand").estimate.mean > 0


def test_a_layer_and_a_head_are_tested_alone():
    model = build("bert")
    every, one = (salience.audit(model, TEXTS, tests="permutation", head=head) for head in (None, 2))
    assert every.findings[0].measures[1].values != one.findings[0].measures[1].values
    first = salience.audit(model, TEXTS, tests="permutation", layer=1)
    assert first.findings[0].measures[1].values != every.findings[0].measures[1].values


@pytest.mark.parametrize(
    ("low", "high", "more", "verdict"),
    [
        (0.6, 0.9, True, "explanation"),
        (0.6, 0.9, False, "no explanation"),
        (0.1, 0.4, True, "no explanation"),
        (0.4, 0.6, True, "unclear"),
        (nan, nan, True, "unclear"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side(low: float, high: float, more: bool, verdict: str):
    assert by_share(Estimate(0.5, low, high, 20), more_is_explanation=more) == verdict
    shifted = Estimate(0.0, low - 0.5, high - 0.5, 20)
    assert by_difference(shifted, more_is_explanation=more) == verdict


# ------------------------------------------------------------------------------------------------------ the folder


def test_finished_tests_are_kept_and_the_same_call_resumes(tmp_path: Path):
    model = build("pooled_bilstm")
    whole = salience.audit(model, TEXTS, tests=["correlation", "intervention"], out=tmp_path / "audit")
    seen: list[str] = []

    def report(name: str):
        seen.append(name)
        return lambda *_: None

    again = salience.audit(model, TEXTS, tests=["correlation", "intervention"], out=tmp_path / "audit", report=report)
    assert not seen
    assert [f.answer for f in again.findings] == [f.answer for f in whole.findings]
    (tmp_path / "audit" / "correlation.json").write_text('{"settings": {}, "find')
    repaired = salience.audit(
        model, TEXTS, tests=["correlation", "intervention"], out=tmp_path / "audit", report=report
    )
    assert seen == ["correlation"]
    assert [f.answer for f in repaired.findings] == [f.answer for f in whole.findings]


def test_other_settings_are_run_again_and_another_model_is_refused(tmp_path: Path):
    model, folder = build("pooled_bilstm"), tmp_path / "audit"
    salience.audit(model, TEXTS, tests="permutation", out=folder, **{"permutation.shuffles": 5})
    (first,) = salience.audit(model, TEXTS, tests="permutation", out=folder, **{"permutation.shuffles": 5}).findings
    (other,) = salience.audit(model, TEXTS, tests="permutation", out=folder, **{"permutation.shuffles": 9}).findings
    assert "Shuffled 5 times" in first.answer
    assert "Shuffled 9 times" in other.answer
    with pytest.raises(BadInput, match="holds an audit with another model"):
        salience.audit(build("pooled_mlp"), TEXTS, tests="permutation", out=folder)
    with pytest.raises(BadInput, match="another texts"):
        salience.audit(model, TEXTS[:2], tests="permutation", out=folder)
    (folder / "audit.json").write_text("{")
    with pytest.raises(BadInput, match="is damaged"):
        salience.audit(model, TEXTS, tests="permutation", out=folder)


# ------------------------------------------------------------------------------------------------------ bad input


def test_mistakes_name_the_remedy():
    model = build("pooled_bilstm")
    with pytest.raises(BadInput, match="nothing to audit"):
        salience.audit(model, [])
    with pytest.raises(BadInput, match=r"unknown test of attention 'permutations'\. Did you mean 'permutation'"):
        salience.audit(model, TEXTS, tests="permutations")
    with pytest.raises(BadInput, match=r"unknown setting of the audit 'permutation\.shuffle'"):
        salience.audit(model, TEXTS, tests="permutation", **{"permutation.shuffle": 3})


def test_the_command_audits_the_bundled_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "audit.html"
    options = ["--limit", "9", "--test", "permutation", "--set", "permutation.shuffles=5", "--quiet"]
    assert run(["audit", "--model", "sentiment_bilstm", "--html", str(file), *options]) == 0
    out = capsys.readouterr().out
    assert "Does the prediction change when attention is shuffled?" in out
    assert "Jain & Wallace 2019" in out
    assert "<svg" in file.read_text()
    assert run(["audit", "--model", "sentiment_bilstm", "--json", *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["model"], facts["texts"]) == ("sentiment_bilstm", 9)
    assert len(facts["findings"][0]["measures"][0]["values"]) == 9
    assert run(["audit", "--model", "sentiment_bilstm", "--test", "nothing", *options[:2]]) == 2
    assert "unknown test of attention" in capsys.readouterr().err


def test_the_terminal_shows_a_finding_of_one_text():
    measure = Measure.of("share", [1.0])
    finding = Finding("permutation", "Why?", (measure,), "more", "unclear", "Because.", "Someone 2019")
    shown = terminal(Audit("model", 1, None, None, (finding,)))
    assert shown is not None
    assert measure.percent == "100%"
    assert torch.tensor(measure.values).item() == 1


def test_a_verdict_is_about_explanations_and_does_not_stand_as_the_answer_to_the_question_of_a_test():
    measure = Measure.of("share", [1.0])
    finding = Finding("adversary", "Are there others?", (measure,), "no others", "no explanation", "Some.", "Someone")
    console = Console(width=80, file=StringIO(), record=True)
    console.print(terminal(Audit("model", 1, None, None, (finding,))))
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert "Are there others?" in lines
    assert lines[-3:] == ["if attention were an explanation: no others", "is it so here? no", "Someone"]
