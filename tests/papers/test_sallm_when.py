"""When teaching helps: the driver of many trainings, the comparisons with controls, and small runs of the commands."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reviews import reviews
from salience.cli import run
from salience.core.stats import Difference, Spread
from salience.data import source
from salience.data.shortcuts import Shortcut
from salience.errors import BadInput, Diverged
from salience.papers import sallm_heads, sallm_unlabelled
from salience.papers.sallm_shortcut import HUMAN, SHUFFLED_HUMAN, ShortcutProcedure
from salience.papers.sallm_shortcut import rows as shortcut_rows
from salience.papers.sallm_shortcut import students as shortcut_students
from salience.papers.sallm_when import DataSet, Experiment, Plan, Teaching, Training
from salience.papers.sallm_when_report import _by_test, _charts, gains, gains_picture
from salience.papers.sallm_when_table import accuracy_table, cells, summary, texts_needed
from salience.papers.students import Setup, Student
from salience.papers.students_report import heads_table
from salience.papers.trainings import Progress, diverged, results_of, run_all
from salience.papers.verdict import verdict
from salience.training.loop import Recipe
from salience.training.objectives import Objective
from shapes import build

# ------------------------------------------------------------------------------------------------------ the driver


@dataclass(frozen=True)
class Number:
    value: int
    needs: "tuple[Number, ...]" = ()

    def __str__(self) -> str:
        return f"number-{self.value}"


@dataclass(frozen=True)
class Squares:
    """Squares numbers; the training of the number ``stop`` is killed, and that of ``diverges`` diverges."""

    log: Path
    stop: int = -1
    diverges: int = -1

    def cost(self, job: Number) -> float:
        return float(job.value)

    def __call__(self, job: Number) -> Mapping[str, Any]:
        if job.value == self.stop:
            raise KeyboardInterrupt
        if job.value == self.diverges:
            raise Diverged("the loss is not a number")
        with self.log.open("a") as file:
            file.write(f"{job.value}\n")
        return {"square": job.value**2}


def test_a_killed_grid_loses_the_training_in_flight_alone(tmp_path: Path):
    jobs = [Number(n) for n in range(1, 6)]
    (folder := tmp_path / "results").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run_all(Squares(tmp_path / "log", stop=3), jobs, folder)
    assert [job.value for job in results_of(folder, jobs)] == [1, 2]
    reports: list[Progress] = []
    results = run_all(Squares(tmp_path / "log"), jobs, folder, report=reports.append)
    assert [facts["square"] for facts in results.values()] == [1, 4, 9, 16, 25]
    assert (tmp_path / "log").read_text().split() == ["1", "2", "3", "4", "5"], "a finished training was run again"
    assert [(p.done, p.of) for p in reports] == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert reports[0].left > 0, "the time is estimated before the first training"
    assert reports[-1].left == 0
    (folder / "number-2.json").write_text("{")
    with pytest.raises(BadInput, match=r"number-2\.json is damaged"):
        results_of(folder, jobs)


def test_the_estimate_is_the_cost_that_is_left_at_the_speed_so_far(tmp_path: Path):
    jobs = [Number(n) for n in (1, 2, 3)]
    (tmp_path / "number-1.json").write_text('{"seconds": 10.0}')
    reports: list[Progress] = []
    run_all(Squares(tmp_path / "log"), jobs, tmp_path, report=reports.append)
    assert reports[0].left == pytest.approx(10.0 * (2 + 3))
    first: list[Progress] = []
    (other := tmp_path / "other").mkdir()
    run_all(Squares(tmp_path / "log"), jobs, other, rate=2.0, report=first.append)
    assert first[0].left == pytest.approx(2.0 * (1 + 2 + 3))


def test_a_training_that_diverges_stops_no_other(tmp_path: Path):
    teacher = Number(9)
    jobs = [Number(1), teacher, Number(2, (teacher,)), Number(3)]
    (folder := tmp_path / "results").mkdir()
    reports: list[Progress] = []
    for _ in range(2):
        results = run_all(Squares(tmp_path / "log", diverges=9), jobs, folder, report=reports.append)
        assert [facts["square"] for facts in results.values()] == [1, 9]
        assert results == results_of(folder, jobs)
    assert (tmp_path / "log").read_text().split() == ["1", "3"], "nothing is run twice"
    assert diverged(folder, jobs) == {
        teacher: "the loss is not a number",
        jobs[2]: "number-9, which it learns from, has diverged",
    }
    assert [p.diverged for p in reports if p.diverged] == list(diverged(folder, jobs).values())
    assert reports[-1].left == 0


def test_a_teacher_whose_model_is_gone_is_trained_again_if_it_is_needed(tmp_path: Path):
    teacher, other = Number(9), Number(8)
    (folder := tmp_path / "results").mkdir()
    run_all(Squares(tmp_path / "log"), [teacher, other], folder)
    jobs = [teacher, other, Number(1, (teacher,))]
    run_all(Squares(tmp_path / "log"), jobs, folder, kept=lambda _: False)
    assert (tmp_path / "log").read_text().split() == ["9", "8", "9", "1"]
    run_all(Squares(tmp_path / "log"), jobs, folder, kept=lambda _: False)
    assert len((tmp_path / "log").read_text().split()) == 4, "nothing needs it any more"


@pytest.mark.slow
def test_two_processes_give_the_same_results(tmp_path: Path):
    teacher = Number(9)
    jobs = [Number(1, (teacher,)), teacher, Number(2), Number(3, (teacher,))]
    found: list[list[int]] = []
    for workers in (1, 2):
        (folder := tmp_path / str(workers)).mkdir()
        results = run_all(Squares(tmp_path / "log"), jobs, folder, workers=workers)
        found.append([facts["square"] for facts in results.values()])
    assert found == [[1, 81, 4, 9]] * 2


# ------------------------------------------------------------------------------------------------------ teaching


def test_every_way_of_teaching_has_its_control():
    controls = {name: Teaching(name).control for name in ("none", "shuffled", "shuffled:human", "lrp", "human")}
    assert list(controls.values()) == [None, None, None, Teaching("shuffled"), Teaching("shuffled:human")]
    assert Teaching("lrp:positive").control == Teaching("shuffled:lrp:positive")
    assert Teaching("shuffled:lrp:positive").control is None
    assert (Teaching("shuffled:lrp:positive").method, Teaching("shuffled:lrp:positive").form) == ("lrp", "positive")
    assert (Teaching("shuffled").method, Teaching("shuffled").form) == ("input_x_gradient", "binary")
    plan = Plan(teachings=(Teaching("lrp:positive"), Teaching("human"))).complete
    assert list(map(str, plan.teachings)) == [
        "none",
        "lrp:positive",
        "human",
        "shuffled:lrp:positive",
        "shuffled:human",
    ]
    for name, message in (
        ("lpr", "'lrp'"),
        ("lrp:positiv", "'positive'"),
        ("human:binary", "write 'human'"),
        ("shuffled:lrp", "is written 'shuffled'"),
    ):
        with pytest.raises(BadInput, match=message):
            Teaching(name)


def test_small_sets_are_read_more_often():
    plan = Plan(steps=90)
    assert plan.recipe_for(100, 3).epochs == 13, "7 steps of 16 texts"
    assert plan.recipe_for(10_000, 3).epochs == 2
    assert plan.recipe_for(100, 3).seed == 3


# ------------------------------------------------------------------------------------------------------ comparisons


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("when")
    build("bert").save(path / "model")
    for name, count in (("train", 48), ("test", 12)):
        lines = [
            {"text": e.text, "label": e.label, "other": 1 - int(e.label or 0), "why": e.rationale, "also": e.rationale}
            for e in reviews(count)
        ]
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def handmade(folder: Path, shares: Mapping[tuple[int, str], float], seeds: int = 6) -> Any:
    """A grid in which each student is right on a given share of 200 texts, and what was run of it."""
    plan = Plan(sizes=(100, 400), teachings=(Teaching("lrp"),), seeds=seeds).complete
    train = source(folder / "train.jsonl", label="label")
    experiment = Experiment("m", {"d": DataSet("d", train, {"test": train})}, plan, folder, {train: "content"}, {})
    rng = np.random.default_rng(0)
    results = {}
    for job in experiment.jobs():
        if (job.size, str(job.teaching)) in shares:
            right = rng.permutation(200) < 200 * shares[job.size, str(job.teaching)]
            results[job] = {"texts": job.size, "correct": {"test": "".join("01"[int(r)] for r in right)}}
    return experiment, results


def test_a_gain_counts_only_against_the_control_and_gaps_are_named(folder: Path):
    shares = {(100, "none"): 0.6, (100, "lrp"): 0.9, (100, "shuffled"): 0.9, (400, "none"): 0.7, (400, "lrp"): 0.4}
    listed = cells(*handmade(folder, shares))
    verdicts = {(c.size, str(c.teaching)): c.verdict for c in listed}
    assert verdicts == {
        (100, "none"): "",
        (100, "lrp"): "no better than shuffled",
        (100, "shuffled"): "better than none",
        (400, "none"): "",
        (400, "lrp"): "harms",
        (400, "shuffled"): "not run",
    }
    _, rows = accuracy_table(listed)
    assert [row[4] for row in rows if row[2:4] == ["400", "shuffled"]] == ["not run"]
    sentences = summary(listed)
    assert sentences[0] == "5 of 6 cells were run; 4 comparisons, corrected by Holm."
    assert sentences[1].startswith("Verdicts may change with the cells that were not run")
    assert sentences[3].endswith("lrp with 100 texts of d on test.")
    assert "Shuffled explanations help: shuffled with 100 texts of d on test." in sentences
    helps = cells(*handmade(folder, {**shares, (100, "shuffled"): 0.6}))
    assert [c.verdict for c in helps if (c.size, str(c.teaching)) == (100, "lrp")] == ["helps"]
    failed = cells(*handmade(folder, {**shares, (100, "none"): 0.5, (100, "shuffled"): 0.6}))
    (verdict_,) = [c.verdict for c in failed if (c.size, str(c.teaching)) == (100, "lrp")]
    assert verdict_ == "what it is compared with has not learnt"
    assert f"Not judged: lrp with 100 texts of d on test ({verdict_})." in summary(failed)


def test_trainings_that_diverged_are_named(folder: Path, tmp_path: Path):
    shares = {(100, "none"): 0.5, (100, "lrp"): 0.9, (100, "shuffled"): 0.5}
    experiment, results = handmade(folder, shares)
    experiment = replace(experiment, folder=tmp_path)
    (tmp_path / "trainings").mkdir()
    lost = Training("d", 100, Teaching("lrp"), 3)
    (tmp_path / "trainings" / f"{lost}.json").write_text('{"diverged": "the loss is not a number", "seconds": 1}')
    listed = cells(experiment, {job: facts for job, facts in results.items() if job != lost})
    cell = next(c for c in listed if c.size == 100 and str(c.teaching) == "lrp")
    assert (cell.accuracy, cell.verdict) == (None, "diverged with 1 seed")
    assert summary(listed, experiment.diverged())[-1] == f"{lost} has no result: the loss is not a number"


def test_the_charts_show_each_way_of_teaching_beside_its_control(folder: Path):
    sizes = {(size, name): 0.5 for size in (100, 400) for name in ("none", "lrp", "shuffled")}
    listed = cells(*handmade(folder, sizes))
    (own,) = _by_test(listed).values()
    (chart,) = _charts(own).values()
    dashes = [layer["mark"].get("strokeDash") for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "line"]
    assert dashes == [None, None, [5, 4]], "no teaching, the way of teaching, and its control"
    page = gains(listed)
    assert page.count('<p class="name">lrp</p>') == 1
    assert "<td>+0.0</td>" in page or "<td>-0.0</td>" in page
    one = [c for c in listed if c.size == 100]
    assert gains_picture(one).startswith(b"<svg"), "one size has intervals as well"


def test_later_seeds_confirm_what_earlier_ones_found(folder: Path):
    shares = {(100, "none"): 0.6, (100, "lrp"): 0.9, (100, "shuffled"): 0.6}
    experiment, results = handmade(folder, shares, seeds=8)
    later = replace(experiment, plan=replace(experiment.plan, seeds=5, first_seed=3))
    cell = next(c for c in cells(later, results) if c.size == 100 and str(c.teaching) == "lrp")
    own = [results[Training("d", 100, Teaching("lrp"), seed)]["correct"]["test"] for seed in range(3, 8)]
    assert cell.accuracy == Spread(tuple(100 * marks.count("1") / len(marks) for marks in own))
    assert cell.verdict == "helps"


def test_the_estimate_counts_explanations(folder: Path, tmp_path: Path):
    experiment, _ = handmade(folder, {})
    experiment = replace(experiment, lengths={"d": 10.0, "d/test": 10.0}, passes={"lrp": 7.0})
    cost = {name: experiment.cost(Training("d", 100, Teaching(name), 0)) for name in ("none", "lrp")}
    texts = len(experiment.texts(Training("d", 100, Teaching("none"), 0)))
    assert cost["lrp"] - cost["none"] == 7 * 10 * texts


def test_one_seed_is_too_few_for_a_verdict(folder: Path):
    shares = {(100, "none"): 0.5, (100, "lrp"): 0.9, (100, "shuffled"): 0.5}
    listed = cells(*handmade(folder, shares, seeds=1))
    assert {c.verdict for c in listed if c.against_none is not None} == {"too few seeds"}


def test_a_gain_without_its_control_is_not_called_one():
    gain, none = Difference(5.0, 4.0, 6.0, 0.01, 100), Difference(0.0, -1.0, 1.0, 1.0, 100)
    loss = replace(gain, mean=-5.0, low=-6.0, high=-4.0)
    judged = partial(verdict, seeds=5, controlled=True)
    assert judged(gain, None) == "better than none; control not run"
    assert judged(gain, none) == "no better than shuffled"
    assert judged(gain, gain) == "helps"
    assert judged(none, gain) == "better than shuffled only"
    assert judged(none, loss) == judged(none, None) == "no difference"
    assert judged(none, loss, lower=True) == "better than shuffled only"
    assert judged(loss, gain) == "harms"
    assert judged(loss, loss, lower=True) == "helps"
    assert judged(gain, loss, lower=True, harm="more reliance") == "more reliance"
    assert verdict(gain, None, seeds=5, controlled=False) == "better than none"


def test_students_that_did_not_learn_are_named(folder: Path):
    shares = {(100, "none"): 0.5, (100, "lrp"): 0.5, (100, "shuffled"): 0.6}
    *_, last = summary(cells(*handmade(folder, shares)))
    assert last.startswith(
        "Students that are no better than the most frequent label: none with 100 texts of d (6 of 6), lrp with 100 "
        "texts of d (6 of 6). Their training failed"
    )
    learnt = summary(cells(*handmade(folder, dict.fromkeys(shares, 0.7))))
    assert not any("no better than the most frequent" in sentence for sentence in learnt)


def test_p_values_are_corrected_for_all_comparisons(folder: Path):
    from salience.core.stats import holm, paired_difference

    shares = {(100, "none"): 0.6, (100, "lrp"): 0.66, (100, "shuffled"): 0.62}
    experiment, results = handmade(folder, shares)
    tables = {
        name: np.array([[100.0 * (c == "1") for c in facts["correct"]["test"]] for job, facts in results.items()
                        if str(job.teaching) == name])
        for name in ("none", "lrp", "shuffled")
    }  # fmt: skip
    raw = [
        paired_difference(tables["lrp"], tables["none"]).p,
        paired_difference(tables["lrp"], tables["shuffled"]).p,
        paired_difference(tables["shuffled"], tables["none"]).p,
    ]
    own = {str(c.teaching): c for c in cells(experiment, results) if c.size == 100}
    differences = [own["lrp"].against_none, own["lrp"].against_control, own["shuffled"].against_none]
    assert [d.p for d in differences if d is not None] == pytest.approx(holm(raw))
    assert own["lrp"].against_none is not None
    assert own["lrp"].against_none.mean == pytest.approx(6.0)
    incomplete = {job: facts for job, facts in results.items() if job != Training("d", 100, Teaching("lrp"), 5)}
    assert next(c.verdict for c in cells(experiment, incomplete) if str(c.teaching) == "lrp") == "not run"


def test_examples_saved_are_read_off_the_curve_without_teaching(folder: Path):
    curve = [100, 400, 1600], [70.0, 80.0, 80.0]
    assert [texts_needed(*curve, a) for a in (70.0, 75.0, 80.0)] == pytest.approx([100, 200, 400])
    assert [texts_needed(*curve, a) for a in (60.0, 90.0)] == [-inf, inf]
    shares = {(100, "none"): 0.5, (100, "lrp"): 0.6, (100, "shuffled"): 0.5, (400, "none"): 0.7}
    (cell,) = [c for c in cells(*handmade(folder, shares)) if (c.size, str(c.teaching)) == (100, "lrp")]
    assert cell.saved is not None
    assert cell.saved[0] == pytest.approx(100.0), "half of the way from 100 to 400 texts, in logarithms, is 200"
    assert cell.saved[1] < cell.saved[0] < cell.saved[2]


@pytest.mark.parametrize("without", [(0.6, 0.6), (0.7, 0.6), (0.6, 0.7)])
def test_no_gain_saves_no_texts_whatever_the_curve(folder: Path, without: tuple[float, float]):
    shares = {(size, name): share for size, share in zip((100, 400), without, strict=True) for name in ("none", "lrp")}
    experiment, results = handmade(folder, shares)
    same = {job: results[replace(job, teaching=Teaching("none"))] for job in results}
    saved = [c.saved for c in cells(experiment, same) if str(c.teaching) == "lrp"]
    assert saved == [(0, 0, 0)] * 2


# ------------------------------------------------------------------------------------------------------ commands


def arguments(folder: Path, out: Path, *, model: str = "", seeds: int = 2, workers: int = 1) -> list[str]:
    data = f"r={folder / 'train.jsonl'},{folder / 'test.jsonl'}"
    named = ["--model", model or str(folder / "model"), "--data", data, "--rationale=r=why", "--out", str(out)]
    recipe = [f"--seeds={seeds}", "--steps=2", "--epochs=1", "--batch=8", "--rate=0.003", f"--workers={workers}"]
    return ["paper", "sallm_when", *named, *recipe]


def test_the_grid_from_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    wanted = [*arguments(folder, tmp_path / "out"), "--other", f"r:far={folder / 'test.jsonl'}"]
    assert run([*wanted, "--sizes=8"]) == 0
    out, err = capsys.readouterr()
    assert "0 of 10 trainings done · about" in err, "the number of trainings and the time come first"
    assert "r-8-shuffled.human-seed-1: 10 of 10 trainings done" in err
    assert "r, tested on far" in out
    assert "10 of 10 cells were run; 12 comparisons, corrected by Holm." in " ".join(out.split())
    facts = json.loads((tmp_path / "out" / "result.json").read_text())
    assert {c["teaching"] for c in facts["cells"]} == {
        "none",
        "input_x_gradient",
        "human",
        "shuffled",
        "shuffled:human",
    }
    report = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" in report
    assert "Multi-bootstrap intervals" in report
    assert run([*wanted, "--sizes=8"]) == 0
    assert capsys.readouterr().out == out, "the same grid gives the same table"
    assert run([*wanted, "--sizes=8,all", "--finished"]) == 0
    partly = capsys.readouterr().out
    assert "10 of 20 cells were run" in partly
    assert "all none" in partly
    assert "not run" in partly
    for change, message in (
        (["--weight=2"], "holds a grid with other settings (changed: weight)"),
        (["--rationale=r=also"], "holds students of rationales that were read otherwise (changed: columns)"),
        (["--finished", f"--other=r:near={folder / 'test.jsonl'}"], "other texts of r (changed: tests/near)"),
        (["--label-column=other"], "other texts of r (changed: train, tests/test, tests/far)"),
        (["--dtype=float64"], "another model or other texts of r (changed: model)"),
    ):
        assert run([*wanted, "--sizes=8", *change]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_the_results_do_not_depend_on_the_number_of_processes(folder: Path, tmp_path: Path):
    answers: list[Any] = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        wanted = arguments(folder, out, seeds=1, workers=workers)
        assert run([*wanted, "--sizes=8", "--teach=input_x_gradient", "--quiet"]) == 0
        files = sorted((out / "trainings").glob("*.json"))
        answers.append([{**json.loads(file.read_text()), "seconds": 0} for file in files])
    assert len(answers[0]) == 3
    assert answers[0] == answers[1]


def test_a_size_of_all_texts_is_trained_once_and_larger_ones_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    wanted = [*arguments(folder, tmp_path / "out", seeds=1), "--teach=none", "--quiet"]
    assert run([*wanted, "--sizes=8,48,100,all"]) == 0
    assert sorted(p.stem for p in (tmp_path / "out" / "trainings").glob("*.json")) == [
        "r-8-none-seed-0",
        "r-all-none-seed-0",
    ]
    assert run([*wanted, "--sizes=100"]) == 2
    assert "r has 48 labelled texts, not 100; use the size all" in capsys.readouterr().err


def test_what_would_fail_after_a_training_is_refused_before_the_first(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (strange := tmp_path / "strange.jsonl").write_text('{"text": "a film", "label": 7}\n')
    for change, message in (
        ([f"--other=r:far={strange}"], "r, far is 7, which does not occur in the training data"),
        (["--limit=1"], "limit=1 must be at least 2 texts"),
        (["--teach=attention_rollout"], "attention_rollout"),
    ):
        assert run([*arguments(folder, tmp_path / "out", model="sentiment_bilstm"), "--sizes=8", *change]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "out").glob("trainings/*"))
    students = ["--train", str(folder / "train.jsonl"), "--test", str(folder / "test.jsonl"), "--texts=8"]
    heads = ["paper", "sallm_heads", *students, "--model=sentiment_bilstm", "--out", str(tmp_path / "heads")]
    assert run(heads) == 2
    assert "has a single head of attention; choose a transformer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--sizes=some"], "must be numbers of texts from 2, or all"),
        (["--teach=lpr"], "did you mean 'lrp'"),
        (["--rationale=q=why"], "'q'"),
        (["--other=r=x.jsonl"], "must name another domain"),
        (["--other=far"], "is not of the form of --other sst2:imdb=imdb.jsonl"),
        (["--finished"], "holds no grid"),
    ],
)
def test_wrong_options_are_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], message: str
):
    assert run([*arguments(folder, tmp_path / "out"), *change]) == 2
    assert message in capsys.readouterr().err.replace("Did", "did")


def test_students_of_the_same_seed_share_their_texts(folder: Path):
    train = source(folder / "train.jsonl", label="label")
    data = {"d": DataSet("d", train, {"test": train})}
    experiment = Experiment("m", data, Plan(limit=20), folder, {train: "content"}, {})
    few = Training("d", 8, Teaching("none"), 0)
    whole = experiment.texts(replace(few, size=None))
    assert len(whole) == 20
    assert experiment.texts(few) == whole[:8] == experiment.texts(replace(few, teaching=Teaching("lrp")))
    assert experiment.texts(replace(few, seed=1)) != whole[:8]


@pytest.mark.parametrize("name", ["shortcut", "unlabelled", "heads"])
def test_the_experiments_with_few_students(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    named = ["--model", str(folder / "model"), "--train", str(folder / "train.jsonl")]
    named += ["--test", str(folder / "test.jsonl"), "--out", str(tmp_path / "out")]
    own = {"shortcut": ["--texts=16", "--rationale-column=why"], "unlabelled": ["--texts=8", "--unlabelled=8"]}
    wanted = ["paper", f"sallm_{name}", *named, *own.get(name, ["--texts=8"])]
    wanted += ["--seeds=1", "--epochs=1", "--batch=8", "--rate=0.003"]
    assert run(wanted) == 0
    out, err = capsys.readouterr()
    words = {"shortcut": "human rationales", "unlabelled": "pseudo-labels", "heads": "important heads"}
    assert words[name] in out
    findings = {
        "shortcut": "• More reliance than before: nowhere.",
        "unlabelled": "• pseudo-labels: too few seeds.",
        "heads": "• all layers, against shuffled: ",
    }
    assert findings[name] in out
    assert "trainings done" in err
    facts = json.loads((tmp_path / "out" / "result.json").read_text())
    rows = {"shortcut": 17, "unlabelled": 8, "heads": 9}
    assert len(facts["rows"]) == rows[name]
    if name == "shortcut":
        assert "no rationales of every label" in (tmp_path / "out" / "tables.md").read_text(), "contrast by people"
    assert run([*wanted, "--finished"]) == 0
    assert capsys.readouterr().out == out
    for change, what in (
        (["--weight=3"], "weight"),
        (["--weight=3", "--finished"], "weight"),
        (["--dtype=float64"], "model"),
        (["--label-column=other"], "data, test"),
    ):
        assert run([*wanted, *change]) == 2
        assert f"holds another experiment (changed: {what})" in capsys.readouterr().err


def setup(folder: Path, out: Path, **changed: Any) -> Setup:
    train, test = (source(folder / f"{name}.jsonl", label="label", rationale="why") for name in ("train", "test"))
    recipe = Recipe(epochs=1, batch=8, rate=0.003)
    named = {"train": train, "test": test, "texts": 8, "tested": None, "seeds": 1, "recipe": recipe, **changed}
    return Setup(str(folder / "model"), folder=out, **named)


def test_a_control_marks_as_many_tokens_as_what_it_is_compared_with(folder: Path, tmp_path: Path):
    procedure = ShortcutProcedure(setup(folder, tmp_path), 0.95, Shortcut())
    texts = procedure.setup.training_texts(0)[:8]
    guides: dict[str, list[Any]] = {}
    for origin in (HUMAN, SHUFFLED_HUMAN):
        guided = procedure._guided(Student(f"{origin}, attention", 0), texts, origin, "attention")
        guides[origin] = [e.guide for e in guided]
    assert guides[HUMAN] != guides[SHUFFLED_HUMAN]
    assert [sum(g) for g in guides[HUMAN]] == [sum(g) for g in guides[SHUFFLED_HUMAN]]
    right = {HUMAN: "1111", SHUFFLED_HUMAN: "0111", "shuffled": "0001"}
    results = {
        student: {"correct": {"clean": "1111", "contradicted": right.get(student.name.partition(", ")[0], "0000")}}
        for student in shortcut_students(procedure.setup)
    }
    own = {(row.source, row.penalty): row for row in shortcut_rows(procedure.setup, results)}
    difference = own[HUMAN, "attention"].against_shuffled
    assert difference is not None
    assert difference.mean == pytest.approx(-25.0)
    assert own[SHUFFLED_HUMAN, "attention"].against_shuffled is None


def test_a_student_that_has_not_learnt_the_task_does_not_count_as_less_reliant(folder: Path, tmp_path: Path):
    own = setup(folder, tmp_path, seeds=4, test=source(folder / "train.jsonl", label="label"))
    always = "".join("10"[e.label == 1] for e in own.test_texts())  # right where the label is 0
    right, wrong = "1" * len(always), "0" * len(always)
    marks = {"spoilt teacher": (right, wrong), "clean teacher": (always, always)}
    results = {
        student: {"correct": dict(zip(("clean", "contradicted"), marks.get(name, (right, right)), strict=True))}
        for student in shortcut_students(own)
        for name in [student.name.partition(",")[0]]
    }
    rows = {(row.source, row.penalty): row for row in shortcut_rows(own, results)}
    failed, learnt = rows["clean teacher", "attention"], rows["shuffled", "attention"]
    assert failed.follows is not None
    assert failed.follows.mean == pytest.approx(50)
    assert (failed.verdict, failed.changed and failed.changed.mean) == ("not learnt (4 of 4 seeds)", 0)
    assert (learnt.verdict, learnt.changed and learnt.changed.mean) == ("less than before", 0)
    assert rows["spoilt teacher", ""].changed == Spread((100.0,) * 4)


def test_attention_is_measured_on_texts_of_all_labels(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measured: list[Any] = []
    by_text = sallm_heads.AttentionMonitor.by_text

    def watched(self: Any, model: Any) -> Any:
        measured.extend(self.examples)
        return by_text(self, model)

    monkeypatch.setattr(sallm_heads.AttentionMonitor, "by_text", watched)
    (tmp_path / "data").mkdir()
    lines = sorted((folder / "test.jsonl").read_text().splitlines(), key=lambda line: json.loads(line)["label"])
    (tmp_path / "data" / "test.jsonl").write_text("\n".join(lines))
    by_label = setup(folder, tmp_path / "out", test=source(tmp_path / "data" / "test.jsonl", label="label"))
    facts = sallm_heads.HeadsProcedure(by_label, 4)(Student("none", 0))
    assert {e.label for e in measured} == {0, 1}
    assert {len(values) for values in facts["measures"].values()} == {4}


def test_a_wrong_decision_that_becomes_another_wrong_one_has_changed(folder: Path, tmp_path: Path):
    own = setup(folder, tmp_path)
    answers = {"none": [0, 1, 2, 0], "last layer": [0, 2, 2, 0]}  # the label of all texts is 0
    results = {
        student: {
            "correct": {"test": "".join("01"[a == 0] for a in answers.get(student.name, answers["none"]))},
            "answers": answers.get(student.name, answers["none"]),
            "measures": dict.fromkeys(sallm_heads.MEASURES, [0.0] * 4),
        }
        for student in sallm_heads.students(own)
    }
    changed = {row.name: row.changed for row in sallm_heads.rows(own, results)}
    assert changed["last layer"] is not None
    assert changed["last layer"].mean == pytest.approx(25.0)


@pytest.mark.parametrize("choice", sallm_heads.CHOICES)
def test_the_control_of_a_choice_of_heads_reads_the_same_heads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
):
    own, taught = setup(folder, tmp_path), dict[str, tuple[Any, list[Any]]]()
    procedure = sallm_heads.HeadsProcedure(own, 4)
    procedure(Student("none", 0))

    def fitted(_: Setup, student: Student, train: Any, objective: Objective) -> Any:
        taught[student.name] = objective.terms[-1].settings, [e.guide for e in train]
        return own.teacher("none", 0)

    monkeypatch.setattr(Setup, "fitted", fitted)
    for name in (choice, sallm_heads.CONTROLS[choice]):
        procedure(Student(name, 0, ("none",)))
    (settings, guides), (same, shuffled) = taught.values()
    assert settings == same
    assert guides != shuffled
    assert [sum(g) for g in guides] == [sum(g) for g in shuffled]


def test_measures_of_attention_are_compared_with_shuffled_explanations_over_seeds_and_texts(
    folder: Path, tmp_path: Path
):
    own = setup(folder, tmp_path, seeds=4)
    each = np.linspace(0.1, 0.3, 10)
    mass = {"all layers": [each + 0.3, each[::-1] + 0.3] * 2, "all layers, shuffled": [each, each + 0.02] * 2}
    mass["all layers"][0][4] = np.nan
    results = {
        student: {
            "correct": {"test": "1101"},
            "answers": [0, 1, 0, 1],
            "measures": {
                **{measure: list(each) for measure in sallm_heads.MEASURES},
                "attention_mass": list(mass.get(student.name, [each] * 4)[student.seed]),
            },
        }
        for student in reversed(sallm_heads.students(own))
    }
    rows = {row.name: row for row in sallm_heads.rows(own, results)}
    difference = rows["all layers"].against_shuffled["attention_mass"]
    defined = np.delete(np.subtract(*mass.values()), 4, axis=1)
    assert difference.mean == pytest.approx(defined.mean())
    assert difference.pairs == 9
    assert difference.clear
    assert not rows["all layers"].against_shuffled["comprehensiveness"].clear
    assert rows["all layers, shuffled"].against_shuffled == {}
    _, cells = heads_table(list(rows.values()))
    starred = [cell for row in cells for cell in row if cell.endswith("*")]
    assert len(starred) == 1
    assert starred[0].startswith("0.50")


def test_what_teaching_changed_is_said_in_words():
    clear, none = Difference(0.2, 0.1, 0.3, 0.01, 50), Difference(0.0, -0.1, 0.1, 1.0, 50)
    spread = Spread((50.0, 51.0))
    heads = [
        sallm_heads.Row("none", spread),
        sallm_heads.Row("last layer", spread, against_shuffled={"accuracy": none, "attention_mass": clear}),
        sallm_heads.Row("all layers", spread, against_shuffled={"accuracy": clear, "attention_mass": none}),
        sallm_heads.Row("important heads", spread, against_shuffled={"accuracy": none}),
        sallm_heads.Row("agreeing heads", None),
    ]
    assert sallm_heads.summary(heads) == [
        "last layer, against shuffled: attention mass +0.200.",
        "all layers, against shuffled: accuracy +0.2 points.",
        "important heads, against shuffled: no significant difference.",
        "agreeing heads, against shuffled: not run.",
    ]
    both = sallm_unlabelled.Row(sallm_unlabelled.BOTH, spread, {sallm_unlabelled.PSEUDO: clear}, none)
    plain = sallm_unlabelled.Row(sallm_unlabelled.PSEUDO, spread, {sallm_unlabelled.TEACHER: clear})
    assert sallm_unlabelled.summary([plain, both]) == [
        "Better than the same student without explanations, and than with shuffled ones: nowhere.",
        "Better than the same student without explanations, but not than with shuffled ones: pseudo-labels and "
        "explanations.",
        "Better than with shuffled explanations, but not than the same student without: nowhere.",
        "Worse than the same student without explanations: nowhere.",
        "pseudo-labels: better than labelled only.",
    ]


def test_as_many_labels_are_read_at_each_step_with_unlabelled_texts_and_without(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = setup(folder, tmp_path, texts=9)
    read: dict[str, tuple[Any, Any]] = {}

    def fitted(_: Setup, student: Student, train: Any, __: Any, batches: Any) -> Any:
        read[student.name] = train, batches
        return own.new_model(0)

    monkeypatch.setattr(Setup, "fitted", fitted)
    for student in sallm_unlabelled.students(own):
        sallm_unlabelled.UnlabelledProcedure(own, 27)(student)
    for name, (train, batches) in read.items():
        for epoch in (1, 2):
            steps = batches(epoch)
            labels = [[i for i in rows if train[i].label is not None] for rows in steps]
            assert [len(rows) for rows in labels] == [8] * 5, f"36 texts of 8 a step: {name}"
            assert np.mean([len(set(rows)) for rows in labels]) > 6.5, "a text is hardly ever twice in a step"
            assert {i for rows in steps for i in rows} == set(range(len(train))), "every text is read"
        assert batches(1) != batches(2)
    explained, batches = read["explanations of all texts"]
    few, _ = read["explanations of labelled texts"]
    assert sum(e.guide is not None for e in few) == len(few) == 9
    assert sum(e.guide is not None for e in explained) == len(explained) == 36
    more = sorted(i for rows in batches(1) for i in rows if explained[i].label is None)
    assert more == list(range(9, 36)), "each unlabelled text once"
