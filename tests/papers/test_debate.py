"""The papers of the attention debate, on a tiny task: one word of each text decides its label."""

import json
from dataclasses import replace
from importlib import import_module
from math import nan
from pathlib import Path

import numpy as np
import pytest
import torch

from audits.twins import SIGNS, texts
from salience.audits.finding import Measure
from salience.cli import run
from salience.cli.debate import DEBATE
from salience.core.distances import total_variation
from salience.core.stats import Estimate
from salience.errors import BadInput
from salience.papers import debate
from salience.papers.debate import Data, Direction, Paper, Row
from salience.training.twins import start_of
from shapes import build

NAMES = list(DEBATE)
PAPERS: dict[str, Paper] = {name: import_module(f"salience.papers.{name}").PAPER for name in NAMES}
TEST = texts(8, 2, words=4)
KNOWN_AS = {"pruthi_2020": "gender"}
"""The name that the tiny data set is given, so that published numbers stand beside ours."""


def write(folder: Path, train: int = 24, test: int = 12, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, own in (("train", train, seed + 1), ("test", test, seed + 2)):
        lines = [
            {"text": str(e.text), "label": e.label, "hidden": [str(e.text).split().index(SIGNS[str(e.label)])]}
            for e in texts(count, own, words=4)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("debate") / "tiny")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    """Searches of a few steps and few seeds; --limit and --epochs make the rest small."""
    for paper in PAPERS.values():
        sizes = {
            name: replace(size, search=replace(size.search, steps=2, restarts=2), seeds=2)
            for name, size in paper.sizes.items()
        }
        smaller = replace(paper, sizes=sizes, embedding=8)
        monkeypatch.setattr(f"salience.papers.{paper.name}.PAPER", smaller)
    monkeypatch.setenv("COLUMNS", "80")


def arguments(name: str, data: Path, out: Path, *more: str) -> list[str]:
    marked = ["--impermissible-column=hidden"] if name == "pruthi_2020" else []
    known = KNOWN_AS.get(name, "sst2")
    return ["paper", name, "--data", f"{known}={data}", "--out", str(out), "--epochs=1", *marked, *more]


@pytest.mark.parametrize("name", NAMES)
def test_a_paper_from_the_command(
    name: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    command = arguments(name, data, tmp_path / "out")
    assert run(command) == 0
    out, err = capsys.readouterr()
    assert "report.html" in err
    assert max(map(len, out.splitlines())) <= 80
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["paper"] == name
    assert {d["verdict"] for d in result["directions"]} <= {"holds", "does not hold", "undecided"}
    for direction in result["directions"]:
        assert direction["figures"]
        assert direction["claim"].split()[0] in out
    known = debate.ALIASES[KNOWN_AS.get(name, "sst2")]
    expected = {q: n for q, n in PAPERS[name].published.get(known, {}).items() if not q.startswith("transformer")}
    shown = {row["quantity"]: row["published"] for row in result["rows"] if row["published"] is not None}
    assert shown == expected
    assert all(row["compare"] == "direction only" for row in result["rows"] if row["published"] is not None)
    page = (tmp_path / "out" / "report.html").read_text()
    assert PAPERS[name].source.split(",")[1].strip() in page
    assert "http://" not in page
    assert run([*command, "--quiet"]) == 0
    assert capsys.readouterr() == (out, ""), "something was trained or tested again"


def test_a_stopped_run_resumes_without_training_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command = arguments("serrano_smith_2019", data, tmp_path / "out")
    assert run(command) == 0
    result = (tmp_path / "out" / "result.json").read_text()
    (tmp_path / "out" / "result.json").unlink()
    (tmp_path / "out" / "sst2" / "embedding" / "erasure.json").unlink()
    monkeypatch.setattr("salience.training.twins.fit", lambda *_, **__: pytest.fail("trained again"))
    assert run(command) == 0
    assert (tmp_path / "out" / "result.json").read_text() == result


def test_the_guide_of_two_tests_trains_one_twin(tmp_path: Path):
    """In the paper's protocol the audited model is the twin trained on the task: its weights guide one classifier."""
    data = Data(texts(16, 1, words=4), TEST)
    paper = replace(PAPERS["wiegreffe_pinter_2019"], embedding=4)
    sizes = {"quick": replace(paper.sizes["quick"], seeds=2, weights=(0.0,))}
    result = debate.run(replace(paper, sizes=sizes), {"x": data}, tmp_path, epochs=1)
    twins = {path.name for path in (tmp_path / "x" / "bilstm" / "twins").glob("mlp-guided-by-*")}
    assert twins == {"mlp-guided-by-model", "mlp-guided-by-adversary"}
    ours = {row.quantity: row.ours for row in result.rows}
    guided = ours["frozen: accuracy with weights, the model's"]
    assert ours["adversarial: accuracy with frozen weights, the model's"] == guided


def test_other_data_in_the_folder_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = arguments("serrano_smith_2019", data, tmp_path / "out")
    assert run(command) == 0
    other = write(tmp_path / "other", seed=7)
    assert run(arguments("serrano_smith_2019", other, tmp_path / "out")) == 2
    assert "holds other results (changed: data set); choose another folder" in capsys.readouterr().err
    assert run([*command, "--limit=9"]) == 2
    assert run(arguments("mohankumar_2020", data, tmp_path / "out")) == 2
    assert "holds other results (changed: paper)" in capsys.readouterr().err


def test_two_files_and_chosen_labels(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for split in ("train", "test"):
        lines = [json.loads(line) for line in (data / f"{split}.jsonl").read_text().splitlines()]
        numbered = [{**line, "label": 3 * i % 4} for i, line in enumerate(lines)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in numbered))
    files = f"mine={tmp_path / 'train.jsonl'},{tmp_path / 'test.jsonl'}"
    command = ["paper", "serrano_smith_2019", "--data", files, "--out", str(tmp_path / "out"), "--epochs=1", "--quiet"]
    assert run([*command, "--labels", "1, 3"]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["rows"][0]["ours"]["n"] == 6
    config = json.loads((tmp_path / "out" / "mine" / "bilstm" / "twins" / "standard-0" / "config.json").read_text())
    assert config["labels"] == ["1", "3"]
    assert run([*command, "--labels", "1,9"]) == 2
    assert "no training text has the label '9'; the labels are 0, 1, 2, 3" in capsys.readouterr().err


def test_models_start_from_word_vectors(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "v.txt").write_text("good 1 2 3 4\nbad 4 3 2 1\n")
    command = arguments("tutek_snajder_2020", data, tmp_path / "out", "--vectors", str(tmp_path / "v.txt"))
    assert run(command) == 0
    config = json.loads((tmp_path / "out" / "sst2" / "bilstm" / "twins" / "wide-2" / "config.json").read_text())
    assert (config["embedding"], config["hidden"]) == (4, 2)
    (tmp_path / "v.txt").write_text("good 1 2 3 4\nbad 4 3 2 2\n")
    assert run(command) == 2
    assert "(changed: file of word vectors)" in capsys.readouterr().err
    (tmp_path / "v.txt").write_text("good 1 2 3\nbad 4 3 2\n")
    assert run([*command[:4], "--out", str(tmp_path / "odd"), *command[6:]]) == 2
    assert "use vectors of an even width" in capsys.readouterr().err


def test_the_scale_of_random_embeddings(data: Path, tmp_path: Path):
    """The scale decides a direction of Jain & Wallace, so it must not change unnoticed, for any seed."""
    seen: dict[str, float] = {}

    def protocol(experiment: debate.Experiment) -> debate.Outcome:
        model = experiment.study("bilstm", encoder="bilstm").model
        seen["start"] = float(model.words.weight[1:].detach().std())
        seen["other seed"] = float(start_of(model, 3, encoder="mlp").words.weight[1:].detach().std())
        return debate.Outcome([], {})

    sets = {"x": Data(texts(16, 1), TEST)}
    debate.run(replace(PAPERS["jain_wallace_2019"], protocol=protocol), sets, tmp_path / "a")
    assert seen == pytest.approx({"start": 0.1, "other seed": 0.1}, rel=0.05)


def test_a_transformer_is_manipulated_as_well(data: Path, tmp_path: Path):
    build("bert").save(tmp_path / "model")
    command = arguments("pruthi_2020", data, tmp_path / "out", "--model", str(tmp_path / "model"), "--limit=8")
    assert run([*command, "--quiet"]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    shown = {row["quantity"] for row in result["rows"] if row["published"] is not None}
    assert shown == set(PAPERS["pruthi_2020"].published["gender"])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("sst2", "is not of the form NAME=DATA"),
        ("a/b=x", "with a name of letters"),
        ("x=nothing", "neither a folder that holds"),
        ("x={folder}", "must hold one data file train.*, such as train.jsonl; it holds none"),
    ],
)
def test_data_that_cannot_be_used_is_refused(
    sets: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["--data", sets.format(folder=tmp_path), "--out", str(tmp_path / "out")]
    assert run(["paper", "jain_wallace_2019", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


# ------------------------------------------------------------------------------------------------------ published


def test_the_published_numbers_of_jain_and_wallace():
    sst = PAPERS["jain_wallace_2019"].published["sst"]
    assert sst["bilstm: τ(attention, gradient)"] == 0.35
    assert sst["bilstm: τ(attention, gradient) significant (p < 0.05)"] == 0.49
    assert sst["bilstm: τ(attention, leave-one-out)"] == 0.29
    assert sst["bilstm: τ(gradient, leave-one-out)"] == 0.66
    assert sst["average: τ(attention, gradient)"] == 0.61
    assert sst["bilstm: accuracy"] == 0.808
    assert PAPERS["jain_wallace_2019"].published["20news"]["average: τ(attention, gradient)"] == 0.77


def test_the_published_numbers_of_wiegreffe_and_pinter():
    published = PAPERS["wiegreffe_pinter_2019"].published
    assert published["sst"]["uniform: accuracy, uniform attention"] == 0.822
    assert published["imdb"]["adversarial: accuracy with frozen weights, the adversary's"] == 0.700
    assert published["sst"]["adversarial: distance of attention (JSD), λ = 0.001"] == 0.514
    assert published["imdb"]["adversarial: distance of attention (JSD), λ = 0.0016"] == 0.405


def test_the_loss_of_wiegreffe_and_pinter_is_half_of_ours_at_twice_their_weight():
    """Their TVD is ½ |p − q| of one of two probabilities; published numbers stand where our twin has the same loss."""
    p, q, divergence = 0.9, 0.3, 1.7
    theirs = 0.5 * abs(p - q)
    ours = float(total_variation(torch.tensor([p, 1 - p]), torch.tensor([q, 1 - q])))
    assert ours == pytest.approx(2 * theirs)
    assert ours - 2 * 5e-4 * divergence == pytest.approx(2 * (theirs - 5e-4 * divergence))
    paper = PAPERS["wiegreffe_pinter_2019"]
    for data, weight, published in (("sst", 5e-4, 0.036), ("imdb", 8e-4, 0.014)):
        name = f"adversarial: change of the output (TVD), λ = {2 * weight:g}"
        assert paper.published[data][name] == pytest.approx(2 * published)
        assert 2 * weight in paper.sizes["full"].weights
    assert any("doubled" in note for note in paper.notes)


def test_the_published_numbers_of_pruthi():
    published = PAPERS["pruthi_2020"].published
    assert published["gender"]["embedding: accuracy, tokens removed"] == pytest.approx(0.668)
    assert published["gender"]["bilstm: attention on impermissible tokens, λ = 0"] == pytest.approx(0.968)
    assert "bilstm: attention on impermissible tokens, λ = 1" not in published["gender"]
    mass = published["occupation"]["transformer: attention on impermissible tokens, λ = 0.1"]
    assert mass == pytest.approx(0.00007)


def test_papers_whose_numbers_are_not_verified_show_none():
    for name in ("serrano_smith_2019", "mohankumar_2020", "tutek_snajder_2020"):
        assert not PAPERS[name].published


# ------------------------------------------------------------------------------------------------------ directions


def test_a_bound_decides_only_outside_the_interval():
    rng = np.random.default_rng(0)
    values = rng.normal(0.5, 0.1, 100)
    assert debate.above(Measure.of("x", values), 0.4).holds is True
    assert debate.above(Measure.of("x", values), 0.6).holds is False
    assert debate.above(Measure.of("x", values), 0.5).holds is None
    assert debate.below(Measure.of("x", values), 0.6).holds is True
    assert debate.below(Measure.of("x", values), 0.5).holds is None
    assert debate.above(Measure.of("equal", [0.0] * 20), -0.02).holds is True
    assert debate.above(Measure.of("few", [1.0] * 3)).holds is None
    assert debate.above(Measure.of("none", [nan] * 20)).holds is None


def test_numbers_are_compared_text_by_text():
    rng = np.random.default_rng(0)
    a = rng.normal(0, 1, 100)
    one, other = Measure.of("", a), Measure.of("", a - 0.1)
    check = debate.exceeds("one", one, "other", other)
    assert check.holds is True, "the difference is the same for every text"
    assert check.figures.startswith(f"one {a.mean():.3f}, other {a.mean() - 0.1:.3f}, difference 0.100")
    assert debate.exceeds("other", other, "one", one).holds is False
    assert debate.exceeds("one", Measure.of("", [0.5] * 9), "twice", Measure.of("", [0.2] * 9), times=2).holds is True


def test_accuracy_is_kept_within_two_points():
    base = Measure.of("", [1.0] * 900 + [0.0] * 100)
    assert debate.keeps_accuracy("same", base, base).holds is True
    worse = Measure.of("", [1.0] * 700 + [0.0] * 300)
    check = debate.keeps_accuracy("worse", worse, base)
    assert check.holds is False
    figures = check.figures.replace("\N{NO-BREAK SPACE}", " ")
    assert figures.startswith("accuracy of worse 70.0 %, of the base 90.0 %, difference -0.200 [")


def test_what_a_result_calls_comparable():
    estimate = Estimate(0.5, 0.4, 0.6, 10)
    assert Row("d", "q", estimate, 0.3, True).mark == "comparable"
    assert Row("d", "q", estimate, 0.3, False).mark == "direction only"
    assert Row("d", "q", estimate, None, False).mark == ""
    assert [Direction("d", "c", holds, "").verdict for holds in (True, False, None)] == [
        "holds",
        "does not hold",
        "undecided",
    ]


def test_numbers_are_comparable_at_full_size_only(tmp_path: Path):
    """The full size with word vectors, where the paper has them; a quick or limited run shows directions only."""
    data = {"gender": Data(texts(16, 1, words=4), TEST)}
    paper = PAPERS["pruthi_2020"]
    paper = replace(paper, sizes={**paper.sizes, "full": replace(paper.sizes["full"], recipe=debate.POOLED)})
    full = debate.run(replace(paper, embedding=4), data, tmp_path / "full", size="full")
    assert {row.mark for row in full.rows if row.published is not None} == {"comparable"}
    three = {"gender": Data([*data["gender"].train, replace(data["gender"].train[0], id="x", label="other")], TEST)}
    others = debate.run(replace(paper, embedding=4), three, tmp_path / "three", size="full")
    assert {row.mark for row in others.rows if row.published is not None} == {"direction only"}
    few = debate.run(replace(paper, embedding=4), data, tmp_path / "few", size="full", tested=7)
    assert {row.mark for row in few.rows if row.published is not None} == {"comparable"}
    assert few.rows[0].ours.n == 7 < len(TEST) == full.rows[0].ours.n
    assert few.settings["train"] is None
    short = debate.run(replace(paper, embedding=4), data, tmp_path / "short", size="full", epochs=1)
    assert {row.mark for row in short.rows if row.published is not None} == {"direction only"}
    assert short.settings["recipe"]["epochs"] == short.settings["epochs"] == 1  # what was done, not the default
    with pytest.raises(BadInput, match=r"holds other results \(changed: size"):
        debate.run(replace(paper, embedding=4), data, tmp_path / "full", size="quick")


def test_numbers_are_comparable_only_on_the_split_of_the_paper(tmp_path: Path):
    """Names of data sets whose public copies are split differently, or texts of chosen labels, are directions only."""
    paper = PAPERS["pruthi_2020"]
    full = replace(paper.sizes["full"], recipe=replace(paper.sizes["full"].recipe, epochs=2, batch=16))
    paper = replace(paper, sizes={"full": full}, embedding=4, recipes={"occupation": {"epochs": 1}})
    data = Data(texts(16, 1, words=4), TEST)
    sets = {"gender": data, "occupation": data, "sst_wiki": data.of_labels(["no", "yes"])}
    result = debate.run(paper, sets, tmp_path, size="full")
    marks = {name: {r.mark for r in result.rows if r.data == name and r.published is not None} for name in sets}
    assert marks == {"gender": {"comparable"}, "occupation": {"direction only"}, "sst_wiki": {"direction only"}}
    # What was trained, where a data set has a recipe of its own.
    assert result.settings["epochs_by_data"] == {"gender": 2, "occupation": 1, "sst_wiki": 2}
    for name, epochs in result.settings["epochs_by_data"].items():
        twin = tmp_path / name / "bilstm" / "twins" / "removed" / "epochs.json"
        assert len(json.loads(twin.read_text())) == epochs


def test_one_text_of_many_does_not_show_that_a_model_is_more_accurate():
    ours, others = (Measure.of("accuracy", [mark] + [1.0] * 399, "share") for mark in (1.0, 0.0))
    assert debate.exceeds("ours", ours, "others", others).holds is None
    assert debate.exceeds("others", others, "ours", ours).holds is None
