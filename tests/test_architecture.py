"""The house rules that a reader can check, checked."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "salience"
FLOORS = (
    ("errors",),
    ("core",),
    ("data", "models"),
    ("methods",),
    ("explanations",),
    ("metrics",),
    ("runs",),
    ("generation",),
    ("training",),
    ("evaluation",),
    ("trials", "audits", "dynamics", "counterfactuals"),
    ("views",),
    ("papers",),
    ("server",),
    ("cli",),
)
"""Rooms from the ground up. A room imports from the floors below, and none from another on its own floor."""

FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
FLOOR["__main__"] = len(FLOORS)
FILES = sorted(SOURCE.rglob("*.py"))
EXCEPTIONS = {
    ("explanations/explanation.py", "salience.views.html"),
    ("counterfactuals/finding.py", "salience.views.counterfactuals"),
    ("explanations/interactions.py", "salience.views.interactions"),
    ("generation/explanation.py", "salience.views.answers"),
    ("evaluation/table.py", "salience.views.evaluation"),
    ("runs/run.py", "salience.views.html"),
    ("runs/summary.py", "salience.views.summary"),
    ("runs/comparison.py", "salience.views.comparison"),
    ("audits/auditor.py", "salience.views.audit"),
}
"""Notebooks show explanations, evaluations, runs and their summaries as HTML."""

TORCH_FREE = (
    "errors.py",
    "core/text.py",
    "core/prompts.py",
    "core/characters.py",
    "core/frames.py",
    "core/settings.py",
    "core/files.py",
    "core/stats.py",
)
TORCH_FREE_ROOMS = ("data", "views", "cli")


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module, and whether it is imported when the file is."""
    tree = ast.parse(path.read_text("utf-8"))
    inner = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    modules = []
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names = [f"{node.module}.{a.name}" if node.module == "salience" else str(node.module) for a in node.names]
        modules += [(name, node not in inner) for name in names]
    return modules


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way_lazy_ones_included(path: Path):
    here = room(path)
    if here == "__init__":
        return
    for name, _ in imports(path):
        parts = name.split(".")
        if parts[0] != "salience" or len(parts) == 1 or parts[1] == here:
            continue
        if (path.relative_to(SOURCE).as_posix(), name) in EXCEPTIONS:
            continue
        assert FLOOR.get(parts[1], -1) < FLOOR[here], f"{path.name} imports {name}, which does not lie below it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_transformers_and_torch_are_imported_only_where_allowed(path: Path):
    names = [name.split(".")[0] for name, at_once in imports(path) if at_once]
    if "huggingface" not in path.parts and path.name != "hf_trainer.py":  # a subclass of transformers' own Trainer
        assert "transformers" not in names
    if room(path) in TORCH_FREE_ROOMS or path.relative_to(SOURCE).as_posix() in TORCH_FREE:
        assert "torch" not in names


def test_every_package_has_a_level():
    rooms = {room(p) for p in FILES if "__pycache__" not in p.parts} - {"__init__"}
    assert rooms == set(FLOOR)


def test_no_package_is_called_utils_or_helpers():
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
