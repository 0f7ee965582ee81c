"""How faithful each explanation of a run is: read from the folder of an evaluation of the same data and model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset as ds

from salience.errors import BadInput
from salience.metrics import METRICS, Metric
from salience.runs.folder import Parts, read_manifest
from salience.runs.run import Run

pc: Any = pyarrow.compute

EVALUATION = "an evaluation"
"""What the folder of ``salience evaluate --out`` holds."""
FLOOR = "random"
"""The control that every evaluation has: an explanation that is no better than it has a low faithfulness."""


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """The numbers of one metric in an evaluation, for the methods that the run has with the same settings."""

    path: Path
    metric: Metric
    methods: tuple[str, ...]

    @property
    def changed(self) -> object:
        """What changes when the folder does."""
        index = Parts(self.path).listed
        return (self.path, index.stat().st_mtime_ns if index.exists() else 0)

    def values(self, method: str) -> pa.Table:
        """The row of each text, its value, and whether that is no better than for random scores."""
        if method not in self.methods:
            raise BadInput(f"{self.path} has no values of {method}; choose {' or '.join(self.methods)}")
        files = [str(file) for file in Parts(self.path).files()]
        columns = {
            "row": pc.field("row"),
            "value": pc.field(self.metric.name, method),
            "floor": pc.field(self.metric.name, FLOOR),
        }
        table = ds.dataset(files, format="parquet").to_table(columns=columns)
        worse = pc.less_equal if self.metric.better == "higher" else pc.greater_equal
        return table.append_column("low", worse(table["value"], table["floor"])).drop_columns(["floor"])


def find_evaluation(run: Run, folders: Iterable[Path]) -> Faithfulness | None:
    """The first of some folders that evaluates the explanations of a run; None if there is none."""
    return next((one for folder in folders if (one := _evaluation(run.manifest, folder))), None)


def _evaluation(run: Mapping[str, Any], folder: Path) -> Faithfulness | None:
    try:
        manifest = read_manifest(folder)
    except BadInput:
        return None
    if manifest.get("holds") != EVALUATION or not Parts(folder).files():
        return None
    if manifest["model"]["digest"] != run["model"]["digest"] or manifest["data"] != run.get("data"):
        return None
    measured = [m for m in METRICS if m.name in manifest["metrics"] and m.aspect == "faithfulness"]
    methods = tuple(name for name, of in run["methods"].items() if manifest["methods"].get(name) == of)
    return Faithfulness(folder, measured[0], methods) if measured and methods else None
