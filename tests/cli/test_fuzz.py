"""Whatever is typed, a command succeeds or explains in one line what is wrong: it never fails in another way."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import salience.models
from salience.cli import cli, run
from salience.cli.options import Number
from salience.methods import METHODS
from salience.metrics import METRICS
from shapes import build

CALLS = 500
OBEYED = {*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), *"\u200e\u200f\u202a\u202b\u202d\u202e\u2066\u2067"} - {
    "\n"
}
"""Characters that a terminal obeys."""

NASTY = [
    "",
    " ",
    "\x1b[31mred",
    "\x9b1m",
    "\u202eevil",
    "\ufffe\uffff",
    "[/bold]",
    "x" * 300,
    "a\0b",
    "-1",
    "'\"\\",
    "😀",
]
NUMBERS = ["0", "1", "2", "3", "-1", "0.5", "nan", "inf", "-inf", "1e400", "1e-320", "9" * 40, "9" * 5000, "x", ""]
TEXTS = ["A fine film.", "Good"] * 3 + ["-", "reviews.jsonl", "word " * 40, "\n\n\n", *NASTY]
SETTINGS = [
    *("nodes=3", "nodes=0", "nodes=nan", "nodes=Infinity", f"nodes={'9' * 40}", "max_nodes=9", "rule=left", "rule=x"),
    *("samples=2", "samples=-1", "samples=1e400", "samples=true", "lime.samples=4", "lime.samples=1", "noise=NaN"),
    *("seed=-1", "seed=3", f"seed={'9' * 40}", "layer=99", "layer=all", "heads=[]", "heads=[99]", "row=x", "window=0"),
    *("epsilon=inf", "gamma=-1", "tolerance=0", "tolerance=1e-300", "width=0", "regularization=0", "unit=word"),
    *("report=1", "budget=2", "model=x", "data=1", "method=2", "metrics=3", "erase=zero", "target=1", "kind=x"),
    *("comprehensiveness.shares=[0.5]", "comprehensiveness.shares=[NaN]", "infidelity.samples=0", "x.y.z=1"),
    *("x", "=", " =1", "nodes", "a=b=c", "baseline=null", "baseline=" + "[" * 5000, "\x1b=1", "nodes=\ufffe"),
]
FILES = {
    "reviews.jsonl": '{"id": "a", "text": "A fine film.", "label": 1}\n{"id": "b", "text": "Bad\x7f \\u001b[3m"}\n',
    "semicolons.csv": "id;text;label\n1;A fine film.;1\n",
    "empty.csv": "",
    "broken.jsonl": '{"text": \n',
    "numbers.jsonl": '{"text": 3}\n[1]\n',
    "theirs.jsonl": '{"text": "A bore.", "scores": [1, 2], "method": "\\u001b[31m\\ufffe", "tokens": ["A", "bore"]}\n',
    "weights.bin": "\0\1\2",
    "README": "no ending",
}


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder of all calls: data, a model, a run; the model is loaded once."""
    here, before, load = tmp_path_factory.mktemp("fuzz"), Path.cwd(), salience.models.load
    model = build("bert")
    model.module.save_pretrained(here / "tiny")
    model.tokenizer.save_pretrained(here / "tiny")
    for name, text in FILES.items():
        (here / name).write_text(text, "utf-8")
    patch = pytest.MonkeyPatch()
    patch.setattr(salience.models, "load", cache(load))
    patch.setenv("COLUMNS", "80")
    os.chdir(here)
    arguments = ["--data", "reviews.jsonl", "--out", "run", "--method", "gradient", "--workers", "1", "--quiet"]
    assert run(["explain", "--model", "tiny", *arguments]) == 0
    yield here
    os.chdir(before)
    patch.undo()


METHOD = [*(m.__name__ for m in METHODS)] * 3 + ["ig", *NASTY]
METRIC = [*(m.name for m in METRICS)] * 2 + ["f1", "roar", *NASTY]
DATA = ["reviews.jsonl"] * 30 + [*FILES, "run", "tiny", ".", "missing.jsonl", "*.csv", "no/such", *NASTY]
UNTRAINED = [name for name in DATA if name not in ("reviews.jsonl", ".")]
"""Data of commands that train, which must not get that far."""
PLACES = ["out.html", "out.png", "run"] * 6 + ["tiny", "missing/out", "README", *NASTY]
VALUES = {
    "model": ["tiny"] * 40 + ["sentimant", "run", "README", "no/such/folder", *NASTY],
    "teacher": ["README", "no/such/folder", *NASTY],
    "settings": SETTINGS,
    "penalty_settings": SETTINGS,
    "target": ["0", "LABEL_1", "label_1"] * 6 + ["9", "9" * 40, *NASTY],
    "against": ["0", "LABEL_0"] * 6 + ["9" * 40, *NASTY],
    "layer": ["1", "-1", "all"] * 4 + ["99", "nan", "9" * 40, *NASTY],
    "text_column": ["text"] * 20 + ["label", "nope", *NASTY],
    "delimiter": [";", "\t", ";;", "\n", *NASTY],
    "ids": ["a", "b"] * 6 + ["0", *NASTY],
    "explanations": ["theirs.jsonl"] * 9 + DATA,
    "dtype": ["float32"],
    "device": ["cpu"],
    "task": ["classify"] * 12 + ["clasify", *NASTY],
    "engine": ["local"] * 12 + ["x", *NASTY],
    "workers": ["1"] * 4 + ["0", "-1", "x", "9" * 40],
    "rows_per_part": ["1", "0", "-1", "nan", "9" * 40],
    "erase": ["zero", "mask"] * 6 + ["nope", *NASTY],
}
"""Values by parameter: mostly good ones, so that some calls with several options succeed."""


