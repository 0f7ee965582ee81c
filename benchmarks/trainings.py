"""Measure how much faster two processes train the students of a grid than one.

python -m benchmarks.trainings                     the bundled model and sample, on two cores that do nothing else
python -m benchmarks.trainings --trainings 16      more trainings, so that starting a process counts less
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.figures import Figure, arguments, measure

from salience.data import source
from salience.models import sample_file
from salience.papers.sallm_when import DataSet, Plan, Teaching, run
from salience.training.loop import Recipe


@dataclass(frozen=True, slots=True)
class Setup:
    model: str
    trainings: int


def workers(s: Setup) -> Iterator[Figure]:
    """The time of a grid with one process, by that with two; the time to start them is included."""
    times = [seconds(s, number) for number in (1, 2)]
    yield Figure("trainings", f"{s.trainings} trainings, two workers by one", times[0] / times[1], limit="≥ 1.8")


def seconds(s: Setup, number: int) -> float:
    """The time of a new grid of equal trainings."""
    texts = source(sample_file(), id="id", label="label")
    plan = Plan((80,), (Teaching("none"),), seeds=s.trainings, recipe=Recipe(epochs=1, batch=16, rate=1e-5), steps=100)
    with TemporaryDirectory() as folder:
        began = perf_counter()
        run(s.model, [DataSet("sample", texts, {"test": texts})], Path(folder) / "grid", plan, workers=number)
        return perf_counter() - began


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {"trainings": workers}


def main() -> None:
    parser = arguments(__doc__, list(BENCHMARKS))
    parser.add_argument("--trainings", type=int, default=12)
    asked = parser.parse_args()
    measure(BENCHMARKS, Setup(asked.model or "sentiment", asked.trainings), asked)


if __name__ == "__main__":
    main()
