"""The audit as a whole: findings, verdicts, the folder that resumes, the command and its page."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import salience
from audits import known
from salience.audits import RETRAINED, TESTS, Audit, Callbacks, Finding, Measure
from salience.audits import folder as saving
from salience.audits.adversary import Search
from salience.audits.finding import NO_BREAK, above_chance, as_well_as, by_difference, by_share, only_if_better
from salience.cli import run
from salience.cli.audit import audit as audit_command
from salience.core.stats import Estimate
from salience.errors import BadInput, UnsupportedModel
from salience.models.pooled import Pooled
from salience.views.audit import heading, page, terminal, to_json
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


@pytest.mark.parametrize("shape", ["pooled_embedding", "pooled_mlp"])
def test_encoders_without_context_can_change_attention_alone(shape: str):
    (finding,) = salience.audit(build(shape), [*TEXTS, *MANY], tests="intervention").findings
    assert finding.measure("states below, by input").estimate.mean == 0
    assert finding.measure("attention, by input").estimate.mean > 0
    assert finding.verdict == "explanation"
    (few,) = salience.audit(build(shape), MANY[:5], tests="intervention").findings
    assert few.verdict == "unclear", "five texts are too few"


def test_the_embeddings_below_the_first_layer_cannot_be_tested():
    first, second = (salience.audit(build("bert"), MANY, tests="intervention", layer=n).findings[0] for n in (1, 2))
    assert first.measure("states below, by input").estimate.mean == 0
    assert first.verdict == "unclear"
    assert "only embeddings" in first.answer
    assert second.verdict == "no explanation"
    assert "counterfactual network" in second.answer


def test_a_layer_and_a_head_are_tested_alone():
    model = build("bert")
    every, one = (salience.audit(model, TEXTS, tests="permutation", head=head) for head in (None, 2))
    assert every.findings[0].measures[1].values != one.findings[0].measures[1].values
    first = salience.audit(model, TEXTS, tests="permutation", layer=1)
    assert first.findings[0].measures[1].values != every.findings[0].measures[1].values


def test_the_layer_and_the_head_that_are_tested_are_compared_with_other_methods():
    model = build("bert")
    for layer, head in ((None, None), (1, None), (1, 2)):
        (finding,) = salience.audit(model, TEXTS, tests="comparison", layer=layer, head=head).findings
        tested = {"attention.layer": layer or 3, "attention.row": "mean" if layer else "auto"}
        tested |= {"attention.heads": (head,)} if head else {}
        expected = salience.evaluate(model, TEXTS, "attention", metrics=["comprehensiveness"], **tested)
        own = finding.measure("comprehensiveness, attention").values
        assert own == pytest.approx(expected.cells["attention", "comprehensiveness"].values, abs=1e-6)
    plain = salience.evaluate(model, TEXTS, "attention", metrics=["comprehensiveness"])
    assert own != pytest.approx(plain.cells["attention", "comprehensiveness"].values, abs=1e-3)


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


@pytest.mark.parametrize("form", ["frame", "text", "columns"])
def test_models_and_texts_are_given_as_to_explain(form: str):
    model, texts = build("bert"), TEXTS[:1] if form == "text" else TEXTS
    data = {
        "frame": pd.DataFrame({"text": texts}),
        "text": texts[0],
        "columns": [{"review": text} for text in texts],
    }[form]
    options = {"tests": "permutation", "permutation.shuffles": 3}
    expected = salience.audit(model, texts, **options)
    pair = (model.module, model.tokenizer)
    result = salience.audit(pair, data, text_column="review" if form == "columns" else "text", **options)
    assert [f.answer for f in result.findings] == [f.answer for f in expected.findings]
    # The value of a text of one token, which cannot be shuffled, is NaN.
    values = [[m.values for m in audit.findings[0].measures] for audit in (result, expected)]
    np.testing.assert_array_equal(*values)


# ------------------------------------------------------------------------------------------------------ the folder


def test_finished_tests_are_kept_and_the_same_call_resumes(tmp_path: Path):
    model = build("pooled_bilstm")
    whole = salience.audit(model, TEXTS, tests=["correlation", "intervention"], out=tmp_path / "audit")
    seen: list[str] = []

    def report(name: str):
        seen.append(name)
        return lambda *_: None

    asked = {"tests": ["correlation", "intervention"], "out": tmp_path / "audit", "callbacks": Callbacks(report)}
    again = salience.audit(model, TEXTS, **asked)
    assert not seen
    assert [f.answer for f in again.findings] == [f.answer for f in whole.findings]
    (tmp_path / "audit" / "correlation.json").write_text('{"settings": {}, "find')
    repaired = salience.audit(model, TEXTS, **asked)
    assert seen == ["correlation"]
    assert [f.answer for f in repaired.findings] == [f.answer for f in whole.findings]


def test_other_settings_are_run_again_and_another_model_is_refused(tmp_path: Path):
    model, folder = build("pooled_bilstm"), tmp_path / "audit"
    salience.audit(model, TEXTS, tests="permutation", out=folder, **{"permutation.shuffles": 5})
    (first,) = salience.audit(model, TEXTS, tests="permutation", out=folder, **{"permutation.shuffles": 5}).findings
    (other,) = salience.audit(model, TEXTS, tests="permutation", out=folder, **{"permutation.shuffles": 9}).findings
    assert "Shuffled 5 times" in first.answer
    assert "Shuffled 9 times" in other.answer
    with pytest.raises(BadInput, match=r"holds a different audit \(changed: model"):
        salience.audit(build("pooled_mlp"), TEXTS, tests="permutation", out=folder)
    with pytest.raises(BadInput, match="changed: texts"):
        salience.audit(model, list(TEXTS[:2]), tests="permutation", out=folder)
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
    with pytest.raises(BadInput, match=r"unknown setting 'permutation\.shuffle' of the audit"):
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "no-such.jsonl"], "no-such.jsonl"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--limit", "9" * 40], "is not a whole number of at least 1"),
        (["--seed", "-1"], "is not a whole number of at least 0"),
        (["--layer", "9" * 40], "is not a whole number"),
    ],
)
def test_mistakes_are_reported_before_torch_is_imported(arguments: list[str], message: str):
    code = "import sys; from salience.cli import run; c = run(sys.argv[1:]); assert 'torch' not in sys.modules; exit(c)"
    line = [sys.executable, "-c", code, "audit", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_the_interval_of_a_difference_of_shares_stays_within_one():
    own, uniform = np.ones((2, 20)), np.zeros((2, 20))
    own[1, :10] = 0
    lead = Measure.between("", own, uniform)
    assert lead.estimate.mean == 0.75
    assert (lead.estimate.low, lead.estimate.high) == (-1, 1)


def test_the_terminal_shows_a_finding_of_one_text():
    measure = Measure.of("share", [1.0])
    finding = Finding("permutation", "Why?", (measure,), "more", "unclear", "Because.", "Someone 2019")
    shown = terminal(Audit("model", 1, None, None, (finding,)))
    assert shown is not None
    assert str(Measure.share("share", [1.0])) == f"100{NO_BREAK}%"
    assert torch.tensor(measure.values).item() == 1


# ------------------------------------------------------------------------------------------------------ the extremes


def test_no_test_finds_an_explanation_where_every_word_is_relevant_alike():
    tests = ["correlation", "permutation", "adversary", "erasure"]
    found = verdicts(known.indifferent(), tests)
    assert found["permutation"] == found["adversary"] == "no explanation"
    # Gradients and weights are equal for all words, and no decision ever flips: there is nothing to compare.
    assert found["correlation"] == found["erasure"] == "unclear"


def test_every_test_finds_an_explanation_where_attention_decides():
    tests = ["correlation", "permutation", "adversary", "erasure"]
    assert verdicts(known.decisive(), tests) == dict.fromkeys(tests, "explanation")


def test_the_help_names_every_test():
    shown = " ".join(CliRunner().invoke(audit_command, ["--help"]).output.split())
    assert ", ".join(test.__name__ for test in TESTS) in shown
    assert f"with --retrain also {', '.join(test.__name__ for test in RETRAINED)}]" in shown


@pytest.mark.parametrize(("n", "verdict"), [(20, "explanation"), (1, "unclear"), (0, "unclear")])
def test_no_difference_in_enough_texts_is_as_good(n: int, verdict: str):
    assert as_well_as(Estimate(0.0 if n else nan, nan, nan, n), more_is_explanation=True) == verdict
    assert as_well_as(Estimate(0.2, nan, nan, n), more_is_explanation=True) == "unclear"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.002, 0.001, "explanation"),  # thousands of texts show that there is no difference
        (-0.015, -0.005, "explanation"),  # worse, by less than anyone would notice
        (0.1, 0.2, "explanation"),
        (-0.05, -0.03, "no explanation"),
        (-0.05, -0.001, "no explanation"),
        (-0.05, 0.03, "unclear"),
    ],
)
def test_a_difference_within_the_margin_is_none(low: float, high: float, verdict: str):
    difference = Estimate((low + high) / 2, low, high, 5000)
    mirrored = Estimate(-difference.mean, -high, -low, 5000)
    assert as_well_as(difference, more_is_explanation=True) == verdict
    assert as_well_as(mirrored, more_is_explanation=False) == verdict
    # The same for a substitute: if that does as well as attention, attention is not needed.
    opposite = {"explanation": "no explanation", "no explanation": "explanation", "unclear": "unclear"}
    assert only_if_better(mirrored) == opposite[verdict]


def test_to_do_as_well_as_something_that_finds_nothing_is_no_merit():
    assert above_chance("explanation", Estimate(0.0, -0.1, 0.1, 20)) == "unclear"
    assert above_chance("explanation", Estimate(0.2, 0.1, 0.3, 20)) == "explanation"
    assert above_chance("no explanation", Estimate(0.0, -0.1, 0.1, 20)) == "no explanation"
    assert verdicts(known.indifferent(), ["comparison"]) == {"comparison": "unclear"}


def test_what_cannot_be_negative_is_not_written_so():
    values = [0.0] * 19 + [1e-4]
    assert str(Measure.of("distance", values, "size")).replace(NO_BREAK, " ") == "0.000 [0.000, 0.000]"
    assert Measure.of("distance", values, "size").estimate.low == 0
    assert Measure.of("accuracy", [0.9, 1.0] * 10, "share").estimate.high <= 1
    assert str(Measure.of("difference", [-1e-5] * 20)) == "0.000"


# ------------------------------------------------------------------------------------------------------ odd data


def test_texts_of_one_token_have_no_verdict():
    quick = QUICK | {"adversary.search": Search(restarts=2, steps=2)}
    audit = salience.audit(known.decisive(), ["good", "bad", "good"], **quick)
    verdict = {finding.test: finding.verdict for finding in audit.findings}
    assert set(verdict.values()) == {"unclear"}
    for finding in audit.findings[:4]:
        assert finding.measures[0].estimate.n == 0
        assert str(finding.measures[0]) == "undefined"
    assert "nan" not in " ".join(audit.summary)
    assert page(audit)
    json.dumps(to_json(audit), allow_nan=False)


def test_a_text_of_one_token_is_no_text_whose_output_stays():
    """Its attention cannot be shuffled, so that it says nothing about shuffled attention."""
    texts = [*MANY, *["good"] * 40]
    (finding,) = salience.audit(known.decisive(), texts, tests="permutation", **{"permutation.shuffles": 20}).findings
    assert finding.measures[0].estimate.n == len(MANY)
    assert finding.verdict == "explanation"


def test_texts_that_are_too_long_are_counted():
    model = known.decisive()
    model.module.config = replace(model.config, longest=6)
    result = salience.audit(model, known.TEXTS[:3], tests="permutation", **{"permutation.shuffles": 2})
    assert result.truncated == to_json(result)["truncated"] == 2
    assert "3 texts (2 truncated to the maximum length of the model)" in heading(result)
    assert "truncated" not in heading(replace(result, truncated=0))


@pytest.mark.parametrize("damage", ["[]", "null", "{", "[1, 2]", "\xff"])
def test_a_damaged_folder_is_named_with_the_remedy(tmp_path: Path, damage: str):
    options = {"tests": "permutation", "out": tmp_path, "permutation.shuffles": 2}
    result = salience.audit(known.decisive(), known.TEXTS, **options)
    finding, audit = tmp_path / "permutation.json", tmp_path / "audit.json"
    finding.write_bytes(damage.encode("latin-1"))
    assert repr(salience.audit(known.decisive(), known.TEXTS, **options)) == repr(result)
    without = json.loads(finding.read_text())
    without["finding"]["measures"] = []
    finding.write_text(json.dumps(without))
    assert repr(salience.audit(known.decisive(), known.TEXTS, **options)) == repr(result)
    audit.write_bytes(damage.encode("latin-1"))
    with pytest.raises(BadInput, match=r"audit.json is damaged: .*Delete the folder to start over"):
        salience.audit(known.decisive(), known.TEXTS, **options)


def test_an_empty_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(BadInput, match="text 1 is empty"):
        salience.audit(known.decisive(), ["it was a good one", " "])
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "a good one"}\n{"text": ""}\n')
    assert run(["audit", "--model", "sentiment_bilstm", "--data", str(file), "--quiet"]) == 2
    assert "empty" in capsys.readouterr().err


@pytest.mark.parametrize("test", ["permutation", "adversary", "erasure", "correlation", "intervention"])
def test_attention_that_cannot_be_edited_is_refused_and_nothing_is_reported(test: str, tmp_path: Path):
    with pytest.raises(UnsupportedModel, match="cannot be edited"):
        salience.audit(build("deberta_v2"), TEXTS, tests=test, out=tmp_path / "audit")
    assert not (tmp_path / "audit" / f"{test}.json").exists()


# ------------------------------------------------------------------------------------------------------ interruptions


def test_an_interrupted_audit_keeps_whole_findings_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stopped in the second test, and again while its finding is written: the first is never run again."""
    model, folder = build("pooled_bilstm"), tmp_path / "audit"
    tests = ["intervention", "permutation"]
    quick = {"permutation.shuffles": 5}
    whole = salience.audit(model, TEXTS, tests=tests, **quick)
    seen: list[str] = []

    def stop(name: str):
        seen.append(name)
        if name == "permutation":
            raise KeyboardInterrupt
        return

    with pytest.raises(KeyboardInterrupt):
        salience.audit(model, TEXTS, tests=tests, out=folder, callbacks=Callbacks(stop), **quick)
    assert seen == tests
    assert (folder / "intervention.json").exists()
    assert not (folder / "permutation.json").exists()

    written = saving.write_json

    def broken(file: Path, facts: Mapping[str, Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(saving.json, "dumps", _raising)
            written(file, facts)

    with monkeypatch.context() as patch:
        patch.setattr(saving, "write_json", broken)
        with pytest.raises(KeyboardInterrupt):
            salience.audit(model, TEXTS, tests=tests, out=folder, **quick)
    assert not (folder / "permutation.json").exists()
    seen.clear()
    again = salience.audit(model, TEXTS, tests=tests, out=folder, callbacks=Callbacks(seen.append), **quick)
    assert seen == ["permutation"]
    assert [f.answer for f in again.findings] == [f.answer for f in whole.findings]


def _raising(*_: object, **__: object) -> str:
    raise KeyboardInterrupt