def values(parameter: click.Parameter, trains: bool) -> list[str]:
    name, kind = str(parameter.name), parameter.type
    if name in VALUES:
        return VALUES[name]
    if name in ("method", "methods", "column", "columns"):
        return METHOD
    if name in ("metrics", "names"):
        return METRIC
    if name in ("sets", "others"):
        return ["x", "=", *(f"n={data}" for data in UNTRAINED)]
    if name in ("data", "unseen", "train", "test", "tests", "validation", "unlabelled"):
        return UNTRAINED if trains else DATA
    if isinstance(kind, click.Choice):
        return [*map(str, kind.choices)] * 8 + NASTY
    if isinstance(kind, Number):
        return ["1", "2", "3"] * 6 + NUMBERS
    return PLACES if isinstance(kind, click.Path) or name in ("run", "runs") else NASTY


OFTEN = {"explain": 12, "evaluate": 2, "show": 4, "export": 3, "copying": 0, "audit-sequences": 0, "serve": 0}
"""How often a command is called; those that train without data, or serve until they are interrupted, are not."""


def call(rng: Random) -> list[str]:
    """A command with some of its options, each with a value that it may or may not take."""
    path, command = rng.choice([leaf for leaf in leaves(cli) for _ in range(OFTEN.get(leaf[0][0], 1))])
    trains = path[0] in ("train", "trial", "test", "paper", "translation")
    arguments: list[str] = []
    options = [p for p in command.params if isinstance(p, click.Option)]
    for option in rng.sample(options, min(len(options), rng.randrange(5))):
        arguments += [rng.choice(option.opts), *([] if option.is_flag else [rng.choice(values(option, trains))])]
    for option in options:
        if (option.name == "model" or option.required) and option.opts[0] not in arguments and rng.random() < 0.95:
            arguments += [option.opts[0], rng.choice(values(option, trains))]
    if path[0] in ("audit", "evaluate") and not {"--data", "--run", "--explanations"} & {*arguments}:
        arguments += ["--data", "reviews.jsonl"]  # the bundled sample takes long
    if path[0] == "audit" and "--test" not in arguments:
        arguments += ["--test", rng.choice(["permutation", "correlation", "erasure", "intervention", "x"])]
    for argument in (p for p in command.params if isinstance(p, click.Argument)):
        pool = TEXTS if argument.name == "texts" else values(argument, trains)
        arguments += [rng.choice(pool) for _ in range(rng.choice([0, 1, 1, 1, 1, 2]))]
    return [*path, *arguments]


STDIN = st.sampled_from([b"", b"A film.\n", b"A film.\n\x1b[31mGood\n", b"caf\xe9", b"\n\n"])


@settings(max_examples=CALLS, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(arguments=st.randoms(use_true_random=True).map(call), standard_input=STDIN)
def test_no_call_fails_in_another_way_than_by_one_line(folder: Path, arguments: list[str], standard_input: bytes):
    code, out, err = called(arguments, standard_input)
    assert code in (0, 2), err
    assert "Traceback" not in out + err
    assert not OBEYED & {*out, *err}
    if code == 2:
        wrong = [line for line in err.splitlines() if line.startswith("salience: ") and "warning: " not in line]
        assert len(wrong) == 1
        assert err.endswith(f"{wrong[0]}\n")


def called(arguments: list[str], standard_input: bytes = b"") -> tuple[int, str, str]:
    """The exit code and what was printed."""
    with CliRunner().isolation(standard_input) as streams:
        code = run(arguments)
        out, err = (stream.getvalue().decode("utf-8", "backslashreplace") for stream in streams[:2])
    return code, out, err


def test_every_command_has_a_help_that_fits_80_columns(folder: Path):
    for path, command in leaves(cli):
        code, out, _ = called([*path, "--help"])
        assert code == 0
        prose = out.partition("Examples:")[0]
        assert max(map(len, prose.splitlines())) <= 80, path
        assert command.help
