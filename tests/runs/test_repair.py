"""Damaged runs: every way to damage a part is noticed, named and repaired."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import salience
from salience.cli import run as cli
from salience.errors import BadInput, DamagedRun, SalienceError, UnfinishedRun
from salience.evaluation.evaluator import stored
from salience.runs.driver import explain_data
from salience.runs.run import Run, open_run

TEXTS = [f"a fine film number {i} with warm humour" for i in range(24)]


@pytest.fixture(scope="module")
def model() -> Any:
    return salience.load("sentiment")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "reviews.jsonl"
    lines = [json.dumps({"text": t}) for t in TEXTS]
    lines[7] = '{"text": 7}'
    lines[18:24] = ['{"text": ""}'] * 6
    path.write_text("\n".join(lines))
    return path


Explain = Callable[[Path], Run]


@pytest.fixture(scope="module")
def explain(model: Any, data: Path) -> Explain:
    """Four parts of six rows; the last one holds only rejected rows."""
    return lambda out: explain_data(model, data, out, "position", rows_per_part=6, max_rejected=0.5)


@pytest.fixture(scope="module")
def whole(explain: Explain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return explain(tmp_path_factory.mktemp("whole") / "run").path


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def content(run: Path) -> dict[str, list[bytes]]:
    """The parts, and the lines of the lists, which may be in any order."""
    lists = {name: sorted((run / name).read_bytes().splitlines()) for name in ("rejected.jsonl", "parts.jsonl")}
    return {f.name: [f.read_bytes()] for f in (run / "parts").iterdir()} | lists


def unfinished(run: Path) -> None:
    file = run / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"finished": None}))


def delete(parts: Path) -> None:
    (parts / "part-00001.parquet").unlink()


def delete_last(parts: Path) -> None:
    (parts / "part-00002.parquet").unlink()


def truncate(parts: Path) -> None:
    os.truncate(parts / "part-00001.parquet", 500)


def empty(parts: Path) -> None:
    os.truncate(parts / "part-00001.parquet", 0)


def flip(parts: Path) -> None:
    file = parts / "part-00001.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)


def swap(parts: Path) -> None:
    first, second = parts / "part-00000.parquet", parts / "part-00001.parquet"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)


def double(parts: Path) -> None:
    shutil.copy(parts / "part-00000.parquet", parts / "part-00001.parquet")


def extra(parts: Path) -> None:
    shutil.copy(parts / "part-00001.parquet", parts / "part-00009.parquet")


def folder_in_its_place(parts: Path) -> None:
    delete(parts)
    (parts / "part-00001.parquet").mkdir()


def no_rejected_part(parts: Path) -> None:
    (parts / ".part-00003.json").unlink()


def no_index(parts: Path) -> None:
    (parts.parent / "parts.jsonl").unlink()


def garbled_index(parts: Path) -> None:
    file = parts.parent / "parts.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], "{", '{"file": "part-x"}', *lines[2:]]))


DAMAGES = {
    delete: "part-00001.parquet is missing",
    delete_last: "part-00002.parquet is missing",
    truncate: "part-00001.parquet has 500 bytes, not ",
    empty: "part-00001.parquet has 0 bytes, not ",
    flip: "part-00001.parquet has changed since it was written",
    swap: "part-00000.parquet has ",
    double: "part-00001.parquet has ",
    extra: "part-00009.parquet is not in parts.jsonl",
    folder_in_its_place: "part-00001.parquet cannot be read",
    no_rejected_part: ".part-00003.json is missing",
    no_index: "part-00000.parquet is not in parts.jsonl",
    garbled_index: "part-00001.parquet is not in parts.jsonl",
}
damages = pytest.mark.parametrize(("damage", "message"), DAMAGES.items(), ids=lambda x: getattr(x, "__name__", ""))


@damages
def test_a_damaged_run_is_not_read(damage: Callable[[Path], None], message: str, folder: Path, tmp_path: Path):
    damage(folder / "parts")
    for read in (list, Run.to_frame, Run.table, Run.summary, lambda run: run.export(tmp_path / "x.jsonl")):
        with pytest.raises(BadInput) as caught:
            read(open_run(folder))
        assert f"run is damaged: {message}" in str(caught.value)
        assert "run the command that made it again to repair it" in str(caught.value)
    assert not (tmp_path / "x.jsonl").exists()


@damages
def test_a_start_repairs_a_finished_run(
    damage: Callable[[Path], None], message: str, folder: Path, whole: Path, explain: Explain
):
    damage(folder / "parts")
    if damage is extra:
        explain(folder)
    else:
        with pytest.warns(DamagedRun, match=message.replace(".", r"\.")):
            explain(folder)
    assert content(folder) == content(whole)
    assert list(open_run(folder)) == list(open_run(whole))


@damages
def test_a_start_repairs_an_unfinished_run(
    damage: Callable[[Path], None], message: str, folder: Path, whole: Path, explain: Explain
):
    unfinished(folder)
    damage(folder / "parts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRun)
        explain(folder)
    assert content(folder) == content(whole)


@pytest.mark.parametrize("damage", [delete, delete_last, no_rejected_part])
def test_an_unfinished_run_may_lack_parts(damage: Callable[[Path], None], folder: Path, tmp_path: Path):
    unfinished(folder)
    damage(folder / "parts")
    run = open_run(folder)
    assert len(list(run)) == len(run)
    with pytest.warns(UnfinishedRun, match=f"only the {len(run)} texts explained so far are used. Run the command"):
        run.export(tmp_path / "x.jsonl")
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == len(run)


def test_a_repair_makes_only_what_is_damaged(folder: Path, explain: Explain):
    truncate(folder / "parts")
    before = {f.name: f.stat().st_mtime_ns for f in (folder / "parts").iterdir()}
    with pytest.warns(DamagedRun):
        explain(folder)
    after = {f.name: f.stat().st_mtime_ns for f in (folder / "parts").iterdir()}
    assert [name for name in sorted(after) if after[name] != before[name]] == ["part-00001.parquet"]


def test_what_cannot_be_made_again_is_named(folder: Path, model: Any, tmp_path: Path):
    """The data is no longer the same, so a start must not touch what is left."""
    delete(folder / "parts")
    other = tmp_path / "reviews.jsonl"
    other.write_text('{"text": "something else"}')
    with pytest.raises(SalienceError, match="the data has changed"):
        explain_data(model, other, folder, "position", rows_per_part=6, max_rejected=0.5)
    assert len(list((folder / "parts").glob("*.parquet"))) == 2


def test_the_commands_refuse_a_damaged_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flip(folder / "parts")
    for command in (
        ["show", str(folder), "--first", "1"],
        ["export", str(folder), str(tmp_path / "x.csv")],
        ["summary", str(folder)],
        ["evaluate", "--run", str(folder), "--metric", "comprehensiveness"],
    ):
        assert cli(command) == 2
        err = capsys.readouterr().err
        assert "part-00001.parquet has changed since it was written" in err
        assert err.count("\n") == 1


# ------------------------------------------------------------------------------------------------------ older formats

FORMER = Path(__file__).parent / "fixtures" / "format_1"


def former(tmp_path: Path, whole: Path) -> Path:
    """A run as the version before wrote it: format 2, without checksums."""
    run = shutil.copytree(whole, tmp_path / "former")
    (run / "parts.jsonl").unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["finished"]["parts"]
    (run / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    return run


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (delete, "part-00001.parquet is missing"),
        (delete_last, "part-00002.parquet is missing"),
        (truncate, "part-00001.parquet cannot be read"),
        (empty, "part-00001.parquet cannot be read"),
        (swap, "part-00001.parquet holds row 0, which belongs to an earlier part"),
        (double, "part-00001.parquet holds row 0, which belongs to an earlier part"),
        (extra, "part-00009.parquet holds row 6, which belongs to an earlier part"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_older_runs_are_checked_by_their_rows(
    damage: Callable[[Path], None], message: str, whole: Path, tmp_path: Path, model: Any
):
    run = former(tmp_path, whole)
    assert len(list(open_run(run))) == len(open_run(run)) == 17
    assert len(stored(model, run)[0]) == 17
    damage(run / "parts")
    with pytest.raises(BadInput, match=f"{message}.*explain the data again into another folder"):
        list(open_run(run))


# ------------------------------------------------------------------------------------------------------ manifests


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.clear(),
        lambda m: m.update(format=9),
        lambda m: m.pop("model"),
        lambda m: m.update(model=5),
        lambda m: m["model"].pop("digest"),
        lambda m: m.pop("methods"),
        lambda m: m.update(methods=["position"]),
        lambda m: m["methods"].update(position=None),
        lambda m: m["methods"].update(lime=m["methods"].pop("position")),
        lambda m: m["methods"].update(lime=m["methods"]["position"]),
        lambda m: m.update(starts=None),
        lambda m: m.update(columns=5),
        lambda m: m["columns"].update(keep="x"),
        lambda m: m.update(limit="all"),
        lambda m: m.pop("finished"),
        lambda m: m.update(finished=True),
        lambda m: m["finished"].pop("parts"),
    ],
)
def test_broken_manifests_are_one_line_and_exit_code_2(
    change: Callable[[Any], None], folder: Path, data: Path, capsys: pytest.CaptureFixture[str]
):
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))
    again = ["explain", "--data", str(data), "--out", str(folder), "--method", "position", "--rows-per-part", "6"]
    for command in (["show", str(folder)], again):
        assert cli(command) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"salience: {folder}")
        assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff", "null", "3"])
def test_a_manifest_that_is_not_json(text: str, folder: Path):
    (folder / "manifest.json").write_text(text, "latin-1")
    with pytest.raises(BadInput):
        open_run(folder)
