"""The house rules that a reader can check, checked."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "salience"
FLOORS = (
    ("errors", "stats", "evaluation", "verdict", "words", "spelling", "explanation", "settings", "types", "data"),
    ("batching", "randomness", "erasure", "passes"),
    ("models",),
    ("methods",),
    ("metrics",),
    ("explainer",),
    ("work",),
    ("runs", "engines"),
    ("runner", "objectives", "lessons", "seeds"),
    ("train", "evaluator", "foreign"),
    ("guards", "trainer"),
    ("teaching", "shortcuts", "retraining"),
    ("views",),
    ("papers",),
    ("cli",),
)
"""Rooms from the ground up; a room imports only from its own floor and those below."""

FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
FILES = sorted(SOURCE.rglob("*.py"))
TORCH_FREE = ("errors", "words", "explanation", "settings", "data", "views", "cli")


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module, and whether it is imported when the file is."""
    tree = ast.parse(path.read_text("utf-8"))
    inner = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    found = []
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names = [f"{node.module}.{a.name}" if node.module == "salience" else str(node.module) for a in node.names]
        found += [(name, node not in inner) for name in names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path):
    here = room(path)
    if here == "__init__":
        return
    for name, at_once in imports(path):
        parts = name.split(".")
        if parts[0] == "salience" and len(parts) > 1 and at_once:
            assert FLOOR.get(parts[1], 0) <= FLOOR[here], f"{path.name} imports {name} from a floor above"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_everything_foreign_has_one_door(path: Path):
    names = [name.split(".")[0] for name, at_once in imports(path) if at_once]
    if "huggingface" not in path.parts and path.name != "trainer.py":  # a subclass of transformers' own Trainer
        assert "transformers" not in names
    if room(path) in TORCH_FREE:
        assert "torch" not in names


def test_no_room_without_a_name():
    banned = {"utils", "util", "helpers", "common", "base", "misc"}
    assert not [p for p in FILES if p.stem in banned]


def test_importing_salience_and_asking_for_help_do_not_import_torch():
    code = (
        "import sys, salience, salience.cli\n"
        "assert salience.cli.run(['--help']) == 0\n"
        "heavy = {'torch', 'transformers', 'numpy', 'altair', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
